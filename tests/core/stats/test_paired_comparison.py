"""Ratios of builds from rounds, the share of a change that a revert undoes, and the coverage of their intervals."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import sample_hunt as sample
from perfbisect.core.domain.facts import SkipFacts, TrialRun, TrialSkip
from perfbisect.core.domain.orders import Interval
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.trials import remaining_rounds, visiting_order, visits_of_each_round
from perfbisect.core.stats.distributions import Student
from perfbisect.core.stats.paired_comparison import (
    Ratio,
    RegainedSpeed,
    better_or_worse,
    compare_builds,
    group_summaries,
    has_every_build_a_ratio,
    largest_real_p_value,
    log_resolution,
    paired_ratio,
    regained_in_rounds,
    workloads_and_builds_without_metric,
)


def trial(subjects: int = 2, works: tuple[str, ...] = ("scan",), rounds: int = 3, runs: int = 1) -> SessionState:
    """A trial without runs."""
    return sample.comparison(subjects, works, rounds=rounds, runs=runs)


def ran(number: int, subject: int, qps: float, work: int = 0) -> TrialRun:
    return TrialRun(number, work, subject, 10.0 * number, 10.0, sample.run(0, 10.0 * number, qps=qps))


def ratio_of(made: SessionState, metric: str = "qps") -> Ratio:
    """The only ratio of a trial."""
    [[ratio]] = [row.ratios for row in compare_builds(made, metric)]
    assert ratio is not None
    return ratio


def test_ratio_compares_builds_within_each_round() -> None:
    """The machine, and so each build, is half as fast in the second round."""
    made = trial()
    for number, base in enumerate((1000, 500, 990)):
        made.runs.extend([ran(number, 0, base), ran(number, 1, 0.8 * base)])
    ratio = ratio_of(made)
    assert ratio.interval and ratio.rounds == 3 and ratio.excludes_one
    assert (ratio.ratio, ratio.interval.low, ratio.interval.high) == pytest.approx((0.8, 0.8, 0.8), rel=3e-3)


def of_latency(number: int, subject: int, latency: float) -> TrialRun:
    """A run with ``latency`` milliseconds, as average and as 95th percentile."""
    facts = replace(sample.run(0, 1.0), latency={"p95": latency, "avg": latency})
    return TrialRun(number, 0, subject, 1.0, 1.0, facts)


def test_log_resolution_of_rounded_metrics() -> None:
    for metric, values, step in (
        ("p95", (10.123456, 10.234567), 0.018),
        ("p95", (0.04, 0.05), 0.01 / 0.045),
        ("latency", (2.5, 2.55), 0.01 / 2.525),
        ("latency", (20.0, 30.0), 1 / 25),
        ("latency", (2.123456789, 2.5), 1e-9 / 2.311728),
    ):
        made = trial()
        made.runs.extend(of_latency(number, 0, each) for number, each in enumerate(values))
        assert log_resolution(made, 0, metric) == pytest.approx(step, rel=1e-3)


def test_equal_differences_of_a_percentile_in_two_rounds_prove_nothing() -> None:
    made = trial(rounds=2)
    made.runs.extend(of_latency(number, build, 1.82 + 0.04 * build) for number in (0, 1) for build in (0, 1))
    ratio = ratio_of(made, "p95")
    assert ratio.p and ratio.p > 0.1 and not ratio.real and not ratio.excludes_one
    assert regained_in_rounds({0: 0.1, 1: 0.1}, {0: 0.0, 1: 0.0}, {0: 0.05, 1: 0.05}, 0.1).share is None  # type: ignore[union-attr]


@pytest.mark.calibration
@pytest.mark.parametrize("noise", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("rounds", [2, 5, 20])
def test_intervals_of_rounded_readings_keep_their_coverage(noise: float, rounds: int) -> None:
    """``noise``: the s.d. of a reading, in steps of rounding. In each trial, levels are random between two steps."""
    rng, trials, inside = np.random.default_rng(1), 400, 0
    for _ in range(trials):
        levels = rng.random(2)
        readings = np.round(levels[:, None] + noise * rng.normal(size=(2, rounds)))
        base, other = (dict(enumerate((0.018 * each).tolist())) for each in readings)
        ratio = paired_ratio(base, other, 0.018)
        assert ratio and ratio.interval
        inside += ratio.interval.low <= math.exp(0.018 * (levels[1] - levels[0])) <= ratio.interval.high
    assert inside / trials > 0.925


def test_ratio_uses_only_rounds_with_runs_of_both_builds() -> None:
    made = trial(3)
    made.runs.extend([ran(0, 0, 1000), ran(0, 1, 900), ran(1, 0, 10), ran(2, 1, 2000)])
    assert compare_builds(made, "qps")[0].ratios == (Ratio(pytest.approx(0.9), None, 1), None)
    assert compare_builds(trial(), "qps")[0].ratios == (None,)


def test_runs_of_a_visit_are_averaged_to_one_value_of_the_round() -> None:
    made = trial(runs=2)
    made.runs.extend([ran(0, 0, 100), ran(0, 0, 400), ran(0, 1, 100), ran(0, 1, 100)])
    assert ratio_of(made).ratio == pytest.approx(0.5)


def test_counter_missing_on_a_host_removes_only_its_own_metrics() -> None:
    made = trial()
    runs = (ran(0, 0, 100.0), ran(0, 1, 101.0))
    made.runs.extend(replace(each, facts=replace(each.facts, counters={"task-clock": 1000.0})) for each in runs)
    [row] = compare_builds(made, "instructions/o")
    assert row.ratios == (None,) and "instructions/o" not in row.counters
    assert row.counters["qps"] == (100, pytest.approx(1.01))
    assert row.counters["cpu/o"][1] == pytest.approx(100 / 101)


def test_summaries_are_of_groups_with_several_workloads() -> None:
    made = trial(works=("point-1", "scan", "point-2", "point-3"))
    for work, qps in enumerate((900, 500, 1200, 1000)):
        made.runs.extend([ran(0, 0, 1000, work), ran(0, 1, qps, work)])
    rows = compare_builds(made, "qps")
    assert [row.work for row in rows] == ["point-1", "point-2", "point-3", "scan"]
    [summary] = group_summaries(rows)
    assert (summary.group, summary.subject) == ("point", 1)
    figures = (summary.least, summary.most, summary.average, summary.median)
    assert figures == pytest.approx((0.9, 1.2, 3.1 / 3, 1.0))


def test_only_large_and_certain_ratios_are_called_better_or_worse() -> None:
    for low, middle, high, metric, said in (
        (0.85, 0.90, 0.94, "qps", "worse"),
        (0.80, 0.90, 1.02, "qps", ""),
        (0.95, 0.96, 0.97, "qps", ""),
        (1.05, 1.10, 1.15, "qps", "better"),
        (1.05, 1.10, 1.15, "instructions/o", "worse"),
        (0.85, 0.90, 0.94, "p95", "better"),
    ):
        ratio = Ratio(middle, Interval(low, middle, high), 5, 0.001, real=True)
        assert better_or_worse(ratio, metric) == said
        assert not better_or_worse(replace(ratio, interval=None), metric)
        assert not better_or_worse(replace(ratio, real=False), metric), "not significant among all ratios of the table"


def test_trend_of_the_machine_favours_no_build() -> None:
    """The machine slows down by 1 % with each visit; each round reverses the order of the last round."""
    assert [list(visiting_order([0, 2, 3], turn)) for turn in range(3)] == [[0, 2, 3], [3, 2, 0], [0, 2, 3]]
    made = trial()
    visits = ((number, subject) for number in range(4) for subject in visiting_order([0, 1], number))
    made.runs.extend(ran(number, subject, 1000 * math.exp(-0.01 * at)) for at, (number, subject) in enumerate(visits))
    assert ratio_of(made).ratio == pytest.approx(1, rel=1e-4)  # operations are whole numbers
    assert not ratio_of(made).excludes_one


def test_incomplete_rounds_are_repeated_with_new_numbers() -> None:
    made = trial(rounds=4)
    assert remaining_rounds(made) == range(4)
    made.runs.extend([ran(0, 0, 1), ran(0, 1, 1), ran(1, 1, 1)])
    assert remaining_rounds(made) == range(2, 5)
    assert not remaining_rounds(replace(made, request=replace(made.request, rounds=1)))


def skip(work: int, subject: int) -> TrialSkip:
    """A build that fails in a workload."""
    return TrialSkip(work, subject, 5.0, SkipFacts(f"{subject:040}", "run", "it crashed", "log", 1.0))


def test_round_is_complete_without_failed_builds() -> None:
    """The second workload fails with the second build in the second round, and with the baseline in the third round."""
    made = trial(3, ("scan", "point"), rounds=4)
    every = [(work, subject) for work in range(2) for subject in range(3)]
    made.runs.extend(ran(number, subject, 1, work) for number in range(2) for work, subject in every)
    made.runs.remove(ran(1, 1, 1, 1))
    assert remaining_rounds(made) == range(2, 5), "a run is missing without a failure"
    made.skips.append(skip(1, 1))
    assert remaining_rounds(made) == range(2, 4)
    assert visits_of_each_round(made) == [pair for pair in every if pair != (1, 1)]
    made.skips.append(skip(1, 0))
    assert visits_of_each_round(made) == [(0, 0), (0, 1), (0, 2)]
    made.runs.append(ran(2, 0, 1))
    assert remaining_rounds(made) == range(3, 5), "the third round was interrupted"


def test_comparison_is_complete_if_each_workload_and_build_has_a_ratio() -> None:
    made = trial(works=("scan", "point"))
    made.runs.extend(ran(0, subject, 100, work) for work in range(2) for subject in range(2))
    counted = replace(made, request=replace(made.request, metric="instructions/o"))
    assert has_every_build_a_ratio(made) and has_every_build_a_ratio(counted)
    bare = replace(made.runs[3], facts=replace(made.runs[3].facts, counters={}))
    lacking = replace(counted, runs=[*made.runs[:3], bare])
    assert not has_every_build_a_ratio(lacking) and workloads_and_builds_without_metric(lacking) == [(1, 1)]
    assert not has_every_build_a_ratio(replace(made, skips=[skip(0, 1)])), "even if the build has earlier runs"
    assert not has_every_build_a_ratio(replace(made, runs=made.runs[:3]))


@pytest.mark.parametrize("metric", ["rate", "p95", "cost"])
def test_counters_include_the_metric_itself(metric: str) -> None:
    made = trial()
    for run, of in ((of_latency(0, 0, 8.0), 8.0), (of_latency(0, 1, 4.0), 4.0)):
        made.runs.append(replace(run, facts=replace(run.facts, reported=of)))
    [row] = compare_builds(made, metric)
    assert list(row.counters)[:2] == [metric, "qps"] and row.counters[metric] == (8.0, 0.5)


@pytest.mark.calibrate
@pytest.mark.calibration
@pytest.mark.parametrize("rounds", [2, 3, 5, 12])
@pytest.mark.parametrize("drift", [0.0, 0.01])
def test_95_percent_intervals_contain_the_truth_in_95_percent_of_trials(rounds: int, drift: float) -> None:
    """Visits and runs are noisy; the machine's speed changes randomly between visits and, with ``drift``, steadily."""
    chance = random.Random(rounds)
    cases, right, wander = 4000, 0, 0.0
    for _ in range(cases):
        true = chance.uniform(-0.3, 0.3)
        sides: tuple[dict[int, float], dict[int, float]] = ({}, {})
        for number in range(rounds):
            for place, side in enumerate(visiting_order([0, 1], number)):
                wander += chance.gauss(0, 0.01)
                visit = true * side + chance.gauss(0, 0.02) + wander + drift * (2 * number + place)
                sides[side][number] = visit + sum(chance.gauss(0, 0.03) for _ in range(2)) / 2
        ratio = paired_ratio(*sides)
        assert ratio and ratio.interval
        right += ratio.interval.low <= math.exp(true) <= ratio.interval.high
    assert right / cases == pytest.approx(0.95, abs=0.012) or (drift and right / cases > 0.95)


def test_largest_real_p_value_matches_the_published_example() -> None:
    """Benjamini and Hochberg (1995), section 3.2: 15 p-values, of which four remain at 5 %."""
    published = [
        0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590,
        1.0,
    ]  # fmt: skip
    assert largest_real_p_value(published) == largest_real_p_value([None, *published[::-1]]) == published[3]
    assert (largest_real_p_value([]), largest_real_p_value([0.049]), largest_real_p_value([0.051])) == (
        -1.0,
        0.049,
        -1.0,
    )


Levels = dict[int, float]


def levels(*values: float) -> Levels:
    return dict(enumerate(values))


def regained(good: Levels, bad: Levels, back: Levels) -> RegainedSpeed:
    """The share of a change that a revert undoes, if there are enough rounds."""
    found = regained_in_rounds(good, bad, back)
    assert found is not None
    return found


def test_regained_share_is_a_ratio_of_logarithms() -> None:
    """The speed halves, then rises by the square root of 2: half of the loss. The second round has a slower machine."""
    rates = (1000.0, 500.0, 500 * math.sqrt(2))
    found = regained(*(levels(*(math.log(rate) + each for each in (0.0, math.log(0.5), 0.1))) for rate in rates))
    assert found.lost == pytest.approx(math.log(2))
    assert found.share and found.rounds == 3
    assert (found.share.low, found.share.middle, found.share.high) == pytest.approx((0.5, 0.5, 0.5))


def test_regained_share_uses_only_rounds_with_all_three_builds() -> None:
    found = regained(levels(1.0, 1.1, 1.0), levels(0.0, 0.1), {0: 1.0, 1: 0.9, 7: -5.0})
    assert found.rounds == 2 and found.share and found.share.middle == pytest.approx(0.9)
    assert regained_in_rounds({0: 1.0}, {0: 0.0}, {0: 1.0}) is None
    assert regained_in_rounds({0: 1.0, 1: 1.0}, {2: 0.0, 3: 0.0}, {0: 1.0, 1: 1.0}) is None


def test_no_share_is_regained_without_a_proven_loss() -> None:
    assert regained(levels(0.1, -0.1, 0.05), levels(0.0, 0.0, 0.0), levels(0.5, 0.5, 0.5)).share is None
    assert regained(levels(1.0, 2.0), levels(1.0, 2.0), levels(3.0, 4.0)).share is None


@st.composite
def trials(draw: st.DrawFn) -> list[Levels]:
    """Levels of good, bad and the revert in each round: a loss of at least a half, a regained share, and noise."""
    lost, truth, rounds = draw(st.floats(0.7, 3)), draw(st.floats(-1, 2)), draw(st.integers(3, 8))
    noise = st.lists(st.floats(-0.2, 0.2), min_size=rounds, max_size=rounds)
    return [levels(*(level + each for each in draw(noise))) for level in (lost, 0.0, truth * lost)]


@given(trials())
def test_the_interval_holds_the_shares_that_a_test_of_paired_differences_accepts(builds: list[Levels]) -> None:
    found = regained(*builds).share
    assume(found is not None)
    assert found and found.low <= found.middle <= found.high
    good, bad, back = (np.array([*build.values()]) for build in builds)

    def excess(candidate: float) -> float:
        """Above 0 where Student's test refuses the share."""
        rest = (back - bad) - candidate * (good - bad)
        error = float(rest.std(ddof=1)) / math.sqrt(len(rest))
        return abs(float(rest.mean())) - Student(len(rest) - 1).tabulated_quantile() * error

    exact = 1e-6 * (1 + abs(found.low) + abs(found.high))
    assert excess(found.middle) <= exact
    for end, step in ((found.low, -0.5), (found.high, 0.5)):
        assert abs(excess(end)) < exact
        assert excess(end + step) > 0


@given(trials(), st.floats(-5, 5), st.floats(-2, 2))
def test_unit_drift_and_whether_more_is_better_do_not_matter(builds: list[Levels], unit: float, drift: float) -> None:
    plain = regained(*builds)
    moved = regained(*({at: unit + drift * at - level for at, level in build.items()} for build in builds))
    assert moved.lost == pytest.approx(-plain.lost)
    assume(plain.share is not None and plain.share.high - plain.share.low < 10)
    for end in ("low", "middle", "high"):
        assert getattr(moved.share, end) == pytest.approx(getattr(plain.share, end), rel=1e-5, abs=1e-5)


@pytest.mark.calibrate
@pytest.mark.calibration
@pytest.mark.parametrize("rounds", [3, 6])
@pytest.mark.parametrize("truth", [0.0, 0.83, 1.3])
@pytest.mark.parametrize("noise", [0.005, 0.03, 0.1])
def test_intervals_of_the_regained_share_miss_the_truth_in_5_percent(rounds: int, truth: float, noise: float) -> None:
    """A loss of 10 %, on a machine that drifts from round to round. ``noise``: the s.d. of the logarithm of a visit.

    If noise hides the loss, a trial states no interval: no error. Three standard errors of 3000 trials are 1.2 %.
    """
    random = np.random.default_rng([rounds, round(100 * truth), round(1000 * noise)])
    lost, count = -math.log(0.9), 3000
    wrong = stated = 0
    for _ in range(count):
        machine = np.cumsum(random.normal(0, 0.05, rounds))
        each = (level + machine + random.normal(0, noise, rounds) for level in (lost, 0.0, truth * lost))
        found = regained(*(levels(*one) for one in each))
        if found.share is not None:
            stated += 1
            wrong += not found.share.low <= truth <= found.share.high
    assert wrong / count < 0.062
    if noise == 0.005:  # with little noise, each trial shows the loss
        assert stated == count
        assert wrong / count > 0.038
