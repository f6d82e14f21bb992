"""Relative QPS: invariances, exactness without noise, and a simulation of how often the interval holds the truth."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.core.domain.observations import Reading
from perfbisect.core.stats.relative_speed import relative

LEVELS = st.floats(-0.5, 0.5)


def alternating(noise: list[float], drop: float) -> list[Reading]:
    """Base (0) and build (1) taking turns, a minute apart, each run a visit of its own."""
    return [
        Reading(turn % 2, 7.0 + drop * (turn % 2) + wobble, at=float(turn), visit=turn)
        for turn, wobble in enumerate(noise)
    ]


runs = st.builds(alternating, st.lists(st.floats(-0.05, 0.05), min_size=6, max_size=12), LEVELS)


@given(runs, st.floats(-3, 3))
@settings(max_examples=15, deadline=None)
def test_the_unit_of_the_metric_does_not_matter(readings: list[Reading], shift: float) -> None:
    moved = [Reading(one.candidate, one.value + shift, one.at, one.visit) for one in readings]
    before, after = relative(readings, 0)[1], relative(moved, 0)[1]
    assert (after.low, after.middle, after.high) == pytest.approx((before.low, before.middle, before.high), rel=1e-5)


@given(runs, st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None)
def test_the_order_of_the_list_does_not_matter(readings: list[Reading], random: "object") -> None:
    shuffled = sorted(readings, key=lambda one: hash((str(random), one.at)))
    before, after = relative(readings, 0)[1], relative(shuffled, 0)[1]
    assert (after.low, after.high) == pytest.approx((before.low, before.high), rel=1e-5)


@given(runs)
@settings(max_examples=15, deadline=None)
def test_exchanging_the_two_inverts_the_interval(readings: list[Reading]) -> None:
    there, back = relative(readings, 0)[1], relative(readings, 1)[0]
    assert (back.low, back.middle, back.high) == pytest.approx((1 / there.high, 1 / there.middle, 1 / there.low), 1e-3)
    assert there.low < there.middle < there.high


@given(LEVELS)
@settings(max_examples=15, deadline=None)
def test_without_noise_the_ratio_is_exact(drop: float) -> None:
    interval = relative(alternating([0.0] * 8, drop), 0)[1]
    assert interval.low == pytest.approx(math.exp(drop), abs=1e-6)
    assert interval.high == pytest.approx(math.exp(drop), abs=1e-6)


def test_a_host_that_slows_down_steadily_does_not_look_like_a_drop() -> None:
    readings = alternating([-0.02 * turn + 0.001 * (-1) ** (turn // 2) for turn in range(16)], 0.0)
    interval = relative(readings, 0)[1]
    assert interval.low < 1 < interval.high
    assert interval.high - interval.low < 0.05  # though the host changed by 27 %


def test_one_wild_run_does_not_carry_the_answer() -> None:
    noise = [0.004 * math.sin(7 * turn) for turn in range(20)]
    calm = relative(alternating(noise, -0.1), 0)[1]
    wild = relative(alternating([*noise[:9], -0.8, *noise[10:]], -0.1), 0)[1]
    assert wild.middle == pytest.approx(calm.middle, abs=0.01)
    assert wild.high - wild.low < 0.1


def test_a_build_is_compared_through_what_was_measured_in_between() -> None:
    """Base and 2 were never neighbours; 1 was beside both while the host drifted."""
    first = [Reading(turn % 2, 0.0 + 0.001 * (turn % 3), at=turn, visit=turn) for turn in range(12)]
    later = [
        Reading(1 + turn % 2, -0.1 - 0.2 * (turn % 2) + 0.001 * (turn % 3), at=300 + turn, visit=20 + turn)
        for turn in range(12)
    ]
    interval = relative(first + later, 0)[2]
    assert interval.middle == pytest.approx(math.exp(-0.2), abs=0.02)


def test_nothing_to_say() -> None:
    assert relative([], 0) == {}
    assert relative([Reading(1, 7.0, 0.0, 0)] * 3, 0) == {}  # base never measured
    assert relative([Reading(0, 7.0, 0.0, 0), Reading(1, 6.9, 1.0, 1)], 0) == {}  # nothing twice
    assert relative([Reading(0, 7.0, float(at), at) for at in range(4)], 0) == {}  # base alone


def test_runs_of_another_host_are_left_out() -> None:
    readings = alternating([0.001, -0.001, 0.002, 0.0, -0.002, 0.001], -0.1)
    elsewhere = [Reading(1, 3.0, 2.5, 90 + n, host=1) for n in range(3)]
    assert relative(readings + elsewhere, 0) == relative(readings, 0)


World = Callable[[np.random.Generator], list[Reading]]


def world(
    *, visits: float = 0.0, drift: float = 0.0, wild: float = 0.0, each: int = 1, gap: float = 1.0, turns: int = 6
) -> World:
    """Hunts on a host: s.d. of visits and of drift in units of a run's noise (1 %), share of wild runs.

    Build 1 takes ``turns`` turns with the base, then build 2; a turn is one visit of ``each`` runs.
    """

    def hunt(random: np.random.Generator) -> list[Reading]:
        readings: list[Reading] = []
        host, at = random.normal(0, drift), 0.0
        for visit in range(4 * turns):
            build = (visit % 2) * (1 + visit // (2 * turns))
            offset = random.normal(0, visits)
            for _ in range(each):
                fade = math.exp(-gap / 30)
                host = fade * host + math.sqrt(1 - fade**2) * random.normal(0, drift)
                noise = random.normal(0, 1) + (random.random() < wild) * random.normal(-10, 3)
                readings.append(Reading(build, 5.0 - 0.05 * build + 0.01 * (host + offset + noise), at, visit))
                at += gap
        return readings

    return hunt


WORLDS = {
    "plain": world(),
    "few runs": world(turns=3),
    "one turn": world(turns=2),
    "visits": world(visits=1.0, each=3),
    "drift": world(drift=4.0),
    "drift and visits": world(drift=4.0, visits=1.0, each=2),
    "slow turns": world(drift=2.0, gap=5.0),
    "wild runs": world(wild=0.05),
}


@pytest.mark.slow
@pytest.mark.calibration
@pytest.mark.parametrize("name", WORLDS)
def test_the_interval_holds_the_truth_as_often_as_it_says(name: str) -> None:
    random = np.random.default_rng(20)
    held = []
    for _ in range(400):
        for build, interval in relative(WORLDS[name](random), 0).items():
            held.append(interval.low <= math.exp(-0.05 * build) <= interval.high)
    print(f"{name}: {np.mean(held):.3f}")
    assert np.mean(held) >= 0.93
