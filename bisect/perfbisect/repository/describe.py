"""A commit as its readers see it: author, date and subject."""

import re

from perfbisect.core.domain.events import Commit
from perfbisect.masking import masked
from perfbisect.repository.git import Repository, git

LONGEST = 500  # characters of a subject or an author that are kept


def describe(repo: Repository, commit: str) -> Commit:
    """One commit, given by its full hash. What its object lacks is empty."""
    shown = git(repo, "rev-list", "--max-count=1", "--no-commit-header", "--format=%H%x00%cs%x00%an%x00%s", commit)
    sha, date, author, subject = shown.rstrip("\n").split("\0")
    return Commit(sha, date if re.match(r"\d", date) else "", _cut(author), _cut(subject))


def _cut(text: str) -> str:
    text = masked(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
