"""Why a build is slower, in sentences."""

import math

from perfbisect.core.domain.explanation import Cause, CounterRow, Evidence, Explanation, Sureness
from perfbisect.core.domain.orders import Interval
from perfbisect.core.explain.classes import PER_INSTRUCTION
from perfbisect.core.explain.explanation import NO_OPERATIONS, NO_RUNS
from perfbisect.wording import functions

NOTHING = {
    "": "Nothing that was counted differs enough between the two to say why.",
    NO_OPERATIONS: "The output of the command has no count of operations (--operations).",
    NO_RUNS: "There are no runs of both builds to compare.",
}
HEDGES = {Sureness.SURE: "", Sureness.LIKELY: "Probably: ", Sureness.POSSIBLE: "Possibly: "}
FURTHER = {
    Cause.INSTRUCTIONS: "the number of instructions per operation",
    Cause.MEMORY: "the number of instructions per cycle",
    Cause.WAITING: "waiting",
    Cause.CLOCK: "the clock",
    Cause.LAYOUT: "the placement of code",
    Cause.UNKNOWN: "computing",
}


def sentences(found: Explanation) -> tuple[str, ...]:
    """The classes of an explanation in words, the main one first, and the functions in which the difference is."""
    plans = [sentence(each) for each in found.classes if each.cause is Cause.PLAN]
    others = [each for each in found.classes if each.cause is not Cause.PLAN]
    further = ", ".join(part(each) + shown(each) for each in others[1:])
    return (
        *plans,
        *map(sentence, others[:1]),
        *([f"In part also: {further}."] if further else []),
        *functions.sentences(found),
    )


def sentence(evidence: Evidence) -> str:
    """One class, with its numbers and how sure it is."""
    if evidence.cause is Cause.PLAN:
        return "A statement is executed in another way: its plan differs between the two."
    if not evidence.rows:
        return NOTHING[evidence.detail]
    row, *more = evidence.rows
    up = row.ratio.middle > 1
    with_it = f", with {', '.join(map(named, more))}" if more else ""
    match evidence.cause:
        case Cause.INSTRUCTIONS:
            what = "more instructions per operation (code bloat)" if up else "fewer instructions per operation"
            text = f"It executes {what}: {times(row.ratio)}"
        case Cause.MEMORY if row.name == PER_INSTRUCTION:
            what = (
                "more CPU time for each instruction (slower memory, or a slower clock)"
                if up
                else "less CPU time for each instruction"
            )
            text = f"It takes {what}: {times(row.ratio)}"
        case Cause.MEMORY:
            what = "more instructions per cycle" if up else "fewer instructions per cycle (memory-system bloat)"
            text = f"It executes {what}: {times(row.ratio)}{of_place(evidence.detail)}{with_it}"
        case Cause.WAITING:
            pointing = f"{with_it}; that points to {POINTS[evidence.detail]}" if evidence.detail else ""
            text = f"An operation waits {'longer' if up else 'less'}: {times(row.ratio)} the time for its CPU time{pointing}"
        case Cause.CLOCK:
            text = f"The clock of the processor ran {'faster' if up else 'slower'}: {times(row.ratio)}; that is not the commit"
        case Cause.LAYOUT:
            text = (
                "The placement of its code may be the only difference: the same instructions are executed in other time"
                f" ({row.name} {times(row.ratio)}){with_it}"
            )
        case _:
            text = (
                f"CPU time per operation is {times(row.ratio)}, so most of it goes into computing and not into waiting; this host has"
                " no instruction counts, so more code and slower memory cannot be separated"
            )
    return f"{HEDGES[evidence.sure]}{text}{extrapolated(evidence)}."


def part(evidence: Evidence) -> str:
    """What else changed."""
    exact = any(row.name == PER_INSTRUCTION for row in evidence.rows)
    return "the time of an instruction" if exact else FURTHER[evidence.cause]


POINTS = {"storage": "storage", "lock": "contention", "scheduler": "the scheduler"}


def of_place(place: str) -> str:
    """Where memory is slower."""
    return f", by the {place}" if place else ""


def shown(evidence: Evidence) -> str:
    """The ratio of a class that is not the main one."""
    return f" ({named(evidence.rows[0])})" if evidence.rows else ""


def named(row: CounterRow) -> str:
    """A ratio with its name."""
    return f"{row.name} {times(row.ratio)}"


def extrapolated(evidence: Evidence) -> str:
    """That perf has counted only for a part of the time."""
    share = min(row.share for row in evidence.rows)
    return f" (counted {share:.0%} of the time, and extrapolated)" if share < 1 else ""


def times(ratio: Interval) -> str:
    """A ratio as people say it, with its interval where it has one; one near 1 has two digits of its change.

    >>> times(Interval(1.38, 1.42, 1.47))
    '×1.42 (1.38 to 1.47)'
    >>> times(Interval(0.0, 1.00213, math.inf))
    '×1.0021'
    """
    change = abs(ratio.middle - 1)
    places = 2 if change == 0 else min(6, max(2, 1 - math.floor(math.log10(change))))
    low, middle, high = (f"{each:.{places}f}" for each in (ratio.low, ratio.middle, ratio.high))
    known = ratio.low > 0 and ratio.high < math.inf and ratio.high - ratio.low > change / 50
    return f"×{middle} ({low} to {high})" if known else f"×{middle}"
