"""Reasons in sentences: why a build is slower, and which statements have another plan."""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from perfbisect.core.domain.orders import Interval
from perfbisect.core.explain.classes import PER_INSTRUCTION
from perfbisect.core.explain.evidence import BUSY, TIME, Cause, CounterRow, Evidence, Explanation, PlanRow, Sureness
from perfbisect.core.explain.explanation import (
    FUNCTIONS,
    NO_COUNTERS,
    NO_RUNS,
    is_explained_by_change,
    is_mostly_by_more_calls,
    suspected_functions,
)
from perfbisect.core.explain.profiles import GENERATED, KERNEL
from perfbisect.wording import functions
from perfbisect.wording.quantities import count, ratio, two_digits
from perfbisect.wording.text import listed, printable

NOTHING = {
    "": "Nothing that was counted differs enough between the two to say why.",
    NO_RUNS: "There are no runs of both builds to compare.",
}
SENTENCES = 3  # of a reason, at most
PARTS = ("plans", "profiles", "waits", "instructions", "counters", FUNCTIONS)  # of what is measured for it
LINKED = "linking without -s, and no strip"
NO_NAMES = (
    "Not known: which generated code it is, because the program says no names of it; get it by: an option of the program that"
    " writes a map for perf (perf-PID.map) or a jitdump."
)
# Options of a compiler that change the speed of all functions.
OPTION = re.compile(r"-(?:O\w*|f[\w=-]+|m[\w=.-]+|DNDEBUG)")
PARSED = (".c", ".h", ".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx", ".rs", ".go")  # files whose functions are known
LONGER = "`bisect why --max-time 1h`"
POINTS = {"storage": "storage", "lock": "contention", "scheduler": "the scheduler"}
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
    """Why, in three sentences at most: what it is, where it is, and what the code does in another way."""
    plans = [sentence(evidence) for evidence in found.classes if evidence.cause is Cause.PLAN]
    main, further = [evidence for evidence in found.classes if evidence.cause is not Cause.PLAN], []
    for evidence in main[1:]:
        exact = any(row.name == PER_INSTRUCTION for row in evidence.rows)
        factor = "the time of an instruction" if exact else FURTHER[evidence.cause]
        further.append(factor + (f" ({named(evidence.rows[0])})" if evidence.rows else ""))
    if main and not (main[0].rows or main[0].detail) and (found.location or is_explained_by_change(found)):
        main = []  # profiles say why
    also = f"; in part also {', '.join(further)}." if further else "."
    bloat = (
        "other options of the compiler"
        if options(found)
        else "more calls"
        if is_mostly_by_more_calls(found)
        else "code bloat"
    )
    first = [sentence(evidence, bloat, found.operation).removesuffix(".") + also for evidence in main[:1]]
    where, how = functions.sentences(found)
    how = outside(found) or how
    said = (*plans, *first, where, how)
    return tuple(text for text in said if text)[:SENTENCES]


def outside(found: Explanation) -> str:
    """What a commit changes outside of functions: a sentence; "" where functions say why."""
    beside = f"Outside of functions, {replaced(found)}." if found.lines and not is_explained_by_change(found) else ""
    return options(found) or no_function(found) or beside


def no_function(found: Explanation) -> str:
    """That a commit changes no function, and the files that it does change."""
    if not found.paths:
        return ""
    if found.lines:
        return f"The commit changes no function: {replaced(found)}."
    files = listed([f"`{printable(path)}`" for path in found.paths[: functions.NAMED]])
    if not found.sources:
        return f"The commit changes no compiled code: it changes {files}."
    if all(path.endswith(PARSED) for path in found.paths):
        return f"The commit changes no function: it changes data, types, or the default of a setting in {files}."
    return f"The commit changes no function of C, C++, Rust or Go: it changes {files}."


def options(found: Explanation) -> str:
    """Which options of the compiler a commit changes: these change all functions."""
    for path, before, since in found.lines:
        old, new = ([word for word in text.split() if OPTION.fullmatch(word)] for text in (before, since))
        gone, come = (
            [f"`{printable(word)}`" for word in own if word not in other] for own, other in ((old, new), (new, old))
        )
        if gone or come:
            instead = (
                f"{listed(come)} in place of {listed(gone)}" if gone and come else listed(come) or f"no {listed(gone)}"
            )
            return f"The compiler gets {instead} since, by `{printable(path)}`."
    return ""


def replaced(found: Explanation) -> str:
    """The first line that a commit changes outside of functions, as a sentence goes on."""
    path, before, since = (printable(text) for text in found.lines[0])
    more = f" (and {count(len(found.lines) - 1, 'more line')})" if found.lines[1:] else ""
    return f"in `{path}`, `{before}` is `{since}` now{more}"


def unknown(found: Explanation) -> Iterator[str]:
    """What was not measured, or is not known or excluded, a sentence each: why, and how it is got, where anything helps."""
    for text in found.missing:
        part, colon, why = text.partition(": ")
        yield f"Not measured: {part}, because {why}" if colon and part in PARTS else text
    for row in (row for row in found.functions[:1] if row.has_no_symbols and row.beyond_noise):
        yield (
            NO_NAMES
            if row.binary == GENERATED
            else f"Not known: which functions of {row.binary}, because it has no symbols; get it by: {LINKED}."
        )
    slower = next((row.ratio.middle for row in found.counters if row.name == TIME), 1.0)
    explained = is_explained_by_change(found)
    if found.change_known and not explained and (rows := suspected_functions(found, slower)):
        names = listed([functions.quoted(row.function) for row in rows[: functions.NAMED]])
        yield f"Not known: whether it is in {names}, because of the noise of profiles; get it by: {LONGER}."
    if found.change_known and not (explained or found.plans) and (out := [*excluded(found)]):
        yield f"Excluded: {listed(out)}."
        if found.layouts is None and not any(evidence.cause is Cause.INSTRUCTIONS for evidence in found.classes):
            yield f"Not excluded: {FURTHER[Cause.LAYOUT]}, because no other layout was measured."


def excluded(found: Explanation) -> Iterator[str]:
    """What can have caused less than half of a change of the time of an operation."""
    rows = {row.name: row for row in found.counters}
    causes = {evidence.cause for evidence in found.classes}
    change = abs(math.log(rows[TIME].ratio.middle)) if TIME in rows else 0.0
    for cause, name in (Cause.INSTRUCTIONS, "instructions/o"), (Cause.MEMORY, "ipc"), (Cause.WAITING, BUSY):
        row = rows.get(name)
        ends = (row.ratio.low, row.ratio.high) if row and cause not in causes else ()
        if row and ends and all(0 < end < math.inf and abs(math.log(end)) < change / 2 for end in ends):
            yield f"{FURTHER[cause]} ({row.name} {ratio(row.ratio)})"
    if found.layouts and found.layouts.ratio.excludes_one:
        yield f"{FURTHER[Cause.LAYOUT]} ({ratio(found.layouts.ratio)} in {count(found.layouts.compared, 'layout')})"


def what_helps(found: Explanation, command: str, *, studied: bool) -> str:
    """Why no reason is known, and the ``command`` that measures it; "" where one is."""
    classified = found.classes and found.classes[0].cause is not Cause.UNKNOWN
    if classified or found.plans or found.functions or found.counts:
        return ""
    causes = [cause for cause in found.missing if cause != NO_COUNTERS]
    if studied and not causes:
        return "No function is known to be the reason."
    why = printable(causes[0].rstrip(".")) if studied else "it was not measured"
    return f"No function is known to be the reason ({why}): measure it with `{command}`."


def sentence(evidence: Evidence, bloat: str = "", operation: str = "operation") -> str:
    """One class, with its numbers and how sure it is; ``bloat`` is what more instructions are called."""
    if evidence.cause is Cause.PLAN:
        return "A statement is executed in another way: its plan differs between the two."
    if not evidence.rows:
        return NOTHING[evidence.detail]
    row, *more = evidence.rows
    up, size, detail = row.ratio.middle > 1, times(row.ratio), evidence.detail
    with_it = f", with {', '.join(map(named, more))}" if more else ""
    match evidence.cause:
        case Cause.INSTRUCTIONS:
            amount = f"more instructions per {operation} ({bloat})" if up else f"fewer instructions per {operation}"
            text = f"It executes {amount}: {size}"
        case Cause.MEMORY if detail == KERNEL:
            text = (
                f"It takes {'more' if up else 'less'} CPU time in the kernel: {size} for each instruction outside of it"
            )
        case Cause.MEMORY if row.name == PER_INSTRUCTION:
            slower = " (slower memory, or a slower clock)" if up else ""
            text = f"It takes {'more' if up else 'less'} CPU time for each instruction{slower}: {size}"
        case Cause.MEMORY:
            amount = "more instructions per cycle" if up else "fewer instructions per cycle (memory-system bloat)"
            text = f"It executes {amount}: {size}{f', by the {detail}' if detail else ''}{with_it}"
        case Cause.WAITING:
            pointing = f"{with_it}; that points to {POINTS[detail]}" if detail else ""
            text = f"It waits {'longer' if up else 'less'}: {size} the time for its CPU time{pointing}"
        case Cause.CLOCK:
            text = f"The clock of the processor ran {'faster' if up else 'slower'}: {size}; that is not the commit"
        case Cause.LAYOUT:
            same = "the same instructions are executed in other time"
            text = f"The placement of its code may be the only difference: {same} ({row.name} {size}){with_it}"
        case _:
            text = f"It computes {'longer' if up else 'less long'}, rather than waits: CPU time per {operation} {size}"
    counted = min(counter.share for counter in evidence.rows)
    partly = f" (counted {counted:.0%} of the time, and extrapolated)" if counted < 1 else ""
    return f"{HEDGES[evidence.sure]}{text}{partly}."


def named(row: CounterRow) -> str:
    """A ratio with its name."""
    return f"{row.name} {times(row.ratio)}"


def times(ratio: Interval) -> str:
    """A ratio as people say it, with its interval where it has one; one near 1 has two digits of its change, one near 0 two digits.

    >>> times(Interval(1.38, 1.42, 1.47))
    '×1.42 (1.38 to 1.47)'
    >>> times(Interval(0.0, 1.00213, math.inf))
    '×1.0021'
    >>> times(Interval(0.0068, 0.00692, 0.0071))
    '×0.0069'
    """
    change = abs(ratio.middle - 1)
    places = two_digits(min(change, ratio.middle), least=2)
    low, middle, high = (f"{end:.{places}f}" for end in (ratio.low, ratio.middle, ratio.high))
    has_interval = ratio.low > 0 and ratio.high < math.inf and ratio.high - ratio.low > change / 50
    return f"×{middle} ({low} to {high})" if has_interval else f"×{middle}"


def _step(text: str) -> str:
    """A line of a plan, as far indented as it was: that says which step belongs to which."""
    return " " * (len(text) - len(text.lstrip(" "))) + printable(text)


VALUE = re.compile(r"'(?!\{)(?:[^']|'')*'|(?<![\w.])(?:-?\d[\d.]*|\(?\$\d+\)?)(?:::\w+)?(?!\w)")  # not a quoted array
LISTED = 3  # values of a list that are shown
LONG = 8  # values of a list that is shortened


def plan_lines(rows: Sequence[PlanRow]) -> Iterator[str]:
    """Each statement, the plan before the commit, and the plan since."""
    for index, row in enumerate(rows):
        if index:
            yield ""
        yield from map(_step, row.statement.splitlines())
        for title, plan in (("before", row.parent), ("since", row.culprit)):
            for number, line in enumerate(plan.splitlines()):
                yield f"  {'' if number else title:8}{_step(abridged(line))}"


def abridged(line: str) -> str:
    """A line of a plan in which long lists of values have only their first ones, and how many more there are."""
    values = list(VALUE.finditer(line))
    starts = [0, *(place for place, (left, right) in enumerate(pairwise(values), 1) if not _listed(line, left, right))]
    kept, shown = [], 0
    for first, following in pairwise([*starts, len(values)]):
        if following - first >= LONG:
            kept.append(line[shown : values[first + LISTED - 1].end()])
            kept.append(f", … {following - first - LISTED} more")
            shown = values[following - 1].end()
    return "".join((*kept, line[shown:]))


def _listed(line: str, left: re.Match[str], right: re.Match[str]) -> bool:
    """Whether there is only a comma between two values."""
    return line[left.end() : right.start()].strip() == ","
