"""How fast builds are relative to the first one, from rounds in which each was visited.

In a round both sides are measured within minutes of each other: a ratio is made of each round alone, so that whatever
differs from one round to the next is the same on both sides. With d[i] the difference of the mean logarithms of round i,

    ratio = exp(d̄),     95 % interval = exp(d̄ ± t(0.975, n - 1) · s / √n),     s² = Σ (d[i] - d̄)² / (n - 1)

which is Student's interval for paired observations. What the visits of a round draw by chance (addresses, the order of
pages) varies from round to round and so is in s; a trend of the machine, which is on neither side on average because
the order turns round, makes s larger and the interval only wider.

Which of many differences are real: the rate of false discoveries over a whole table is controlled.

A table of 40 workloads by 4 builds has 160 intervals, of which 8 exclude 1 by chance alone if all builds are alike. The
procedure of Benjamini and Hochberg (1995) keeps the largest k such that the k-th smallest of m p-values is at most
k / m · RATE, and calls those k differences real. Then

- at most RATE of the differences called real are expected to be none, and
- where all builds are alike, nothing at all is called real in at least 1 - RATE of tables.

Both also hold for cells that are positively dependent, as those of one workload are, which share its baseline (Benjamini
and Yekutieli, 2001, for one-sided tests; for these two-sided ones a test simulates it).

What each build spends per operation in a workload, and relative to the first build: a table for each workload.

The columns are those that the field reads beside QPS: CPU, context switches, reads, and KB read and written. A value is
the median over the runs of a build.

How much of a change of speed a revert undoes, from rounds in which good, bad and bad without the culprit were visited.

With g[i], b[i] and r[i] the mean logarithms of the metric of the three in round i, x = g - b is what was lost and
y = r - b what the revert regains:

    share = ȳ / x̄

so 1 is all of it, 0 nothing, and shares of several culprits add up. Its 95 % interval is Fieller's: all shares s for which
the paired differences y[i] - s·x[i] may have the mean 0,

    |ȳ - s·x̄| ≤ t(0.975, n - 1) · √((S_yy - 2·s·S_xy + s²·S_xx) / n)

with the sample variances and covariance S of x and y. It is right for any noise of the denominator, where an interval
from the ratio's standard error is not. While x̄ itself may be 0 the solutions have no end, and there is no interval:
nothing is shown to be lost, so that no share of it can be regained.

Of the trials whose differences are normal, at most 5 % have an interval without the true share.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from statistics import correlation, mean, median, stdev, variance

from perfbisect.core.domain.facts import RunFacts, TrialRun
from perfbisect.core.domain.metrics import COMPARED, by_cpu_time, find_metric, quotient, readable, typical, value
from perfbisect.core.domain.orders import Interval, ratio_of
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.trials import counting
from perfbisect.core.stats.distributions import Student

RATE = 0.05  # of false discoveries


def largest_real(chances: Iterable[float | None]) -> float:
    """The p-value up to which differences with these are real, with a rate of RATE false discoveries over all of them; -1
    where none is. Differences without a p-value are not tested."""
    ordered = sorted(p for p in chances if p is not None)
    return max((p for place, p in enumerate(ordered, 1) if p <= place / len(ordered) * RATE), default=-1.0)


WORSE, BETTER = 0.95, 1.05  # ratios from which on a difference is worth a colour


@dataclass(frozen=True, slots=True)
class Ratio:
    """One build against the base in one metric of one workload."""

    ratio: float
    interval: Interval | None  # None after a single round
    rounds: int
    p: float | None = None  # probability of a difference at least as large if there is none; None after a single round
    real: bool = False  # among the differences of its table that remain with false discoveries controlled

    @property
    def certain(self) -> bool:
        """Whether the interval leaves out that nothing differs."""
        return self.interval is not None and self.interval.excludes_one

    def is_within(self, limit: float) -> bool:
        """Whether the p-value is at most ``limit``; false where there is none."""
        return self.p is not None and self.p <= limit


@dataclass(frozen=True, slots=True)
class Compared:
    """One workload: an entry for each build but the base, None where either of the two was not measured."""

    work: str
    group: str
    ratios: tuple[Ratio | None, ...]
    counters: Mapping[str, tuple[float | None, ...]]  # metric → of the base, then of each other relative to it


@dataclass(frozen=True, slots=True)
class Summary:
    """The ratios of the workloads of one group, for one build."""

    group: str
    subject: int
    least: float
    most: float
    average: float
    median: float


def compared(trial: SessionState, metric: str) -> list[Compared]:
    """Every workload of a trial in a metric: in the order in which they were requested, those of a group together."""
    further, found = range(1, len(trial.request.subjects)), list[Compared]()
    for number, work in enumerate(trial.request.works):
        rounds, step = levels(trial, number, metric), step_of(trial, number, metric)
        ratios = tuple(paired(rounds.get(0, {}), rounds.get(subject, {}), step) for subject in further)
        found.append(Compared(work.name, work.group, ratios, counted(counting(trial, number), further, metric)))
    limit = largest_real(ratio.p for row in found for ratio in row.ratios if ratio)
    groups = list(dict.fromkeys(row.group for row in found))
    marked = ([ratio and replace(ratio, real=ratio.is_within(limit)) for ratio in row.ratios] for row in found)
    rows = (replace(row, ratios=tuple(ratios)) for row, ratios in zip(found, marked, strict=True))
    return sorted(rows, key=lambda row: groups.index(row.group))


def levels(trial: SessionState, work: int, metric: str) -> dict[int, dict[int, float]]:
    """TrialBuild → round → mean logarithm of the metric in a workload; runs that do not have it are left out.

    Of builds that ran at the same time as the first one it is what they are above that one.
    """
    logs: dict[int, dict[int, list[float]]] = {}
    beside: dict[str, tuple[TrialRun, float]] = {}
    by_cpu = trial.together and trial.pairing is not None and trial.pairing.by_cpu
    for run in counting(trial, work):
        measured = by_cpu_time(run.facts, metric) if by_cpu else readable(run.facts, metric)
        if measured is None:
            continue
        if trial.together:
            if run.facts.round not in beside:
                beside[run.facts.round] = run, measured
                continue
            other, level = beside.pop(run.facts.round)
            logs.setdefault(run.subject, {}).setdefault(run.round, []).append(0.0)
            run, measured = other, level - measured
        logs.setdefault(run.subject, {}).setdefault(run.round, []).append(measured)
    return {subject: {number: mean(each) for number, each in rounds.items()} for subject, rounds in logs.items()}


def step_of(trial: SessionState, work: int, metric: str) -> float:
    """The steps in which the logarithm of a metric comes in a workload: those of its histogram, or of the last digit printed."""
    known = [found for run in counting(trial, work) if (found := value(run.facts, metric)) and 0 < found < math.inf]
    digits = max((-int(Decimal(repr(each).removesuffix(".0")).as_tuple().exponent) for each in known), default=0)
    return max(find_metric(metric).step, 10.0 ** -max(digits, 0) / median(known) if known else 0.0)


def _rounding(spread: float, step: float) -> float:
    """The variance that steps leave in the mean of differences, which vary by ``spread``."""
    return step**2 / 6 * math.exp(-((math.pi * spread / step) ** 2) / 2) if step else 0.0


def paired(base: Mapping[int, float], other: Mapping[int, float], step: float = 0.0) -> Ratio | None:
    """The ratio from the rounds (number → mean logarithm) that both sides have; None where there is none.

    Readings come in steps of ``step``.
    """
    differences = [other[number] - base[number] for number in sorted(base.keys() & other.keys())]
    if not differences:
        return None
    middle, count = mean(differences), len(differences)
    if count == 1:
        return Ratio(ratio_of(middle), None, 1)
    spread = stdev(differences)
    error = math.hypot(spread / math.sqrt(count), math.sqrt(_rounding(spread, step)))
    law = Student(count - 1)
    t = middle / error if error else math.copysign(math.inf, middle) if middle else 0.0
    interval = Interval.around(middle, law.of_rounds() * error)
    return Ratio(interval.middle, interval, count, law.two_sided(t))


def whole(trial: SessionState) -> bool:
    """Whether nothing has failed, and every build has a ratio in every workload."""
    ratios = (ratio for row in compared(trial, trial.request.metric) for ratio in row.ratios)
    return not trial.skips and all(ratio is not None for ratio in ratios)


def silent(trial: SessionState) -> list[tuple[int, int]]:
    """Workload and build of which there are runs, but none that has the metric."""
    made = {(run.work, run.subject) for run in trial.runs}
    telling = {(run.work, run.subject) for run in trial.runs if (value(run.facts, trial.request.metric) or 0) > 0}
    return sorted(made - telling)


def counted(runs: Sequence[TrialRun], further: range, metric: str) -> dict[str, tuple[float | None, ...]]:
    """The metric, QPS, and each counter that the base has: its median there, and the others' relative to that."""
    of_builds = [[run.facts for run in runs if run.subject == subject] for subject in (0, *further)]
    found: dict[str, tuple[float | None, ...]] = {}
    for name in dict.fromkeys((metric, "qps", *COMPARED)):
        base, *others = (typical(of_build, name) for of_build in of_builds)
        if base:
            found[name] = (base, *(quotient(other, base) for other in others))
    return found


def summaries(rows: Iterable[Compared]) -> list[Summary]:
    """Least, most, average and median of each group with more than one workload, for each build in turn."""
    known: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        for subject, ratio in enumerate(row.ratios, 1):
            known.setdefault((row.group, subject), []).extend([ratio.ratio] if ratio else [])
    several = [(group, subject, ratios) for (group, subject), ratios in known.items() if len(ratios) > 1]
    return [Summary(group, subject, min(x), max(x), mean(x), median(x)) for group, subject, x in several]


def tone(ratio: Ratio, metric: str) -> str:
    """ "worse" or "better" for a difference that is both large enough and real; empty for any other."""
    if not (ratio.real and ratio.certain) or WORSE < round(ratio.ratio, 2) < BETTER:  # as it is shown
        return ""
    return "better" if (ratio.ratio > 1) == find_metric(metric).higher_is_better else "worse"


COLUMNS = ("cpu/o", "cs/o", "r/o", "rKB/o", "wKB/o", "o/s")
Values = tuple[float | None, ...]  # one for each column


@dataclass(frozen=True, slots=True)
class OperationCosts:
    """One workload: a row for each build; all builds but the first have a relative one, too."""

    work: str
    absolute: tuple[Values, ...]
    relative: tuple[Values, ...]


def spent_per_operation(trial: SessionState) -> list[OperationCosts]:
    """The table of each workload, in their order in the request."""
    whole, subjects, found = by_machine(trial), range(len(trial.request.subjects)), list[OperationCosts]()
    names = ["the command"] if trial.request.shared else [work.name for work in trial.request.works]
    for number, name in enumerate(names):
        runs = counting(trial, number)
        rows = tuple(_medians([run.facts for run in runs if run.subject == each], whole=whole) for each in subjects)
        relative = tuple(tuple(map(quotient, row, rows[0])) for row in rows[1:])
        found.append(OperationCosts(name, rows, relative))
    return found


def by_machine(trial: SessionState) -> bool:
    """Whether CPU is that of the whole machine (of vmstat), because perf has counted it in no run.

    Its unit is then percent of the machine per operation per second; else it is microseconds of the measured processes.
    """
    return all(value(run.facts, "cpu/o") is None for run in trial.runs)


def _medians(runs: Sequence[RunFacts], *, whole: bool) -> Values:
    """The medians of the runs of one build in one workload; CPU is that of the ``whole`` machine if that is asked for."""
    medians = {name: typical(runs, "qps" if name == "o/s" else name) for name in COLUMNS}
    if whole:
        shares = [(run.system.get("us"), run.system.get("sy"), run.qps) for run in runs]
        known = [quotient(us + sy, qps) for us, sy, qps in shares if us is not None and sy is not None]
        medians["cpu/o"] = median(of_machine) if (of_machine := [cpu for cpu in known if cpu is not None]) else None
    return tuple(medians.values())


GOOD, BAD, REVERTED = range(3)  # the builds of a proof, by number


@dataclass(frozen=True, slots=True)
class Regained:
    """What a revert undoes of the change from good to bad."""

    lost: float  # mean log of good / bad
    share: Interval | None  # of it; None while good and bad are not shown to differ
    rounds: int


class RevertOutcome(StrEnum):
    """What a trial says of the culprit."""

    REGAINS = "regains"  # the revert undoes something of the change, beyond doubt
    NOTHING = "nothing"  # it is not shown to undo anything, and it does not undo all
    UNCLEAR = "unclear"  # it may undo nothing or all
    NOT_LOST = "not lost"  # good and bad are not shown to differ
    UNMEASURED = "unmeasured"  # fewer than two rounds, or a build that fails


def outcome(found: Regained | None) -> RevertOutcome:
    """What the share says."""
    match found:
        case None:
            return RevertOutcome.UNMEASURED
        case Regained(share=None):
            return RevertOutcome.NOT_LOST
        case Regained(share=Interval(low=low)) if low > 0:
            return RevertOutcome.REGAINS
        case Regained(share=Interval(high=high)) if high < 1:
            return RevertOutcome.NOTHING
        case _:
            return RevertOutcome.UNCLEAR


def regained(trial: SessionState) -> Regained | None:
    """The share in the trial's metric; None before all three builds were measured in two rounds."""
    found = levels(trial, 0, trial.request.metric)
    good, bad, reverted = (found.get(build, {}) for build in (GOOD, BAD, REVERTED))
    return share(good, bad, reverted, step_of(trial, 0, trial.request.metric))


def share(
    good: Mapping[int, float], bad: Mapping[int, float], reverted: Mapping[int, float], step: float = 0.0
) -> Regained | None:
    """The share from the rounds (number → mean logarithm) that all three have; None for fewer than two."""
    rounds = sorted(good.keys() & bad.keys() & reverted.keys())
    n = len(rounds)
    if n < 2:
        return None
    lost, back = ([side[each] - bad[each] for each in rounds] for side in (good, reverted))
    x, y = mean(lost), mean(back)
    xx, yy = variance(lost), variance(back)
    xy = correlation(lost, back) * math.sqrt(xx * yy) if xx and yy else 0.0
    of_lost, of_back = (n * _rounding(math.sqrt(each), step) for each in (xx, yy))
    xx, yy, xy = xx + of_lost, yy + of_back, xy + math.sqrt(of_lost * of_back) / 2  # bad is on both sides
    square = Student(n - 1).of_rounds() ** 2 / n
    a, b, c = x * x - square * xx, x * y - square * xy, y * y - square * yy
    if a <= 0:
        return Regained(x, None, n)
    half = math.sqrt(max(0.0, b * b - a * c))
    middle = y / x
    low, high = min((b - half) / a, middle), max((b + half) / a, middle)  # rounding may put an end beyond the middle
    return Regained(x, Interval(low, middle, high), n)
