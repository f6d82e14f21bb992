"""What an explanation consists of: why a culprit is slower (or faster), derived from events, for reports; first its counters.

Everything is of the culprit against the parent that it was proven against, and per operation. The events are
``Counted``, ``Profiled``, ``Planned`` and ``ChangedFunctions``; no struct here is stored.

Counters are ratios per operation, from runs in turns, with intervals, ranked.

The n-th run of a group of counters of the one and the n-th of the other make a pair, measured within minutes. With d the
difference of the logarithms, averaged over the groups of a round, the interval is Student's for paired observations; see
``core/stats/paired_comparison.py``. Groups of one round share a visit of the server, so only rounds are independent.

Top-down level 1 says what became of the slots of a processor's pipeline, from events that Intel, AMD and ARM count. In
each cycle a processor has a fixed number of slots in which an operation can begin. A slot retires an operation, is lost
to an operation that is thrown away, or stays empty because the front end delivers none or the back end accepts none (A.
Yasin, "A top-down method for performance analysis and counters architecture", ISPASS 2014). Slots per operation of the
workload need no constant of the processor, and their differences sum to that of all slots, which is in proportion to
that of the cycles.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from statistics import fmean, stdev

from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.metrics import COMPARED, METRICS, Metric, event_metric, quotient
from perfbisect.core.domain.orders import Interval, LayoutRatios
from perfbisect.core.stats.distributions import Student

NOISE_ERRORS = 3.0  # standard errors from which on the difference of a function is no noise
OTHER_FUNCTIONS = "[other functions]"  # the row of all further ones: differences must sum to the whole


class Cause(StrEnum):
    """The class of a change: why an operation takes longer (or, of an improvement, less long)."""

    PLAN = "plan"  # the server executes a statement in another way
    INSTRUCTIONS = "instructions"  # more code
    MEMORY = "memory"  # fewer instructions per cycle: caches, TLBs
    WAITING = "waiting"  # locks, storage, scheduler: time without CPU time
    CLOCK = "clock"  # the same cycles take another time: not the commit
    LAYOUT = "layout"  # same instructions and functions, front-end counters moved: not the source code
    UNKNOWN = "unknown"


class Sureness(StrEnum):
    """How sure a statement is."""

    SURE = "sure"  # its interval is far from no change, by counts of the whole time
    LIKELY = "likely"
    POSSIBLE = "possible"  # it may be so; little was measured, or the interval nearly contains no change


@dataclass(frozen=True, slots=True)
class CounterRow:
    """One ratio of counters, "instructions/o" or "ipc", from rounds in which parent and culprit took turns."""

    name: str
    parent: float  # geometric mean over the rounds, in ``unit``: the ratio is that of both
    culprit: float
    ratio: Interval  # of culprit against parent, 95 %
    standard_errors: (
        float  # |log ratio| in standard errors of it: how far beyond noise. Rows are in descending order of it
    )
    rounds: int  # pairs of runs
    unit: str = ""  # of one operation: "us", "kB"; "" for a count or a ratio
    share: float = 1.0  # smallest share of the time in which its events were counted; below 1 perf has extrapolated

    @property
    def moved(self) -> bool:
        """Whether the interval excludes no change."""
        return self.ratio.excludes_one

    @property
    def log_width(self) -> float:
        """How imprecise it is: the length of its interval in log units, of one that was extrapolated as many times longer."""
        return math.log(self.ratio.high / self.ratio.low) / self.share if self.ratio.low else math.inf

    @property
    def log(self) -> float:
        """The logarithm of the ratio."""
        return math.log(self.ratio.middle)

    @property
    def difference(self) -> float:
        """Culprit less parent."""
        return self.culprit - self.parent


@dataclass(frozen=True, slots=True)
class Evidence:
    """One class that explains a part of the change, with the numbers that show it."""

    cause: Cause
    part: float | None  # share of the logarithm of the change of time per operation; None where it has none, as a plan
    sure: Sureness
    rows: tuple[CounterRow, ...] = ()  # the ratio that makes the class first, then what says more of it
    # Which cache or TLB, "lock", "storage", "scheduler"; why nothing is known; "" where that is unknown.
    detail: str = ""


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """One function in the profiles of both builds; costs are self costs per operation, in the unit of the explanation.

    Differences over all functions sum to the difference of the whole cost per operation.
    """

    function: str  # as the symbol table names it, demangled
    binary: str  # base name of the file that contains it: "mysqld", "libc.so.6", "[kernel]"
    parent: float
    culprit: float
    error: float = 0.0  # standard error of the difference, from the number of samples and from the rounds
    part: float = 0.0  # its difference as a share of the whole difference; may be negative, and more than 1
    changed: bool = False  # the commit changes its body
    inlined: tuple[str, ...] = ()  # functions that the commit changes and that were inlined into this one
    # Of one that the commit does not change: the function above most of its difference that it does change.
    below_changed: str = ""
    callers: tuple[str, ...] = ()  # that call it, those with most of its cost first
    partner: str = ""  # the function to (or from) which its cost has merely moved; "" where it has not
    # how often it is called in the parent and in the culprit; None where that was not counted, as of one that is inlined
    calls: tuple[float, float] | None = None
    inlined_into: str = ""  # the function into which it is inlined, where exact counts have told it apart

    @property
    def difference(self) -> float:
        """Culprit less parent."""
        return self.culprit - self.parent

    @property
    def beyond_noise(self) -> bool:
        """Whether the difference is no noise."""
        return abs(self.difference) > NOISE_ERRORS * self.error

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from all others: function and binary."""
        return self.function, self.binary

    @property
    def has_no_symbols(self) -> bool:
        """Whether it stands for all functions of a binary without symbols."""
        return self.function == f"[{self.binary}]"

    @property
    def has_changed_code(self) -> bool:
        """Whether the commit changes the function, or one that is inlined into it."""
        return self.changed or bool(self.inlined)


@dataclass(frozen=True, slots=True)
class Call:
    """A function that only one of two builds calls."""

    function: str
    share: float  # of the whole cost of that build, with all that it calls
    new: bool  # whether that is the culprit
    inlined: bool = False  # whether it may be a part of its caller in the other build, by what that costs


@dataclass(frozen=True, slots=True)
class DifferenceLocation:
    """The functions below which most of a difference is. Their costs are with all that they call."""

    # Changed by the commit, or the nearest caller of those that are (``of_diff``); None where they have no part of it.
    top: FunctionRow | None
    innermost: FunctionRow  # the innermost that has most of it, below that; may be the same
    by_own_code: bool  # whether its own code has most of it
    changed_functions: tuple[
        FunctionRow, ...
    ] = ()  # which the commit changes, where ``top`` calls them; the largest part first
    calls: tuple[Call, ...] = ()  # from functions of both builds, that cost most first


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A statement that the server executes in another way in the culprit than in the parent."""

    statement: str
    parent: str  # the plan as the server prints it
    culprit: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that is known of the reason of a change. Empty parts were not measured; ``missing`` says why."""

    parent: str  # full hash
    culprit: str
    classes: tuple[Evidence, ...] = ()  # the main one first
    counters: tuple[CounterRow, ...] = ()  # ranked by how far beyond noise they moved
    functions: tuple[FunctionRow, ...] = ()  # ranked by |difference|; those that exchanged cost, by what is left of it
    location: DifferenceLocation | None = None  # the functions below which most of their difference is
    calls: tuple[Call, ...] = ()  # of the whole program, where there is no place
    shared_error: float = 0.0  # relative standard error that the costs of all functions of a build have in common
    # The same for time off CPU, in us: functions that called what waits, outside of libc.
    waits: tuple[FunctionRow, ...] = ()
    kinds_of_waits: tuple[FunctionRow, ...] = ()  # the same by what is waited for
    counts: tuple[FunctionRow, ...] = ()  # the same for instructions: counted, or sampled where errors are not 0
    whole_runs: bool = False  # whether what was counted is a whole run, and not an operation
    operation: str = "operation"  # what one is: "run" of a command, "1,000 requests"
    share_without_callers: float = 0.0  # share of the cost of ``functions`` whose callers are not known
    unit: str = ""  # of the costs in ``functions``: "us" of CPU time, "cycles"
    changed: tuple[str, ...] = ()  # functions that the commit changes, also those that no profile contains
    paths: tuple[str, ...] = ()  # files that the commit changes, where it is known that it changes no function
    lines: tuple[tuple[str, str, str], ...] = ()  # that it changes outside of functions: path, before, since
    sources: int = 0  # source files that it changes
    change_known: bool = False  # whether it was found out, completely, which functions the commit changes
    plans: tuple[PlanRow, ...] = ()
    missing: tuple[str, ...] = ()  # a sentence for each part that could not be measured
    metric: str = "qps"  # whose change is explained
    layouts: LayoutRatios | None = None  # the comparison in other orders of the functions, where the verdict has one


RETIRING, WRONG, FRONT, BACK = "retiring slots/o", "bad-speculation slots/o", "front-end slots/o", "back-end slots/o"

# Category → the event that counts its slots, less those of the events behind it, for each family of processors:
# - Intel's from Ice Lake on; perf turns the metrics of the kernel into slots.
# - AMD's from Zen 4 on: the "Pipeline Utilization" metrics. What another thread of the core takes is in none.
# - Arm's Neoverse V1, N2 and later: the "Topdown methodology", without its corrections for single models.
SLOTS: Mapping[str, Sequence[tuple[str, ...]]] = {
    RETIRING: [("topdown-retiring",), ("ex_ret_ops",), ("op_retired",)],
    WRONG: [("topdown-bad-spec",), ("de_src_op_disp.all", "ex_ret_ops"), ("op_spec", "op_retired")],
    FRONT: [("topdown-fe-bound",), ("de_no_dispatch_per_slot.no_ops_from_frontend",), ("stall_slot_frontend",)],
    BACK: [("topdown-be-bound",), ("de_no_dispatch_per_slot.backend_stalls",), ("stall_slot_backend",)],
}
INTEL, AMD, ARM = (tuple(dict.fromkeys(chain(*family))) for family in zip(*SLOTS.values(), strict=True))  # all events


def category_slots(counters: Mapping[str, float | None], category: str) -> float | None:
    """The slots of a category in what was counted; None where that has no such events, or counted more than were."""
    for events in SLOTS[category]:
        slots, *subtracted = (counters.get(event) for event in events)
        if slots is not None and None not in subtracted:
            total = slots - sum(number or 0.0 for number in subtracted)
            return total if total >= 0 else None
    return None


RunsByGroup = Mapping[str, Sequence[RunFacts]]  # group of counters → its runs of one build, in order of time

# Smallest standard error of a log ratio: few rounds agree by chance, and smaller changes are of no interest.
MIN_ERROR = 0.0005
MIN_EXACT_ERROR = 2e-6  # the same of exact counts, which repeat to parts per million

EXACT_GROUP = "exact"  # of runs whose instructions are counted exactly, and nothing else
TIME, BUSY, CLOCK = "time/o", "time/cpu", "GHz"  # ratios that split the time of an operation; see ``classes``


def time_per_operation(run: RunFacts) -> float | None:
    """Microseconds from one operation to the next."""
    return None if run.counted else quotient(1e6, run.qps)


def clock_rate(run: RunFacts) -> float | None:
    """Cycles per nanosecond of CPU time."""
    milliseconds = run.counters.get("task-clock")
    return quotient(run.counters.get("cycles"), None if milliseconds is None else 1e6 * milliseconds)


def slots_per_operation_metric(category: str) -> Metric:
    """The pipeline slots of a category per operation."""
    events = tuple(chain(*SLOTS[category]))
    return Metric(category, lambda run: quotient(category_slots(run.counters, category), run.operations), events=events)


FURTHER_METRICS = ("L1-icache-load-misses/o", "LLC-load-misses/o", "cpu-migrations/o")
UNITS = {"cpu/o": "us", "rKB/o": "kB", "wKB/o": "kB"}
READINGS = (
    Metric(TIME, time_per_operation, "us"),
    # Time that passes for each unit of CPU time of the measured processes; with one thread at least 1.
    Metric(BUSY, lambda run: quotient(time_per_operation(run), METRICS["cpu/o"].read(run)), events=("task-clock",)),
    Metric(CLOCK, clock_rate, "GHz", events=("cycles", "task-clock")),
    *(replace(METRICS[name], unit=UNITS.get(name, "")) for name in (*COMPARED, *FURTHER_METRICS)),
    *map(event_metric, ("stalled-cycles-frontend", "stalled-cycles-backend")),
    *map(slots_per_operation_metric, SLOTS),
)


# Two counters and their quotient, which a reader may check: all of the same runs.
QUOTIENTS = ((TIME, "cpu/o", BUSY), ("instructions/o", "cycles/o", "ipc"))


def counter_rows(
    parent: RunsByGroup, culprit: RunsByGroup, further_rows: Collection[CounterRow] = ()
) -> tuple[CounterRow, ...]:
    """The ratios that both builds have, those first that moved furthest beyond their noise.

    ``others`` are rows from other runs of the two. Of a counter in both, the more precise row is taken (``width``), so
    that measuring more never makes a reason worse.
    """
    rows = [row for reading in READINGS if (row := counter_row(reading, parent, culprit))]
    best: dict[str, CounterRow] = {}
    for names in (*((row.name,) for row in (*further_rows, *rows)), *QUOTIENTS):
        rows_by_source = ([row for row in source if row.name in names] for source in (further_rows, rows))
        complete_sources = [source for source in rows_by_source if len(source) == len(names)]
        best |= {
            row.name: row
            for row in min(
                complete_sources, key=lambda rows_of_source: max(row.log_width for row in rows_of_source), default=()
            )
        }
    return tuple(sorted(best.values(), key=lambda row: round(row.standard_errors, 6), reverse=True))


def counter_row(reading: Metric, parent: RunsByGroup, culprit: RunsByGroup) -> CounterRow | None:
    """One ratio; None where no pair of runs has it, or it is 0."""
    rounds: dict[int, list[tuple[float, float]]] = {}
    counted_shares = [1.0]
    exact = True
    for group in sorted(parent.keys() & culprit.keys()):
        for number, pair in enumerate(zip(parent[group], culprit[group], strict=False)):
            parent_value, culprit_value = (reading.read(run) for run in pair)
            if parent_value is None or culprit_value is None or parent_value <= 0 or culprit_value <= 0:
                continue
            exact = exact and all(run.counted for run in pair)
            rounds.setdefault(number, []).append((math.log(parent_value), math.log(culprit_value)))
            counted_shares += (run.running.get(event, 1.0) for run in pair for event in reading.events)
    if not rounds:
        return None
    mean_by_round = [tuple(map(fmean, zip(*pairs, strict=True))) for pairs in rounds.values()]  # parent, culprit
    differences = [culprit_value - parent_value for parent_value, culprit_value in mean_by_round]
    log_ratio, count = fmean(differences), len(differences)
    log_ratio = 0.0 if abs(log_ratio) < 1e-9 else log_ratio  # a rounding error
    error, half_width = 0.0, None
    if count > 1 or exact:
        spread = stdev(differences) / math.sqrt(count) if count > 1 else 0.0
        error = max(MIN_EXACT_ERROR if exact else MIN_ERROR, spread)
        half_width = (Student(count - 1).tabulated_quantile() if count > 1 else 2.0) * error
    standard_errors = abs(log_ratio) / error if error else 0.0
    ratio = Interval.from_log_ratio(log_ratio, half_width)
    parent_mean, culprit_mean = (math.exp(fmean(values)) for values in zip(*mean_by_round, strict=True))
    return CounterRow(
        reading.name, parent_mean, culprit_mean, ratio, standard_errors, count, reading.unit, min(counted_shares)
    )


def total_difference(rows: Sequence[FunctionRow]) -> tuple[float, float]:
    """The sum of the differences of functions, and its standard error."""
    return sum(row.difference for row in rows), math.sqrt(sum(row.error**2 for row in rows))


def part_error(part_rows: Sequence[FunctionRow], rows: Sequence[FunctionRow], shared_error: float = 0.0) -> float:
    """The standard error of the share of ``part_rows`` in the difference of all ``rows``, by the delta method.

    ``shared_error`` is the relative standard error that all costs of a build have in common. It does not change the error
    of rows whose share of the difference equals their share of the cost.
    """
    total, spread = total_difference(rows)
    part_difference, part_noise = total_difference(part_rows)
    if not total:
        return math.inf
    share = part_difference / total
    common = shared_error * (sum(row.culprit for row in part_rows) - share * sum(row.culprit for row in rows))
    error = (1 - share) ** 2 * part_noise**2 + share**2 * max(0.0, spread**2 - part_noise**2) + common**2
    return math.sqrt(error) / abs(total)


def significant_rows(rows: Sequence[FunctionRow]) -> list[FunctionRow]:
    """The functions that differ beyond noise, without functions whose cost has only moved."""
    return [row for row in rows if row.beyond_noise and not row.partner and row.function != OTHER_FUNCTIONS]


def cost_exchanges(rows: Sequence[FunctionRow]) -> list[tuple[list[FunctionRow], list[FunctionRow]]]:
    """Groups of functions that exchanged cost: those that lost cost, and those that gained it, each largest first."""
    partners = {row.function: row.partner for row in rows if row.partner}
    groups: dict[frozenset[str], tuple[list[FunctionRow], list[FunctionRow]]] = {}
    for row in sorted(rows, key=lambda row: row.difference > 0):
        if row.partner:  # two of a group have each other, all further ones the first of these
            group = groups.setdefault(frozenset((row.partner, partners.get(row.partner, ""))), ([], []))
            group[row.difference > 0].append(row)
    by_size = (
        [sorted(rows_of_side, key=lambda row: -abs(row.difference)) for rows_of_side in group]
        for group in groups.values()
    )
    return [(sources, targets) for sources, targets in by_size if sources and targets]
