"""A branch that began before good, at a commit that was slower than good."""

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.tools

Exits = Callable[..., str]
HUNT = ["--builder", "script", "--workload", "one", "--repo", "repo", "--no-explain"]


@pytest.fixture
def commit(script: Callable[[str], str]) -> Callable[[int, str], str]:
    """``commit(rate, name)``: a commit with that rate and up to 1 % more."""

    def make(rate: int, name: str) -> str:
        return script(f"chance=$(date +%N | cut -c 6-7)\necho rate $(({rate}00 + 1$chance * {rate} / 100)) # {name}")

    return make


def test_it_is_judged_by_what_it_began_with(
    exits: Exits, commit: Callable[[int, str], str], git: Callable[..., str]
) -> None:
    """The branch's third commit is to blame; its first is as slow as what it began at, and no more so than good."""
    old = commit(800, "old")
    good = commit(1000, "good")
    trunk = [commit(1000, f"trunk {number}") for number in range(3)][-1]
    git("checkout", "-qb", "side", old)
    side = [commit(rate, f"side {number}") for number, rate in enumerate((800, 800, 600, 600))]
    git("checkout", "-q", trunk)
    git("merge", "-q", "--no-commit", "-s", "ours", "side")
    commit(750, "merge")
    bad = commit(750, "bad")
    out = exits(0, "run", good, bad, *HUNT, "--plain")
    assert f"The culprit is {side[2][:10]}" in out
    assert f"Proven against {side[1][:10]}, its parent" in out
    assert "9 commits, 9 candidates, 1 merge" in out
    assert f"built     {old[:10]}" in out
    assert "a branch that is older than good began at 0." in exits(0, "show")
    exits(0, "resume", "--plain")
    planned = exits(0, "simulate", good, bad, "--repo", "repo", "--hunts", "2")
    assert planned.startswith("9 candidates, 1 of them merges, 4 on branches older than good; 2 hunts")
    again = exits(0, "replay")
    assert f"The culprit is {side[2][:10]}" in again
    assert exits(0, "query", "select candidates - 1 as n from hunts", "--csv").split() == ["n", "9"]
