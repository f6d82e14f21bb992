"""Finds the cause of a change of speed from the query plans of statements and from counters.

The time of an operation is a product, so a slowdown is exactly a sum of logarithms:

    time/o  =  instructions/o  ×  cycles/instruction  ×  seconds/cycle  ×  time/CPU time
               more code          slower memory          slower clock      waiting

Each factor is a ratio with a separate interval. The share of waiting is computed differently, from a difference of
times: waiting is the additional time of an operation minus its additional CPU time. The other factors share the part of
the change that waiting does not explain. The ratio of time to CPU time would hide waiting if a commit adds system calls
that wait, because these system calls also raise the CPU time. Two causes are not recognised from counters: a different
plan of a statement, and a difference that exists only in the usual layout.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from perfbisect.core.domain.facts import PlanFacts
from perfbisect.core.domain.orders import Interval, LayoutRatios
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

NEGLIGIBLE = 0.01  # smallest log ratio of a factor that explains a part of the change: about 1 %
MIN_CLASS_SHARE = 1 / 3  # a factor makes a class if it changed at least by this share of the largest factor's change
CERTAIN_ERRORS = 5.0  # a factor has certainly changed if its change is at least this number of standard errors
PER_INSTRUCTION = "cpu/instruction"
SAME_CODE = 0.001  # largest log ratio of instructions/o of two builds that execute the same code

# Counter → the cache or unit that missed, and the fewest cycles that a miss costs on processors of the last ten years.
# The cycles only rank the counters, and are not printed. A miss of the last level reads memory; a TLB miss walks the
# page table.
MISS_COSTS = {
    "L1-dcache-load-misses/o": ("first-level data cache", 10),
    "cache-misses/o": ("caches", 40),
    "LLC-load-misses/o": ("last-level cache", 150),
    "dTLB-load-misses/o": ("data TLB", 30),
    "iTLB-load-misses/o": ("instruction TLB", 30),
    "L1-icache-load-misses/o": ("instruction cache", 15),
    "branch-misses/o": ("branch prediction", 15),
}
CODE_COUNTERS = (
    "iTLB-load-misses/o", "L1-icache-load-misses/o", "branch-misses/o", FRONT, WRONG, "stalled-cycles-frontend/o",
)  # fmt: skip
DATA_COUNTERS = (
    "L1-dcache-load-misses/o", "cache-misses/o", "LLC-load-misses/o", "dTLB-load-misses/o", BACK, "stalled-cycles-backend/o",
)  # fmt: skip
# Storage counter → the fewest microseconds that a rotating disk needs for one unit of the counter. The figures only
# serve to exclude counters whose change is too small to explain a wait.
STORAGE_COSTS = {"r/o": 10_000, "rKB/o": 100, "wKB/o": 100}
CODE_CAUSES = Cause.INSTRUCTIONS, Cause.MEMORY
# Metric other than the time of an operation → the causes that explain its change.
CAUSES_OF_METRIC = {
    "instructions/o": CODE_CAUSES[:1],
    "branches/o": CODE_CAUSES[:1],
    "cycles/o": CODE_CAUSES,
    "cpu/o": (*CODE_CAUSES, Cause.CLOCK, Cause.LAYOUT, Cause.UNKNOWN),
}
MIN_DETAIL_CHANGE = 0.1  # a counter is named as a detail of a cause if its log ratio is at least this


def classify(
    counters: Sequence[CounterRow],
    plans: Sequence[PlanRow] = (),
    functions: Sequence[FunctionRow] = (),
    layouts: LayoutRatios | None = None,
    metric: str = TIME,
    slower: bool | None = None,
) -> tuple[Evidence, ...]:
    """The causes (such as more instructions) that explain the change, the main cause first; if no cause explains the
    change, ``UNKNOWN`` without numbers.

    ``layouts`` is the comparison in randomized layouts, if the verdict has such a comparison. ``slower`` says whether
    the hunted ``metric`` became worse; if ``slower`` is None, the direction is taken from the counters.
    """
    rows = {row.name: row for row in counters}
    classes = [Evidence(Cause.PLAN, None, Sureness.SURE)] if plans else []
    classes += changed_factors(rows, metric, slower)
    explained = tuple(reclassify_memory(evidence, rows, functions, layouts) for evidence in classes)
    return explained or (Evidence(Cause.UNKNOWN, None, Sureness.POSSIBLE),)


def changed_factors(rows: Mapping[str, CounterRow], metric: str = TIME, slower: bool | None = None) -> list[Evidence]:
    """The factors of ``metric`` that changed in the same direction as the metric, the largest change first."""
    cpu_per_instruction = cpu_per_instruction_row(rows)
    rows = {**rows, cpu_per_instruction.name: cpu_per_instruction} if cpu_per_instruction else rows
    row_by_cause = {
        Cause.INSTRUCTIONS: rows.get("instructions/o"),
        Cause.MEMORY: cpu_per_instruction or inverse_row(rows.get("ipc")),
        Cause.CLOCK: inverse_row(rows.get(CLOCK)),
        Cause.WAITING: rows.get(BUSY),
        Cause.UNKNOWN: rows.get("cpu/o") if "instructions/o" not in rows else None,  # no counter explains CPU time
    }
    causes = CAUSES_OF_METRIC.get(metric, tuple(row_by_cause))
    factor_by_cause = {cause: (row, row.log_ratio) for cause, row in row_by_cause.items() if row and cause in causes}
    total_row = (rows.get(metric) if metric in CAUSES_OF_METRIC else None) or rows.get(TIME)
    total_change = total_row.log_ratio if total_row else 0.0
    if abs(total_change) < NEGLIGIBLE:
        total_change = next((change for row, change in factor_by_cause.values() if is_notable(row)), 0.0)
    slower = total_change >= 0 if slower is None else slower
    weights = factor_by_cause if metric in CAUSES_OF_METRIC else with_additive_changes(factor_by_cause, rows)
    notable = [(cause, row, change) for cause, (row, change) in weights.items() if is_notable(row)]
    same_direction = [factor for factor in notable if (factor[2] > 0) == slower]
    same_direction.sort(key=lambda factor: abs(factor[2]), reverse=True)
    classes = []
    for cause, row, change in same_direction:
        if abs(change) >= MIN_CLASS_SHARE * abs(same_direction[0][2]):
            certain = row.standard_errors >= CERTAIN_ERRORS and row.share == 1.0  # share below 1: extrapolated by perf
            sureness = Sureness.POSSIBLE if not row.is_significant else Sureness.SURE if certain else Sureness.LIKELY
            share = change / total_change if total_change * change > 0 else None
            classes.append(with_details(Evidence(cause, share, sureness, (rows[row.name],)), rows, slower))
    return classes


# Cause → the counter that is its factor, and the change of the metric, as a logarithm, that the factor explains.
FactorByCause = Mapping[Cause, tuple[CounterRow, float]]


def with_additive_changes(factors: FactorByCause, rows: Mapping[str, CounterRow]) -> FactorByCause:
    """``factors`` with rescaled changes, whose sum is the log ratio of the time of an operation. If an operation waits
    for a quarter of its additional time, the cause WAITING gets a quarter of this log ratio. ``factors`` are returned
    without rescaling if time, CPU time or waiting was not measured, or if the time has hardly changed.
    """
    if not (rows.keys() >= {TIME, "cpu/o"} and Cause.WAITING in factors) or abs(rows[TIME].log_ratio) < NEGLIGIBLE:
        return factors
    time_change, cpu_change = rows[TIME].log_ratio, rows["cpu/o"].log_ratio
    waiting_share = (math.exp(time_change) - math.exp(cpu_change)) / math.expm1(time_change)
    if not 0 < waiting_share < 1:
        return factors
    scale = (1 - waiting_share) * time_change / cpu_change
    scaled = {cause: (factor, change * scale) for cause, (factor, change) in factors.items()}
    return {**scaled, Cause.WAITING: (factors[Cause.WAITING][0], waiting_share * time_change)}


def added_wait_us_per_operation(rows: Mapping[str, CounterRow]) -> float:
    """The additional time of an operation that its CPU time does not explain, in microseconds; 0.0 if the time or the
    CPU time was not measured.
    """
    time, cpu = rows.get(TIME), rows.get("cpu/o")
    return time.parent * (time.ratio.middle - cpu.ratio.middle) if time and cpu else 0.0


def cpu_per_instruction_row(rows: Mapping[str, CounterRow]) -> CounterRow | None:
    """The CPU time per instruction, if instructions were counted exactly and cycles were not counted exactly; None if
    this time is unchanged.

    CPU time per instruction does not distinguish slower memory from a slower clock. If the interval of the CPU time per
    instruction contains 1, the result is None. None does not prove that nothing changed, because the interval is as
    wide as the interval of the CPU time.
    """
    cpu_time, instructions = rows.get("cpu/o"), rows.get("instructions/o")
    if cpu_time is None or instructions is None or "ipc" in rows:
        return None
    ends = cpu_time.ratio.low, cpu_time.ratio.middle, cpu_time.ratio.high
    low, middle, high = (end / instructions.ratio.middle for end in ends)
    standard_error = abs(cpu_time.log_ratio) / cpu_time.standard_errors if cpu_time.standard_errors else math.inf
    parent, culprit = 1000 * cpu_time.parent / instructions.parent, 1000 * cpu_time.culprit / instructions.culprit
    ratio, standard_errors = Interval(low, middle, high), abs(math.log(middle)) / standard_error
    row = CounterRow(PER_INSTRUCTION, parent, culprit, ratio, standard_errors, cpu_time.rounds, "ns", cpu_time.share)
    return row if row.is_significant else None


def is_notable(row: CounterRow) -> bool:
    """Whether a factor explains a part of the change, because the factor is large, or because it is a statistically
    certain change of instructions.

    A factor whose interval contains 1 explains no part of the change. If parent and culprit were measured in a single
    round, the ratio of a factor has no interval, and only the size of the ratio is considered.
    """
    may_have_changed = row.is_significant or row.ratio.high == math.inf
    return (may_have_changed and abs(row.log_ratio) >= NEGLIGIBLE) or (
        row.name == "instructions/o" and row.is_significant and row.standard_errors >= CERTAIN_ERRORS
    )


def with_details(evidence: Evidence, rows: Mapping[str, CounterRow], slower: bool) -> Evidence:
    """``evidence`` with a detail of its cause (a cache, "storage", "lock" or "scheduler"), and with the counters that
    show the detail.
    """

    def clearly_changed(*names: str) -> list[str]:
        """The counters, among ``names``, that rose by at least ``MIN_DETAIL_CHANGE``; for an improvement, that fell
        by this much.
        """
        same_direction = [name for name in names if name in rows and (rows[name].log_ratio > 0) == slower]
        return [name for name in same_direction if abs(rows[name].log_ratio) >= MIN_DETAIL_CHANGE]

    match evidence.cause:
        case Cause.MEMORY:
            cycles = {name: abs(miss_cycles(rows[name])) for name in clearly_changed(*MISS_COSTS)}
            misses = sorted(cycles, key=lambda name: -cycles[name])
            costly_misses = [name for name in misses[:2] if cycles[name] >= MIN_CLASS_SHARE * cycles[misses[0]]]
            slots = sorted(clearly_changed(FRONT, WRONG, BACK), key=lambda name: -abs(rows[name].difference))
            further = [*costly_misses, *slots[:1]]
            detail = MISS_COSTS[misses[0]][0] if misses else ""
        case Cause.WAITING:
            # The storage counters whose change would explain a tenth of the additional wait on a slow disk.
            smallest_wait = 0.1 * abs(added_wait_us_per_operation(rows))
            waits = {name: abs(rows[name].difference) * STORAGE_COSTS[name] for name in clearly_changed(*STORAGE_COSTS)}
            storage = [name for name, wait in waits.items() if wait >= smallest_wait]
            locks = clearly_changed("cs/o", "cpu-migrations/o")
            # A longer operation counts more of the work that a device does for other programs.
            time_change = abs(rows[TIME].log_ratio) if TIME in rows else 0.0
            is_busier = any(abs(rows[name].log_ratio) >= time_change + MIN_DETAIL_CHANGE for name in storage)
            detail = "lock" if "cs/o" in locks else "scheduler" if locks else ""
            detail = "storage" if is_busier or (storage and not locks) else detail
            further = [*storage, *locks] if detail == "storage" else locks
        case _:
            further, detail = [], ""
    return replace(evidence, rows=(*evidence.rows, *(rows[name] for name in further)), detail=detail)


def reclassify_memory(
    evidence: Evidence, rows: Mapping[str, CounterRow], functions: Sequence[FunctionRow], layouts: LayoutRatios | None
) -> Evidence:
    """``evidence`` of a cause; evidence of slower memory gets another cause if counters or functions show more time in
    the kernel or an effect of code placement.

    Exact counts exclude the instructions of the kernel, so additional time in the kernel seems to be additional time
    for each instruction. Code placement is suspected if parent and culprit execute equally many instructions, and
    counters of the processor's front end changed more than counters of data accesses. Code placement is not suspected
    if the culprit is slower in all randomized layouts, or if most of the loss is in functions that the commit changes.
    """
    is_per_instruction = any(row.name == PER_INSTRUCTION for row in evidence.rows)
    if is_per_instruction and sum(row.part for row in functions if row.binary == KERNEL) > 0.5:
        return replace(evidence, detail=KERNEL)
    instructions = rows.get("instructions/o")
    if evidence.cause is not Cause.MEMORY or instructions is None or abs(instructions.log_ratio) > SAME_CODE:
        return evidence
    changed_names = {name for name, row in rows.items() if row.is_significant and abs(row.log_ratio) >= NEGLIGIBLE}
    code_counters = [name for name in CODE_COUNTERS if name in changed_names]
    data_counters = [name for name in DATA_COUNTERS if name in changed_names]
    costs = [sum(abs(miss_cycles(rows[name])) for name in names) for names in (code_counters, data_counters)]
    is_layout_independent = layouts is not None and layouts.compared > 0 and layouts.changed == layouts.compared
    is_in_changed_function = any(row.has_changed_code and row.part > 0.5 for row in functions)
    if not code_counters or costs[0] < costs[1] or is_layout_independent or is_in_changed_function:
        return evidence
    shown_rows = sorted((rows[name] for name in code_counters), key=lambda row: row.standard_errors, reverse=True)[:3]
    sureness = Sureness.LIKELY if evidence.sure is Sureness.SURE and not data_counters else Sureness.POSSIBLE
    return Evidence(Cause.LAYOUT, evidence.part, sureness, (evidence.rows[0], *shown_rows))


def miss_cycles(row: CounterRow) -> float:
    """The approximate cost of a change in cache, TLB or branch misses, in cycles per operation; 0.0 for other counters."""
    return row.difference * MISS_COSTS[row.name][1] if row.name in MISS_COSTS else 0.0


def inverse_row(row: CounterRow | None) -> CounterRow | None:
    """``row`` with the reciprocal ratio (from instructions per cycle to cycles per instruction); None if ``row`` is
    None."""
    if row is None:
        return None
    low, middle, high = row.ratio.low, row.ratio.middle, row.ratio.high
    inverse_ratio = Interval(1 / high if high < math.inf else 0.0, 1 / middle, 1 / low if low > 0 else math.inf)
    return replace(row, ratio=inverse_ratio)


ESTIMATES = re.compile(
    r"""
      \s*\((?:cost|actual\ time|actual\ rows|never\ executed)[^()]*\)  # PostgreSQL, and trees of MySQL
    | \s*\(~\d+\ rows?\)                                              # SQLite before 3.8
    | \b(?:rows|filtered|possible_keys)=\S+\ ?                        # the table of MySQL
    """,
    re.VERBOSE,
)
OLD_WORDS = re.compile(r"\b(SCAN|SEARCH) (?:TABLE|SUBQUERY) ")  # words that only SQLite before 3.36 printed
VALUES = re.compile(r"'(?:[^']|'')*'|(?<![\w.])-?\d[\d.]*(?![\w.])|\b0x[0-9a-f]+\b")
COLUMN = re.compile(r"(\b(?:id|key_len)=\d+)")  # numbers that belong to the plan, unlike estimates


def comparable_plan(plan: str) -> str:
    """The text of a query plan for comparisons. Left out are estimates of rows and costs, sizes, possible keys, words
    that only old SQLite versions print, and values.

    The parts of a plan that are left out can differ between two servers of the same build, or are printed in different
    words by different versions. The lines of the plan keep their order and indentation.
    """
    lines = []
    for line in plan.splitlines():
        parts = COLUMN.split(OLD_WORDS.sub(r"\1 ", ESTIMATES.sub("", line)))  # every second part is a column
        lines.append("".join(part if index % 2 else VALUES.sub("?", part) for index, part in enumerate(parts)).rstrip())
    return "\n".join(line for line in lines if line)


def different_plans(parent: Iterable[PlanFacts], culprit: Iterable[PlanFacts]) -> tuple[PlanRow, ...]:
    """The statements whose plans differ between parent and culprit, in the order of ``culprit``, with the full texts of
    both plans.

    A statement that has no plan in one of the builds is left out, because a missing plan is not a different plan.
    """
    parent_plans = {facts.statement: facts.plan for facts in parent}
    common = [facts for facts in culprit if facts.statement in parent_plans]
    rows = [PlanRow(facts.statement, parent_plans[facts.statement], facts.plan) for facts in common]
    return tuple(row for row in rows if comparable_plan(row.parent) != comparable_plan(row.culprit))
