"""A commit as its readers see it: author, date and subject."""

from perfbisect.core.domain.events import Commit
from perfbisect.repository.git import Repository, git


def describe(repo: Repository, commit: str) -> Commit:
    """One commit, given by its full hash."""
    shown = git(repo, "rev-list", "--max-count=1", "--no-commit-header", "--format=%H%x00%cs%x00%an%x00%s", commit)
    return Commit(*shown.rstrip("\n").split("\0"))
