"""Which commits of a range touch which paths."""

from collections.abc import Iterable

from perfbisect.repository.git import Repository, git


def touched(
    repo: Repository, good: str, bad: str, paths: Iterable[str], *, first_parent: bool = False
) -> dict[str, frozenset[str]]:
    """For each path (a folder, a file or one of git's globs) the commits (full hashes) of good..bad that change it.

    A merge counts where it differs from all of its parents; along first parents, where it differs from the first.
    """
    walk = ["rev-list", "--full-history", *(["--first-parent"] if first_parent else []), bad, f"^{good}", "--"]
    return {path: frozenset(git(repo, *walk, f":(top,glob){path}").split()) for path in paths}
