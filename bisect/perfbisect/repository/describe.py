"""What a commit is for its readers: author, date, subject, and the files that it changed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfbisect.core.domain.events import Commit
from perfbisect.errors import EnvironmentFailure
from perfbisect.repository.command import git

if TYPE_CHECKING:
    from git import Repo


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit did to one file; the numbers of lines are None where git cannot count them."""

    path: str  # the new one of a renamed file
    added: int | None
    removed: int | None


def describe(repo: "Repo", commit: str) -> Commit:
    """One commit, given by its full hash."""
    return describe_all(repo, [commit])[0]


def describe_all(repo: "Repo", commits: Sequence[str]) -> list[Commit]:
    """Many commits at once, in the order given."""
    lines = git(
        repo,
        "rev-list",
        "--stdin",
        "--no-walk=unsorted",
        "--no-commit-header",
        "--format=%H%x00%cs%x00%an%x00%s",
        stdin="\n".join(commits),
    ).split("\n")
    known = {fields[0]: Commit(*fields) for line in lines if len(fields := line.split("\0")) == 4}
    return [known[commit] for commit in commits]


def touched(repo: "Repo", commit: str, ignore: Sequence[str] = ()) -> list[Change]:
    """The files that a commit changed against its first parent, without the ignored paths.

    In a repository without all file contents, files are named but not counted.
    """
    paths = ["--", ":(top)", *(f":(top,exclude,glob){pattern}" for pattern in ignore)]
    parents = git(repo, "rev-list", "--parents", "--max-count=1", commit).split()[1:]
    ends = [parents[0], commit] if parents else ["--root", "--no-commit-id", commit]
    show = ["diff-tree", "-r", "-z", *ends]
    try:
        return list(_counted(git(repo, *show, "--numstat", "--find-renames", *paths)))
    except EnvironmentFailure:
        names = git(repo, *show, "--name-only", "--no-renames", *paths).split("\0")
        return [Change(name, None, None) for name in names if name]


def _counted(numstat: str) -> Iterator[Change]:
    """``added TAB removed TAB path NUL``, or for a rename ``added TAB removed TAB NUL old NUL new NUL``."""
    parts = iter(numstat.split("\0"))
    for part in parts:
        if not part:
            continue
        added, removed, path = part.split("\t", 2)
        if not path:
            _, path = next(parts), next(parts)
        yield Change(path, *(None if count == "-" else int(count) for count in (added, removed)))
