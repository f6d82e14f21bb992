"""Readings of runs that were stopped as too slow."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.core.domain.orders import UNKNOWN, Interval
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.observations import Observation, Reading
from perfbisect.core.inference.record import arrange, behaviour, beyond, direction, united
from perfbisect.core.inference.relative_speed import open_ended, relative_speeds
from perfbisect.core.inference.state_space import fit, levels_of

NOISE = (0.004, -0.011, 0.007, -0.002, 0.013, -0.009)
BOUND = -math.log(5)


def readings(good: int, stopped: int, *, sign: int = -1) -> list[Observation]:
    """So many runs of good (0), and stopped ones of bad (1); ``sign`` is -1 for a metric that is better if higher."""
    seen: list[Observation] = [Reading(0, NOISE[run % 6], run, run) for run in range(good)]
    for run in range(stopped):
        seen.append(Reading(1, -sign * BOUND, good + run, good + run, bound=sign))
    return seen


@given(st.integers(2, 6), st.integers(2, 12))
@settings(max_examples=25, deadline=None)
def test_the_noise_is_that_of_the_other_builds_however_many_runs_were_stopped(good: int, stopped: int) -> None:
    noise = []
    for count in (1, stopped):
        record = arrange(readings(good, count), Policy(), 1)
        levels = levels_of(fit(record, behaviour(record, 0, 1).weight))
        noise.append((levels.noise, levels.freedom))
        assert levels.runs.tolist() == pytest.approx([good, count], rel=0.3)
    assert noise[0] == pytest.approx(noise[1], rel=0.05)
    ordinary = arrange(
        [replace(each, bound=0) for each in readings(good, 12) if isinstance(each, Reading)], Policy(), 1
    )
    assert levels_of(fit(ordinary, np.ones(good + 12))).noise < 0.8 * noise[0][0], "as values they would hide the noise"


@pytest.mark.parametrize(("sign", "low", "high"), [(-1, 0.0, 0.22), (1, 4.5, math.inf)])
def test_the_ratio_of_a_build_whose_runs_were_stopped_has_one_end(sign: int, low: float, high: float) -> None:
    ratio = relative_speeds(readings(5, 2, sign=sign), 1)[1]
    assert ratio.bound == sign
    assert ratio.known
    assert ratio.low >= low
    assert ratio.high <= high
    assert 0.2 <= min(ratio.high, 1 / max(ratio.low, 0.1)) < 0.23, "about the bound, and no farther"


def test_one_stopped_run_among_many_is_an_outlier() -> None:
    seen = [
        Reading(build, -0.1 * build + NOISE[run % 6], 2 * run + build, 2 * run + build)
        for run in range(6)
        for build in (0, 1)
    ]
    ratio = relative_speeds([*seen, Reading(1, BOUND, 20, 20, bound=-1)], 1)[1]
    assert ratio.bound == 0
    assert ratio.middle == pytest.approx(math.exp(-0.1), abs=0.02)


@pytest.mark.parametrize(
    ("build", "baseline", "expected"),
    [
        (0, 0, Interval(0.4, 0.5, 0.6)),
        (-1, 0, Interval(0.0, 0.5, 0.6)),
        (1, 0, Interval(0.4, 0.5, math.inf)),
        (0, -1, Interval(0.4, 0.5, math.inf)),
        (0, 1, Interval(0.0, 0.5, 0.6)),
        (-1, -1, Interval(0.0, 0.5, math.inf)),
    ],
)
def test_which_end_is_open(build: int, baseline: int, expected: Interval) -> None:
    found = open_ended(Interval(0.4, 0.5, 0.6), build, baseline)
    assert found == expected
    assert found.known is (build != baseline or build == 0)


def test_what_is_unknown_is_no_bound() -> None:
    assert not UNKNOWN.known
    assert [Interval(*ends).bound for ends in ((0.0, 1.0, math.inf), (0.1, 0.2, 0.3), (0.0, 0.2, 0.3))] == [0, 0, -1]


def test_stopped_runs_of_a_build_become_one_reading_on_each_host() -> None:
    seen = [Reading(0, 0.0, 0, 0), *(Reading(1, BOUND, run, run, run % 2, bound=-1) for run in range(1, 6))]
    record = arrange(seen, Policy(), 1)
    fewer, weight, repeated = united(record, np.ones(6))
    assert fewer.value.tolist() == pytest.approx([0.0, BOUND, BOUND])
    assert (weight.tolist(), repeated) == ([1.0, 3.0, 2.0], 3.0)
    assert [direction(record, build) for build in (0, 1, 2)] == [0, -1, 0]
    assert beyond(record, 1.0).value.tolist() == pytest.approx([0.0] + 5 * [BOUND - 1])


def test_without_a_stopped_run_nothing_is_touched() -> None:
    record = arrange(readings(3, 0), Policy(), 1)
    weight = np.ones(3)
    assert united(record, weight) == (record, weight, 0.0)
