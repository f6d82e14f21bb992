"""Computes how much the runs of one build vary, and which drops can be shown in spite of this variation.

A visit starts the server on a new copy of its data, and consists of one or more runs. Chance effects of the start
(addresses, the order of pages) are the same in all runs of the visit. σw² is the variance between the runs of a visit,
and σb² is the variance that the starts add. Let v be the number of visits, rᵢ the number of runs of visit i, N the
number of all runs, x[i][j] the logarithm of the value of run j of visit i, x̄[i] the mean of visit i, and x̄ the mean
of all runs. Then

    mean square within    MSW = Σᵢⱼ (x[i][j] - x̄[i])² / (N - v)          estimates σw²
    mean square between   MSB = Σᵢ rᵢ (x̄[i] - x̄)² / (v - 1)              estimates σw² + r₀ σb²,
                          r₀  = (N - Σᵢ rᵢ²/N) / (v - 1)                  which is r if all visits have r runs

The estimate of σb² is (MSB - MSW) / r₀, or 0 if this is negative. This is the analysis of variance for one random
effect (Searle, Casella and McCulloch, Variance Components, 1992, chapter 3). The interval of σb² + σw² is Graybill and
Wang's interval of sums of mean squares (Confidence intervals on nonnegative linear combinations of variances, JASA 75,
1980). The best numbers of visits, and of runs in a visit, follow from the costs of a visit and of a run (Kalibera and
Jones, Rigorous benchmarking in reasonable time, ISMM 2013).

An embedded library is opened anew for every run, so runs of a visit have no effects in common except the drift of the
machine. A hunt cancels drift by interleaving runs. Therefore, for an embedded library, σb² is not a part of the noise
of a run.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from perfbisect.core.domain.facts import RunFacts, pair_runs
from perfbisect.core.domain.metrics import log_metric, log_metric_from_cpu_time, metric_value
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.trials import paired_or_interleaved_runs
from perfbisect.core.stats.distributions import Z_975, Student, chi_square_quantile

ENOUGH = 6  # the noise of an A/A test with at least this number of runs replaces the noise of older hunts
FEWEST_PAIRS = 3  # the fewest paired runs from whose ratios an s.d. is estimated
WILD = 6.0  # standard deviations from the median of a visit; a run further away is an outlier
Z_POWER = 0.841621  # 80 % point of the normal distribution: the power of a comparison
LEAST = 0.001  # smallest s.d. of a run that is assumed
STEP = 0.018  # step between neighbouring values of a percentile in sysbench's histogram, as a logarithm
MAX_REPEATS = 50  # the most repetitions that are advised


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One run of an A/A test."""

    visit: int
    value: float  # natural logarithm of the metric
    # The variance of ``value`` that follows from the variation of the run's report intervals, if they are independent.
    sampling_variance: float | None = None
    seconds: float = 1.0  # length of the run's window


@dataclass(frozen=True, slots=True)
class Noise:
    """The variation of the runs of one build. Standard deviations are of logarithms, so 0.01 means 1 %."""

    visits: int
    runs: int
    outliers: int  # runs that are left out as outliers
    runs_share_start: bool  # whether the runs of a visit share one start of a server
    between: float | None  # s.d. between visits; None if unknown, with one visit or one run in each visit
    within: float | None  # s.d. between the runs of a visit
    run: float  # s.d. of one run in a hunt
    low: float  # 95 % interval of ``run``
    high: float
    freedom: float  # degrees of freedom of ``run``
    second: float | None  # s.d. of one second within a run; None if no run has report intervals


def noise_of_metric(runs: Sequence[tuple[int, RunFacts]], metric: str) -> Noise | None:
    """The noise of a metric in the runs of an A/A test; None if it is unknown. ``runs`` are pairs (number of the visit,
    run)."""
    readings = [(visit, run, x) for visit, run in runs if (x := metric_value(run, metric)) and x > 0]
    timed = [TimedRun(visit, math.log(x), _sampling_variance(run, metric), run.seconds) for visit, run, x in readings]
    return noise_of_runs(timed, runs_share_start=len({run.visit for _, run in runs}) < len(runs))


def noise_of_runs(runs: Sequence[TimedRun], runs_share_start: bool) -> Noise | None:
    """The noise in the runs of an A/A test; None for fewer than two runs. ``runs_share_start`` says whether all runs of
    a visit use the same start of the server.
    """
    if len(runs) < 2:
        return None
    tame = _without_outliers(runs)
    level = np.array([run.value for run in tame])
    _, group = np.unique([run.visit for run in tame], return_inverse=True)
    size = np.bincount(group).astype(np.float64)
    mean = np.bincount(group, level) / size
    n, v = len(level), len(size)
    inside = float(((level - mean[group]) ** 2).sum())
    outside = float((size * (mean - level.mean()) ** 2).sum())
    msw = inside / (n - v) if n > v else None
    msb = outside / (v - 1) if v > 1 else None
    seconds = [run.sampling_variance * run.seconds for run in tame if run.sampling_variance is not None]
    second = math.sqrt(float(np.mean(seconds))) if seconds else None
    between: float | None = None
    if msw is None or msb is None:
        total, freedom = (msb, v - 1.0) if msb is not None else (msw or 0.0, n - v + 0.0)
        low, high = (total * factor for factor in mean_square_interval_factors(freedom))
    else:
        even = (n - float((size**2).sum()) / n) / (v - 1)
        between = max(0.0, msb - msw) / even
        weights = (1 / even, 1 - 1 / even) if runs_share_start else (0.0, 1.0)
        parts, freedoms = [w * s for w, s in zip(weights, (msb, msw), strict=True)], (v - 1, n - v)
        total = (between if runs_share_start else 0.0) + msw
        low, high = _interval_of_sum(parts, freedoms)
        low, high = min(low, total), max(high, total)
        spread = sum(part**2 / f for part, f in zip(parts, freedoms, strict=True))
        freedom = total**2 / spread if spread else n - 1.0
    of_visits, of_runs = (None if mean_square is None else math.sqrt(mean_square) for mean_square in (between, msw))
    run, low, high = map(math.sqrt, (total, low, high))
    return Noise(v, n, len(runs) - n, runs_share_start, of_visits, of_runs, run, low, high, freedom, second)


def initial_noise(measured_noise: float, metric: str) -> float:
    """The standard deviation of a run that a hunt assumes at its begin: ``measured_noise``, but at least a lower limit
    that depends on the metric.

    Measured noise below the limit is not used, because a host can be unusually quiet for some hours.
    """
    return max(measured_noise, STEP / math.sqrt(12) if metric in ("p95", "p99") else LEAST)


def smallest_detectable_drop(noise: Noise, visits: int, runs_per_visit: float) -> float:
    """The smallest drop, as a fraction, that ``visits`` visits of each of two builds show at the 95 % level with a
    power of 80 %.

    The test has the degrees of freedom of the A/A test plus the degrees of freedom of the visits.
    """
    within = noise.within if noise.within is not None else noise.run
    between = (noise.between or 0.0) if noise.runs_share_start else 0.0
    error = math.sqrt(2 * (between**2 / visits + within**2 / (visits * runs_per_visit)))
    law = Student(noise.freedom + 2 * (visits - 1))
    return 1 - math.exp(-(law.quantile() + law.quantile(Z_POWER)) * error)


def smallest_drop_by_pairs(pair_sd: float, earlier_pairs: int, pairs: int) -> float:
    """The smallest drop, as a fraction, that ``pairs`` pairs of runs show at the 95 % level with a power of 80 %.

    ``pair_sd`` is the standard deviation of the ratio of a pair, estimated from ``earlier_pairs`` pairs.
    """
    law = Student(earlier_pairs + pairs - 2)
    return 1 - math.exp(-(law.quantile() + law.quantile(Z_POWER)) * pair_sd / math.sqrt(pairs))


def best_repetitions(cost: float, outer_cost: float, variance: float, outer_variance: float) -> int:
    """The number of repetitions in a group, such as runs in a visit, that gives the smallest error for a given total
    cost.

    ``cost`` is the cost of one repetition, ``outer_cost`` is the additional cost of each group. ``variance`` is the
    variance between repetitions in a group, ``outer_variance`` is the variance between groups.
    """
    if outer_variance <= 0:
        return MAX_REPEATS
    return max(1, min(MAX_REPEATS, math.ceil(math.sqrt(outer_cost / cost * variance / outer_variance))))


def _sampling_variance(run: RunFacts, metric: str) -> float | None:
    """The variance of the logarithm of a run's QPS, estimated from the QPS of its report intervals (the seconds that
    sysbench reports), as if these were independent; None if there are too few intervals."""
    if metric != "qps" or len(run.samples) < 3 or min(run.samples) <= 0:
        return None
    seconds = np.array(run.samples)
    return float(seconds.var(ddof=1) / seconds.mean() ** 2 / len(seconds))


def _without_outliers(runs: Sequence[TimedRun]) -> list[TimedRun]:
    """The runs except outliers, which are more than WILD standard deviations from the median of their visit."""
    visits: dict[int, list[float]] = {}
    for run in runs:
        visits.setdefault(run.visit, []).append(run.value)
    centre = {visit: float(np.median(values)) for visit, values in visits.items()}
    away = np.abs([run.value - centre[run.visit] for run in runs])
    # The smallest distances, one for each visit, are left out: the median run of a visit has the distance 0.
    telling = np.sort(away)[len(visits) :]
    if len(telling) < 5:
        return list(runs)
    limit = WILD * 1.4826 * float(np.median(telling))
    if not limit:  # sysbench rounds percentiles: most runs equal the median, and others are no outliers
        return list(runs)
    return [run for run, far in zip(runs, away, strict=True) if far <= limit]


def mean_square_interval_factors(freedom: float) -> tuple[float, float]:
    """The two factors that multiply a mean square to give the lower and the upper end of its 95 % interval."""
    return freedom / chi_square_quantile(Z_975, freedom), freedom / chi_square_quantile(-Z_975, freedom)


def _interval_of_sum(parts: Sequence[float], freedoms: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the sum of ``parts``: weighted mean squares that have ``freedoms`` degrees of freedom."""
    total = sum(parts)
    ends = [mean_square_interval_factors(freedom) for freedom in freedoms]
    down = math.sqrt(sum(((1 - low) * part) ** 2 for part, (low, _) in zip(parts, ends, strict=True)))
    up = math.sqrt(sum(((high - 1) * part) ** 2 for part, (_, high) in zip(parts, ends, strict=True)))
    return max(0.0, total - down), total + up


SIDES = (2, 4, 8, 16, 32, 64)  # numbers of runs of each build in the table


@dataclass(frozen=True, slots=True)
class DetectableDrop:
    """The smallest drop that a comparison with a given number of runs of each build can show."""

    runs: int  # of each build
    visits: int
    seconds: float  # for the runs of both builds
    drop: float


@dataclass(frozen=True, slots=True)
class AdvisedRepeats:
    """The number of runs in a visit, and the length of a run, that perfbisect recommends for a workload on a host."""

    runs: int  # in each visit
    seconds: int | None  # of each run; None if unknown


def noise_of_trial(trial: SessionState) -> Noise | None:
    """The noise of the runs of the A/A test ``trial``; None for fewer than two runs."""
    return noise_of_metric([(run.round, run.facts) for run in paired_or_interleaved_runs(trial)], trial.request.metric)


def sd_of_paired_ratios(trial: SessionState) -> tuple[float, float | None] | None:
    """The standard deviation of the ratio of the metric in paired runs, and of the ratio of their CPU times; None for
    too few pairs."""
    pairs, metric = [*pair_runs(run.facts for run in trial.runs)], trial.request.metric
    readers = (log_metric, log_metric_from_cpu_time)
    values = ([(read(first, metric), read(second, metric)) for first, second in pairs] for read in readers)
    noise, of_cpu = map(sd_of_pair_differences, values)
    return None if noise is None else (noise, of_cpu)


def sd_of_pair_differences(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    """The standard deviation of the differences of the two values of each pair; None if too few pairs have two known
    values."""
    differences = [first - second for first, second in pairs if first is not None and second is not None]
    return float(np.std(differences, ddof=1)) if len(differences) >= FEWEST_PAIRS else None


def run_and_visit_costs(trial: SessionState) -> tuple[float, float]:
    """The median duration of a run, and of the start of a visit, in seconds. The time to load the dataset is not
    included."""
    spent: dict[int, list[float]] = {}  # visit → seconds of its runs; the first run includes the start of the visit
    for trial_run in paired_or_interleaved_runs(trial):
        spent.setdefault(trial_run.round, []).append(trial_run.cost)
    opened, later = [first for first, *_ in spent.values()], [cost for _, *costs in spent.values() for cost in costs]
    [work] = trial.request.works
    seconds = median(later or opened or [work.warmup + work.time])
    return seconds, max(0.0, median(opened[1:] or opened or [seconds]) - seconds)


def advise_repeats_and_duration(aa_test: SessionState, noise: Noise) -> AdvisedRepeats:
    """The recommended number of runs in a visit, and duration of a run, for the workload of ``aa_test``."""
    return best_runs_and_length(noise, aa_test.request.works[0].time, *run_and_visit_costs(aa_test))


def best_runs_and_length(noise: Noise, run_seconds: float, run_cost: float, visit_cost: float) -> AdvisedRepeats:
    """The number of runs in a visit, and the length of a run, that reach a given precision in the shortest time.

    At present, a run measures for ``run_seconds`` seconds, and takes ``run_cost`` seconds with its warm-up. The start
    of a visit takes ``visit_cost`` seconds.
    """
    runs, length = 1, None
    if noise.runs_share_start and noise.between is not None and noise.within is not None:
        runs = best_repetitions(run_cost, visit_cost, noise.within**2, noise.between**2)
    if noise.second is not None:
        # The variation of one second within a run decreases in longer runs; the remaining variation of a run does not.
        run_sd = noise.run if noise.within is None else noise.within
        longer = run_sd**2 - noise.second**2 / run_seconds
        length = best_repetitions(1.0, max(run_cost - run_seconds, 0.0), noise.second**2, longer)
    return AdvisedRepeats(runs, length)


def detectable_drops_by_runs(trial: SessionState, noise: Noise) -> Iterator[DetectableDrop]:
    """The smallest detectable drop for each number of runs in SIDES, if visits have the recommended number of runs."""
    run_cost, opening = run_and_visit_costs(trial)
    per_visit = advise_repeats_and_duration(trial, noise).runs
    for runs in SIDES:
        visits = math.ceil(runs / min(runs, per_visit))
        seconds = 2 * (runs * run_cost + visits * opening)
        yield DetectableDrop(runs, visits, seconds, smallest_detectable_drop(noise, visits, runs / visits))


def advice_sentences(trial: SessionState, noise: Noise) -> Iterator[str]:
    """The sentences that recommend a number of runs in a visit and a length of a run."""
    best, now = advise_repeats_and_duration(trial, noise), trial.request.works[0].time
    if noise.runs_share_start and noise.between is not None:
        repeats = "1 run, because further runs of a visit add no precision" if best.runs == 1 else f"{best.runs} runs"
        yield f"Best number of runs in each visit (--runs): {repeats}."
    if best.seconds is None:
        if trial.runs[0].facts.operations > 1:  # otherwise a command, which has no report intervals
            yield "The best duration of a run is unknown, because a run has too few report intervals."
    elif 0.6 * now <= best.seconds <= 1.6 * now:
        yield f"The present duration of a run, {now:g} s, is about the best duration."
    else:
        change = "shorter" if best.seconds < now else "longer"
        yield f"Use {change} runs: --time {best.seconds} reaches a given precision in the shortest total time."
    if len(trial.runs) >= ENOUGH:
        yield "Later hunts with this host, builder and workload use this noise as their first estimate."
    else:
        yield f"This A/A test has fewer than {ENOUGH} runs, so later hunts do not use its noise as their first estimate."
