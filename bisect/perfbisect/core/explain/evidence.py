"""The data types of an explanation, which says why a culprit is slower or faster than its parent; and the computation
of the ratios of counters.

All values are per operation (such as a query), and compare the culprit with one parent, which the proof of the culprit
has also measured. An explanation is not stored, but computed from the stored events ``Counted``, ``Profiled``,
``Planned`` and ``ChangedFunctions``.

Each ratio of counters is the counter per operation in the culprit, divided by the counter per operation in the parent.
The ratios come from interleaved runs, have intervals, and are sorted by |log ratio| divided by its standard error.

The n-th run of the parent and the n-th run of the culprit with the same group of counters make a pair; the two runs are
at most minutes apart. The log ratios of a counter are averaged over the groups of a round, because all groups of a
round are measured in one visit (one start of the server), so only different rounds are independent. The interval of a
ratio is the interval of Student's t distribution for paired observations (``core/stats/paired_comparison.py``).

Top-down analysis (level 1) shows how the slots of a processor's pipeline are used. Its events can be counted on
processors of Intel, AMD and ARM. In each cycle a processor has a fixed number of slots in which an operation can begin.
A slot retires an operation, is lost to an operation that is discarded, or stays empty because the front end delivers no
operation or the back end accepts no operation (Yasin, "A top-down method for performance analysis and counters
architecture", ISPASS 2014). An explanation has slots per operation, not shares of all slots. So the number of slots in
a cycle need not be known, and the differences of the categories sum to the difference of all slots, which is
proportional to the difference of the cycles.
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
from perfbisect.core.explain.profiles import FunctionKey
from perfbisect.core.stats.distributions import Student

NOISE_ERRORS = 3.0  # standard errors from which on the difference of a function is beyond noise
OTHER_FUNCTIONS = "[other functions]"  # row of all further functions, so that differences sum to the total


class Cause(StrEnum):
    """The kind of reason why an operation takes longer or, after an improvement, less time."""

    PLAN = "plan"  # the server executes a statement by another plan
    INSTRUCTIONS = "instructions"  # the culprit executes more instructions
    MEMORY = "memory"  # fewer instructions per cycle: caches, TLBs
    WAITING = "waiting"  # locks, storage, scheduler: time without CPU time
    CLOCK = "clock"  # the same cycles take another time, for which the commit is not the reason
    LAYOUT = "layout"  # same instructions and functions, changed front-end counters: the source code is not the reason
    UNKNOWN = "unknown"


class Sureness(StrEnum):
    """The certainty of a statement."""

    SURE = "sure"  # the interval is far from no change, and the counters were counted all the time
    LIKELY = "likely"
    POSSIBLE = "possible"  # little was measured, or the interval almost contains no change


@dataclass(frozen=True, slots=True)
class CounterRow:
    """A counter per operation ("instructions/o") or a ratio of two counters ("ipc"), in the parent and in the culprit,
    measured by interleaved runs."""

    name: str
    parent: float  # geometric mean over the rounds, in ``unit``; ``ratio`` is ``culprit`` / ``parent``
    culprit: float
    ratio: Interval  # culprit relative to parent, with a 95 % interval
    # |log ratio| in standard errors of the log ratio; rows are in descending order of this number
    standard_errors: float
    rounds: int  # number of pairs of runs
    unit: str = ""  # per operation: "us", "kB"; "" for a count or a ratio
    share: float = 1.0  # smallest share of time in which the events were counted; below 1 perf extrapolated

    @property
    def is_significant(self) -> bool:
        """Whether the interval of the ratio excludes 1, so that the ratio has changed significantly."""
        return self.ratio.excludes_one

    @property
    def log_width(self) -> float:
        """The logarithm of the upper bound divided by the lower bound of the interval. If perf extrapolated a counter,
        the logarithm is divided by ``share``, the share of time in which perf counted the counter.
        """
        return math.log(self.ratio.high / self.ratio.low) / self.share if self.ratio.low else math.inf

    @property
    def log_ratio(self) -> float:
        """The logarithm of the ratio."""
        return math.log(self.ratio.middle)

    @property
    def difference(self) -> float:
        """The value of the culprit minus the value of the parent."""
        return self.culprit - self.parent


@dataclass(frozen=True, slots=True)
class Evidence:
    """A cause that explains a part of the change, with the numbers that show how large this part is."""

    cause: Cause
    part: float | None  # share of the log change of time per operation; None without a share, as for a plan
    sure: Sureness
    rows: tuple[CounterRow, ...] = ()  # first the ratio that defines the class of the cause, then ratios with details
    # A cache or TLB, "lock", "storage" or "scheduler"; for an unknown cause, the reason; "" if there is no detail.
    detail: str = ""


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """One function in the profiles of both builds. Its costs are self costs (without callees) per operation, in the
    unit of the explanation.

    The differences of all functions sum to the difference of the total cost per operation.
    """

    function: str  # demangled name in the symbol table
    binary: str  # base name of the file that contains it: "mysqld", "libc.so.6", "[kernel]"
    parent: float
    culprit: float
    error: float = 0.0  # standard error of the difference, from the number of samples and from the rounds
    part: float = 0.0  # the difference as a share of the total difference; may be negative, or more than 1
    changed: bool = False  # whether the commit changes the body of the function
    inlined: tuple[str, ...] = ()  # functions that the commit changes and that were inlined into this function
    # For an unchanged function: the changed function whose calls lead to most of the difference.
    below_changed: str = ""
    callers: tuple[str, ...] = ()  # callers of the function, callers with most of its cost first
    partner: str = ""  # the function to (or from) which the cost has merely moved; "" if no cost moved
    # number of calls per operation in the parent and in the culprit; None if calls were not counted
    calls: tuple[float, float] | None = None
    inlined_into: str = ""  # the function into which this function is inlined, if exact counts distinguish the two

    @property
    def difference(self) -> float:
        """The value of the culprit minus the value of the parent."""
        return self.culprit - self.parent

    @property
    def beyond_noise(self) -> bool:
        """Whether the cost difference is larger than the noise."""
        return abs(self.difference) > NOISE_ERRORS * self.error

    @property
    def key(self) -> FunctionKey:
        """The name of the function and the name of the binary, which together identify a row."""
        return self.function, self.binary

    @property
    def is_whole_binary(self) -> bool:
        """Whether this row is not a function, but the sum of all functions of a binary that has no symbols."""
        return self.function == f"[{self.binary}]"

    @property
    def has_changed_code(self) -> bool:
        """Whether the commit changes the function itself, or a function that is inlined into this function."""
        return self.changed or bool(self.inlined)


@dataclass(frozen=True, slots=True)
class CallInOneBuild:
    """A function that only one build, the parent or the culprit, calls."""

    function: str
    share: float  # share of the total cost of the build that makes the call, with callees
    new: bool  # whether the culprit calls the function, and not the parent
    inlined: bool = False  # whether costs show that the other build may inline the function into its caller


@dataclass(frozen=True, slots=True)
class DifferenceLocation:
    """The functions whose costs, including the costs of their callees, contain most of the difference between two
    builds."""

    # A function that the commit changes, or else the nearest caller of changed functions; None if changed functions
    # have no part of the difference.
    top: FunctionRow | None
    innermost: FunctionRow  # the innermost function below ``top`` with most of the difference; may be ``top``
    by_own_code: bool  # whether the self cost of ``innermost`` has most of the difference
    changed_functions: tuple[FunctionRow, ...] = ()  # changed functions that ``top`` calls, the largest part first
    calls: tuple[CallInOneBuild, ...] = ()  # calls by functions that both builds have, costliest first


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A statement for which the server uses another query plan in the culprit than in the parent."""

    statement: str
    parent: str  # the plan of the parent, as the server prints it
    culprit: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reason of a change of speed. A field is empty if its data were not measured; in this case, ``missing`` has a
    sentence that says why.
    """

    parent: str  # full hash
    culprit: str
    classes: tuple[Evidence, ...] = ()  # classes of causes, the main class first
    counters: tuple[CounterRow, ...] = ()  # ranked by their changes in standard errors
    functions: tuple[FunctionRow, ...] = ()  # largest |difference| first; groups that exchanged cost, by net difference
    location: DifferenceLocation | None = None  # the functions below which most of the difference is
    calls: tuple[CallInOneBuild, ...] = ()  # calls in the whole program, if there is no ``location``
    shared_error: float = 0.0  # relative standard error that the costs of all functions of a build have in common
    # Like ``functions`` for off-CPU time, in us: functions outside of libc that called waiting functions.
    waits: tuple[FunctionRow, ...] = ()
    kinds_of_waits: tuple[FunctionRow, ...] = ()  # off-CPU time by the kind of wait
    counts: tuple[FunctionRow, ...] = ()  # like ``functions`` for instructions: counted, or sampled if errors are not 0
    whole_runs: bool = False  # whether counts are per run, not per operation
    operation: str = "operation"  # the name of an operation: "run" of a command, "1,000 requests"
    share_without_callers: float = 0.0  # share of the cost of ``functions`` without known callers
    unit: str = ""  # unit of the costs in ``functions``: "us" of CPU time, "cycles"
    changed: tuple[str, ...] = ()  # functions that the commit changes, also functions that no profile contains
    paths: tuple[str, ...] = ()  # files that the commit changes, if it is known to change no function
    lines: tuple[tuple[str, str, str], ...] = ()  # changed lines outside of functions: path, old line, new line
    sources: int = 0  # number of source files that the commit changes
    change_known: bool = False  # whether all functions that the commit changes are known
    plans: tuple[PlanRow, ...] = ()
    missing: tuple[str, ...] = ()  # a sentence for each part that could not be measured
    metric: str = "qps"  # metric whose change is explained
    layouts: LayoutRatios | None = None  # the comparison in randomized layouts, if the verdict has one


RETIRING, WRONG, FRONT, BACK = "retiring slots/o", "bad-speculation slots/o", "front-end slots/o", "back-end slots/o"

# Category → the event that counts its slots, minus the slots of the following events, for each family of processors:
# - Intel's from Ice Lake on; perf turns the metrics of the kernel into slots.
# - AMD's from Zen 4 on: the "Pipeline Utilization" metrics. No category has the slots of the core's other thread.
# - Arm's Neoverse V1, N2 and later: the "Topdown methodology", without its corrections for single models.
SLOTS: Mapping[str, Sequence[tuple[str, ...]]] = {
    RETIRING: [("topdown-retiring",), ("ex_ret_ops",), ("op_retired",)],
    WRONG: [("topdown-bad-spec",), ("de_src_op_disp.all", "ex_ret_ops"), ("op_spec", "op_retired")],
    FRONT: [("topdown-fe-bound",), ("de_no_dispatch_per_slot.no_ops_from_frontend",), ("stall_slot_frontend",)],
    BACK: [("topdown-be-bound",), ("de_no_dispatch_per_slot.backend_stalls",), ("stall_slot_backend",)],
}
INTEL, AMD, ARM = (tuple(dict.fromkeys(chain(*family))) for family in zip(*SLOTS.values(), strict=True))  # all events


def category_slots(counters: Mapping[str, float | None], category: str) -> float | None:
    """The number of pipeline slots of a category (such as "retiring slots/o"), computed from counters; None if one of
    the events was not counted, or if the result would be negative."""
    for events in SLOTS[category]:
        slots, *subtracted = (counters.get(event) for event in events)
        if slots is not None and None not in subtracted:
            total = slots - sum(number or 0.0 for number in subtracted)
            return total if total >= 0 else None
    return None


RunsByGroup = Mapping[str, Sequence[RunFacts]]  # group of counters → its runs of one build, in order of time

# Smallest standard error of a log ratio, because few rounds agree by chance, and smaller changes are of no interest.
MIN_ERROR = 0.0005
MIN_EXACT_ERROR = 2e-6  # smallest standard error for exact counts, which repeat to parts per million

EXACT_GROUP = "exact"  # group of the runs in which only instructions are counted, exactly
TIME, BUSY, CLOCK = "time/o", "time/cpu", "GHz"  # ratios that split the time of an operation; see ``classes``


def time_per_operation(run: RunFacts) -> float | None:
    """The wall-clock time of a run divided by its number of operations, in microseconds."""
    return None if run.counted else quotient(1e6, run.qps)


def clock_ghz(run: RunFacts) -> float | None:
    """The clock rate: cycles per nanosecond of CPU time."""
    milliseconds = run.counters.get("task-clock")
    return quotient(run.counters.get("cycles"), None if milliseconds is None else 1e6 * milliseconds)


def slots_per_operation_metric(category: str) -> Metric:
    """The metric whose value is the number of pipeline slots of a category per operation."""
    events = tuple(chain(*SLOTS[category]))
    return Metric(category, lambda run: quotient(category_slots(run.counters, category), run.operations), events=events)


FURTHER_METRICS = ("L1-icache-load-misses/o", "LLC-load-misses/o", "cpu-migrations/o")
UNITS = {"cpu/o": "us", "rKB/o": "kB", "wKB/o": "kB"}
READINGS = (
    Metric(TIME, time_per_operation, "us"),
    # Time that passes for each unit of CPU time of the measured processes; with one thread at least 1.
    Metric(BUSY, lambda run: quotient(time_per_operation(run), METRICS["cpu/o"].read(run)), events=("task-clock",)),
    Metric(CLOCK, clock_ghz, "GHz", events=("cycles", "task-clock")),
    *(replace(METRICS[name], unit=UNITS.get(name, "")) for name in (*COMPARED, *FURTHER_METRICS)),
    *map(event_metric, ("stalled-cycles-frontend", "stalled-cycles-backend")),
    *map(slots_per_operation_metric, SLOTS),
)


# Two counters and their quotient. All three are read from the same runs, so that a reader can check the quotient.
QUOTIENTS = ((TIME, "cpu/o", BUSY), ("instructions/o", "cycles/o", "ipc"))


def counter_rows(
    parent: RunsByGroup, culprit: RunsByGroup, further_rows: Collection[CounterRow] = ()
) -> tuple[CounterRow, ...]:
    """The ratios of the counters that both builds have, sorted by |log ratio| divided by its standard error, largest
    first.

    ``further_rows`` are ratios from other runs of both builds. If the ratio of a counter is also in ``further_rows``,
    the more precise of the two ratios is used (``log_width``), so that additional measurements never make an
    explanation worse.
    """
    rows = [row for reading in READINGS if (row := counter_row(reading, parent, culprit))]
    best: dict[str, CounterRow] = {}
    for names in (*((row.name,) for row in (*further_rows, *rows)), *QUOTIENTS):
        rows_by_source = ([row for row in source if row.name in names] for source in (further_rows, rows))
        complete_sources = [source for source in rows_by_source if len(source) == len(names)]
        narrowest = min(complete_sources, key=lambda source: max(row.log_width for row in source), default=())
        best |= {row.name: row for row in narrowest}
    return tuple(sorted(best.values(), key=lambda row: round(row.standard_errors, 6), reverse=True))


def counter_row(metric: Metric, parent: RunsByGroup, culprit: RunsByGroup) -> CounterRow | None:
    """The ratio of one metric in the culprit to the same metric in the parent; None if no pair of runs has the metric,
    or if one value is 0."""
    rounds: dict[int, list[tuple[float, float]]] = {}
    counted_shares = [1.0]
    exact = True
    for group in sorted(parent.keys() & culprit.keys()):
        for number, pair in enumerate(zip(parent[group], culprit[group], strict=False)):
            parent_value, culprit_value = (metric.read(run) for run in pair)
            if parent_value is None or culprit_value is None or parent_value <= 0 or culprit_value <= 0:
                continue
            exact = exact and all(run.counted for run in pair)
            rounds.setdefault(number, []).append((math.log(parent_value), math.log(culprit_value)))
            counted_shares += (run.running.get(event, 1.0) for run in pair for event in metric.events)
    if not rounds:
        return None
    mean_by_round = [tuple(map(fmean, zip(*pairs, strict=True))) for pairs in rounds.values()]  # (parent, culprit)
    differences = [culprit_value - parent_value for parent_value, culprit_value in mean_by_round]
    log_ratio, count = fmean(differences), len(differences)
    log_ratio = 0.0 if abs(log_ratio) < 1e-9 else log_ratio  # smaller values are rounding errors
    error, half_width = 0.0, None
    if count > 1 or exact:
        spread = stdev(differences) / math.sqrt(count) if count > 1 else 0.0
        error = max(MIN_EXACT_ERROR if exact else MIN_ERROR, spread)
        half_width = (Student(count - 1).tabulated_quantile() if count > 1 else 2.0) * error
    standard_errors = abs(log_ratio) / error if error else 0.0
    ratio = Interval.from_log_ratio(log_ratio, half_width)
    parent_mean, culprit_mean = (math.exp(fmean(values)) for values in zip(*mean_by_round, strict=True))
    share = min(counted_shares)
    return CounterRow(metric.name, parent_mean, culprit_mean, ratio, standard_errors, count, metric.unit, share)


def difference_and_error(rows: Sequence[FunctionRow]) -> tuple[float, float]:
    """The sum of the cost differences of functions, and the standard error of this sum."""
    return sum(row.difference for row in rows), math.sqrt(sum(row.error**2 for row in rows))


def share_error(part_rows: Sequence[FunctionRow], rows: Sequence[FunctionRow], shared_error: float = 0.0) -> float:
    """The standard error of a share, by the delta method: the share that the functions ``part_rows`` have in the total
    cost difference of all ``rows``.

    ``shared_error`` is the relative standard error that all costs of a build have in common. The shared error has no
    effect if ``part_rows`` have the same share of the total cost as of the total difference.
    """
    total, spread = difference_and_error(rows)
    part_difference, part_noise = difference_and_error(part_rows)
    if not total:
        return math.inf
    share = part_difference / total
    common = shared_error * (sum(row.culprit for row in part_rows) - share * sum(row.culprit for row in rows))
    error = (1 - share) ** 2 * part_noise**2 + share**2 * max(0.0, spread**2 - part_noise**2) + common**2
    return math.sqrt(error) / abs(total)


def significant_rows(rows: Sequence[FunctionRow]) -> list[FunctionRow]:
    """The functions whose cost difference exceeds the noise, except functions whose cost has only moved to or from
    another function.
    """
    return [row for row in rows if row.beyond_noise and not row.partner and row.function != OTHER_FUNCTIONS]


def cost_exchanges(rows: Sequence[FunctionRow]) -> list[tuple[list[FunctionRow], list[FunctionRow]]]:
    """Groups of functions between which cost has moved. Each group is a pair of lists: the functions whose cost fell,
    and the functions whose cost rose. Both lists are sorted by the size of the change, largest first.
    """
    partners = {row.function: row.partner for row in rows if row.partner}
    groups: dict[frozenset[str], tuple[list[FunctionRow], list[FunctionRow]]] = {}
    for row in sorted(rows, key=lambda row: row.difference > 0):
        if row.partner:  # a group is a function and all functions whose partner it is
            group = groups.setdefault(frozenset((row.partner, partners.get(row.partner, ""))), ([], []))
            group[row.difference > 0].append(row)
    by_size = ([sorted(side, key=lambda row: -abs(row.difference)) for side in group] for group in groups.values())
    return [(sources, targets) for sources, targets in by_size if sources and targets]
