"""Good on another branch than bad, and candidates on branches older than good."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from program import HUNT, exits, run

pytestmark = [pytest.mark.slow, pytest.mark.tools]

# Good is not an ancestor of bad: what becomes of a hunt whose merge base is, or is not, shown to be as fast as good.


Fork = Callable[[int, int, int], tuple[str, str, str]]


@pytest.fixture
def fork(script: Callable[[str], str], git: Callable[..., str]) -> Fork:
    """``fork(base, good, bad)``: commits with these rates, a little of chance in them; good and bad both follow base."""

    def commit(rate: int, name: str) -> str:
        return script(f"chance=$(date +%N | cut -c 6)\necho rate $(({rate}0 + chance)) # {name}")

    def make(base: int, good: int, bad: int) -> tuple[str, str, str]:
        first = commit(base, "base")
        last = commit(bad, "bad")
        git("checkout", "-qb", "side", first)
        return first, commit(good, "good"), last

    return make


def test_one_that_is_not_shown_to_be_leaves_the_hunt_inconclusive(fork: Fork) -> None:
    base, good, bad = fork(1000, 1000, 500)
    out = exits(2, "run", good, bad, *HUNT, "--max-runs", "4")
    slower = f"the merge base {base[:10]} is not shown to be as fast as good {good[:10]}"
    told = f"Inconclusive, as {slower} (rate of good is 1.0"
    assert told in out or told.replace("1.0", "0.9") in out
    assert "of that of the merge base, and the budget of 4 runs is used up): no commit can be named" in out
    first = next(line for line in out.splitlines() if "  hunt  " in line)
    assert f"{good} is no ancestor of {bad}, so it is compared with their merge base, {base[:10]}, first" in first
    assert "not yet known whether good is as fast as the merge base; next" in out
    assert "inconclusive" in exits(0, "history")
    shown = exits(0, "show")
    assert told[:90] in shown
    assert out.count("  ran  ") == 4
    assert f"To hunt without good: bisect run {base[:10]} {bad} --builder script" in out
    again = exits(2, "resume", "--plain")
    assert told[:90] in again
    assert "  ran  " not in again


def test_one_that_is_slower_is_reported_with_the_commands_that_find_the_changes(fork: Fork) -> None:
    base, good, bad = fork(1000, 2000, 700)
    status, out, err = run("run", good, bad, *HUNT)
    assert status == 3
    assert f"The merge base {base[:10]} does not have the speed of good {good[:10]}" in err
    assert "rate of good is 2.0" in err or "rate of good is 1.9" in err
    assert "failed" in exits(0, "history")
    for end, told in ((good, "the change between them: "), (bad, "one on bad's own side of the fork: ")):
        [command] = [line.partition(told)[2] for line in err.splitlines() if told in line]
        out = exits(0, *shlex.split(command)[1:], "--plain")
        assert f"The culprit is {end[:10]}" in out


def test_what_is_measured_since_does_not_undo_it(
    script: Callable[[str], str], git: Callable[..., str], tmp_path: Path
) -> None:
    """The host's speed at the base changes once bad has run: by the bad end's runs, the hunt has begun."""
    chance, slower = "chance=$(date +%N | cut -c 6)", tmp_path / "slower"
    base = script(f"{chance}; rate=1000; [ ! -e {slower} ] || rate=900\necho rate $((rate * 10 + chance))")
    bad = script(f"{chance}; touch {slower}; echo rate 500$chance")
    git("checkout", "-qb", "side", base)
    good = script(f"{chance}; echo rate 1000$chance")
    status, out, err = run("run", good, bad, *HUNT)
    assert status == 0, out + err
    out = exits(0, "resume", "--plain")
    assert f"The culprit is {bad[:10]}" in out


# A branch that began before good, at a commit that was slower than good.


@pytest.fixture
def commit(script: Callable[[str], str]) -> Callable[[int, str], str]:
    """``commit(rate, name)``: a commit with that rate and up to 1 % more."""

    def make(rate: int, name: str) -> str:
        return script(f"chance=$(date +%N | cut -c 6-7)\necho rate $(({rate}00 + 1$chance * {rate} / 100)) # {name}")

    return make


def test_it_is_judged_by_what_it_began_with(commit: Callable[[int, str], str], git: Callable[..., str]) -> None:
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
    out = exits(0, "run", good, bad, *HUNT)
    assert f"The culprit is {side[2][:10]}" in out
    assert f"Proven against {side[1][:10]}, its parent" in out
    assert "9 commits, 9 candidates, 1 merge" in out
    assert exits(0, "run", good, bad, *HUNT, "--dry-run").startswith("# 9 commits, 9 candidates, 1 merge; about "), (
        "as later"
    )
    assert f"built     {old[:10]}" in out
    assert "a branch that is older than good began at 0." in exits(0, "show")
    exits(0, "resume", "--plain")
    planned = exits(0, "simulate", good, bad, "--repo", "repo", "--hunts", "2")
    assert planned.startswith("9 candidates, 1 of them merges, 4 on branches older than good; 2 hunts")
    again = exits(0, "replay")
    assert f"The culprit is {side[2][:10]}" in again
    assert exits(0, "query", "select candidates - 1 as n from hunts", "--csv").split() == ["n", "9"]
