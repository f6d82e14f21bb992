"""Why a culprit is slower (or faster): what ``core/explain`` derives from the events of an explanation, for reports.

Everything is of the culprit against the parent that it was proven against, and per operation. The events are
``Counted``, ``Profiled``, ``Planned`` and ``ChangedFunctions``; no struct here is stored.
"""

from dataclasses import dataclass
from enum import StrEnum

from perfbisect.core.domain.orders import Interval


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
    parent: float  # median over the rounds, in ``unit``
    culprit: float
    ratio: Interval  # of culprit against parent, 95 %
    beyond: float  # |log ratio| in standard errors of it: how far beyond noise. Rows are in descending order of it
    rounds: int  # pairs of runs
    unit: str = ""  # of one operation: "us", "kB"; "" for a count or a ratio
    share: float = 1.0  # smallest share of the time in which its events were counted; below 1 perf has extrapolated

    @property
    def moved(self) -> bool:
        """Whether the interval excludes no change."""
        return not self.ratio.low <= 1 <= self.ratio.high


@dataclass(frozen=True, slots=True)
class Evidence:
    """One class that explains a part of the change, with the numbers that show it."""

    cause: Cause
    part: float | None  # share of the logarithm of the change of time per operation; None where it has none, as a plan
    sure: Sureness
    rows: tuple[CounterRow, ...] = ()  # the ratio that makes the class first, then what says more of it
    detail: str = (
        ""  # which cache or TLB, "lock", "storage", "scheduler"; why nothing is known; "" where that is unknown
    )


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
    below: str = (
        ""  # of one that the commit does not change: the function above most of its difference that it does change
    )
    callers: tuple[str, ...] = ()  # that call it, those with most of its cost first
    partner: str = ""  # the function to (or from) which its cost has merely moved; "" where it has not

    @property
    def difference(self) -> float:
        """Culprit less parent."""
        return self.culprit - self.parent


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
    waits: tuple[
        FunctionRow, ...
    ] = ()  # the same for time off CPU, in us: functions that called what waits, outside of libc
    unit: str = ""  # of the costs in ``functions``: "us" of CPU time, "cycles"
    changed: tuple[str, ...] = ()  # functions that the commit changes, also those that no profile contains
    change_known: bool = False  # whether it was found out, completely, which functions the commit changes
    plans: tuple[PlanRow, ...] = ()
    missing: tuple[str, ...] = ()  # a sentence for each part that could not be measured
    metric: str = "qps"  # whose change is explained
