"""Ratios per operation of a culprit against its parent, from runs in turns, with intervals, ranked.

The n-th run of a group of counters of the one and the n-th of the other make a pair, measured within minutes. With d the
difference of the logarithms, averaged over the groups of a round, the interval is Student's for paired observations; see
``core/stats/paired_comparison.py``. Groups of one round share a visit of the server, so only rounds are independent.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from perfbisect.core.domain.explanation import CounterRow
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.metrics import COMPARED, METRICS, Metric, per_operation, quotient
from perfbisect.core.domain.orders import Interval
from perfbisect.core.explain import top_down
from perfbisect.core.stats.paired_comparison import quantile, ratio_of

Runs = Mapping[str, Sequence[RunFacts]]  # group of counters → its runs of one build, in order of time

# Smallest standard error of a log ratio: few rounds agree by chance, and smaller changes are of no interest.
FLOOR = 0.0005
EXACT = 2e-6  # the same of exact counts, which repeat to parts per million

EXACT_GROUP = "exact"  # of runs whose instructions are counted exactly, and nothing else
TIME, BUSY, CLOCK = "time/o", "time/cpu", "GHz"  # ratios that split the time of an operation; see ``classes``


@dataclass(frozen=True, slots=True)
class Reading:
    """How a ratio is read from a run, and the perf events that it needs."""

    name: str
    read: Callable[[RunFacts], float | None]
    unit: str
    events: tuple[str, ...] = ()


def time_per_operation(run: RunFacts) -> float | None:
    """Microseconds from one operation to the next."""
    return None if run.counted else quotient(1e6, run.qps)


def time_per_cpu(run: RunFacts) -> float | None:
    """Time that passes for each unit of CPU time of the measured processes; with one thread at least 1."""
    return quotient(time_per_operation(run), METRICS["cpu/o"].read(run))


def clock(run: RunFacts) -> float | None:
    """Cycles per nanosecond of CPU time."""
    milliseconds = run.counters.get("task-clock")
    return quotient(run.counters.get("cycles"), None if milliseconds is None else 1e6 * milliseconds)


def slots_per_operation(category: str) -> Callable[[RunFacts], float | None]:
    """Reads the pipeline slots of a category per operation."""
    return lambda run: quotient(top_down.slots(run.counters, category), run.operations)


def of_metric(metric: Metric) -> Reading:
    """The reading of a metric of runs."""
    units = {"cpu/o": "us", "rKB/o": "kB", "wKB/o": "kB"}
    return Reading(metric.name, metric.read, units.get(metric.name, ""), metric.events)


FURTHER = ("L1-icache-load-misses/o", "LLC-load-misses/o", "cpu-migrations/o")
READINGS = (
    Reading(TIME, time_per_operation, "us"),
    Reading(BUSY, time_per_cpu, "", ("task-clock",)),
    Reading(CLOCK, clock, "GHz", ("cycles", "task-clock")),
    *(of_metric(METRICS[name]) for name in (*COMPARED, *FURTHER)),
    *(
        Reading(f"{event}/o", per_operation(event), "", (event,))
        for event in ("stalled-cycles-frontend", "stalled-cycles-backend")
    ),
    *(
        Reading(
            category,
            slots_per_operation(category),
            "",
            tuple(event for family in top_down.FAMILIES for event, _ in family.slots[category]),
        )
        for category in (top_down.RETIRING, top_down.WRONG, top_down.FRONT, top_down.BACK)
    ),
)


def counter_rows(parent: Runs, culprit: Runs) -> tuple[CounterRow, ...]:
    """The ratios that both builds have, those first that moved furthest beyond their noise."""
    rows = [row for reading in READINGS if (row := counter_row(reading, parent, culprit))]
    return tuple(sorted(rows, key=lambda row: round(row.beyond, 6), reverse=True))


def counter_row(reading: Reading, parent: Runs, culprit: Runs) -> CounterRow | None:
    """One ratio; None where no pair of runs has it, or it is 0."""
    rounds: dict[int, list[float]] = {}
    before: list[float] = []
    after: list[float] = []
    shares = [1.0]
    exact = True
    for group in sorted(parent.keys() & culprit.keys()):
        for number, pair in enumerate(zip(parent[group], culprit[group], strict=False)):
            low, high = (reading.read(run) for run in pair)
            if low is None or high is None or low <= 0 or high <= 0:
                continue
            before.append(low)
            after.append(high)
            exact = exact and all(run.counted for run in pair)
            rounds.setdefault(number, []).append(math.log(high / low))
            shares += (run.running.get(event, 1.0) for run in pair for event in reading.events)
    if not rounds:
        return None
    differences = [fmean(each) for each in rounds.values()]
    middle, count = fmean(differences), len(differences)
    middle = 0.0 if abs(middle) < 1e-9 else middle  # a rounding error
    if count > 1 or exact:
        spread = stdev(differences) / math.sqrt(count) if count > 1 else 0.0
        error = max(EXACT if exact else FLOOR, spread)
        half = (quantile(count - 1) if count > 1 else 2.0) * error
        ratio, beyond = Interval(*map(ratio_of, (middle - half, middle, middle + half))), abs(middle) / error
    else:
        ratio, beyond = Interval(0.0, ratio_of(middle), math.inf), 0.0
    return CounterRow(reading.name, median(before), median(after), ratio, beyond, count, reading.unit, min(shares))
