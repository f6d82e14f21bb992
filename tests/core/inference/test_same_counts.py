"""What counts say of code placement: of several parents each, of equal binaries the one that has the runs."""

import pytest

from perfbisect.core.domain.events import BuildFinished, RunFinished
from perfbisect.core.domain.facts import BuildFacts, RunFacts
from perfbisect.core.domain.orders import CodePlacement, Interval, NotReproduced, Step
from perfbisect.core.inference.from_log import Logged
from perfbisect.core.inference.same_counts import sides, with_counts

COMMITS = ("good", "side", "main", "merge")
SAME = Interval(0.98, 1.0, 1.02)
MERGE = Step(3, 0.97, Interval(0.8, 0.85, 0.9), (1, 2))
PLACEMENT = CodePlacement(MERGE, SAME, 0.02)


def built(commit: str, binary: str) -> tuple[float, Logged]:
    return 0.0, BuildFinished(0, BuildFacts(commit, commit, binary, 1.0, 0, 0, False, ""), None)


def run(commit: str, instructions: float, counted: str = "perf-user") -> tuple[float, Logged]:
    counters = {"instructions": instructions}
    facts = RunFacts(commit, "k", "v", "local", 0.0, 1.0, 10, {}, (), counters, {}, counted=counted)
    return 0.0, RunFinished(0, facts)


@pytest.mark.parametrize(
    ("log", "same"),
    [
        ([run("merge", 1000), run("side", 1000), run("main", 1000)], True),
        ([run("merge", 1000), run("side", 1001), run("main", 1000)], False),
        ([run("merge", 1000), run("main", 1000)], None),
        ([run("side", 1000), run("main", 1000)], None),
        ([run("merge", 1000), run("side", 1000), run("main", 1000, counted="")], None),
        ([run("merge", 1000), run("side", 1000), run("main", 0)], None),
        ([built("good", "a"), built("side", "a"), run("good", 1000), run("merge", 1000), run("main", 1000)], True),
        ([built("side", "a"), built("main", "a"), run("side", 1000), run("merge", 1000)], True),
    ],
)
def test_every_parent_counts(log: list[tuple[float, Logged]], same: bool | None) -> None:
    found = with_counts(PLACEMENT, COMMITS, log)
    assert isinstance(found, CodePlacement)
    assert found.same_counts is same


def test_of_equal_binaries_one_is_counted() -> None:
    assert sides(MERGE, COMMITS, []) == ("merge", "side", "main")
    assert sides(MERGE, COMMITS, [built("good", "a"), built("side", "a"), built("main", "a")]) == ("merge", "good")


def test_other_verdicts_and_a_step_without_parents_stay() -> None:
    ended = NotReproduced(SAME, 0.02)
    assert with_counts(ended, COMMITS, [run("merge", 1000)]) is ended
    alone = CodePlacement(Step(3, 0.97, SAME, ()), SAME, 0.02)
    assert with_counts(alone, COMMITS, [run("merge", 1000)]) is alone
