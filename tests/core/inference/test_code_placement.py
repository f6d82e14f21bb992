"""Two modes of layout are recognised, and nothing else is taken for them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.core.domain.events import BuildFinished, RunFinished
from perfbisect.core.domain.facts import BuildFacts, RunFacts
from perfbisect.core.domain.orders import CodePlacement, Interval, NotReproduced, Step
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.code_placement import sides, with_counts, without_modes
from perfbisect.core.inference.observations import Logged, Reading
from perfbisect.core.inference.record import Record, arrange

BAD = 9


def record(values: dict[int, list[float]]) -> Record:
    """Readings of some builds, in turns."""
    rows = [(place, build, value) for build, of in values.items() for place, value in enumerate(of)]
    return arrange(
        [
            Reading(build, value, float(at), at, layout=place + 1)
            for at, (place, build, value) in enumerate(sorted(rows))
        ],
        Policy(),
        BAD,
    )


def drawn(rng: np.random.Generator, level: float, runs: int, gap: float, noise: float = 0.01) -> list[float]:
    slow = np.arange(runs) % 2 == 0  # so that both modes are there
    return (level - gap * slow + noise * rng.normal(size=runs)).tolist()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 1000), st.floats(0.13, 0.25), st.sampled_from([0.0, -0.05]), st.floats(-3, 8))
def test_readings_of_both_modes_become_alike(seed: int, gap: float, change: float, unit: float) -> None:
    rng = np.random.default_rng(seed)
    values = {0: drawn(rng, unit, 8, gap), BAD: drawn(rng, unit + change, 8, gap)}
    seen = record(values)
    raised, trust = without_modes(seen, 0, BAD)
    certain = trust > 0.5
    assert certain.mean() > 0.8
    for build, level in ((0, unit), (BAD, unit + change)):
        own = seen.readings(build)
        own = own[certain[own]]
        assert raised.value[own] == pytest.approx(level, abs=0.05)
        assert raised.value[own].std() < 0.02


@pytest.mark.parametrize(("spread", "change"), [(0.001, 0.0), (0.02, -0.05), (0.1, -0.05), (0.1, 0.0), (0.2, -0.3)])
@pytest.mark.parametrize("runs", [5, 8, 20])
def test_what_is_spread_broadly_is_hardly_ever_taken_for_modes(spread: float, change: float, runs: int) -> None:
    changed = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        seen = record({0: drawn(rng, 2.0, runs, 0.0, spread), BAD: drawn(rng, 2.0 + change, runs, 0.0, spread)})
        changed += bool((without_modes(seen, 0, BAD)[0].value != seen.value).any())
    assert changed <= 1


def test_one_reading_of_a_build_is_judged_by_the_two_that_are_compared() -> None:
    rng = np.random.default_rng(1)
    ends = {0: drawn(rng, 0.0, 10, 0.15), BAD: drawn(rng, -0.05, 10, 0.15)}
    for value, fast in ((0.0, 0.0), (-0.05, -0.05), (-0.15, 0.0), (-0.2, -0.05)):
        raised, trust = without_modes(seen := record({**ends, 4: [value]}), 0, BAD)
        at = seen.readings(4)[0]
        assert raised.value[at] == pytest.approx(fast, abs=0.02)
        assert trust[at] > 0.9


def test_a_reading_that_either_mode_explains_hardly_counts() -> None:
    rng = np.random.default_rng(1)
    ends = {0: drawn(rng, 0.0, 20, 0.1), BAD: drawn(rng, -0.1, 20, 0.1)}
    _, trust = without_modes(seen := record({**ends, 4: [-0.1]}), 0, BAD)
    assert trust[seen.readings(4)[0]] < 0.1
    assert trust[seen.readings(0)].min() > 0.5


@pytest.mark.parametrize("runs", [0, 1, 2, 3])
def test_few_readings_show_no_modes(runs: int) -> None:
    seen = record({0: [0.0, -0.15, 0.0][:runs], BAD: [0.0, -0.15]})
    if runs:
        raised, trust = without_modes(seen, 0, BAD)
        assert (raised.value == seen.value).all()
        assert (trust == 1).all()


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
