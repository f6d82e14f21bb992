"""Computes the speed of builds relative to the first build, from rounds of visits, and which differences are real.

**Ratios.** In a round, the two builds of a ratio are measured within minutes of each other. In each round, the
logarithm of one build is subtracted from the logarithm of the other build, so that a disturbance of the whole round
cancels. Let d[i] be the difference of the mean logarithms of the two builds in round i, d̄ the mean of the d[i], and n
the number of rounds. Then

    ratio = exp(d̄),     95 % interval = exp(d̄ ± t(0.975, n - 1) · s / √n),     s² = Σ (d[i] - d̄)² / (n - 1)

The interval is Student's interval for paired observations. Chance effects of a visit (memory addresses, the order of
pages) vary from round to round and are a part of the standard deviation s. The order of the builds alternates from
round to round, so a steady change of the machine's speed favours no build on average; but the change makes the standard
deviation s larger and the interval wider.

**Real differences.** A table of 40 workloads by 4 builds has 160 intervals, of which 8 exclude 1 by chance alone if all
builds are equal. Therefore perfbisect limits the false discovery rate of the whole table. The procedure of Benjamini
and Hochberg (1995) takes the largest number k for which the k-th smallest of the m p-values is at most k / m · RATE,
and calls the k differences with the smallest p-values real. The procedure guarantees two limits:

- of the differences called real, at most the share RATE is expected to be false, and
- if all builds are equal, at least 1 - RATE of tables call no difference real.

The two limits also hold if the ratios in a table are positively dependent, as the ratios of one workload are, which
have the same baseline. Benjamini and Yekutieli (2001) prove this for one-sided tests; a test of this project simulates
two-sided tests.

**Costs per operation.** A table for each workload shows the costs of each build per operation, absolute and relative to
the first build: CPU time, context switches, reads, and KB read and written. The cost of a build is the median over the
runs of the build.

**Reverts.** A revert undoes a share of a change of speed. The share is computed from rounds in which three builds were
measured: good, bad, and bad without the culprit. In round i, g[i], b[i] and r[i] are the mean logarithms of the metric
of these builds, x[i] = g[i] - b[i] is the loss, and y[i] = r[i] - b[i] is the gain by the revert. The share is the
quotient of the means:

    share = ȳ / x̄

The share is 1 if the revert undoes the whole loss, and 0 if the revert undoes nothing. The shares of several culprits
add up. Fieller's 95 % interval contains each share s for which a t-test does not reject that the mean of y[i] - s·x[i]
is 0. These are the shares s for which

    |ȳ - s·x̄| ≤ t(0.975, n - 1) · √((S_yy - 2·s·S_xy + s²·S_xx) / n)

S_xx and S_yy are the sample variances of x and y, and S_xy is their sample covariance. Fieller's interval is correct
however noisy the denominator x̄ is; an interval from the standard error of the ratio is not. If the mean loss may be 0,
Fieller's interval would be unbounded; perfbisect then gives no interval, because the measurements show no loss that a
revert could undo. If the differences are normally distributed, the interval misses the true share in at most 5 % of
trials.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from statistics import correlation, mean, median, stdev, variance

from perfbisect.core.domain.facts import RunFacts, TrialRun
from perfbisect.core.domain.metrics import (
    COMPARED,
    find_metric,
    log_metric,
    log_metric_from_cpu_time,
    median_metric,
    metric_value,
    quotient,
)
from perfbisect.core.domain.orders import Interval, ratio_of_log
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.trials import paired_or_interleaved_runs
from perfbisect.core.stats.distributions import Student

RATE = 0.05  # accepted rate of false discoveries


def largest_real_p_value(p_values: Iterable[float | None]) -> float:
    """The largest p-value of a difference that counts as real at a false discovery rate of RATE; -1 if no difference
    is real.

    An element None of ``p_values`` is a difference without a test.
    """
    ordered = sorted(p for p in p_values if p is not None)
    return max((p for rank, p in enumerate(ordered, 1) if p <= rank / len(ordered) * RATE), default=-1.0)


WORSE, BETTER = 0.95, 1.05  # a difference is coloured if its ratio is below WORSE or above BETTER


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of one build to the baseline, in one metric of one workload."""

    ratio: float
    interval: Interval | None  # None after a single round
    rounds: int
    # p-value: the probability of a difference at least as large if the builds are equal; None after a single round
    p: float | None = None
    real: bool = False  # whether ``p`` is at most the ``largest_real_p_value`` of the table

    @property
    def excludes_one(self) -> bool:
        """Whether the interval excludes 1."""
        return self.interval is not None and self.interval.excludes_one

    def has_p_value_up_to(self, limit: float) -> bool:
        """Whether the p-value is at most ``limit``; false if there is no p-value."""
        return self.p is not None and self.p <= limit


@dataclass(frozen=True, slots=True)
class WorkloadRatios:
    """The ratio of each build to the baseline, in one workload; None if the build or the baseline was not measured."""

    work: str
    group: str
    ratios: tuple[Ratio | None, ...]
    # Metric → the value of the baseline, and then the ratio of each other build to the baseline.
    counters: Mapping[str, tuple[float | None, ...]]


@dataclass(frozen=True, slots=True)
class GroupRatioSummary:
    """A summary of the ratios of one build over the workloads of one group."""

    group: str
    subject: int
    least: float
    most: float
    average: float
    median: float


def compare_builds(trial: SessionState, metric: str) -> list[WorkloadRatios]:
    """The ratios of the builds in a metric, for each workload of a trial. Workloads of one group are adjacent; groups,
    and workloads within a group, are in the order of the trial.
    """
    further, works = range(1, len(trial.request.subjects)), list[WorkloadRatios]()
    for number, work in enumerate(trial.request.works):
        rounds, step = mean_logs_by_round(trial, number, metric), log_resolution(trial, number, metric)
        ratios = tuple(paired_ratio(rounds.get(0, {}), rounds.get(subject, {}), step) for subject in further)
        medians = counter_medians(paired_or_interleaved_runs(trial, number), further, metric)
        works.append(WorkloadRatios(work.name, work.group, ratios, medians))
    limit = largest_real_p_value(ratio.p for row in works for ratio in row.ratios if ratio)
    groups = list(dict.fromkeys(row.group for row in works))
    marked = ([ratio and replace(ratio, real=ratio.has_p_value_up_to(limit)) for ratio in row.ratios] for row in works)
    marked_rows = (replace(row, ratios=tuple(ratios)) for row, ratios in zip(works, marked, strict=True))
    return sorted(marked_rows, key=lambda row: groups.index(row.group))


def mean_logs_by_round(trial: SessionState, workload: int, metric: str) -> dict[int, dict[int, float]]:
    """For each build and each round, the mean logarithm of the metric over the build's runs of a workload. Runs without
    a value of the metric are left out.

    For paired runs, the mean logarithm of the ratio of each run to the first build's run of the same pair.
    """
    logs: dict[int, dict[int, list[float]]] = {}
    beside: dict[str, tuple[TrialRun, float]] = {}
    by_cpu = trial.is_paired and trial.pairing is not None and trial.pairing.by_cpu
    for run in paired_or_interleaved_runs(trial, workload):
        measured = log_metric_from_cpu_time(run.facts, metric) if by_cpu else log_metric(run.facts, metric)
        if measured is None:
            continue
        if trial.is_paired:
            if run.facts.round not in beside:
                beside[run.facts.round] = run, measured
                continue
            own_run, level = beside.pop(run.facts.round)
            logs.setdefault(run.subject, {}).setdefault(run.round, []).append(0.0)
            run, measured = own_run, level - measured
        logs.setdefault(run.subject, {}).setdefault(run.round, []).append(measured)
    return {build: {number: mean(readings) for number, readings in rounds.items()} for build, rounds in logs.items()}


def log_resolution(trial: SessionState, workload: int, metric: str) -> float:
    """The smallest difference that the logarithm of a metric can show in a workload: the width of a bucket of the
    metric's histogram, or a difference of 1 in the last printed digit.
    """
    values = [
        reading
        for run in paired_or_interleaved_runs(trial, workload)
        if (reading := metric_value(run.facts, metric)) and 0 < reading < math.inf
    ]
    digits = max((-int(Decimal(repr(reading).removesuffix(".0")).as_tuple().exponent) for reading in values), default=0)
    return max(find_metric(metric).log_step, 10.0 ** -max(digits, 0) / median(values) if values else 0.0)


def _rounding_variance(spread: float, step: float) -> float:
    """The variance that rounding adds to a mean of differences, if all values are rounded to multiples of ``step`` and
    the differences have the standard deviation ``spread``."""
    return step**2 / 6 * math.exp(-((math.pi * spread / step) ** 2) / 2) if step else 0.0


def paired_ratio(
    base_rounds: Mapping[int, float], build_rounds: Mapping[int, float], resolution: float = 0.0
) -> Ratio | None:
    """The ratio of a build to the baseline, from the mean logarithm of each build in each round; None if no round has
    both builds.

    The logarithms are rounded to multiples of ``resolution``.
    """
    common_rounds = sorted(base_rounds.keys() & build_rounds.keys())
    differences = [build_rounds[number] - base_rounds[number] for number in common_rounds]
    if not differences:
        return None
    middle, count = mean(differences), len(differences)
    if count == 1:
        return Ratio(ratio_of_log(middle), None, 1)
    spread = stdev(differences)
    error = math.hypot(spread / math.sqrt(count), math.sqrt(_rounding_variance(spread, resolution)))
    law = Student(count - 1)
    t = middle / error if error else math.copysign(math.inf, middle) if middle else 0.0
    interval = Interval.from_log_ratio(middle, law.tabulated_quantile() * error)
    return Ratio(interval.middle, interval, count, law.two_sided_p_value(t))


def has_every_build_a_ratio(trial: SessionState) -> bool:
    """Whether every build has a ratio in every workload, and no build failed in the trial."""
    ratios = (ratio for row in compare_builds(trial, trial.request.metric) for ratio in row.ratios)
    return not trial.skips and all(ratio is not None for ratio in ratios)


def workloads_and_builds_without_metric(trial: SessionState) -> list[tuple[int, int]]:
    """The pairs (workload, build), as numbers, that have runs, but no run with a value of the metric."""
    with_runs = {(run.work, run.subject) for run in trial.runs}
    measured = (run for run in trial.runs if (metric_value(run.facts, trial.request.metric) or 0) > 0)
    return sorted(with_runs - {(run.work, run.subject) for run in measured})


def counter_medians(runs: Sequence[TrialRun], builds: range, metric: str) -> dict[str, tuple[float | None, ...]]:
    """For each metric, the median of the baseline, then the median of each of ``builds`` divided by the baseline's
    median.

    The metrics are ``metric``, QPS, and each counter that was measured for the baseline.
    """
    of_builds = [[run.facts for run in runs if run.subject == subject] for subject in (0, *builds)]
    relative: dict[str, tuple[float | None, ...]] = {}
    for name in dict.fromkeys((metric, "qps", *COMPARED)):
        base, *further_values = (median_metric(of_build, name) for of_build in of_builds)
        if base:
            relative[name] = (base, *(quotient(further_value, base) for further_value in further_values))
    return relative


def group_summaries(comparisons: Iterable[WorkloadRatios]) -> list[GroupRatioSummary]:
    """For each group of at least two workloads and each build, the summary of the build's ratios in the group."""
    by_group: dict[tuple[str, int], list[float]] = {}
    for row in comparisons:
        for subject, ratio in enumerate(row.ratios, 1):
            by_group.setdefault((row.group, subject), []).extend([ratio.ratio] if ratio else [])
    several = [(group, subject, ratios) for (group, subject), ratios in by_group.items() if len(ratios) > 1]
    return [GroupRatioSummary(group, subject, min(x), max(x), mean(x), median(x)) for group, subject, x in several]


def better_or_worse(ratio: Ratio, metric: str) -> str:
    """ "worse" or "better" if a difference is large and real; "" otherwise."""
    if not (ratio.real and ratio.excludes_one) or WORSE < round(ratio.ratio, 2) < BETTER:  # rounded as it is shown
        return ""
    return "better" if (ratio.ratio > 1) == find_metric(metric).higher_is_better else "worse"


COLUMNS = ("cpu/o", "cs/o", "r/o", "rKB/o", "wKB/o", "o/s")
Values = tuple[float | None, ...]  # a value for each column


@dataclass(frozen=True, slots=True)
class OperationCosts:
    """The costs of one workload: a row of absolute values for each build, and a row of relative values for each build
    except the first."""

    work: str
    absolute: tuple[Values, ...]
    relative: tuple[Values, ...]


def costs_of_each_workload(trial: SessionState) -> list[OperationCosts]:
    """The costs per operation of each workload of a trial, in the order in which the trial lists workloads."""
    machine_cpu, subjects, tables = is_machine_cpu(trial), range(len(trial.request.subjects)), list[OperationCosts]()
    names = ["the command"] if trial.request.shared else [work.name for work in trial.request.works]
    for number, name in enumerate(names):
        runs = paired_or_interleaved_runs(trial, number)
        rows = tuple(
            _cost_medians([run.facts for run in runs if run.subject == build], machine_cpu=machine_cpu)
            for build in subjects
        )
        relative = tuple(tuple(map(quotient, row, rows[0])) for row in rows[1:])
        tables.append(OperationCosts(name, rows, relative))
    return tables


def is_machine_cpu(trial: SessionState) -> bool:
    """Whether CPU time is the CPU time of the whole machine, from vmstat, because perf counted CPU time in no run.

    The unit of CPU time from vmstat is percent of the machine, divided by the number of operations per second. The unit
    of CPU time from perf is microseconds of the measured processes per operation.
    """
    return all(metric_value(run.facts, "cpu/o") is None for run in trial.runs)


def _cost_medians(runs: Sequence[RunFacts], *, machine_cpu: bool) -> Values:
    """The median of each column of COLUMNS over the runs of one build; ``machine_cpu``: see ``is_machine_cpu``."""
    medians = {name: median_metric(runs, "qps" if name == "o/s" else name) for name in COLUMNS}
    if machine_cpu:
        shares = [(run.system.get("us"), run.system.get("sy"), run.qps) for run in runs]
        per_operation = [quotient(us + sy, qps) for us, sy, qps in shares if us is not None and sy is not None]
        of_machine = [cpu for cpu in per_operation if cpu is not None]
        medians["cpu/o"] = median(of_machine) if of_machine else None
    return tuple(medians.values())


GOOD, BAD, REVERTED = range(3)  # the builds of a proof, by number


@dataclass(frozen=True, slots=True)
class RegainedSpeed:
    """The part of the change from good to bad that a revert undoes."""

    lost: float  # mean log of good / bad
    share: Interval | None  # share of ``lost``; None if good and bad are not shown to differ
    rounds: int


class RevertOutcome(StrEnum):
    """The outcome of a proof, which tests a revert of the culprit."""

    REGAINS = "regains"  # the revert certainly undoes a part of the change
    NOTHING = "nothing"  # the revert is not shown to undo a part, and does not undo all
    UNCLEAR = "unclear"  # the revert may undo nothing or all
    NOT_LOST = "not lost"  # good and bad are not shown to differ
    UNMEASURED = "unmeasured"  # fewer than two rounds, or a build that fails


def revert_outcome(result: RegainedSpeed | None) -> RevertOutcome:
    """The outcome of a proof, determined by the interval of the share of the change that the revert undoes."""
    match result:
        case None:
            return RevertOutcome.UNMEASURED
        case RegainedSpeed(share=None):
            return RevertOutcome.NOT_LOST
        case RegainedSpeed(share=Interval(low=low)) if low > 0:
            return RevertOutcome.REGAINS
        case RegainedSpeed(share=Interval(high=high)) if high < 1:
            return RevertOutcome.NOTHING
        case _:
            return RevertOutcome.UNCLEAR


def regained_by_revert(trial: SessionState) -> RegainedSpeed | None:
    """The share of a change from good to bad that reverting the culprit undoes, from the rounds of a proof; None if
    fewer than two rounds have measured good, bad, and bad without the culprit.
    """
    by_build = mean_logs_by_round(trial, 0, trial.request.metric)
    good, bad, reverted = (by_build.get(build, {}) for build in (GOOD, BAD, REVERTED))
    return regained_in_rounds(good, bad, reverted, log_resolution(trial, 0, trial.request.metric))


def regained_in_rounds(
    good: Mapping[int, float], bad: Mapping[int, float], reverted: Mapping[int, float], resolution: float = 0.0
) -> RegainedSpeed | None:
    """Like ``regained_by_revert``, from the mean logarithms of good, bad, and bad without the culprit in each round."""
    rounds = sorted(good.keys() & bad.keys() & reverted.keys())
    n = len(rounds)
    if n < 2:
        return None
    losses, gains = ([side[number] - bad[number] for number in rounds] for side in (good, reverted))
    x, y = mean(losses), mean(gains)
    xx, yy = variance(losses), variance(gains)
    xy = correlation(losses, gains) * math.sqrt(xx * yy) if xx and yy else 0.0
    # Losses and gains both contain the rounding error of bad, so their covariance contains its variance.
    loss_rounding, gain_rounding = (n * _rounding_variance(math.sqrt(square), resolution) for square in (xx, yy))
    xx, yy, xy = xx + loss_rounding, yy + gain_rounding, xy + math.sqrt(loss_rounding * gain_rounding) / 2
    square = Student(n - 1).tabulated_quantile() ** 2 / n
    a, b, c = x * x - square * xx, x * y - square * xy, y * y - square * yy
    if a <= 0:
        return RegainedSpeed(x, None, n)
    half = math.sqrt(max(0.0, b * b - a * c))
    middle = y / x
    low, high = min((b - half) / a, middle), max((b + half) / a, middle)  # rounding errors may put an end beyond it
    return RegainedSpeed(x, Interval(low, middle, high), n)
