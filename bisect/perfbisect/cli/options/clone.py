"""The repository of a stored hunt, as reports read it: it may no longer exist."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfbisect.core.domain.events import Commit
    from perfbisect.repository.git import Repository


class Clone:
    """Describes commits from the repository at a path; opened when it is needed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def describe(self, sha: str) -> "Commit":
        """The commit with that full hash; the hash alone when the repository does not have it."""
        from perfbisect.core.domain.events import Commit
        from perfbisect.errors import PerfBisectError
        from perfbisect.repository.commits import describe

        try:
            return describe(self.opened, sha)
        except PerfBisectError:
            return Commit(sha)

    def diff(self, before: str, after: str) -> tuple[str, int] | None:
        """The diff of two commits, and how many files it leaves out; None when the repository lacks one of them."""
        from perfbisect.errors import PerfBisectError
        from perfbisect.repository.commits import diff

        try:
            found = diff(self.opened, before, after)
        except PerfBisectError:
            return None
        return found.text, found.left_out

    @cached_property
    def opened(self) -> "Repository":
        """The repository. Raises PerfBisectError where it cannot be used."""
        from perfbisect.repository.discovery import open_repository

        return open_repository(self.path)
