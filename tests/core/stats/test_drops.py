"""Which drops of a comparison are hunted, and between which builds."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sample_hunt as sample
from perfbisect.core.domain.facts import TrialRun
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import TrialBuild
from perfbisect.core.stats.drops import Drop, comparable_differences, find_drops_to_hunt, loss_fraction, ranges_of_drops
from perfbisect.core.stats.paired_comparison import Ratio, better_or_worse, compare_builds

LEAST = 0.02
ROUNDS = 5

# For each workload: the speed of each build relative to the first build; None: the build fails.
Speeds = Sequence[Sequence[float | None]]


def trial(
    speeds: Speeds, noise: float = 0.001, seed: int = 1, rounds: int = ROUNDS, metric: str = "qps"
) -> SessionState:
    """A comparison of builds with these speeds, on a machine whose speed differs from round to round."""
    chance = random.Random(seed)
    works = [f"w{number}" for number in range(len(speeds))]
    made = sample.comparison(len(speeds[0]), works, rounds=rounds, metric=metric)
    for number in range(rounds):
        machine = chance.gauss(0, 0.05)
        for work, row in enumerate(speeds):
            for build, speed in enumerate(row):
                if speed is not None:
                    level = speed * math.exp(machine + chance.gauss(0, noise))
                    facts = replace(sample.run(0, 0.0, qps=1e5 * level), latency={"avg": level})
                    made.runs.append(TrialRun(number, work, build, 0.0, 1.0, facts))
    return made


def ends(found: Sequence[Drop]) -> list[tuple[int, int, int]]:
    """Workload, first and last build of each drop."""
    return [(drop.work, drop.first, drop.last) for drop in found]


def test_drop_is_hunted_between_the_builds_around_the_change() -> None:
    cases: list[tuple[list[float | None], list[tuple[int, int]]]] = [
        ([1.0, 1.0, 0.9, 0.9], [(1, 2)]),  # one drop
        ([1.0, 0.9, 1.0, 0.9], [(0, 1), (2, 3)]),  # a drop, its repair, and a second drop
        ([1.0, 1.2, 1.1, 1.1], [(1, 2)]),  # faster than the first build, but slower than the build before
        ([1.0, 1.1, 1.2, 1.3], []),
        ([1.0, 0.988, 0.976, 0.9], [(0, 2), (2, 3)]),  # small losses: the first build that has lost enough
        ([1.0, 0.99, 0.99, 0.99], []),  # real, but tiny
        ([1.0, None, 0.9, 0.9], [(0, 2)]),  # the neighbours of a build that fails are neighbours
        ([1.0, 0.9, None, 0.9], [(0, 1)]),
        ([None, None, None, None], []),
        ([1.0, None, None, None], []),
    ]
    for speeds, expected in cases:
        assert [(first, last) for _, first, last in ends(find_drops_to_hunt(trial([speeds]), LEAST))] == expected


def test_drops_are_between_revisions_with_equal_build_settings() -> None:
    made = trial([[1.0, 0.7, 1.0, 0.7, 0.6]])
    a, b, c = (TrialBuild(name, commit=name * 40) for name in "abc")
    binaries, tuned = TrialBuild("x", path="/opt/x"), replace(b, name="b+my.cnf", config="my.cnf")
    a_lto, b_lto = (replace(each, name=f"{each.name}@lto", variant="lto") for each in (a, b))
    for builds, expected in (
        ((a, b_lto, b, binaries, c), [(0, 2, 4)]),
        ((a, a_lto, b, b_lto, c), [(0, 2, 4)]),
        ((a, a_lto, b, c, b_lto), [(0, 2, 3), (0, 1, 4)]),
        ((a, tuned, b, binaries, binaries), []),
    ):
        other = replace(made, request=replace(made.request, subjects=builds))
        assert ends(find_drops_to_hunt(other, LEAST)) == expected


def test_drops_follow_the_direction_of_the_metric_and_need_two_rounds() -> None:
    made = trial([[1.0, 0.8, 1.0, 1.25]], metric="latency")
    assert ends(find_drops_to_hunt(made, LEAST)) == [(0, 1, 2), (0, 2, 3)]
    assert [loss_fraction(drop.ratio, "latency") for drop in find_drops_to_hunt(made, LEAST)] == pytest.approx(
        [0.25, 0.25], abs=0.01
    )
    assert find_drops_to_hunt(trial([[1.0, 0.5]], rounds=1), LEAST) == []


def test_drops_between_the_same_builds_are_hunted_together() -> None:
    made = trial([[1.0, 0.9, 0.8], [1.0, 0.9, 0.9], [1.0, 1.0, 1.0], [1.0, 1.0, 0.7]])
    found = [
        (each.first, each.last, [drop.work for drop in each.drops])
        for each in ranges_of_drops(find_drops_to_hunt(made, LEAST))
    ]
    assert found == [(0, 1, [0, 1]), (1, 2, [0, 3])]


def test_drops_of_two_builds_are_the_significant_ratios_of_the_table() -> None:
    """With two builds, the drops and the colours of the table are one family of comparisons."""
    made = trial([[1.0, 0.97], [1.0, 1.05], [1.0, 1.0], [1.0, 0.6]], noise=0.01)
    first = [row.ratios[0] for row in compare_builds(made, "qps")]
    marked = [number for number, ratio in enumerate(first) if ratio and ratio.real and ratio.ratio <= 1 - LEAST]
    assert [drop.work for drop in find_drops_to_hunt(made, LEAST)] == marked != []


SPEED = st.none() | st.floats(0.5, 1.5)
ROWS = [st.lists(SPEED, min_size=builds, max_size=builds) for builds in range(2, 6)]
TABLES = st.sampled_from(ROWS).flatmap(lambda row: st.lists(row, min_size=1, max_size=4))


@given(TABLES, st.floats(0.005, 0.1), st.integers(0, 99))
def test_every_drop_is_large_enough_real_and_hunted_once(speeds: Speeds, noise: float, seed: int) -> None:
    made = trial(speeds, noise, seed)
    found = find_drops_to_hunt(made, LEAST)
    assert ends(found) == sorted(set(ends(found)), key=lambda each: (each[0], each[2]))
    for drop in found:
        assert drop.first < drop.last and loss_fraction(drop.ratio, "qps") >= LEAST
        assert drop.ratio.p is not None and drop.ratio.p <= 0.05
        assert None not in (speeds[drop.work][drop.first], speeds[drop.work][drop.last])
    for work, row in enumerate(speeds):  # no two hunts end at the same build, and at most one begins before a neighbour
        mine = [(drop.first, drop.last) for drop in found if drop.work == work]
        assert len({last for _, last in mine}) == len(mine)
        neighbours = [*pairwise(build for build, speed in enumerate(row) if speed is not None)]
        assert [first for first, last in mine if (first, last) not in neighbours] in ([], [0])
    together = ranges_of_drops(found)
    assert sorted(ends([drop for each in together for drop in each.drops])) == sorted(ends(found))
    assert all((drop.first, drop.last) == (each.first, each.last) for each in together for drop in each.drops)


@given(TABLES, st.integers(0, 99))
def test_a_clear_drop_to_a_neighbour_is_never_missed(speeds: Speeds, seed: int) -> None:
    found = ends(find_drops_to_hunt(trial(speeds, 1e-7, seed), LEAST))
    for work, row in enumerate(speeds):
        known = [(build, speed) for build, speed in enumerate(row) if speed is not None]
        for (first, before), (last, after) in pairwise(known):
            if after / before < 1 - LEAST - 1e-4:
                assert (work, first, last) in found
            elif first and after / before > 1 - LEAST + 1e-4:
                assert (work, first, last) not in found


def ratios(made: SessionState) -> list[tuple[int, Ratio]]:
    """Each ratio to the first build in the table, with the index of its workload."""
    rows = compare_builds(made, "qps")
    return [(work, ratio) for work, row in enumerate(rows) for ratio in row.ratios if ratio is not None]


@pytest.mark.calibrate
@pytest.mark.calibration
@pytest.mark.parametrize("builds", [2, 4, 8])
def test_at_most_5_of_100_comparisons_of_equal_builds_have_a_drop(builds: int) -> None:
    """The same holds for the colours of the table. The noise is large enough for drops above the least size."""
    tables = [trial([[1.0] * builds] * 12, noise=0.06, seed=seed) for seed in range(400)]
    assert sum(bool(find_drops_to_hunt(made, LEAST)) for made in tables) / 4 <= 5
    shown = [[ratio for _, ratio in ratios(made)] for made in tables]
    assert sum(any(better_or_worse(ratio, "qps") == "worse" for ratio in each) for each in shown) / 4 <= 5
    beside = [[drop.ratio for work in range(12) for drop in comparable_differences(made, work)] for made in tables]
    alone = [any(ratio.excludes_one and loss_fraction(ratio, "qps") >= LEAST for ratio in each) for each in beside]
    assert sum(alone) / 4 > 15, "otherwise this test could not fail"


@pytest.mark.calibrate
@pytest.mark.calibration
def test_few_drops_are_false_and_few_are_missed() -> None:
    """Four of twelve workloads lose 10 % in one of three releases."""
    chance = random.Random(23)
    false = found = hunts = 0
    none = 0.0
    for seed in range(200):
        at = [chance.choice([1, 2, 3]) if work < 4 else 99 for work in range(12)]
        speeds = [[0.9 if build >= slow else 1.0 for build in range(4)] for slow in at]
        made = trial(speeds, 0.02, seed)
        called = ends(find_drops_to_hunt(made, LEAST))
        real = [work for work, ratio in ratios(made) if ratio.real]
        none += sum(work >= 4 for work in real) / max(1, len(real))
        hunts += len(called)
        false += sum(not first < at[work] <= last for work, first, last in called)
        found += sum((work, slow - 1, slow) in called for work, slow in enumerate(at[:4]))
    assert false / hunts <= 0.05
    assert 0.01 < none / 200 <= 0.05, "the share of false ones among the ratios that the table calls real"
    assert found / 800 > 0.9
