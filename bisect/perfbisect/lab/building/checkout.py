"""Sources on a host: a bare repository, patches, and a checkout at a fixed path without the ignored paths.

The checkout has no ``.git``: a build might copy the commit's hash into the binary, so that equal code would give
different binaries, and a build could damage the repository. Ignored paths are glob pathspecs of git, relative to the
top of the tree. perfbisect writes a git tree without the ignored paths and checks out this tree, because a sparse
checkout would interpret the pathspecs differently.

On a host, git runs without the user's configuration and with listed environment variables only, because any other
variable might change what git does. git push sends the commits to the bare repository through perfbisect's connection
to the host: git push talks to a socket, and the other end of the socket is git receive-pack on the host. So git needs
no separate connection to the host, and sends only missing objects. The push comes from a temporary repository that
borrows the objects, so hooks, addresses and signatures that are configured for the user or the repository are not used.
"""

import errno
import hashlib
import os
import re
import shlex
from collections import deque
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from perfbisect.core.domain.settings import Patch
from perfbisect.errors import BuildFailed, CommandFailed, ConnectionLost, EnvironmentFailure
from perfbisect.host.facts import is_disk_nearly_full
from perfbisect.host.protocol import Host, Result, check_result, disk_full_error
from perfbisect.lab.building.log_parser import CHECKOUT, FETCH, SEND, BuildStep, steps_as_progress
from perfbisect.masking import mask_credentials
from perfbisect.recipes.builder_reader import version_satisfies
from perfbisect.repository.derived import APPLY, applied_commit_or_error, base64_patch
from perfbisect.repository.discovery import is_partial_clone
from perfbisect.repository.git import (
    BARE,
    OPTIONS,
    PROGRAMS,
    SEALED,
    SEARCHED,
    Repository,
    alternates_line,
    git_failure,
    isolated_environment,
    pathspecs_except,
    run_with_progress,
    temporary_bare_repository,
)
from perfbisect.repository.submodules import Unavailable, find_locally, find_origin, find_submodule, needed_submodules

SHORT = 60.0  # seconds that a single command takes at most

# Keeps only the absolute paths in lists of folders, because relative paths would be below a checkout.
_ABSOLUTE = """\
absolute() { kept=; for each in $1; do case $each in /*) kept=$kept${kept:+:}$each;; esac; done; }
set -f; IFS=:
"""
_SEARCHED = "".join(f'absolute "${{{name}-}}"; {name}=$kept\n' for name in SEARCHED)
_INHERITED = " ".join(f'${{{name}:+"{name}=${name}"}}' for name in PROGRAMS)
_FIXED = " ".join(f"{name}={shlex.quote(value)}" for name, value in SEALED.items())
ALONE = ("sh", "-c", f'{_ABSOLUTE}{_SEARCHED}exec env -i {_INHERITED} {_FIXED} "$@"', "alone")  # put before a command
GIT = (*ALONE, "git", *OPTIONS)
_FUNCTION = f'git() {{ command git {shlex.join(OPTIONS)} "$@"; }}\n'


def git_script(host: Host, script: str, arguments: Sequence[str], *, stdin: str = "", timeout: float = SHORT) -> Result:
    """Run a shell script in which each call of ``git`` has the options OPTIONS."""
    argv = [*ALONE, "sh", "-c", _FUNCTION + script, "git", *arguments]
    done = host.run(argv, stdin=stdin, timeout=timeout, check=False)
    return check_result(host.name, replace(done, argv=("sh", "-c", script, "git", *arguments)), True)


def run_git(host: Host, *arguments: str, check: bool = True) -> Result:
    """Run one git command."""
    done = host.run([*GIT, *arguments], timeout=SHORT, check=False)
    return check_result(host.name, replace(done, argv=("git", *arguments)), check)


REFS = "refs/perfbisect"
SENDING = "Writing objects"  # git's name of the step that sends objects
# Prints the commits that were not sent.
_NOT_SENT = 'cd -- "$1" && shift && for sha do [ -f "$sha" ] || echo "$sha"; done'
ATTEMPTS = 5  # most attempts to push, if the connection breaks off

# git collects no garbage in the background, which would disturb a measurement.
_RECEIVE = (*GIT, "-c", "gc.auto=0", "-c", "receive.autogc=false", "-c", "receive.fsckObjects=false", "receive-pack")


def push(host: Host, bare: PurePosixPath, repository: Repository, commits: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Send ``commits`` and all their ancestors to the bare repository, with a reference to each of ``commits``.

    Yields the numbers of finished steps and of all steps, but yields nothing if no objects have to be sent. Raises
    EnvironmentFailure for a partial clone, and if the connection stays lost."""
    for attempts_left in reversed(range(ATTEMPTS)):
        unique = list(dict.fromkeys(commits))
        listing = host.script(_NOT_SENT, bare / REFS, *unique, check=False)  # waits if the connection is lost
        absent = listing.stdout.split() if listing.ok else unique
        if not absent:
            return
        if is_partial_clone(repository):
            text = f"{repository.folder} is a partial clone, whose commits cannot be copied to another machine"
            raise EnvironmentFailure(text, "Make a clone without --filter, and give it with --repo.")
        yield 0, 0
        try:
            yield from _push(host, bare, repository, absent)
            return
        except ConnectionLost:
            if not attempts_left:
                raise


def _push(host: Host, bare: PurePosixPath, repository: Repository, commits: Sequence[str]) -> Iterator[tuple[int, int]]:
    refs = [f"{commit}:{REFS}/{commit}" for commit in commits]
    failure = f"{repository.folder} cannot be pushed to host {host.name}"
    env = isolated_environment() | {"GIT_ALLOW_PROTOCOL": "fd"}
    failed: EnvironmentFailure | None = None
    try:
        with temporary_bare_repository(repository) as lender, host.stream([*_RECEIVE, str(bare)]) as socket:
            end = socket.fileno()
            try:
                sending = [f"--git-dir={lender}", "push", "--progress", f"fd::{end}", *refs]
                for stage, done, total in run_with_progress(failure, sending, env, [end]):
                    if stage == SENDING:
                        yield done, total
            except EnvironmentFailure as error:  # the receiving side may report a better reason
                failed = error
    except CommandFailed as refused:
        why = refused.output or f"git receive-pack ended with status {refused.status}"
        raise git_failure(failure, why) from refused
    if failed:
        raise failed


LONG = 3600.0  # seconds, for a command that moves all files of a large tree

_REFUSED = 128  # exit status of git for a request that git cannot fulfil

# $1 is the repository, $2 the checkout, $3 a commit or tree, $4 the folder in the checkout for this tree, $5 "keep" if
# files that git does not know stay; then pathspecs of the ignored paths. A link at $4, which a build may have left, is
# removed, because the link may lead elsewhere.
_SWITCH = f"""\
bare=$1 source=$2${{4:+/}}$4 tree=$3 keep=$5
real() {{ (cd -P -- "$1" && pwd -P); }}
[ -z "$4" ] || [ "$(real "${{source%/*}}")/${{4##*/}}" = "$(real "$2")/$4" ] || {{
    echo "fatal: a link leads to $4" >&2; exit {_REFUSED}
}}
shift 5
switch() {{
    git -c core.bare=false -c core.sparseCheckout=false --git-dir="$bare" --work-tree="$source" "$@"
    case $? in 0) ;; 1 | {_REFUSED}) exit {_REFUSED} ;; *) exit 1 ;; esac
}}
[ ! -L "$source" ] || rm -f "$source"
rm -f "$bare/index.lock" "$bare/filter.lock" && mkdir -p "$source" && cd -- "$source" || exit
if [ $# != 0 ]; then # the tree without them
    tree=$(
        export GIT_INDEX_FILE="$bare/filter"
        switch read-tree --reset "$tree"
        switch ls-files -z -- "$@" | switch update-index -z --force-remove --stdin || exit
        switch write-tree --missing-ok
    ) || exit
fi
switch read-tree --reset -u "$tree"
[ -n "$keep" ] || switch clean -q -ffdx
"""

# $1 is the repository, $2 the commit; then pathspecs. Prints a hash of the commit's files. Submodules count, even if
# `submodule.NAME.ignore` excludes them in the .gitmodules of the commit that is checked out now. The script makes no
# temporary file, because a killed script would leave the file behind.
_IDENTITY = """\
bare=$1 sha=$2; shift 2
empty=$(git --git-dir="$bare" hash-object -t tree /dev/null) || exit
listing() {
    git --git-dir="$bare" diff-tree -r -z --no-renames --no-ext-diff --ignore-submodules=none "$empty" "$sha" "$@"
}
exec 3>&1
status=$({ { listing "$@" 3>&- 4>&- || echo "$?" >&4; } | sha256sum >&3 4>&-; } 4>&1) && exit "${status:-0}"
"""

_SAVE = '(umask 077; mkdir -p "${1%/*}") && cat >"$1"'

# How git ends a message about a failure of the host, and not of the commit.
_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EMFILE,
           errno.ENFILE, errno.EAGAIN, errno.ESTALE, errno.ENXIO)  # fmt: skip
_OF_THE_HOST = re.compile(
    rf"^(?:fatal|error): (?:.*: (?:{'|'.join(re.escape(os.strerror(number)) for number in _ERRORS)})|Out of memory.*)$",
    re.MULTILINE,
)
_ABSENT = re.compile(r"unable to read (?:sha1 file|tree)|missing|bad object")


def bring_mirror(
    host: Host, repository: Repository, name: str, commits: Sequence[str]
) -> Generator[tuple[int, int], None, PurePosixPath]:
    """The bare repository ``root/git/NAME.git``, with everything that is reachable from ``commits`` of ``repository``.

    On this machine, the bare repository uses the object store of ``repository``, so a partial clone suffices if the
    commits are complete. On another machine, git pushes missing objects. Yields the numbers of finished steps and of
    all steps."""
    bare = host.root / "git" / f"{name}.git"
    borrows = alternates_line(repository.objects) if host.is_local else ""
    git_script(host, BARE, [str(bare), repository.object_format, borrows])
    if not borrows:
        yield from push(host, bare, repository, commits)
    return bare


@dataclass(frozen=True, slots=True)
class SubmoduleTree:
    """The tree of a submodule, which is checked out below the checkout of a commit."""

    bare: PurePosixPath  # the repository on the host that has the tree and its index; each path has its own repository
    tree: str
    path: str  # path of the submodule, relative to the checkout
    ignore: Sequence[str]


def checkout(
    host: Host,
    bare: PurePosixPath,
    sha: str,
    to: PurePosixPath,
    ignore: Sequence[str],
    submodules: Sequence[SubmoduleTree] = (),
    *,
    keep_untracked: bool = False,
) -> None:
    """Make the folder ``to`` equal to the tree of commit ``sha``, without the ignored paths, and with ``submodules``.

    With ``keep_untracked``, files that git does not know stay in the folder. All other submodules become empty folders.
    ``submodules`` lists each submodule before the submodules inside of it. Raises BuildFailed for a commit that git
    cannot check out: it has a path that git forbids or that is too long, or the repository lacks one of its files.
    Raises EnvironmentFailure if the repository lacks the commit, or if the host is at fault."""
    trees = [SubmoduleTree(bare, sha, "", ignore), *submodules]
    try:
        for part in trees:
            _switch(host, to, part, keep=keep_untracked)
    except CommandFailed:
        # The last checkout may have been of another repository, or was cut short by a power failure: check out once more,
        # into an empty folder.
        for part in trees:
            git_script(host, 'rm -rf "$1/index" "$2"', [str(part.bare), str(to)], timeout=LONG)
        for part in trees:
            with convert_git_errors(host, part.bare, sha, part):
                _switch(host, to, part)


def filtered_tree(host: Host, bare: PurePosixPath, sha: str, ignore: Sequence[str]) -> str:
    """A hash of the names, modes and contents in the tree of ``sha``, without the ignored paths. No blob is needed."""
    paths = ["--", *pathspecs_except(ignore)]
    with convert_git_errors(host, bare, sha):
        return git_script(host, _IDENTITY, [str(bare), sha, *paths]).stdout.split()[0]


def present_paths(
    host: Host, bare: PurePosixPath, sha: str, paths: Collection[str], files: Collection[str] = ()
) -> frozenset[str]:
    """The ``paths`` that are files or folders in the tree of ``sha``, and the ``files`` that are files in it."""
    names = {path: path.rstrip("/") for path in (*paths, *files)}
    if not names:
        return frozenset()
    listing = ["ls-tree", "-t", "-z", "--full-tree", sha, "--", *names.values()]
    with convert_git_errors(host, bare, sha):
        entries = [entry.partition("\t") for entry in run_git(host, f"--git-dir={bare}", *listing).stdout.split("\0")]
    kinds = {name: kind.split()[1] for kind, _, name in entries if name}
    return frozenset(path for path, name in names.items() if name in kinds and (path in paths or kinds[name] == "blob"))


@contextmanager
def convert_git_errors(
    host: Host, bare: PurePosixPath, sha: str, submodule: SubmoduleTree | None = None
) -> Iterator[None]:
    """A context in which a failure of git raises EnvironmentFailure if the host or the repository is at fault, and
    BuildFailed if the commit is at fault."""
    try:
        yield
    except CommandFailed as failed:
        match = re.search(r"^(?:fatal|error): .*$", failed.output, re.MULTILINE)
        reason = match[0] if match else str(failed)
        reason = reason if len(reason) <= 300 else f"{reason[:200]} … {reason[-80:]}"  # a path may have 4096 characters
        if submodule and submodule.path:
            reason = f"submodule {submodule.path}: {reason}"
        if is_disk_nearly_full(host):
            raise disk_full_error(host.name, f"commit {sha[:10]} is not checked out: {reason}") from failed
        trouble = _OF_THE_HOST.search(failed.output)
        if failed.status != _REFUSED or trouble:
            why = trouble[0] if trouble else reason
            raise EnvironmentFailure(f"commit {sha[:10]} cannot be checked out on host {host.name}: {why}") from failed
        tree = f"{submodule.tree if submodule else sha}^{{tree}}"
        if run_git(host, f"--git-dir={bare}", "cat-file", "-e", tree, check=False).status != 0:
            advice = "Fetch the commit into your clone."
            raise EnvironmentFailure(f"commit {sha[:10]} is not in {bare} on host {host.name}", advice) from failed
        hint = "If this is a partial clone, the recipe must ignore missing files." if _ABSENT.search(reason) else ""
        raise checkout_error(host, sha, reason, failed.output, hint) from failed


def checkout_error(host: Host, sha: str, reason: str, log: str, hint: str) -> BuildFailed:
    """The error for a commit that cannot be checked out; the log of the checkout is saved on the host."""
    path = str(host.root / "logs" / f"checkout-{sha[:10]}-{sha[-10:]}.log")
    host.script(_SAVE, path, stdin=log)
    return BuildFailed(f"commit {sha[:10]} cannot be checked out: {reason}", stage=CHECKOUT, log=path, hint=hint)


def _switch(host: Host, source: PurePosixPath, part: SubmoduleTree, *, keep: bool = False) -> None:
    ignored = [f":(top,glob){pattern}" for pattern in part.ignore]
    arguments = [str(part.bare), str(source), part.tree, part.path, "keep" * keep, *ignored]
    git_script(host, _SWITCH, arguments, timeout=LONG)


@dataclass(frozen=True, slots=True)
class BuildSource:
    """A commit of the range, and the patched commit that is built instead (the same commit if there are no patches)."""

    sha: str
    built_commit: str  # the commit that is checked out: the same, or a new commit with patches
    patches: Mapping[str, bool] = field(default_factory=dict)  # name of a patch → whether the patch was applied


def with_common_patches(host: Host, bare: PurePosixPath, sha: str, patches: Sequence[Patch]) -> BuildSource:
    """The commit ``sha`` with the patches for all versions applied; ``with_version_patches`` applies the other patches.

    Raises BuildFailed if git cannot read the commit, and EnvironmentFailure if the host or the repository is at fault.
    """
    sources = BuildSource(sha, sha, {patch.name: False for patch in patches})
    return _with_patches(host, bare, sources, [patch for patch in patches if not patch.version])


def with_version_patches(
    host: Host, bare: PurePosixPath, sources: BuildSource, patches: Sequence[Patch], version: str
) -> BuildSource:
    """``sources`` with the patches for this version. These patches are applied after all others, because only a
    checkout shows the version.
    """
    fitting = [patch for patch in patches if patch.version and version_satisfies(version, patch.version)]
    return _with_patches(host, bare, sources, fitting)


def _with_patches(host: Host, bare: PurePosixPath, sources: BuildSource, patches: Sequence[Patch]) -> BuildSource:
    for patch in patches:
        with convert_git_errors(host, bare, sources.sha):
            done = git_script(host, APPLY, [str(bare), sources.built_commit], stdin=base64_patch(patch.content))
        commit, _ = applied_commit_or_error(done.stdout)
        if commit:
            sources = replace(sources, built_commit=commit, patches={**sources.patches, patch.name: True})
    return sources


MAX_SUBMODULES = 1000  # most submodules of one commit; an endless chain of submodules is not followed further


def tree_id_with_submodules(tree: str, repository: Repository, sha: str, ignore: Sequence[str]) -> str:
    """A hash of ``tree`` and the commit's checked-out submodules, all without the ignored paths.

    The id of ``tree`` depends on the hashes of the submodules, but not on the paths that are ignored in the submodules.
    """
    needed = needed_submodules(repository, sha, ignore)
    if not needed:
        return tree
    parts = [tree, *(f"{part}" for module in needed for part in (module.path, module.commit, *module.ignore, ""))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def bring_submodules(
    host: Host, name: str, repository: Repository, sha: str, ignore: Sequence[str], upstream: str
) -> Generator[BuildStep, None, tuple[SubmoduleTree, ...]]:
    """Bring the submodules of a commit, and their own submodules, to the host; yields the stages "fetch" and "send".

    ``name`` is the name of the repository on the host; ``upstream`` is used as the address of ``repository`` if the
    repository has no configured address. Raises BuildFailed if a submodule cannot be fetched.
    """
    parts: list[SubmoduleTree] = []
    pending = deque((repository, sha, upstream, "", module) for module in needed_submodules(repository, sha, ignore))
    while pending:
        parent, tree, address, prefix, submodule = pending.popleft()
        path = prefix + submodule.path
        try:
            if len(parts) == MAX_SUBMODULES:
                raise Unavailable(f"it has more than {MAX_SUBMODULES} submodules")
            source = yield from steps_as_progress(FETCH, find_submodule(parent, tree, submodule, address))
        except Unavailable as failed:
            log = "".join(f"{line}\n" for line in (str(failed), failed.advice, *failed.tried))
            raise checkout_error(host, sha, str(failed), mask_credentials(log), failed.advice) from failed
        path_hash = hashlib.sha256(path.encode()).hexdigest()[:16]
        folder = f"{name}.git/modules/{path_hash}"
        bare = yield from steps_as_progress(SEND, bring_mirror(host, source.repository, folder, [source.tree]))
        parts.append(SubmoduleTree(bare, source.tree, path, submodule.ignore))
        inner = needed_submodules(source.repository, source.tree, submodule.ignore)
        pending.extend((source.repository, source.tree, source.address, f"{path}/", module) for module in inner)
    return tuple(parts)


def submodule_origin_lines(repository: Repository, sha: str, ignore: Sequence[str], upstream: str) -> Iterator[str]:
    """For each submodule of a commit, a line with its origin; submodules of submodules are left out. Nothing is
    fetched.
    """
    for module in needed_submodules(repository, sha, ignore):
        origin = find_origin(repository, sha, module, upstream)
        source, _ = find_locally(origin, repository, module)
        else_from = f"cannot be fetched: {origin.refused}" if origin.refused else f"fetched from {origin.address}"
        whence = f"from {source.repository.folder}" if source else else_from
        yield mask_credentials(f"{module.path} at {module.commit[:10]}: {whence}")
