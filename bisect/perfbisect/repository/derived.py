"""Makes commits that the user's repository lacks: an existing commit (the tip) without the changes of some of its
ancestors, by `git revert`; or a commit with a patch.

**Reverts.** A revert is made in a temporary repository, which reads the objects of the user's repository. The user's
repository is only read: nothing is added to it. For the revert, git's index contains all files of the tree, and the
work tree is empty. git treats a file that is missing in the work tree as unchanged, so git writes only the files that
the revert changes.

Paths that a recipe ignores cannot change the speed. Files at ignored paths are not reverted, so that a conflict in
documentation or tests does not prevent the revert. A file with a conflict is also left unchanged if no build reads the
file.

perfbisect also settles a conflict in which the revert and a later commit change adjacent lines, but not the same lines.
git merges two changes of a file only if unchanged lines are between the changes. Adjacent changes are frequent in
reverts, because later commits often add functions right after the functions of the reverted commit. If the later commit
only added lines before and after lines that the revert replaces (or the reverse), only one result is possible: the
replaced lines, with the added lines before and after.

**Patches.** A patch is applied to an index, not to files. So a patch cannot write outside of the tree, follow a
symbolic link, or overwrite a file that a build made. The lines that a patch removes, and its context lines, must exist
in the file, but may have other line numbers.
"""

import base64
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from perfbisect.errors import PerfBisectError, UsageError
from perfbisect.repository.git import (
    Repository,
    git_failure,
    isolated_environment,
    printable_path,
    run_git,
    temporary_bare_repository,
)

INCONCLUSIVE = 2

# The hash of the derived commit, and the key of its build, must not depend on the user and the time.
_WHO = {
    f"GIT_{role}_{part}": value
    for role in ("AUTHOR", "COMMITTER")
    for part, value in (("NAME", "perfbisect"), ("EMAIL", "perfbisect@localhost"), ("DATE", "1980-01-01T00:00:00Z"))
}

MARKER = 64  # length of a conflict marker, so large that no file contains such a marker

_CONFLICT = 1  # exit status of `git revert` after a conflict
_ERROR = 128  # smallest error status of `git merge-file`; a smaller status is the number of conflicts
_SHOWN = 10  # most paths with conflicts that a message names


class CannotRevert(PerfBisectError):
    """Raised because commits cannot be reverted without conflicts, or because the revert changes nothing."""

    exit_status = INCONCLUSIVE


@dataclass(frozen=True, slots=True)
class CommitWithoutChanges:
    """A new commit without the changes of some of its ancestors, which exists only in a temporary repository."""

    repository: Repository  # the user's repository, with this commit and its objects
    commit: str  # full hash
    merges: tuple[str, ...]  # reverted merges, each reverted relative to its first parent
    adjacent_paths: tuple[str, ...]  # paths in which lines of later commits are adjacent to reverted lines
    conflict_paths: tuple[str, ...]  # paths with a conflict, which keep the content of the tip


@contextmanager
def temporary_revert(
    repo: Repository, tip: str, commits: Sequence[str], ignore: Sequence[str],
    is_unread: Callable[[str], bool] = lambda path: False, compare_command: str = "bisect compare GOOD BAD reverted",
) -> Iterator[CommitWithoutChanges]:  # fmt: skip
    """A new commit: ``tip`` without the changes of its ancestors ``commits`` (full hashes, newest first). The changes
    of a merge commit are relative to its first parent. Equal arguments always give the same hash. Raises CannotRevert
    for a conflict in a file that a build may read: its path matches no glob in ``ignore``, and ``is_unread(path)`` is
    false. The advice then shows ``compare_command``, with which the user compares a revert made by hand. Also raises
    CannotRevert if the revert changes nothing. Raises EnvironmentFailure if git fails.
    """
    with temporary_bare_repository(repo) as bare:
        ask = TemporaryGit(bare)
        ask.git("update-ref", "--no-deref", "HEAD", tip)
        tip_tree = tree = ask.git("rev-parse", f"{tip}^{{tree}}").strip()
        merges: list[str] = []
        beside, unchanged = set[str](), set[str]()
        for commit in commits:
            is_merge = len(ask.git("rev-list", "--max-count=1", "--parents", commit).split()) > 2
            merges += [commit] if is_merge else []
            mainline = ["--mainline", "1"] if is_merge else []
            tree, touching, stay, conflicts = _tree_without_commits(bare, tree, [*mainline, commit], ignore, is_unread)
            if conflicts := [*map(printable_path, conflicts)]:
                further = f" and {len(conflicts) - _SHOWN} more" if len(conflicts) > _SHOWN else ""
                shown = f"{', '.join(conflicts[:_SHOWN])}{further}"
                raise CannotRevert(
                    f"The revert of {commit[:10]} has conflicts in {shown}.",
                    f"Revert {commit[:10]} by hand (git switch -c reverted {tip[:10]}; git revert {commit[:10]}), commit, and"
                    f" compare: {compare_command}",
                )
            beside.update(map(printable_path, touching))
            unchanged.update(map(printable_path, stay))
        if tree == tip_tree:
            raise CannotRevert(
                f"The revert of {_shortened_hashes(commits)} changes nothing in {tip[:10]}.",
                "Later commits have reverted the commit already, or the commit changes only paths that the recipe ignores.",
            )
        message = f"Revert {_shortened_hashes(commits)}\n\nThis is {tip} without {', '.join(commits)}.\n"
        revert = ask.git("commit-tree", "-p", tip, tree, stdin=message).strip()
        of_user = replace(repo, objects=bare / "objects")
        yield CommitWithoutChanges(of_user, revert, tuple(merges), tuple(sorted(beside)), tuple(sorted(unchanged)))


def _tree_without_commits(
    bare: Path, tree: str, commits: Sequence[str], ignore: Sequence[str], is_unread: Callable[[str], bool]
) -> tuple[str, list[str], list[str], list[str]]:
    """The hash of ``tree`` after `git revert` of ``commits``, and three lists of paths that had a conflict: paths in
    which conflicts of adjacent lines were settled, paths that were left unchanged, and paths whose conflict remains. If
    a conflict remains, the hash is "".
    """
    with TemporaryDirectory(prefix="revert-", dir=bare) as folder:
        ask = TemporaryGit(bare, Path(folder))
        ask.git("read-tree", tree)
        done = ask.run("revert", "--no-commit", *commits)
        unmerged = ask.conflicts()
        if done.returncode and not (done.returncode == _CONFLICT and unmerged):
            raise git_failure(f"{commits[-1][:10]} cannot be reverted", done.stderr)
        if ignore:
            ask.run("reset", "-q", tree, "--", *(f":(top,glob){pattern}" for pattern in ignore))
        conflicts = ask.conflicts()
        beside = [path for path, stages in conflicts.items() if ask.settle_file(path, stages)]
        stay = [path for path in conflicts if path not in beside and is_unread(path)]
        if stay:
            ask.run("reset", "-q", tree, "--", *(f":(top,literal){path}" for path in stay))
        conflicts_left = [path for path in conflicts if path not in (*beside, *stay)]
        stay += [path for path in unmerged if path not in conflicts]
        result = "" if conflicts_left else ask.git("write-tree", "--missing-ok").strip()
        return result, beside, stay, conflicts_left


@dataclass(frozen=True, slots=True)
class TemporaryGit:
    """Runs git commands in a temporary repository. If ``folder`` is given, git's index and work tree are in this
    folder."""

    bare: Path
    folder: Path | None = None

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a git command and wait for its end."""
        options, env = [f"--git-dir={self.bare}"], isolated_environment() | _WHO
        if self.folder:
            files = self.folder / "files"
            files.mkdir(exist_ok=True)
            options += ["-c", "core.bare=false", f"--work-tree={files}"]
            env["GIT_INDEX_FILE"] = str(self.folder / "index")
        return run_git([*options, *arguments], self.folder or self.bare, env, stdin, errors="surrogateescape")

    def git(self, *arguments: str, stdin: str = "") -> str:
        """The output of a git command. Raises EnvironmentFailure if the command fails."""
        done = self.run(*arguments, stdin=stdin)
        if done.returncode:
            raise git_failure(f"git {arguments[0]} failed in {self.bare}", done.stderr)
        return done.stdout

    def content(self, blob: str) -> bytes:
        """The content of the file with the hash ``blob``."""
        file = self.bare / self.git("unpack-file", blob).strip()
        content = file.read_bytes()
        file.unlink()
        return content

    def conflicts(self) -> dict[str, dict[str, tuple[str, str]]]:
        """For each path with a conflict, a dict that maps the side ("1" the base, "2" ours, "3" theirs) to the mode and
        blob of the file on this side."""
        conflicts: dict[str, dict[str, tuple[str, str]]] = {}
        for entry in filter(None, self.git("ls-files", "--unmerged", "-z").split("\0")):
            head, _, path = entry.partition("\t")
            mode, blob, stage = head.split(" ")
            conflicts.setdefault(path, {})[stage] = mode, blob
        return conflicts

    def settle_file(self, path: str, stages: Mapping[str, tuple[str, str]]) -> bool:
        """Settle the conflict in a file if the two sides changed adjacent lines, but not the same lines; returns
        whether this was possible."""
        assert self.folder
        modes = {mode for mode, _ in stages.values()}
        if len(stages) < 3 or len(modes) > 1 or not modes <= {"100644", "100755"}:
            return False
        sides = [self.git("unpack-file", stages[side][1]).strip() for side in "213"]
        contents = [(self.folder / side).read_bytes() for side in sides]
        if any(sign * MARKER in text for text in contents for sign in (b"<", b"|", b"=", b">")):
            return False
        status = self.run("merge-file", "--quiet", "--diff3", f"--marker-size={MARKER}", *sides).returncode
        merged = self.folder / sides[0]
        result = settle_conflicts(merged.read_bytes()) if status < _ERROR else None
        if result is None:
            return False
        merged.write_bytes(result)
        blob = self.git("hash-object", "-w", "--no-filters", str(merged)).strip()
        self.git("update-index", "--cacheinfo", f"{modes.pop()},{blob},{path}")
        return True


def _shortened_hashes(commits: Sequence[str]) -> str:
    return ", ".join(commit[:10] for commit in commits)


def settle_conflicts(merged: bytes) -> bytes | None:
    """``merged``, the output of `git merge-file --diff3 --marker-size=MARKER`, after settling its conflicts; None if
    one of its conflicts cannot be settled.
    """
    signs = [re.escape(sign * MARKER) for sign in (b"<", b"|", b"=", b">")]
    ours, base, theirs, end = (rb"^" + sign + rb"(?: [^\n]*)?\n" for sign in signs)
    conflict = re.compile(ours + rb"(.*?)" + base + rb"(.*?)" + theirs + rb"(.*?)" + end, re.DOTALL | re.MULTILINE)
    parts, done = [], 0
    for match in conflict.finditer(merged):
        result = settle_lines(*(part.splitlines(keepends=True) for part in match.groups()))
        if result is None:
            return None
        parts += [merged[done : match.start()], *result]
        done = match.end()
    return b"".join([*parts, merged[done:]])


def settle_lines(ours: Sequence[bytes], base: Sequence[bytes], theirs: Sequence[bytes]) -> list[bytes] | None:
    """The merged lines of one conflict; None if ``ours`` and ``theirs`` changed the same lines of ``base``, or added
    lines at the same position.
    """
    for side, opposite in ((ours, theirs), (theirs, ours)):
        size = len(base)
        places = [at for at in range(len(side) - size + 1) if size and list(side[at : at + size]) == list(base)]
        if len(places) == 1:
            return [*side[: places[0]], *opposite, *side[places[0] + size :]]
    return None


# $1: a bare repository that perfbisect made. $2: a commit. stdin: the patch in base64. Prints the hash of the commit
# with the patch, or "refused" and the lines with which git refuses the patch. git first checks the patch without
# writing: the patch causes an error of the check, and the host causes a later error. The index has a fixed name, so
# that the next script removes the index of a killed script.
APPLY = """\
GIT_INDEX_FILE=$1/perfbisect.index
export GIT_INDEX_FILE GIT_AUTHOR_NAME=perfbisect GIT_AUTHOR_EMAIL=perfbisect GIT_AUTHOR_DATE='@0 +0000'
export GIT_COMMITTER_NAME=perfbisect GIT_COMMITTER_EMAIL=perfbisect GIT_COMMITTER_DATE='@0 +0000'
rm -f "$GIT_INDEX_FILE" "$GIT_INDEX_FILE.lock"
git --git-dir="$1" read-tree "$2" || exit
patch=$(cat) bare=$1
apply() { printf '%s' "$patch" | base64 -d | git --git-dir="$bare" apply --cached --whitespace=nowarn "$@"; }
if why=$(apply --check 2>&1); then
    apply && tree=$(git --git-dir="$1" write-tree --missing-ok) || exit
    git --git-dir="$1" commit-tree -p "$2" -m 'with a patch' "$tree" || exit
else
    status=$?
    [ $status -le 128 ] || exit $status
    printf 'refused\\n%s\\n' "$why"
fi
rm -f "$GIT_INDEX_FILE"
"""


def base64_patch(content: bytes) -> str:
    """A patch in base64, as the script ``APPLY`` reads it."""
    return base64.b64encode(content).decode()


def applied_commit_or_error(printed: str) -> tuple[str, str]:
    """The result of applying a patch, from the output of the script ``APPLY``: the hash of the new commit and ""; or,
    after a failure, "" and git's first error."""
    first, _, details = printed.partition("\n")
    return ("", apply_failure_reason(details)) if first == "refused" else (first.strip(), "")


def apply_failure_reason(stderr: str) -> str:
    """The first error in the stderr of `git apply`."""
    match = re.search(r"^(?:error|fatal): (.+)$", stderr, re.MULTILINE)
    return match[1] if match else "git gives no reason"


def apply_patch_as_commit(bare: Path, commit: str, content: bytes) -> tuple[str, str]:
    """Apply a patch to a commit in the temporary repository ``bare``. Returns the hash of the new commit and ""; or, if
    the patch does not apply, "" and git's first error."""
    done = run_git([str(bare), commit], bare, isolated_environment(), base64_patch(content), script=APPLY)
    return applied_commit_or_error(done.stdout) if done.returncode == 0 else ("", apply_failure_reason(done.stderr))


def paths_of_patch(bare: Path, name: str, content: bytes) -> list[str]:
    """The paths that a patch changes. Raises UsageError if ``content`` is no patch."""
    text = content.decode(errors="surrogateescape")
    command = [f"--git-dir={bare}", "apply", "--numstat", "-z"]
    done = run_git(command, bare, isolated_environment(), text, errors="surrogateescape")
    if done.returncode:
        advice = "Use the output of `git diff` or `git format-patch --stdout`."
        raise UsageError(f"git cannot read the patch {name}: {apply_failure_reason(done.stderr)}.", advice)
    return [line.split("\t", 2)[2] for line in done.stdout.split("\0") if line.count("\t") >= 2]
