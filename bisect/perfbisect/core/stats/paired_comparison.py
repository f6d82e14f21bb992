"""How fast builds are relative to the first one, from rounds in which each was visited.

In a round both sides are measured within minutes of each other: a ratio is made of each round alone, so that whatever
differs from one round to the next is the same on both sides. With d[i] the difference of the mean logarithms of round i,

    ratio = exp(d̄),     95 % interval = exp(d̄ ± t(0.975, n - 1) · s / √n),     s² = Σ (d[i] - d̄)² / (n - 1)

which is Student's interval for paired observations. What the visits of a round draw by chance (addresses, the order of
pages) varies from round to round and so is in s; a trend of the machine, which is on neither side on average because
the order turns round, makes s larger and the interval only wider.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median, stdev

from perfbisect.core.domain.metrics import COMPARED, LARGEST_LOG, find_metric, quotient, typical, value
from perfbisect.core.domain.orders import Interval
from perfbisect.core.domain.trials import Trial, TrialRun
from perfbisect.core.stats.false_discoveries import real, two_sided

T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306)  # 97.5 % point for 1, 2, … degrees of freedom

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
        return self.interval is not None and not self.interval.low <= 1 <= self.interval.high


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


def compared(trial: Trial, metric: str) -> list[Compared]:
    """Every workload of a trial in a metric: in the order in which they were requested, those of a group together."""
    further = range(1, len(trial.request.subjects))
    found = []
    for number, work in enumerate(trial.request.works):
        runs = [run for run in trial.runs if run.work == number]
        rounds = levels(runs, metric)
        ratios = tuple(paired(rounds.get(0, {}), rounds.get(subject, {})) for subject in further)
        found.append(Compared(work.name, work.group, ratios, counted(runs, further, metric)))
    groups = list(dict.fromkeys(row.group for row in found))
    return sorted(judged(found), key=lambda row: groups.index(row.group))


def judged(rows: Sequence[Compared]) -> list[Compared]:
    """The rows with the differences marked that are real, of all in the table."""
    tested = [ratio for row in rows for ratio in row.ratios if ratio and ratio.p is not None]
    verdicts = iter(real([ratio.p for ratio in tested if ratio.p is not None]))
    return [
        replace(
            row,
            ratios=tuple(
                replace(ratio, real=next(verdicts)) if ratio and ratio.p is not None else ratio for ratio in row.ratios
            ),
        )
        for row in rows
    ]


def levels(runs: Iterable[TrialRun], metric: str) -> dict[int, dict[int, float]]:
    """TrialBuild → round → mean logarithm of the metric; runs that do not have it are left out."""
    logs: dict[int, dict[int, list[float]]] = {}
    for run in runs:
        measured = value(run.facts, metric)
        if measured is not None and measured > 0:
            logs.setdefault(run.subject, {}).setdefault(run.round, []).append(math.log(measured))
    return {subject: {number: mean(each) for number, each in rounds.items()} for subject, rounds in logs.items()}


def paired(base: Mapping[int, float], other: Mapping[int, float]) -> Ratio | None:
    """The ratio from the rounds (number → mean logarithm) that both sides have; None where there is none."""
    differences = [other[number] - base[number] for number in sorted(base.keys() & other.keys())]
    if not differences:
        return None
    middle, count = mean(differences), len(differences)
    if count == 1:
        return Ratio(ratio_of(middle), None, 1)
    error = stdev(differences) / math.sqrt(count)
    half = quantile(count - 1) * error
    t = middle / error if error else math.copysign(math.inf, middle) if middle else 0.0
    interval = Interval(*map(ratio_of, (middle - half, middle, middle + half)))
    return Ratio(ratio_of(middle), interval, count, two_sided(t, count - 1))


def ratio_of(log: float) -> float:
    """The ratio with that logarithm."""
    return math.exp(min(LARGEST_LOG, max(-LARGEST_LOG, log)))


def quantile(freedom: int) -> float:
    """The 97.5 % point of Student's distribution, exact where it matters."""
    if freedom <= len(T):
        return T[freedom - 1]
    from perfbisect.core.stats.distributions import t_quantile_975

    return t_quantile_975(freedom)


def whole(trial: Trial) -> bool:
    """Whether nothing has failed, and every build has a ratio in every workload."""
    ratios = (ratio for row in compared(trial, trial.request.metric) for ratio in row.ratios)
    return not trial.skips and all(ratio is not None for ratio in ratios)


def silent(trial: Trial) -> list[tuple[int, int]]:
    """Workload and build of which there are runs, but none that has the metric."""
    made = {(run.work, run.subject) for run in trial.runs}
    telling = {(run.work, run.subject) for run in trial.runs if (value(run.facts, trial.request.metric) or 0) > 0}
    return sorted(made - telling)


def counted(runs: Sequence[TrialRun], further: range, metric: str) -> dict[str, tuple[float | None, ...]]:
    """The metric, QPS, and each counter that the base has: its median there, and the others' relative to that."""
    found: dict[str, tuple[float | None, ...]] = {}
    for name in dict.fromkeys((metric, "qps", *COMPARED)):
        base, *others = (
            typical([run.facts for run in runs if run.subject == subject], name) for subject in (0, *further)
        )
        if base:
            found[name] = (base, *(quotient(other, base) for other in others))
    return found


def summaries(rows: Iterable[Compared]) -> list[Summary]:
    """Least, most, average and median of each group with more than one workload, for each build in turn."""
    groups: dict[str, list[Compared]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    found = []
    for group, members in groups.items():
        for place in range(len(members[0].ratios)):
            known = [ratio.ratio for member in members if (ratio := member.ratios[place])]
            if len(known) > 1:
                found.append(Summary(group, place + 1, min(known), max(known), mean(known), median(known)))
    return found


def tone(ratio: Ratio, metric: str) -> str:
    """ "worse" or "better" for a difference that is both large enough and real; empty for any other."""
    if not (ratio.real and ratio.certain) or WORSE < round(ratio.ratio, 2) < BETTER:  # as it is shown
        return ""
    return "better" if (ratio.ratio > 1) == find_metric(metric).higher_is_better else "worse"
