"""How much runs of one and the same build vary, and what that allows to see.

Runs are nested in visits: a visit starts the server on a fresh copy of its data, and what it drew there (addresses,
the order of its pages) all of its runs share. With v visits of r runs, values x[i][j] being logarithms,

    mean square within    MSW = Σᵢⱼ (x[i][j] - x̄[i])² / (N - v)          estimates σw²
    mean square between   MSB = Σᵢ rᵢ (x̄[i] - x̄)² / (v - 1)              estimates σw² + r₀ σb²,
                          r₀  = (N - Σᵢ rᵢ²/N) / (v - 1)                  which is r where all visits have r runs

so σb² = (MSB - MSW) / r₀, or 0: the analysis of variance for one random effect (Searle, Casella and McCulloch, Variance
Components, 1992, chapter 3). The interval of σb² + σw² is that of Graybill and Wang for sums of mean squares (Confidence
intervals on nonnegative linear combinations of variances, JASA 75, 1980). How often to repeat at which level follows
from the costs as Kalibera and Jones have it (Rigorous benchmarking in reasonable time, ISMM 2013).

An embedded library is opened anew for every run. Its "visits" are then only rounds, one after another, and what differs
between them is drift of the machine, which a hunt cancels by taking turns: it is no part of the noise of a run.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from perfbisect.core.domain.facts import RunFacts, pairs_of
from perfbisect.core.domain.metrics import by_cpu_time, readable, value
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.trials import counting
from perfbisect.core.stats.distributions import Z_975, Student, chi_square_quantile

ENOUGH = 6  # runs of an A/A without which older hunts know better
FEWEST_PAIRS = 3  # of runs at the same time, whose ratio shows how much it varies
WILD = 6.0  # s.d. from the median of its visit from which on a run is an accident
Z_POWER = 0.841621  # 80 %
LEAST = 0.001  # s.d. of a run that is believed at least
STEP = 0.018  # between neighbouring values of a percentile in sysbench's histogram
MOST = 50  # repetitions that are advised, where nothing else speaks against more


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One run of an A/A."""

    visit: int
    value: float  # natural logarithm of the metric
    sampling: float | None = None  # variance of ``value`` that its seconds explain if they are independent
    seconds: float = 1.0  # of its window


@dataclass(frozen=True, slots=True)
class Noise:
    """Variation of one build; s.d. are of logarithms, so 0.01 is 1 %."""

    visits: int
    runs: int
    wild: int  # runs left out as accidents
    shared: bool  # the runs of a visit share a start of a server
    between: float | None  # s.d. between visits; None when one visit, or one run in each, leaves it unknown
    within: float | None  # s.d. between the runs of a visit
    run: float  # s.d. of one run as a hunt meets it
    low: float  # 95 % interval of ``run``
    high: float
    freedom: float  # degrees of freedom of ``run``
    second: float | None  # s.d. of one second within a run; None when samples do not show it


def noise_in(runs: Sequence[tuple[int, RunFacts]], metric: str) -> Noise | None:
    """The noise of a metric in the runs of an A/A, each with the number of its visit; None where unknown."""
    known = [(visit, run, x) for visit, run in runs if (x := value(run, metric)) and x > 0]
    timed = [TimedRun(visit, math.log(x), _sampling(run, metric), run.seconds) for visit, run, x in known]
    return noise_of(timed, shared=len({run.visit for _, run in runs}) < len(runs))


def noise_of(runs: Sequence[TimedRun], shared: bool) -> Noise | None:
    """The noise in the runs of an A/A; None where they are too few to vary (two runs at least)."""
    if len(runs) < 2:
        return None
    tame = _tame(runs)
    level = np.array([run.value for run in tame])
    _, group = np.unique([run.visit for run in tame], return_inverse=True)
    size = np.bincount(group).astype(np.float64)
    mean = np.bincount(group, level) / size
    n, v = len(level), len(size)
    inside = float(((level - mean[group]) ** 2).sum())
    outside = float((size * (mean - level.mean()) ** 2).sum())
    msw = inside / (n - v) if n > v else None
    msb = outside / (v - 1) if v > 1 else None
    seconds = [run.sampling * run.seconds for run in tame if run.sampling is not None]
    second = math.sqrt(float(np.mean(seconds))) if seconds else None
    between: float | None = None
    if msw is None or msb is None:
        total, freedom = (msb, v - 1.0) if msb is not None else (msw or 0.0, n - v + 0.0)
        low, high = (total * factor for factor in chi_square_factors(freedom))
    else:
        even = (n - float((size**2).sum()) / n) / (v - 1)
        between = max(0.0, msb - msw) / even
        weights = (1 / even, 1 - 1 / even) if shared else (0.0, 1.0)
        parts, freedoms = [w * s for w, s in zip(weights, (msb, msw), strict=True)], (v - 1, n - v)
        total = (between if shared else 0.0) + msw
        low, high = _interval(parts, freedoms)
        low, high = min(low, total), max(high, total)
        spread = sum(part**2 / f for part, f in zip(parts, freedoms, strict=True))
        freedom = total**2 / spread if spread else n - 1.0
    of_visits, of_runs = (None if each is None else math.sqrt(each) for each in (between, msw))
    run, low, high = map(math.sqrt, (total, low, high))
    return Noise(v, n, len(runs) - n, shared, of_visits, of_runs, run, low, high, freedom, second)


def at_least(noise: float, metric: str) -> float:
    """The s.d. of a run with which a hunt may begin: no metric is as exact as a quiet afternoon makes it look."""
    return max(noise, STEP / math.sqrt(12) if metric in ("p95", "p99") else LEAST)


def smallest_drop(noise: Noise, visits: int, runs: float) -> float:
    """The smallest drop that ``visits`` of ``runs`` runs each on either side show at 95 % in four cases of five.

    As a fraction. The noise is as well known as the A/A has made it, and a little better by the runs themselves.
    """
    within = noise.within if noise.within is not None else noise.run
    between = (noise.between or 0.0) if noise.shared else 0.0
    error = math.sqrt(2 * (between**2 / visits + within**2 / (visits * runs)))
    law = Student(noise.freedom + 2 * (visits - 1))
    return 1 - math.exp(-(law.quantile() + law.quantile(Z_POWER)) * error)


def smallest_in_pairs(noise: float, known: int, pairs: int) -> float:
    """The same of so many pairs at the same time, whose ratio has an s.d. of ``noise``, by so many as are ``known``."""
    law = Student(known + pairs - 2)
    return 1 - math.exp(-(law.quantile() + law.quantile(Z_POWER)) * noise / math.sqrt(pairs))


def repeats(cost: float, cost_above: float, variance: float, variance_above: float) -> int:
    """How often to repeat within one unit of the level above, for the least error at a given total cost.

    ``cost`` is that of one repetition, ``cost_above`` what a new unit above costs besides; the variances are each
    level's own.
    """
    if variance_above <= 0:
        return MOST
    return max(1, min(MOST, math.ceil(math.sqrt(cost_above / cost * variance / variance_above))))


def _sampling(run: RunFacts, metric: str) -> float | None:
    """Variance of the logarithm of a run's QPS that its report intervals explain, if they are independent."""
    if metric != "qps" or len(run.samples) < 3 or min(run.samples) <= 0:
        return None
    seconds = np.array(run.samples)
    return float(seconds.var(ddof=1) / seconds.mean() ** 2 / len(seconds))


def _tame(runs: Sequence[TimedRun]) -> list[TimedRun]:
    """The runs without accidents."""
    visits: dict[int, list[float]] = {}
    for run in runs:
        visits.setdefault(run.visit, []).append(run.value)
    centre = {visit: float(np.median(values)) for visit, values in visits.items()}
    away = np.abs([run.value - centre[run.visit] for run in runs])
    telling = np.sort(away)[len(visits) :]  # in each visit one run is the median itself, or about
    if len(telling) < 5:
        return list(runs)
    limit = WILD * 1.4826 * float(np.median(telling))
    if not limit:  # a percentile comes in steps, and most runs are on the same: another step is no accident
        return list(runs)
    return [run for run, far in zip(runs, away, strict=True) if far <= limit]


def chi_square_factors(freedom: float) -> tuple[float, float]:
    """By what a mean square is multiplied for the ends of its 95 % interval."""
    return freedom / chi_square_quantile(Z_975, freedom), freedom / chi_square_quantile(-Z_975, freedom)


def _interval(parts: Sequence[float], freedoms: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of what ``parts``, mean squares times their weights, sum up to."""
    total = sum(parts)
    ends = [chi_square_factors(freedom) for freedom in freedoms]
    down = math.sqrt(sum(((1 - low) * part) ** 2 for part, (low, _) in zip(parts, ends, strict=True)))
    up = math.sqrt(sum(((high - 1) * part) ** 2 for part, (_, high) in zip(parts, ends, strict=True)))
    return max(0.0, total - down), total + up


SIDES = (2, 4, 8, 16, 32, 64)  # runs per side in the table


@dataclass(frozen=True, slots=True)
class DetectableDrop:
    """What can be seen with so many runs on either side."""

    runs: int
    visits: int
    seconds: float  # for both sides
    drop: float


@dataclass(frozen=True, slots=True)
class Advice:
    """How to measure this on that host."""

    runs: int  # in each visit
    seconds: int | None  # of each run; None where unknown


def noise_of_trial(trial: SessionState) -> Noise | None:
    """What the runs of an A/A come to; None when they are too few."""
    return noise_in([(run.round, run.facts) for run in counting(trial)], trial.request.metric)


def of_pairs(trial: SessionState) -> tuple[float, float | None] | None:
    """S.d. of the ratio of two runs at the same time, and the same of their CPU times; None where there are too few."""
    pairs, metric = [*pairs_of(run.facts for run in trial.runs)], trial.request.metric
    ways = ([(read(one, metric), read(two, metric)) for one, two in pairs] for read in (readable, by_cpu_time))
    noise, of_cpu = map(spread, ways)
    return None if noise is None else (noise, of_cpu)


def spread(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    """S.d. of the differences of pairs, as far as both sides are known; None where there are too few."""
    known = [one - two for one, two in pairs if one is not None and two is not None]
    return float(np.std(known, ddof=1)) if len(known) >= FEWEST_PAIRS else None


def costs(trial: SessionState) -> tuple[float, float]:
    """Seconds of a run, and of opening a visit. Loading the data for the first visit does not count."""
    spent: dict[int, list[float]] = {}  # visit → seconds of its runs, the opening included in the first
    for made in counting(trial):
        spent.setdefault(made.round, []).append(made.cost)
    opened, later = [each[0] for each in spent.values()], [cost for each in spent.values() for cost in each[1:]]
    [work] = trial.request.works
    run = median(later or opened or [work.warmup + work.time])
    return run, max(0.0, median(opened[1:] or opened or [run]) - run)


def advice(trial: SessionState, found: Noise) -> Advice:
    """How often and how long to run."""
    return best_repeats(found, trial.request.works[0].time, *costs(trial))


def best_repeats(noise: Noise, seconds: float, run_cost: float, visit_cost: float) -> Advice:
    """The same where a run has ``seconds`` now, and costs ``run_cost`` seconds in all; ``visit_cost`` is that of opening a visit."""
    runs, length = 1, None
    if noise.shared and noise.between is not None and noise.within is not None:
        runs = repeats(run_cost, visit_cost, noise.within**2, noise.between**2)
    if noise.second is not None:
        # Longer runs do not average what differs between visits.
        whole = noise.run if noise.within is None else noise.within
        longer = whole**2 - noise.second**2 / seconds
        length = repeats(1.0, max(run_cost - seconds, 0.0), noise.second**2, longer)
    return Advice(runs, length)


def rows(trial: SessionState, found: Noise) -> Iterator[DetectableDrop]:
    """The table: for so many runs on each side, as many in a visit as is best."""
    run, opening = costs(trial)
    most = advice(trial, found).runs
    for runs in SIDES:
        visits = math.ceil(runs / min(runs, most))
        seconds = 2 * (runs * run + visits * opening)
        yield DetectableDrop(runs, visits, seconds, smallest_drop(found, visits, runs / visits))


def sentences(trial: SessionState, found: Noise) -> Iterator[str]:
    """The advice in words."""
    best, now = advice(trial, found), trial.request.works[0].time
    if found.shared and found.between is not None:
        alone = "more than one run in a visit teaches nothing new"
        yield f"Best for the time it takes: {alone if best.runs == 1 else f'{best.runs} runs in each visit'}."
    if best.seconds is None:
        if trial.runs[0].facts.operations > 1:  # a command has no report intervals
            yield "Too few report intervals in a run to say how long runs should be."
    elif 0.6 * now <= best.seconds <= 1.6 * now:
        yield f"Runs of {now:g} s are about as long as is best."
    else:
        what = "shorter" if best.seconds < now else "longer"
        yield f"Runs could be {what}: --time {best.seconds} is best for the time it takes."
    if len(trial.runs) >= ENOUGH:
        yield "Hunts on this host with this builder and workload now begin with this noise."
    else:
        yield f"Fewer than {ENOUGH} runs: hunts do not begin with this noise."
