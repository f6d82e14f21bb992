"""Relative speeds: invariances, ratios without noise, host classes, intervals that contain the truth, and decisions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Found, Inconclusive, Interval, NotReproduced
from perfbisect.core.domain.settings import ChangeDirection, Policy, PriorKnowledge
from perfbisect.core.inference.noise_model import weigh_readings
from perfbisect.core.inference.observations import Built, Observation, Reading
from perfbisect.core.inference.record import arrange_observations
from perfbisect.core.inference.relative_speed import (
    BuildSpeeds,
    ratios_of_candidates_to_good,
    shown_host_class,
    speeds_of_fit,
)
from perfbisect.core.inference.state_space import fit_levels
from simulated_worlds import decide

LEVELS = st.floats(-0.5, 0.5)


def alternating(noise: list[float], drop: float) -> list[Reading]:
    """Interleaved runs of good (0) and build 1, one a minute, each in its own visit."""
    return [
        Reading(turn % 2, 7.0 + drop * (turn % 2) + wobble, at=float(turn), visit=turn)
        for turn, wobble in enumerate(noise)
    ]


def fitted(readings: Sequence[Reading]) -> BuildSpeeds:
    record = arrange_observations(readings, Policy(), 1)
    return speeds_of_fit(record, fit_levels(record, weigh_readings(record, 0, 1).weight))


def near(interval: Interval, other: Interval, tolerance: float = 1e-5) -> bool:
    ends = (interval.low, interval.middle, interval.high)
    return ends == pytest.approx((other.low, other.middle, other.high), rel=tolerance)


runs = st.builds(alternating, st.lists(st.floats(-0.05, 0.05), min_size=6, max_size=12), LEVELS)


@given(runs, st.floats(-3, 3), st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None)
def test_ratio_does_not_depend_on_unit_or_order_of_runs(readings: list[Reading], shift: float, random: Random) -> None:
    moved = [Reading(reading.candidate, reading.value + shift, reading.at, reading.visit) for reading in readings]
    other_order = random.sample(moved, len(moved))
    assert near(ratios_of_candidates_to_good(readings, 1)[1], ratios_of_candidates_to_good(other_order, 1)[1])


@given(runs)
@settings(max_examples=15, deadline=None)
def test_interval_of_the_inverse_ratio_is_the_inverse_interval(readings: list[Reading]) -> None:
    found = fitted(readings)
    there, back = found.ratio(1, 0), found.ratio(0, 1)
    assert near(back, Interval(1 / there.high, 1 / there.middle, 1 / there.low), 1e-3)
    assert there.low < there.middle < there.high


@given(LEVELS)
@settings(max_examples=15, deadline=None)
def test_ratio_is_exact_without_noise(drop: float) -> None:
    interval = ratios_of_candidates_to_good(alternating([0.0] * 8, drop), 1)[1]
    assert (interval.low, interval.high) == pytest.approx((math.exp(drop), math.exp(drop)), abs=1e-6)


def test_ratio_is_robust_against_steady_drift_and_an_outlier() -> None:
    slowing = alternating([-0.02 * turn + 0.001 * (-1) ** (turn // 2) for turn in range(16)], 0.0)
    interval = ratios_of_candidates_to_good(slowing, 1)[1]
    assert interval.low < 1 < interval.high < interval.low + 0.05, "though the host changed by 27 %"
    noise = [0.004 * math.sin(7 * turn) for turn in range(20)]
    calm = ratios_of_candidates_to_good(alternating(noise, -0.1), 1)[1]
    wild = ratios_of_candidates_to_good(alternating([*noise[:9], -0.8, *noise[10:]], -0.1), 1)[1]
    assert wild.middle == pytest.approx(calm.middle, abs=0.01)
    assert wild.high - wild.low < 0.1


def test_builds_are_compared_through_a_build_run_next_to_both() -> None:
    """Good and build 2 have no neighbouring runs. Build 1 has runs next to both, while the host drifts."""
    first = alternating([0.001 * (turn % 3) for turn in range(12)], 0.0)
    later = alternating([-0.1 + 0.001 * (turn % 3) for turn in range(12)], -0.2)
    later = [replace(each, candidate=each.candidate + 1, at=each.at + 300, visit=each.visit + 20) for each in later]
    assert ratios_of_candidates_to_good(first + later, 2)[2].middle == pytest.approx(math.exp(-0.2), abs=0.02)


def test_single_run_far_from_both_ends_has_the_interval_of_a_run() -> None:
    """The low weight of an outlier in the fit must not widen the interval of its build."""
    ends = alternating([0.004 * math.sin(7 * turn) for turn in range(12)], -0.1)
    found = ratios_of_candidates_to_good([*ends, Reading(2, 7.5, 12.0, 12), Reading(3, 6.95, 13.0, 13)], 1)
    far, close = (math.log(found[build].high / found[build].low) for build in (2, 3))
    assert far == pytest.approx(close, rel=0.2)


def test_ratio_without_repeated_runs_has_no_interval() -> None:
    each_once = [Reading(0, 7.0, 0.0, 0), Reading(1, 6.9, 1.0, 1)]
    good_alone = [Reading(0, 7.0, float(at), at) for at in range(4)]
    for seen in ([], [Reading(1, 7.0, 0.0, 0)] * 3, each_once, good_alone):
        assert ratios_of_candidates_to_good(seen, 1) == {}
    once = fitted(each_once).ratio(1, 0)
    assert (once.low, once.middle, once.high) == (0.0, pytest.approx(math.exp(-0.1)), math.inf)


def test_equal_binaries_have_the_same_ratio() -> None:
    readings = alternating([0.001, -0.001, 0.002, 0.0, -0.002, 0.001], -0.1)
    equal = [Built(1, 9.0), Built(2, 9.0, same_as=1), Built(3, 9.0, same_as=0)]
    found = ratios_of_candidates_to_good([*equal, *readings, Reading(2, 6.9, 8.0, 8)], 1)
    assert found == {1: found[1], 2: found[1]}, "3 has the binary of good"


WIGGLE = (0.001, -0.001, 0.0005, -0.0005)


def host(number: int, *builds: tuple[int, float], turns: int = 4) -> list[Reading]:
    """Interleaved runs of builds on one host, with a noise of a few tenths of a per cent."""
    return [
        Reading(build, value + WIGGLE[(turn + build) % 4], turn * 9.0 + 2 * place + number, 100 * turn + place, number)
        for turn in range(turns)
        for place, (build, value) in enumerate(builds)
    ]


def test_ratio_does_not_depend_on_the_speeds_of_hosts() -> None:
    """The second host is five times as fast, and is the only host with build 2."""
    readings = host(0, (0, 0.0), (1, -0.1)) + host(1, (0, 1.6), (2, 1.4))
    for classes in (("x", "x"), ("x", "y")):
        found = ratios_of_candidates_to_good(readings, 1, classes)
        middles = {build: ratio.middle for build, ratio in found.items()}
        assert middles == pytest.approx({1: math.exp(-0.1), 2: math.exp(-0.2)}, abs=0.003)
        assert found[2].high - found[2].low < 0.02


def test_build_without_a_common_host_with_good_has_no_ratio() -> None:
    readings = host(0, (0, 0.0), (1, -0.1)) + host(1, (2, 1.4), (3, 1.3))
    assert ratios_of_candidates_to_good(readings, 1).keys() == {1}
    assert ratios_of_candidates_to_good(readings + host(1, (1, 1.5)), 1).keys() == {1, 2, 3}, "compared through 1"


def test_ratio_is_from_the_first_host_class_with_a_clear_difference() -> None:
    readings = host(0, (0, 0.0), (1, 0.0), (2, 0.0)) + host(1, (0, 1.6), (1, 1.4))
    found = ratios_of_candidates_to_good(readings, 1, ("x", "y"))
    assert (found[1].middle, found[2].middle) == pytest.approx((math.exp(-0.2), 1.0), abs=0.003), "only x has build 2"
    same, slower, unknown = Interval(0.99, 1.0, 1.01), Interval(0.8, 0.9, 0.95), Interval(0.0, 0.9, math.inf)
    pairs = ((same, slower), (None, same), (unknown, slower), (), (None, None))
    assert [shown_host_class(each) for each in pairs] == [1, 1, 1, 0, 0]


World = Callable[[np.random.Generator], list[Reading]]


def world(
    *, noise: float = 0.01, visits: float = 0.0, drift: float = 0.0, wild: float = 0.0, each: int = 1, gap: float = 1.0,
    turns: int = 6, further: int = 0, speeds: Sequence[float] = (0.0,),
) -> World:  # fmt: skip
    """Readings of hunts. ``noise`` is the s.d. of a run, and the unit of ``visits``, ``drift`` (s.d.) and ``speeds``.

    ``wild``: the share of outliers. ``turns`` visits of good alternate with visits of build 1, then of build 2. Then
    ``further`` builds have one visit each, next to a visit of good, 1 or 2. A visit has ``each`` runs.
    """
    plan = [(visit % 2) * (1 + visit // (2 * turns)) for visit in range(4 * turns)]
    plan += [build for number in range(further) for build in (3 + number, number % 3)]

    def hunt(random: np.random.Generator) -> list[Reading]:
        readings: list[Reading] = []
        present, at = random.normal(0, drift), 0.0
        for visit, build in enumerate(plan):
            offset, place = random.normal(0, visits), int(random.integers(len(speeds)))
            for _ in range(each):
                fade = math.exp(-gap / 30)
                present = fade * present + math.sqrt(1 - fade**2) * random.normal(0, drift)
                own = random.normal(0, 1) + (random.random() < wild) * random.normal(-10, 3)
                value = 5.0 - 0.05 * build + noise * (present + offset + own + speeds[place])
                readings.append(Reading(build, value, at, visit, place))
                at += gap
        return readings

    return hunt


WORLDS = {
    "plain": world(),
    "one turn": world(turns=2),
    "noisy": world(noise=0.12, turns=3),
    "large visits": world(visits=4.0, each=3),
    "drift": world(drift=4.0),
    "drift and visits": world(drift=4.0, visits=1.0, each=2),
    "slow turns": world(drift=2.0, gap=5.0),
    "outliers": world(wild=0.05),
    "single runs": world(turns=2, further=8),
    "single runs and drift": world(turns=2, further=8, drift=2.0),
    "hosts of different speeds": world(speeds=(0.0, 30.0, -20.0)),
}


@pytest.mark.calibrate
@pytest.mark.calibration
@pytest.mark.parametrize("name", WORLDS)
def test_95_percent_interval_contains_the_truth_in_95_percent_of_cases(name: str) -> None:
    random = np.random.default_rng(20)
    contained = [
        interval.low <= math.exp(-0.05 * build) <= interval.high
        for _ in range(400)
        for build, interval in ratios_of_candidates_to_good(WORLDS[name](random), 1).items()
    ]
    assert 0.93 <= np.mean(contained) <= 0.985


def test_runs_in_randomized_layouts_are_compared_with_each_other() -> None:
    usual = [Reading(v, level, 1.0 * at, at) for at in range(0, 9, 3) for v, level in ((0, 7.0), (1, 6.8))]
    levels = enumerate((6.9, 6.9, 6.7))
    fresh = [Reading(v, x + 0.01 * (at % 2), 20.0 + at, 20 + at, layout=at + 1) for v, x in levels for at in range(6)]
    shown = ratios_of_candidates_to_good([*usual, *fresh], 1)
    assert near(shown[1], ratios_of_candidates_to_good(fresh, 1)[1])  # runs in the usual layout have no effect
    assert (shown[1].middle, shown[2].middle) == pytest.approx((1.0, math.exp(-0.2)), rel=0.01)
    alone = [seen for seen in fresh if seen.candidate != 0]
    assert near(ratios_of_candidates_to_good([*usual, *alone], 1)[1], ratios_of_candidates_to_good(usual, 1)[1])


def test_paired_build_without_a_link_to_good_has_no_ratio() -> None:
    def pairs(build: int, partner: int, value: float) -> list[Reading]:
        return [Reading(build, value + each, 10.0 * at, at, partner=partner) for at, each in enumerate(WIGGLE)]

    apart = pairs(3, 0, -0.2) + pairs(2, 1, -0.1)
    assert ratios_of_candidates_to_good(apart, 3).keys() == {3}
    ratios = ratios_of_candidates_to_good(apart + pairs(1, 3, 0.05), 3)
    assert ratios[2].middle == pytest.approx(math.exp(-0.25), abs=0.003)


LINE = Graph.straight_history(10)
# Node 1 is older than good. Nodes 4 and 5 descend from node 1.
OLDER = Graph.from_parents([(), (), (0,), (2,), (1,), (4,), (3, 5)], branch_points=1)


def readings(plan: Sequence[int], level: dict[int, float], scale: Sequence[float] = (1.0,)) -> list[Observation]:
    """Runs in the order of ``plan``. Successive runs of a build are one visit. ``scale``: factors of hosts."""
    random, visit, hosts = np.random.default_rng(5), 0, range(len(scale))
    seen: list[Observation] = [Built(build, 60.0, None, host) for build in sorted({*plan}) for host in hosts]
    for turn, build in enumerate(plan):
        visit += turn > 0 and build != plan[turn - 1]
        for host in hosts:
            value = scale[host] * level[build] + 0.7 * host + float(random.normal(0, 0.01))
            seen.append(Reading(build, 9.0 + value, 2.0 * turn + host / 3, 100 * host + visit, host, 60.0))
    return seen


TURNS = [10, 0, 0, 10, 10, 0, 0, 10, 5, 0, 10, 5, 5, 10, 0, 5, 4, 5, 5, 4, 4, 5, 5, 4]
STEP = {0: 0.0, 4: 0.0, 5: -0.2, 10: -0.2}
NOTHING = dict.fromkeys(STEP, 0.0)


@pytest.mark.parametrize("rules", [(ChangeDirection.DROP, None), (ChangeDirection.ANY, 0.05)])
@pytest.mark.parametrize(("level", "classes", "scale"), [
    (STEP, (), (1.0,)), (NOTHING, (), (1.0,)), (STEP, (), (1.0, 1.0)),
    (STEP, ("a", "b"), (1.0, 0.5)), (STEP, ("a", "b"), (0.0, 1.0)), (NOTHING, ("a", "b"), (1.0, 1.0)),
])  # fmt: skip
def test_effect_in_a_decision_equals_the_ratio_in_the_table_of_builds(
    level: dict[int, float],
    classes: tuple[str, ...],
    scale: tuple[float, ...],
    rules: tuple[ChangeDirection, float | None],
) -> None:
    observations = readings(TURNS, level, scale)
    prior = PriorKnowledge(noise=rules[1], host_classes=classes)
    for end in range(len(observations), len(observations) - 8, -3):
        decision = decide(LINE, observations[:end], Policy(direction=rules[0]), prior)
        table = ratios_of_candidates_to_good(observations[:end], 10, classes)
        assert near(decision.belief.effect, table[10], 1e-7)
        if isinstance(decision.order, NotReproduced | Inconclusive):
            assert near(decision.order.ratio, table[10], 1e-7)


def test_culprit_after_good_has_the_ratio_of_the_table_of_builds() -> None:
    observations = readings([1, 0, 0, 1] * 8, {0: 0.0, 1: -0.2})
    order = decide(Graph.straight_history(1), observations, Policy()).order
    assert isinstance(order, Found) and near(order.step.ratio, ratios_of_candidates_to_good(observations, 1)[1], 1e-7)
    once = decide(LINE, readings([10, 0], STEP), Policy(max_runs=2)).order
    assert isinstance(once, Inconclusive) and math.isinf(once.ratio.high), "single runs give no bound"


def test_correction_for_an_older_branch_does_not_change_the_effect() -> None:
    """The branch point is 30 % slower than good. The readings of the branch are corrected, but not in the table."""
    level = {0: 0.0, 1: -0.35, 2: 0.0, 3: 0.0, 4: -0.35, 5: -0.35, 6: -0.2}
    observations = readings([6, 0, 0, 6, 1, 0, 0, 1, 1, 0, 0, 1, 5, 6, 3, 0, 5, 3, 6, 0, 4, 5, 1, 0], level)
    decision = decide(OLDER, observations, Policy())
    assert any("older than good" in text for text in decision.belief.warnings)
    assert near(decision.belief.effect, ratios_of_candidates_to_good(observations, 6)[6], 1e-7)
