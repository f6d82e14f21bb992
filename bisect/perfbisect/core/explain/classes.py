"""Classes of a change, with the counters that show them.

The time of an operation is a product, so a slowdown splits exactly into a sum of logarithms:

    time/o  =  instructions/o  ×  cycles/instruction  ×  seconds/cycle  ×  time/CPU time
               more code          slower memory          slower clock      waiting

Each factor is a ratio with an interval of its own. How much of the change is waiting is a matter of times, though, which
add: what an operation takes longer than its CPU time explains is waiting, and the other factors share the rest. Otherwise
the CPU time of system calls would hide that a commit waits for what it has called. What counters alone cannot show is said by others: that the
server executes a statement in another way, and that a commit makes the difference as it is linked usually only.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfbisect.core.domain.orders import Interval, Layouts
from perfbisect.core.explain.evidence import (
    BACK,
    BUSY,
    CLOCK,
    FRONT,
    TIME,
    WRONG,
    Cause,
    CounterRow,
    Evidence,
    FunctionRow,
    PlanRow,
    Sureness,
)
from perfbisect.core.explain.profiles import KERNEL

NEGLIGIBLE = 0.01  # log ratio below which a factor explains nothing: about 1 %
SMALL = 1 / 3  # of the largest part: smaller parts are no class of their own
FAR = 5.0  # standard errors beyond which a factor has certainly moved
PER_INSTRUCTION = "cpu/instruction"
SAME_CODE = 0.001  # log ratio of instructions/o within which two builds execute the same

# Where misses are, and the cycles that one costs at least on processors of the last ten years, to weigh one event against
# another: nothing is computed from them that is shown. A miss of the last level goes to memory; one of a TLB walks the page table.
MISSES = {
    "L1-dcache-load-misses/o": ("first-level data cache", 10),
    "cache-misses/o": ("caches", 40),
    "LLC-load-misses/o": ("last-level cache", 150),
    "dTLB-load-misses/o": ("data TLB", 30),
    "iTLB-load-misses/o": ("instruction TLB", 30),
    "L1-icache-load-misses/o": ("instruction cache", 15),
    "branch-misses/o": ("branch prediction", 15),
}
OF_CODE = (
    "iTLB-load-misses/o", "L1-icache-load-misses/o", "branch-misses/o", FRONT, WRONG, "stalled-cycles-frontend/o",
)  # fmt: skip
OF_DATA = (
    "L1-dcache-load-misses/o", "cache-misses/o", "LLC-load-misses/o", "dTLB-load-misses/o", BACK, "stalled-cycles-backend/o",
)  # fmt: skip
# Counters of storage, with the microseconds at least of one that turns: to leave out, not to show
STORAGE = {"r/o": 10_000, "rKB/o": 100, "wKB/o": 100}
CODE = Cause.INSTRUCTIONS, Cause.MEMORY
# What explains a change of a metric other than the time of an operation.
OF_METRIC = {
    "instructions/o": CODE[:1],
    "branches/o": CODE[:1],
    "cycles/o": CODE,
    "cpu/o": (*CODE, Cause.CLOCK, Cause.LAYOUT, Cause.UNKNOWN),
}
MARKED = 0.1  # log ratio from which a counter that says more of a class has changed enough to be named


def classify(
    counters: Sequence[CounterRow],
    plans: Sequence[PlanRow] = (),
    functions: Sequence[FunctionRow] = (),
    layouts: Layouts | None = None,
    metric: str = TIME,
    slower: bool | None = None,
) -> tuple[Evidence, ...]:
    """The classes that explain the change, the main one first; ``UNKNOWN`` without numbers where nothing says why.

    ``layouts`` is the comparison in other orders of the functions, where the verdict has one; ``metric`` was hunted, and got
    worse if ``slower``; None: as the counters say.
    """
    rows = {row.name: row for row in counters}
    found = [Evidence(Cause.PLAN, None, Sureness.SURE)] if plans else []
    found += factors(rows, metric, slower)
    explained = tuple(suspicious(each, rows, functions, layouts) for each in found)
    return explained or (Evidence(Cause.UNKNOWN, None, Sureness.POSSIBLE),)


def factors(rows: Mapping[str, CounterRow], metric: str = TIME, slower: bool | None = None) -> list[Evidence]:
    """The factors of the time of an operation, or of another ``metric``, that moved as it did, the largest first."""
    exact = per_instruction(rows)
    rows = {**rows, exact.name: exact} if exact else rows
    parts = {
        Cause.INSTRUCTIONS: rows.get("instructions/o"),
        Cause.MEMORY: exact or inverse(rows.get("ipc")),
        Cause.CLOCK: inverse(rows.get(CLOCK)),
        Cause.WAITING: rows.get(BUSY),
        Cause.UNKNOWN: rows.get("cpu/o") if "instructions/o" not in rows else None,  # no counters to split it
    }
    of = OF_METRIC.get(metric, tuple(parts))
    moved = {cause: (row, row.log) for cause, row in parts.items() if row and cause in of}
    whole = rows[metric].log if metric in OF_METRIC and metric in rows else rows[TIME].log if TIME in rows else 0.0
    if abs(whole) < NEGLIGIBLE:
        whole = next((change for row, change in moved.values() if notable(row)), 0.0)
    slower = whole >= 0 if slower is None else slower
    weights = moved if metric in OF_METRIC else weighed(moved, rows)
    same = [(cause, row, change) for cause, (row, change) in weights.items() if (change > 0) == slower and notable(row)]
    same.sort(key=lambda factor: abs(factor[2]), reverse=True)
    classes = []
    for cause, row, change in same:
        if abs(change) >= SMALL * abs(same[0][2]):
            certain = row.beyond >= FAR and row.share == 1.0  # less sure where perf has extrapolated
            sure = Sureness.POSSIBLE if not row.moved else Sureness.SURE if certain else Sureness.LIKELY
            part = change / whole if whole * change > 0 else None
            classes.append(detailed(Evidence(cause, part, sure, (rows[row.name],)), rows, slower))
    return classes


# Cause → its factor, and the part of the change that it explains, in log units.
Moved = Mapping[Cause, tuple[CounterRow, float]]


def weighed(moved: Moved, rows: Mapping[str, CounterRow]) -> Moved:
    """The factors with parts that sum to the whole as times do: first waiting, then what CPU time has of the rest."""
    if not (rows.keys() >= {TIME, "cpu/o"} and Cause.WAITING in moved) or abs(rows[TIME].log) < NEGLIGIBLE:
        return moved
    of_time, of_cpu = rows[TIME].log, rows["cpu/o"].log
    share = (math.exp(of_time) - math.exp(of_cpu)) / math.expm1(of_time)
    if not 0 < share < 1:
        return moved
    scale = (1 - share) * of_time / of_cpu
    scaled = {cause: (factor, part * scale) for cause, (factor, part) in moved.items()}
    return {**scaled, Cause.WAITING: (moved[Cause.WAITING][0], share * of_time)}


def waiting(rows: Mapping[str, CounterRow]) -> float:
    """By how many microseconds an operation takes longer than its CPU time explains, each second as long as in the parent."""
    time, cpu = rows.get(TIME), rows.get("cpu/o")
    return time.parent * (time.ratio.middle - cpu.ratio.middle) if time and cpu else 0.0


def per_instruction(rows: Mapping[str, CounterRow]) -> CounterRow | None:
    """CPU time for each instruction, where instructions were counted exactly and cycles were not; None if it has not moved.

    Slower memory and a slower clock cannot be separated in it. That it has not moved beyond noise says
    nothing: its interval is that of CPU time, which other things move.
    """
    time, code = rows.get("cpu/o"), rows.get("instructions/o")
    if time is None or code is None or "ipc" in rows:
        return None
    low, middle, high = (end / code.ratio.middle for end in (time.ratio.low, time.ratio.middle, time.ratio.high))
    error = abs(time.log) / time.beyond if time.beyond else math.inf
    parent, culprit = 1000 * time.parent / code.parent, 1000 * time.culprit / code.culprit
    ratio, beyond = Interval(low, middle, high), abs(math.log(middle)) / error
    row = CounterRow(PER_INSTRUCTION, parent, culprit, ratio, beyond, time.rounds, "ns", time.share)
    return row if row.moved else None


def notable(row: CounterRow) -> bool:
    """Whether a factor explains anything: by its size, or because it is certain, as a count that repeats.

    One whose interval holds 1 explains nothing; that of a single round is not known.
    """
    moved = row.moved or row.ratio.high == math.inf
    return (moved and abs(row.log) >= NEGLIGIBLE) or (row.name == "instructions/o" and row.moved and row.beyond >= FAR)


def detailed(evidence: Evidence, rows: Mapping[str, CounterRow], slower: bool) -> Evidence:
    """The evidence with the counters that say more of it, and what they say."""

    def marked(*names: str) -> list[str]:
        """Those counters that rose (of an improvement: fell) by enough to say something."""
        moved = [name for name in names if name in rows and (rows[name].log > 0) == slower]
        return [name for name in moved if abs(rows[name].log) >= MARKED]

    match evidence.cause:
        case Cause.MEMORY:
            misses = sorted(marked(*MISSES), key=lambda name: -abs(cost(rows[name])))
            dear = [name for name in misses[:2] if abs(cost(rows[name])) >= SMALL * abs(cost(rows[misses[0]]))]
            more = [*dear, *sorted(marked(FRONT, WRONG, BACK), key=lambda name: -abs(rows[name].difference))[:1]]
            detail = MISSES[misses[0]][0] if misses else ""
        case Cause.WAITING:
            # Those whose change would keep a slow disk busy for a tenth of the longer waiting.
            least = 0.1 * abs(waiting(rows))
            storage = [name for name in marked(*STORAGE) if abs(rows[name].difference) * STORAGE[name] >= least]
            locks = marked("cs/o", "cpu-migrations/o")
            # Of a device that does other work at a steady rate, each operation that takes longer gets more.
            time = abs(rows[TIME].log) if TIME in rows else 0.0
            busier = any(abs(rows[name].log) >= time + MARKED for name in storage)
            detail = "lock" if "cs/o" in locks else "scheduler" if locks else ""
            detail = "storage" if busier or (storage and not locks) else detail
            more = [*storage, *locks] if detail == "storage" else locks
        case _:
            more, detail = [], ""
    return replace(evidence, rows=(*evidence.rows, *(rows[name] for name in more)), detail=detail)


def suspicious(
    evidence: Evidence, rows: Mapping[str, CounterRow], functions: Sequence[FunctionRow], layouts: Layouts | None
) -> Evidence:
    """Slower memory as time in the kernel, or as the suspicion that only the placement of code has changed, where all says so.

    Exact counts lack the instructions of the kernel, so that its time looks like that of the others.
    The same instructions are executed, counters of the front end moved and those of the data did not. It is none where
    the commit was as slow in other orders of the functions, or a function that it changes has most of the loss.
    """
    if (
        any(row.name == PER_INSTRUCTION for row in evidence.rows)
        and sum(row.part for row in functions if row.binary == KERNEL) > 0.5
    ):
        return replace(evidence, detail=KERNEL)
    instructions = rows.get("instructions/o")
    if evidence.cause is not Cause.MEMORY or instructions is None or abs(instructions.log) > SAME_CODE:
        return evidence
    marked = {name for name, row in rows.items() if row.moved and abs(row.log) >= NEGLIGIBLE}
    in_code, in_data = ([name for name in names if name in marked] for names in (OF_CODE, OF_DATA))
    costs = [sum(abs(cost(rows[name])) for name in names if name in MISSES) for names in (in_code, in_data)]
    proven = layouts is not None and layouts.compared > 0 and layouts.changed == layouts.compared
    of_commit = any(row.own and row.part > 0.5 for row in functions)
    if not in_code or costs[0] < costs[1] or proven or of_commit:
        return evidence
    shown = sorted((rows[name] for name in in_code), key=lambda row: row.beyond, reverse=True)[:3]
    sure = Sureness.LIKELY if evidence.sure is Sureness.SURE and not in_data else Sureness.POSSIBLE
    return Evidence(Cause.LAYOUT, evidence.part, sure, (evidence.rows[0], *shown))


def cost(row: CounterRow) -> float:
    """Cycles per operation, roughly, that the change of a counter of misses costs."""
    return row.difference * MISSES[row.name][1] if row.name in MISSES else 0.0


def inverse(row: CounterRow | None) -> CounterRow | None:
    """The row with the reciprocal of its ratio: cycles per instruction from instructions per cycle."""
    if row is None:
        return None
    low, middle, high = row.ratio.low, row.ratio.middle, row.ratio.high
    turned = Interval(1 / high if high < math.inf else 0.0, 1 / middle, 1 / low if low > 0 else math.inf)
    return replace(row, ratio=turned)
