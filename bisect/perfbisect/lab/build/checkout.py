"""Sources on a host: a bare repository with the objects, and a checkout at a fixed path without the ignored paths.

The checkout has no ``.git``. What a build could read from there, such as the commit's hash, would make different
binaries of equal code; and without it nothing a build does can harm the repository.

Ignored paths are given as git's glob pathspecs, from the top of the tree, as they are for the range. git's sparse
checkout reads its patterns as ``.gitignore`` does, where a pattern that matches a folder takes everything below it
along; ``sparse_patterns`` makes up for that difference.
"""

import re
from collections.abc import Collection, Generator, Sequence
from pathlib import Path, PurePosixPath

from perfbisect.errors import CommandFailed, EnvironmentFailure
from perfbisect.host.facts import is_full
from perfbisect.host.outcome import no_space
from perfbisect.host.protocol import Host, Result
from perfbisect.lab.build.git_push import push

_SETTINGS = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "LC_ALL": "C"}
_LEFT_OVERS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
               "GIT_NAMESPACE", "GIT_LITERAL_PATHSPECS", "GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS")  # fmt: skip
_UNSTEERED = ("env", *(word for name in _LEFT_OVERS for word in ("-u", name)))
LONG = 3600.0  # seconds, for what moves all files of a large tree

# $1 the repository, $2 a line for its alternates (empty: it borrows no objects)
_MIRROR = """\
[ -f "$1/HEAD" ] || { mkdir -p "${1%/*}" && git init -q --bare --template= "$1"; } || exit 1
if [ -n "$2" ]; then printf '%s\\n' "$2" | cat >"$1/objects/info/alternates"
else rm -f "$1/objects/info/alternates"; fi
"""

# $1 the repository, $2 the work tree, $3 the commit; stdin are the sparse patterns
_SWITCH = """\
mkdir -p "$2" "$1/info" && rm -f "$1/index.lock" "$1/HEAD.lock" && cat >"$1/info/sparse-checkout" && cd -- "$2" || exit
switch() {
    git --no-replace-objects -c core.bare=false -c core.sparseCheckout=true -c core.sparseCheckoutCone=false -c gc.auto=0 \\
        -c advice.detachedHead=false -c core.logAllRefUpdates=false --git-dir="$bare" --work-tree="$source" "$@"
}
bare=$1 source=$2
switch checkout -q --detach --force "$3" && switch clean -q -ffdx
"""

# $1 the repository, $2 the commit, then paths
_IDENTITY = """\
bare=$1 sha=$2; shift 2
listing=$(mktemp) && trap 'rm -f "$listing"' EXIT && empty=$(git --git-dir="$bare" hash-object -t tree /dev/null) &&
git --no-replace-objects --git-dir="$bare" diff-tree -r -z --no-renames --no-ext-diff "$empty" "$sha" "$@" >"$listing" &&
sha256sum <"$listing"
"""


def mirror(
    host: Host, repository: Path, name: str, commits: Sequence[str]
) -> Generator[tuple[int, int], None, PurePosixPath]:
    """The bare repository ``root/git/NAME.git`` with everything that ``commits`` of the local ``repository`` reach.

    On this machine no object is copied: the mirror borrows them, so that even a repository which lacks some serves for
    the commits and paths which it has. To another machine git pushes those that it lacks, and the steps done and those
    in all are yielded.
    """
    bare = host.root / "git" / f"{name}.git"
    git_dir = _git_dir(repository)
    borrowed = ""
    if host.is_local:
        objects = _git(host, f"--git-dir={git_dir}", "rev-parse", "--git-path", "objects").stdout
        borrowed = _quoted_line(str(Path(objects.removesuffix("\n")).resolve()))
    _scripted(host, _MIRROR, [str(bare), borrowed])
    if not borrowed:
        yield from push(host, bare, git_dir, commits)
    return bare


def checkout(host: Host, bare: PurePosixPath, sha: str, source: PurePosixPath, ignore: Sequence[str]) -> None:
    """Make ``source`` exactly the tree of commit ``sha`` without the ignored paths.

    Raises EnvironmentFailure when the repository lacks the commit, or a file of it that is not ignored.
    """
    try:
        _switch(host, bare, sha, source, ignore)
    except CommandFailed as first:
        if _git(host, f"--git-dir={bare}", "cat-file", "-e", f"{sha}^{{tree}}", check=False).status != 0:
            raise EnvironmentFailure(
                f"commit {sha[:10]} is not in {bare} on host {host.name}",
                "Fetch it into the repository that you hunt in.",
            ) from first
        # The last checkout may have been of another repository, or have been cut short by a power failure: once more,
        # from nothing.
        afresh = 'rm -rf "$2" "$1/index" && git --git-dir="$1" symbolic-ref HEAD refs/heads/none'
        _scripted(host, afresh, [str(bare), str(source)], timeout=LONG)
        try:
            _switch(host, bare, sha, source, ignore)
        except CommandFailed as second:
            found = re.search(r"^(?:fatal|error): .*$", second.output, re.MULTILINE)
            reason = found[0] if found else str(second)
            if is_full(host):
                raise no_space(host.name, f"commit {sha[:10]} is not checked out: {reason}") from second
            raise EnvironmentFailure(
                f"commit {sha[:10]} cannot be checked out on host {host.name}: {reason}",
                "Is the repository complete? A partial clone serves only when its recipe ignores what is missing.",
            ) from second


def filtered_tree(host: Host, bare: PurePosixPath, sha: str, ignore: Sequence[str]) -> str:
    """An id of what the tree of ``sha`` holds beyond the ignored paths: names, modes and contents, no blob needed."""
    paths = ["--", ":(top)", *(f":(top,exclude,glob){pattern}" for pattern in ignore)]
    return _scripted(host, _IDENTITY, [str(bare), sha, *paths]).stdout.split()[0]


def present(host: Host, bare: PurePosixPath, sha: str, paths: Collection[str]) -> frozenset[str]:
    """Those of ``paths`` that are files or folders in the tree of ``sha``, ignored or not."""
    names = {path: path.rstrip("/") for path in paths}
    if not names:
        return frozenset()
    listed = _git(
        host, f"--git-dir={bare}", "ls-tree", "-t", "-z", "--name-only", "--full-tree", sha, "--", *names.values()
    )
    found = set(listed.stdout.split("\0"))
    return frozenset(path for path, name in names.items() if name in found)


def sparse_patterns(ignore: Sequence[str]) -> str:
    """The content of git's sparse-checkout file that leaves out what glob pathspecs match, and nothing else."""
    lines = ["/*"]
    for pattern in sorted(ignore, key=lambda pattern: (_whole_folder(pattern), pattern.count("/"))):
        line = "/" + _quoted_pattern(pattern)
        lines.append("!" + line)
        if not _whole_folder(pattern):
            lines.append(f"{line}/**")  # a glob names files; what is below a folder of such a name stays
    return "".join(line + "\n" for line in lines)


def _whole_folder(pattern: str) -> bool:
    """Whether a glob pathspec takes everything below a folder along: it ends so, or is a plain name."""
    return pattern.endswith("/**") or not re.search(r"[*?\[\\]", pattern)


def _quoted_pattern(pattern: str) -> str:
    """A glob as a line of a pattern file: no line ends in it, and blanks at its end kept."""
    text = re.sub(r"[\r\n]", "?", pattern)
    kept = text.rstrip(" \t")
    return kept + "".join("\\" + blank for blank in text[len(kept) :])


def _switch(host: Host, bare: PurePosixPath, sha: str, source: PurePosixPath, ignore: Sequence[str]) -> None:
    _scripted(host, _SWITCH, [str(bare), str(source), sha], stdin=sparse_patterns(ignore), timeout=LONG)


def _scripted(host: Host, script: str, arguments: Sequence[str], *, stdin: str = "", timeout: float = 60.0) -> Result:
    """Run a script with git, without the configuration and the environment of the user."""
    argv = [*_UNSTEERED, "sh", "-c", script, "git", *arguments]
    return host.run(argv, env=_SETTINGS, stdin=stdin, timeout=timeout)


def _git(host: Host, *arguments: str, check: bool = True) -> Result:
    """Run git, isolated in the same way."""
    return host.run([*_UNSTEERED, "git", "--no-replace-objects", *arguments], env=_SETTINGS, check=check)


def _git_dir(repository: Path) -> Path:
    """The git directory of a repository: bare, with a work tree, or a linked work tree."""
    inner = repository.resolve() / ".git"
    if inner.is_file():
        return inner.parent / inner.read_text().strip().removeprefix("gitdir: ")
    return inner if inner.is_dir() else inner.parent


def _quoted_line(path: str) -> str:
    """A path as a line of an alternates file, where a leading double quote or # has a meaning."""
    if not re.search(r'^["#]|\n', path):
        return path
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
