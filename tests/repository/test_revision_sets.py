"""Revisions and ranges as a user writes them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.errors import UsageError
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.revision_sets import ends_of, joined, members


@pytest.mark.parametrize(
    ("text", "ends"),
    [("v1.0", ("v1.0",)), ("8.0.28..8.0.29", ("8.0.28", "8.0.29")), ("HEAD~3..x^", ("HEAD~3", "x^")), ("..", None),
     ("a..", None), ("..b", None), ("a...b", None), ("a..b..c", None), ("", None)],
)  # fmt: skip
def test_a_revision_or_a_range_of_two(text: str, ends: tuple[str, ...] | None) -> None:
    if ends is None:
        with pytest.raises(UsageError, match=r"neither a revision nor a range of two"):
            ends_of(text)
    else:
        assert ends_of(text) == ends
        assert joined(ends) == text


@pytest.mark.tools
def test_the_commits_of_the_newer_that_the_older_lacks(git: Callable[..., str], tmp_path: Path) -> None:
    """A side branch that was merged into the range belongs to it."""

    def commit(name: str) -> str:
        git("commit", "-q", "--allow-empty", "-m", name)
        return git("rev-parse", "HEAD")

    root = commit("root")
    git("checkout", "-qb", "side")
    side = commit("side")
    git("checkout", "-q", "main")
    first = commit("first")
    git("merge", "-q", "--no-ff", "-m", "merge", "side")
    merge = git("rev-parse", "HEAD")
    repo = open_repository(tmp_path / "repo")
    assert members(repo, f"{first}..{merge}") == {side, merge}
    assert members(repo, f"{root}..{merge}") == {side, first, merge}
    assert members(repo, f"{merge}..{root}") == set()
    assert members(repo, side) == {side}
