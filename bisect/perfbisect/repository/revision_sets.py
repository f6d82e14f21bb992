"""Sets of commits as a user writes them: one revision, or A..B, the commits of B that A lacks."""

from collections.abc import Sequence

from perfbisect.errors import UsageError
from perfbisect.repository.git import Repository, git

DOTS = ".."


def ends_of(text: str) -> tuple[str, ...]:
    """The revisions in ``text``: one, or the two of A..B. Raises UsageError for anything else."""
    ends = tuple(text.split(DOTS))
    if len(ends) > 2 or not all(ends) or any(end.startswith(".") for end in ends):
        raise UsageError(f"'{text}' is neither a revision nor a range of two.", "Write REV, or A..B.")
    return ends


def joined(commits: Sequence[str]) -> str:
    """The same text with the commits of its revisions."""
    return DOTS.join(commits)


def members(repo: Repository, text: str) -> frozenset[str]:
    """The commits (full hashes) of ``text``, whose revisions are full hashes."""
    match ends_of(text):
        case (older, newer):
            return frozenset(git(repo, "rev-list", "--stdin", stdin=f"{newer}\n^{older}\n").split())
        case _:
            return frozenset((text,))
