"""Noise between visits and within visits: results computed by hand, and simulated A/A tests with known noise."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_effect import LayoutEffect, effect_of

from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.stats.distributions import Student
from perfbisect.core.stats.noise import (
    STEP,
    Noise,
    TimedRun,
    best_repetitions,
    best_runs_and_length,
    initial_noise,
    mean_square_interval_factors,
    noise_of_metric,
    noise_of_runs,
    smallest_detectable_drop,
)


def timed(*visits: tuple[float, ...]) -> list[TimedRun]:
    return [TimedRun(number, value) for number, values in enumerate(visits) for value in values]


def known(runs: list[TimedRun], shared: bool = True) -> Noise:
    found = noise_of_runs(runs, shared)
    assert found is not None
    return found


def draw(rng: np.random.Generator, visits: int, runs: int, between: float, within: float) -> list[TimedRun]:
    level = rng.normal(0, between, visits)
    return [TimedRun(v, level[v] + rng.normal(0, within)) for v in range(visits) for _ in range(runs)]


def test_noise_of_three_visits_equals_a_result_computed_by_hand() -> None:
    """Visits of two runs have the means 1, 3 and 8: MSW = (2 + 2 + 2) / 3, MSB = 2 (9 + 1 + 16) / 2."""
    found = known(timed((0, 2), (2, 4), (7, 9)))
    shares = (found.within, found.between, found.run)
    assert shares == pytest.approx((math.sqrt(2), math.sqrt((26 - 2) / 2), math.sqrt(12 + 2)))
    assert found.low < found.run < found.high
    assert (found.visits, found.runs, found.outliers) == (3, 6, 0)


def test_noise_of_visits_with_different_numbers_of_runs() -> None:
    """Ctrl-C cuts a visit short. The mean number of runs is r₀ = 5 - (3² + 2²) / 5: see the module noise."""
    found = known(timed((0.0, 2.0, 4.0), (9.0, 11.0)))
    msw, msb, even = (8 + 2) / 3, 3 * (2 - 5.2) ** 2 + 2 * (10 - 5.2) ** 2, 5 - 13 / 5
    assert (found.within, found.between) == pytest.approx((math.sqrt(msw), math.sqrt((msb - msw) / even)))


def test_noise_between_or_within_visits_is_none_if_not_measured() -> None:
    one_visit, one_run_each = known(timed((1.0, 2.0, 3.0))), known(timed((1.0,), (2.0,), (3.0,)))
    assert one_visit.between is one_run_each.between is one_run_each.within is None
    assert one_visit.within == one_visit.run == pytest.approx(1.0) == one_run_each.run
    assert noise_of_runs(timed((1.0,)), True) is noise_of_runs([], True) is None


def test_equal_runs_have_no_noise_and_drift_is_no_noise_of_a_run() -> None:
    found = known(timed((1.0, 1.0), (1.0, 1.0)))
    assert found.run == found.low == found.high == smallest_detectable_drop(found, 2, 2) == 0.0
    runs = timed((0.0, 0.1, 0.2), (5.0, 5.1, 5.2), (9.0, 9.1, 9.2))
    assert known(runs, shared=False).run == pytest.approx(0.1)
    assert known(runs, shared=True).run > 4
    assert smallest_detectable_drop(known(runs, shared=False), 4, 1) < 0.3


def test_outlier_run_is_left_out_and_counted() -> None:
    runs = draw(np.random.default_rng(5), 8, 4, 0.0, 0.01)
    found = known([*runs[:9], TimedRun(runs[9].visit, runs[9].value - 0.5), *runs[10:]])
    assert found.outliers == 1 and found.run < 0.02


VISITS = st.lists(st.lists(st.floats(-1, 1), min_size=1, max_size=4), min_size=2, max_size=6)


@settings(max_examples=60, deadline=None)
@given(VISITS, st.floats(-5, 5), st.floats(0.5, 4))
def test_noise_scales_with_readings_and_ignores_a_shift(visits: list[list[float]], shift: float, scale: float) -> None:
    """The variance of a run is the sum of the variances between and within visits."""
    plain = known(timed(*map(tuple, visits)))
    moved = known(timed(*(tuple(shift + scale * value for value in values) for values in visits)))
    if plain.outliers or moved.outliers:
        return
    assert moved.run == pytest.approx(scale * plain.run, rel=1e-6, abs=1e-6)
    if plain.within is not None and plain.between is not None:
        assert plain.run**2 == pytest.approx(plain.within**2 + plain.between**2, abs=1e-9)


SHAPES = [(8, 4, 0.0, 1.0), (8, 4, 1.0, 1.0), (6, 5, 3.0, 1.0), (12, 2, 0.5, 1.0)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_noise_interval_covers_the_true_noise(shape: tuple[int, int, float, float]) -> None:
    """95 % of the 95 % intervals contain the true noise of a run, for each share of noise between visits."""
    visits, runs, between, within = shape
    rng = np.random.default_rng(11)
    truth, trials = math.hypot(between, within), 300
    found = [known(draw(rng, visits, runs, between, within)) for _ in range(trials)]
    assert sum(noise.low <= truth <= noise.high for noise in found) / trials == pytest.approx(0.95, abs=0.035)
    variances = [noise.run**2 for noise in found]
    assert np.mean(variances) == pytest.approx(truth**2, rel=0.12)


@pytest.mark.calibrate
@pytest.mark.calibration
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_smallest_detectable_drop_is_detected_in_80_percent_of_tests(shape: tuple[int, int, float, float]) -> None:
    """A test of visit means. The table assumes known noise, here from an A/A test with 4,000 visits."""
    visits, runs, between, within = shape
    rng = np.random.default_rng(7)
    long = known(draw(rng, 4000, runs, between / 100, within / 100))
    drop = -math.log(1 - smallest_detectable_drop(long, visits, runs))
    error = math.sqrt(2 * (between**2 / visits + within**2 / (visits * runs))) / 100
    seen, trials = 0, 3000
    for _ in range(trials):
        sides = [draw(rng, visits, runs, between / 100, within / 100) for _ in range(2)]
        slow, fast = (np.mean([run.value for run in side]) for side in sides)
        seen += abs(fast - slow + drop) > Student(long.freedom).quantile() * error
    assert seen / trials == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize(("between", "within", "visit", "run"), [(0.5, 1.0, 20.0, 5.0), (1.0, 1.0, 60.0, 2.0)])
def test_best_run_count_minimizes_variance_times_cost(between: float, within: float, visit: float, run: float) -> None:
    """The formula agrees with the best of 1 to 39 runs."""
    price = {n: (between**2 + within**2 / n) * (visit + n * run) for n in range(1, 40)}
    best = min(price, key=price.__getitem__)
    assert abs(best_repetitions(run, visit, within**2, between**2) - best) <= 1
    shared, alone = (Noise(8, 32, 0, each, between, within, 1.0, 1.0, 1.0, 9.0, None) for each in (True, False))
    assert best_runs_and_length(shared, 1.0, run, visit).runs == best_repetitions(run, visit, within**2, between**2)
    assert best_runs_and_length(alone, 1.0, run, visit).runs == 1


def test_best_length_of_a_run_depends_on_noise_that_longer_runs_average() -> None:
    def seconds(between: float, within: float, second: float | None, *lengths: float) -> int | None:
        noise = Noise(8, 32, 0, True, between, within, math.hypot(between, within), 0, 1, 9, second)
        return best_runs_and_length(noise, *lengths, 0.0).seconds

    assert seconds(0, 0.01, 0.02, 10, 18) == seconds(0.05, 0.01, 0.02, 10, 18), "noise between visits changes no length"
    assert seconds(0.01, 0.01, 0.0, 4, 5.0) == 1
    assert (seconds(0.01, 0.02, 0.04, 4, 9.0) or 0) > 4
    assert seconds(0.01, 0.01, None, 4, 5.0) is None


def run(visit: str, qps: float, samples: tuple[float, ...] = ()) -> RunFacts:
    return RunFacts("c", "k", visit, "here", 0.0, 4.0, round(qps * 4), {"p95": None}, samples, {}, {})


def test_noise_of_a_trial_groups_runs_by_server_start() -> None:
    """The visit id identifies the start of a server. Samples per second give the noise of a second."""
    shared = [(0, run("a", 1000)), (0, run("a", 1010)), (1, run("b", 1100)), (1, run("b", 1110))]
    alone = [(number // 2, run(str(number), 1000 + number, (900, 1000, 1100, 1000))) for number in range(4)]
    found, single = noise_of_metric(shared, "qps"), noise_of_metric(alone, "qps")
    assert found and found.runs_share_start and found.second is None
    assert single and not single.runs_share_start and single.second == pytest.approx(0.0816, rel=0.01)
    assert noise_of_metric(shared, "p95") is None


def test_histogram_steps_of_a_percentile_are_no_outliers() -> None:
    """On a quiet host, the p95 of most runs is in one bucket of sysbench's histogram."""
    level = [0.0] * 13 + [STEP, STEP, -STEP]
    found = known([TimedRun(i % 4, value) for i, value in enumerate(level)], shared=False)
    assert found.outliers == 0 and found.run > 0.2 * STEP
    assert initial_noise(0.0, "p95") > initial_noise(0.0, "qps") > 0
    assert initial_noise(0.03, "p95") == 0.03


@pytest.mark.parametrize("freedom", [1, 2, 3, 5, 7, 12, 40])
def test_variance_interval_factors_match_simulated_quantiles(freedom: int) -> None:
    squares = np.random.default_rng(freedom).chisquare(freedom, 40_000)
    low, high = freedom / np.quantile(squares, [0.975, 0.025])
    assert mean_square_interval_factors(freedom) == (pytest.approx(low, rel=0.05), pytest.approx(high, rel=0.1))


# The effect of code layout, which benchmarks measure with one commit in several layouts.


def drawn(rng: np.random.Generator, layouts: int, rounds: int, sd: float, visit: float) -> LayoutEffect:
    """The layout effect in simulated visits of several layouts, on a host that drifts from round to round."""
    level = np.concatenate([[0.0], rng.normal(0, sd, layouts)])
    drift = np.cumsum(rng.normal(0, 0.05, rounds))
    visits = level[:, None] + drift[None, :] + rng.normal(0, visit, (layouts + 1, rounds)) + 3.0
    return effect_of({(build, at): float(visits[build, at]) for build in range(layouts + 1) for at in range(rounds)})


@pytest.mark.parametrize(("sd", "visit"), [(0.08, 0.01), (0.02, 0.02), (0.005, 0.02), (0.0, 0.01)])
def test_layout_effect_is_estimated_in_spite_of_drift(sd: float, visit: float) -> None:
    rng = np.random.default_rng(4)
    found = [drawn(rng, 10, 3, sd, visit) for _ in range(400)]
    assert float(np.mean([each.sd**2 for each in found])) == pytest.approx(sd**2, rel=0.25, abs=3e-5)
    assert float(np.median([each.visit for each in found])) == pytest.approx(visit, rel=0.1)
    assert sum(each.low <= sd <= each.high for each in found) > 0.92 * 400


def test_layout_speeds_are_relative_to_the_mean_of_the_layouts() -> None:
    speeds = enumerate((1.21, 1.1, 1.0, 1 / 1.1))
    found = effect_of({(build, at): math.log(speed) + at for build, speed in speeds for at in range(2)})
    assert (found.layouts, found.rounds) == (3, 2)
    assert (found.lowest, found.highest, found.usual) == pytest.approx((1 / 1.1, 1.1, 1.21))
    assert found.visit == pytest.approx(0.0, abs=1e-9)
