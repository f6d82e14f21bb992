"""A branch that began before good, at a commit that was slower than good."""

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.tools

Invoke = Callable[..., tuple[int, str, str]]
HUNT = ["--builder", "script", "--workload", "one", "--repo", "repo"]


@pytest.fixture
def commit(script: Callable[[str], str]) -> Callable[[int, str], str]:
    """``commit(rate, name)``: a commit with that rate and up to 1 % more."""

    def make(rate: int, name: str) -> str:
        return script(f"chance=$(date +%N | cut -c 6-7)\necho rate $(({rate}00 + 1$chance * {rate} / 100)) # {name}")

    return make


def test_it_is_judged_by_what_it_began_with(
    invoke: Invoke, commit: Callable[[int, str], str], git: Callable[..., str]
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
    status, out, err = invoke("run", good, bad, *HUNT, "--plain")
    assert status == 0, out + err
    assert f"The culprit is {side[2][:10]}" in out
    assert f"Proven against {side[1][:10]}, its parent" in out
    assert "9 commits, 9 candidates, 1 merge" in out
    assert f"built     {old[:10]}" in out
    assert "a branch that is older than good began at 0." in invoke("show")[1]
    assert invoke("resume", "--plain")[0] == 0
    status, planned, err = invoke("simulate", good, bad, "--repo", "repo", "--hunts", "2")
    assert status == 0, err
    assert planned.startswith("9 candidates, 1 of them merges, 4 on branches older than good; 2 hunts")
    status, again, err = invoke("replay")
    assert status == 0, err
    assert f"The culprit is {side[2][:10]}" in again
    assert invoke("query", "select candidates - 1 as n from hunts", "--csv")[1].split() == ["n", "9"]
