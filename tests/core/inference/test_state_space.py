"""Estimates of levels by a filter, compared with dense covariances; readings of runs that were stopped as too slow."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.core.domain.orders import UNKNOWN, Interval
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.noise_model import USUAL, weigh_readings
from perfbisect.core.inference.observations import Built, Observation, Reading
from perfbisect.core.inference.record import (
    Record,
    arrange_observations,
    censoring_direction,
    move_stopped_runs,
    unite_stopped_runs,
)
from perfbisect.core.inference.relative_speed import ratios_of_candidates_to_good, with_open_bounds
from perfbisect.core.inference.state_space import Levels, fit_levels, levels_for_search


def estimate(record: Record, weight: np.ndarray) -> Levels:
    return levels_for_search(fit_levels(record, weight))


def readings(seed: int, count: int = 24, hosts: int = 1) -> list[Observation]:
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.uniform(0.5, 4, count))
    return [
        Reading(int(rng.integers(0, 3)) * 5, float(rng.normal()), float(t), i, int(rng.integers(0, hosts)))
        for i, t in enumerate(at)
    ]


def least_squares(record: Record, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The levels of three builds by generalised least squares, and their covariance."""
    x = (record.build[:, None] == np.arange(3)).astype(float)
    covariance = np.linalg.inv(x.T @ weight @ x)
    return covariance @ x.T @ weight @ record.value, covariance


@pytest.fixture
def _keep_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model of the drift is left out as negligible."""
    monkeypatch.setattr("perfbisect.core.inference.state_space.NEGLIGIBLE", 0.0)


@pytest.mark.usefixtures("_keep_all")
@pytest.mark.parametrize("seed", range(2))
def test_levels_are_generalised_least_squares(seed: int) -> None:
    record = arrange_observations(readings(seed), Policy(), 10)
    levels = estimate(record, np.ones(len(record.value)))
    x, squares = (record.build[:, None] == np.arange(3)).astype(float), []
    for law, (size, memory, _) in enumerate(USUAL.drifts):
        gap = np.abs(record.at[:, None] - record.at[None])
        weight = np.linalg.inv(np.eye(len(gap)) + size**2 * np.exp(-gap / (memory * levels.pace)))
        mean, covariance = least_squares(record, weight)
        assert np.allclose(levels.covariance[law], covariance)
        assert np.allclose(levels.mean[law], mean)
        difference = record.value - x @ levels.mean[law]
        squares.append(difference @ weight @ difference)
    assert levels.residual - levels.residual[0] == pytest.approx(np.array(squares) - squares[0])


@pytest.mark.usefixtures("_keep_all")
@pytest.mark.parametrize("hosts", [1, 3])
def test_runs_of_a_visit_share_the_effect_of_the_visit(hosts: int) -> None:
    """Hosts measure at the same time, in visits of one to three runs. The drift is constant within a visit."""
    rng = np.random.default_rng(hosts)
    seen: list[Observation] = []
    for host in range(hosts):
        for start in range(12):
            build = int(rng.integers(0, 3)) * 5
            seen += [Reading(build, float(rng.normal()), 4.0 * start + run + 0.3 * host, 100 * host + start, host)
                     for run in range(int(rng.integers(1, 4)))]  # fmt: skip
    seen.sort(key=lambda reading: reading.at)  # type: ignore[union-attr]
    record = arrange_observations(seen, Policy(), 10)
    levels = estimate(record, np.ones(len(seen)))
    assert levels.pace == 1.0
    shared = record.visit[:, None] == record.visit[None]
    middle = shared @ record.at / shared.sum(axis=1)
    same = record.host[:, None] == record.host[None]
    offset = USUAL.host_offset**2 * (same & (record.host > 0)[:, None])
    for law, ((size, memory, _), (visit, _)) in enumerate(product(USUAL.drifts, USUAL.visits)):
        gap = np.abs(middle[:, None] - middle[None]) / memory
        dense = np.eye(len(gap)) + size**2 * np.exp(-gap) * same + offset + visit**2 * shared
        mean, covariance = least_squares(record, np.linalg.inv(dense))
        assert np.allclose(levels.covariance[law], covariance)
        assert np.allclose(levels.mean[law], mean)


def test_probabilities_sum_to_one_and_drift_is_detected() -> None:
    rng = np.random.default_rng(1)
    values = np.sin(np.arange(80) / 12) * 0.05 + rng.normal(size=80) * 0.005
    seen = [Reading(i % 2 * 10, values[i], float(i), i) for i in range(80)]
    levels = estimate(arrange_observations(seen, Policy(), 10), np.ones(80))
    assert levels.probability.sum() == pytest.approx(1) and levels.probability @ (levels.drift > 0) > 0.99
    assert np.sqrt(levels.noise_variance.min()) < 0.012  # the noise that is left once the drift is known


def test_constant_difference_of_hosts_does_not_bias_levels() -> None:
    rng, turns = np.random.default_rng(2), enumerate([(0, 0), (1, 10), (1, 0), (0, 10)] * 6)
    seen = [Reading(v, 0.3 * host - 0.01 * v + rng.normal() * 0.002, float(i), i, host) for i, (host, v) in turns]
    levels = estimate(arrange_observations(seen, Policy(), 10), np.ones(len(seen)))
    assert levels.probability @ (levels.mean[:, 0] - levels.mean[:, 1]) == pytest.approx(0.1, abs=0.01)


@pytest.mark.usefixtures("_keep_all")
@pytest.mark.parametrize("hosts", [1, 3])
@pytest.mark.parametrize("kept", [1.0, 0.4])
def test_speed_of_a_host_is_predicted_from_the_levels(hosts: int, kept: float) -> None:
    """The drift since the last reading plus the host's offset, compared with conditioning by the dense covariance."""
    record = arrange_observations(readings(7, hosts=hosts), Policy(), 10)
    levels = estimate(record, np.ones(len(record.value)))
    x = (record.build[:, None] == np.arange(3)).astype(float)
    for law, (size, memory, _) in enumerate(USUAL.drifts):
        same = record.host[:, None] == record.host[None]
        gap = np.abs(record.at[:, None] - record.at[None]) / (memory * levels.pace)
        offset = USUAL.host_offset**2 * (same & (record.host > 0)[:, None])
        dense = np.eye(len(gap)) + size**2 * np.exp(-gap) * same + offset
        for host in range(hosts):
            mine = record.host == host
            since = (record.at[mine].max() - record.at) / (memory * levels.pace)
            cross = mine * (size**2 * kept * np.exp(-since) + USUAL.host_offset**2 * (host > 0))
            weight = np.linalg.solve(dense, cross)
            of_levels, error = levels.present.host_speed(host, law, kept)
            assert np.allclose(of_levels, weight @ x, atol=1e-6)
            total = kept**2 * size**2 + USUAL.host_offset**2 * (host > 0)
            assert error == pytest.approx(total - weight @ cross, abs=1e-5)
    of_levels, error = levels.present.host_speed(5, 0, 1.0)
    assert not of_levels.any() and error == USUAL.host_offset**2, "of a host without readings nothing is known"


def test_equal_binaries_share_their_readings() -> None:
    builds = [Built(3, 9.0), Built(7, 9.0, same_as=3)]
    record = arrange_observations([*builds, Reading(7, 0.1, 1.0, 1), Reading(3, 0.2, 2.0, 2)], Policy(), 10)
    assert record.builds == (3,) and record.run_count(7) == record.run_count(3) == 2


NOISE = (0.004, -0.011, 0.007, -0.002, 0.013, -0.009)
BOUND = -math.log(5)


def readings_unusual(good: int, stopped: int, *, sign: int = -1) -> list[Reading]:
    """Runs of good (0), and stopped runs of bad (1). ``sign`` is -1 for a metric that is better if higher."""
    at_bound = [Reading(1, -sign * BOUND, good + run, good + run, bound=sign) for run in range(stopped)]
    return [*(Reading(0, NOISE[run % 6], run, run) for run in range(good)), *at_bound]


@given(st.integers(2, 6), st.integers(2, 12))
@settings(max_examples=25, deadline=None)
def test_the_noise_is_that_of_the_other_builds_however_many_runs_were_stopped(good: int, stopped: int) -> None:
    noise = []
    for count in (1, stopped):
        record = arrange_observations(readings_unusual(good, count), Policy(), 1)
        levels = estimate(record, weigh_readings(record, 0, 1).weight)
        noise.append((levels.noise, levels.freedom))
        assert levels.runs.tolist() == pytest.approx([good, count], rel=0.3)
    assert noise[0] == pytest.approx(noise[1], rel=0.05)
    ordinary = arrange_observations([replace(each, bound=0) for each in readings_unusual(good, 12)], Policy(), 1)
    assert estimate(ordinary, np.ones(good + 12)).noise < 0.8 * noise[0][0], "as values they would hide the noise"


@pytest.mark.parametrize(("sign", "low", "high"), [(-1, 0.0, 0.22), (1, 4.5, math.inf)])
def test_ratio_of_a_build_with_stopped_runs_is_bounded_on_one_side(sign: int, low: float, high: float) -> None:
    ratio = ratios_of_candidates_to_good(readings_unusual(5, 2, sign=sign), 1)[1]
    assert ratio.only_known_bound == sign and ratio.has_known_bound and low <= ratio.low and ratio.high <= high
    assert 0.2 <= min(ratio.high, 1 / max(ratio.low, 0.1)) < 0.23, "about the bound, and no farther"


def test_one_stopped_run_among_many_is_an_outlier() -> None:
    seen = [Reading(at % 2, -0.1 * (at % 2) + NOISE[at // 2], at, at) for at in range(12)]
    ratio = ratios_of_candidates_to_good([*seen, Reading(1, BOUND, 20, 20, bound=-1)], 1)[1]
    assert (ratio.only_known_bound, ratio.middle) == (0, pytest.approx(math.exp(-0.1), abs=0.02))


def test_open_side_of_a_ratio_follows_from_stopped_runs() -> None:
    known = Interval(0.4, 0.5, 0.6)
    below, above = Interval(0.0, 0.5, 0.6), Interval(0.4, 0.5, math.inf)
    ends = ((0, 0), (-1, 0), (0, 1), (1, 0), (0, -1), (-1, -1))
    assert [with_open_bounds(known, *each) for each in ends] == [
        known,
        below,
        below,
        above,
        above,
        Interval(0, 0.5, math.inf),
    ]
    assert [with_open_bounds(known, *each).has_known_bound for each in ends] == [True] * 5 + [False]
    assert not UNKNOWN.has_known_bound, "an unknown ratio has no bound"
    assert [Interval(*ends).only_known_bound for ends in ((0.0, 1.0, math.inf), (0.1, 0.2, 0.3), (0.0, 0.2, 0.3))] == [
        0,
        0,
        -1,
    ]


def test_stopped_runs_of_a_build_become_one_reading_on_each_host() -> None:
    seen = [Reading(0, 0.0, 0, 0), *(Reading(1, BOUND, run, run, run % 2, bound=-1) for run in range(1, 6))]
    record = arrange_observations(seen, Policy(), 1)
    fewer, weight, repeated = unite_stopped_runs(record, np.ones(6))
    assert fewer.value.tolist() == pytest.approx([0.0, BOUND, BOUND])
    assert (weight.tolist(), repeated) == ([1.0, 3.0, 2.0], 3.0)
    assert [censoring_direction(record, build) for build in (0, 1, 2)] == [0, -1, 0]
    none = arrange_observations(readings_unusual(3, 0), Policy(), 1)
    assert unite_stopped_runs(none, weight[:1]) == (none, weight[:1], 0.0), "without a stopped run nothing changes"
    assert move_stopped_runs(record, 1.0).value.tolist() == pytest.approx([0.0] + 5 * [BOUND - 1])
