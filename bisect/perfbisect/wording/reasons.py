"""Sentences about the reason of a change: why a build is slower, and which statements have another query plan."""

import math
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from perfbisect.core.domain.orders import Interval
from perfbisect.core.explain.classes import PER_INSTRUCTION
from perfbisect.core.explain.evidence import (
    BUSY,
    TIME,
    Cause,
    CounterRow,
    Evidence,
    Explanation,
    FunctionRow,
    PlanRow,
    Sureness,
)
from perfbisect.core.explain.explanation import (
    FUNCTIONS,
    NO_COUNTERS,
    NO_RUNS,
    is_explained_by_change,
    is_mostly_by_more_calls,
    suspected_functions,
)
from perfbisect.core.explain.profiles import GENERATED, KERNEL, short_name
from perfbisect.wording import functions
from perfbisect.wording.quantities import count, decimals_needed, ratio
from perfbisect.wording.text import listed, printable

NOTHING = {
    "": "No counter except time differs enough between the two builds to show the reason.",
    NO_RUNS: "There are no runs of both builds to compare.",
}
MAX_SENTENCES = 3  # the largest number of sentences of a reason
PARTS = ("plans", "profiles", "waits", "instructions", "counters", FUNCTIONS)  # the studies of a reason
KEEP_SYMBOLS = "linking without -s, and no strip"
NO_NAMES = (
    "Not known: which generated code is slower, because the program does not name generated functions. To find out: an option"
    " of the program that writes a map for perf (perf-PID.map) or a jitdump."
)
# Compiler options that change the speed of all functions.
OPTION = re.compile(r"-(?:O\w*|f[\w=-]+|m[\w=.-]+|DNDEBUG)")
# suffixes of files in which perfbisect finds the changed functions
PARSED_SUFFIXES = (".c", ".h", ".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx", ".rs", ".go")
MORE_TIME = "`bisect why --max-time 1h`"
WAIT_CAUSES = {"storage": "storage", "lock": "contention", "scheduler": "the scheduler"}
HEDGES = {Sureness.SURE: "", Sureness.LIKELY: "Probably: ", Sureness.POSSIBLE: "Possibly: "}
FACTOR_NAMES = {
    Cause.INSTRUCTIONS: "the number of instructions per operation",
    Cause.MEMORY: "the number of instructions per cycle",
    Cause.WAITING: "waiting",
    Cause.CLOCK: "the clock",
    Cause.LAYOUT: "the placement of code",
    Cause.UNKNOWN: "computing",
}


def reason_sentences(explanation: Explanation) -> tuple[str, ...]:
    """The reason of a change in at most three sentences: the cause (such as more instructions), the functions with the
    difference, and what the code does differently."""
    plan_sentences = [class_sentence(evidence) for evidence in explanation.classes if evidence.cause is Cause.PLAN]
    main_classes = [evidence for evidence in explanation.classes if evidence.cause is not Cause.PLAN]
    further_factors = list[str]()
    for evidence in main_classes[1:]:
        exact = any(row.name == PER_INSTRUCTION for row in evidence.rows)
        factor = "the time of an instruction" if exact else FACTOR_NAMES[evidence.cause]
        further_factors.append(factor + (f" ({named_factor(evidence.rows[0])})" if evidence.rows else ""))
    if (
        main_classes
        and not (main_classes[0].rows or main_classes[0].detail)
        and (explanation.location or is_explained_by_change(explanation))
    ):
        main_classes = []  # the functions in profiles are the reason
    addition = f"; in part also {', '.join(further_factors)}." if further_factors else "."
    more_code = "more calls" if is_mostly_by_more_calls(explanation) else "code bloat"
    more_code = "other options of the compiler" if compiler_options_sentence(explanation) else more_code
    main_sentences = [
        class_sentence(evidence, more_code, explanation.operation).removesuffix(".") + addition
        for evidence in main_classes[:1]
    ]
    location_text, behaviour_text = functions.location_and_behaviour(explanation)
    behaviour_text = outside_functions_sentence(explanation) or behaviour_text
    texts = (*plan_sentences, *main_sentences, location_text, behaviour_text)
    return tuple(text for text in texts if text)[:MAX_SENTENCES]


def outside_functions_sentence(explanation: Explanation) -> str:
    """A sentence about changes outside of functions, such as compiler options; "" if changed functions explain the
    change of speed.
    """
    is_outside = explanation.lines and not is_explained_by_change(explanation)
    other_lines = f"Outside of functions, {first_line_outside_functions(explanation)}." if is_outside else ""
    return compiler_options_sentence(explanation) or no_changed_function_sentence(explanation) or other_lines


def no_changed_function_sentence(explanation: Explanation) -> str:
    """A sentence that says that the commit changes no function, with the changed files; "" if the commit changes
    functions.
    """
    if not explanation.paths:
        return ""
    if explanation.lines:
        return f"The commit changes no function: {first_line_outside_functions(explanation)}."
    files = listed([f"`{printable(path)}`" for path in explanation.paths[: functions.MAX_NAMES]])
    if not explanation.sources:
        return f"The commit changes no compiled code: it changes {files}."
    if all(path.endswith(PARSED_SUFFIXES) for path in explanation.paths):
        return f"The commit changes no function: it changes data, types, or the default of a setting in {files}."
    return f"The commit changes no function of C, C++, Rust or Go: it changes {files}."


def compiler_options_sentence(explanation: Explanation) -> str:
    """A sentence about changed compiler options; "" without such a change. Compiler options affect all functions."""
    for path, *texts in explanation.lines:
        old, new = ([word for word in text.split() if OPTION.fullmatch(word)] for text in texts)
        removed = [f"`{printable(word)}`" for word in old if word not in new]
        added = [f"`{printable(word)}`" for word in new if word not in old]
        if removed or added:
            change = listed(added) if added else f"no {listed(removed)}"
            change += f" in place of {listed(removed)}" if added and removed else ""
            return f"This commit sets compiler options in `{printable(path)}`: {change}."
    return ""


def first_line_outside_functions(explanation: Explanation) -> str:
    """A clause about the first line that a commit changes outside of functions, such as: in `Makefile`, `-O2` is now
    `-O0`.
    """
    path, old, new = (printable(text) for text in explanation.lines[0])
    further_lines = f" (and {count(len(explanation.lines) - 1, 'more line')})" if explanation.lines[1:] else ""
    return f"in `{path}`, `{old}` is now `{new}`{further_lines}"


def open_questions(explanation: Explanation) -> Iterator[str]:
    """Sentences about causes that were not measured, are unknown, or are excluded, with reasons and remedies."""
    for text in explanation.missing:
        part, separator, reason = text.partition(": ")
        yield f"Not measured: {part}, because {reason}" if separator and part in PARTS else text
    for row in (row for row in explanation.functions[:1] if row.is_whole_binary and row.beyond_noise):
        yield (
            NO_NAMES
            if row.binary == GENERATED
            else f"Not known: which functions of {row.binary} differ, because it has no symbols. To find out: {KEEP_SYMBOLS}."
        )
    slower = next((row.ratio.middle for row in explanation.counters if row.name == TIME), 1.0)
    is_explained = is_explained_by_change(explanation)
    if explanation.change_known and not is_explained and (rows := suspected_functions(explanation, slower)):
        names = listed([functions.quoted(row.function) for row in rows[: functions.MAX_NAMES]])
        yield f"Not known: whether the change is in {names}, because profiles are too noisy. To find out: {MORE_TIME}."
    may_exclude = explanation.change_known and not (is_explained or explanation.plans)
    if may_exclude and (excluded_names := [*excluded_causes(explanation)]):
        yield f"Excluded: {listed(excluded_names)}."
        causes = {evidence.cause for evidence in explanation.classes}
        if explanation.layouts is None and Cause.INSTRUCTIONS not in causes:
            yield f"Not excluded: {FACTOR_NAMES[Cause.LAYOUT]}, because only the usual layout was measured."


def excluded_causes(explanation: Explanation) -> Iterator[str]:
    """For each cause that explains less than half of the change of an operation's time: its name and measured ratio."""
    rows = {row.name: row for row in explanation.counters}
    causes = {evidence.cause for evidence in explanation.classes}
    change = abs(math.log(rows[TIME].ratio.middle)) if TIME in rows else 0.0
    for cause, name in (Cause.INSTRUCTIONS, "instructions/o"), (Cause.MEMORY, "ipc"), (Cause.WAITING, BUSY):
        row = rows.get(name)
        ends = (row.ratio.low, row.ratio.high) if row and cause not in causes else ()
        if row and ends and all(0 < end < math.inf and abs(math.log(end)) < change / 2 for end in ends):
            yield f"{FACTOR_NAMES[cause]} ({row.name} {ratio(row.ratio)})"
    if explanation.layouts and explanation.layouts.ratio.excludes_one:
        yield f"{FACTOR_NAMES[Cause.LAYOUT]} ({ratio(explanation.layouts.ratio)} in {count(explanation.layouts.compared, 'layout')})"


def missing_reason_advice(explanation: Explanation, command: str, *, was_measured: bool) -> str:
    """A sentence about why no function is known to be the reason, with the ``command`` that measures the reason; "" if
    a function is known.
    """
    has_class = explanation.classes and explanation.classes[0].cause is not Cause.UNKNOWN
    if has_class or explanation.plans or explanation.functions or explanation.counts:
        return ""
    causes = [cause for cause in explanation.missing if cause != NO_COUNTERS]
    if was_measured and not causes:
        return "No function is known to be the reason."
    known = (
        f"No function is known to be the reason ({printable(causes[0].rstrip('.'))})"
        if was_measured
        else "The functions of the program were not profiled"
    )
    return f"{known}. To find the cause in the code: `{command}`."


def class_sentence(evidence: Evidence, more_code: str = "", operation: str = "operation") -> str:
    """A sentence about the cause of a change (such as more instructions), with ratios and the degree of certainty;
    ``more_code`` says why there are more instructions (such as "more calls").
    """
    if evidence.cause is Cause.PLAN:
        return "The server executes a statement differently: the query plan of the statement differs between the two builds."
    if not evidence.rows:
        return NOTHING[evidence.detail]
    row, *further = evidence.rows
    is_more, factor, detail = row.ratio.middle > 1, factor_text(row.ratio), evidence.detail
    further_text = f", with {', '.join(map(named_factor, further))}" if further else ""
    match evidence.cause:
        case Cause.INSTRUCTIONS:
            more = f"more instructions per {operation} ({more_code})"
            amount = more if is_more else f"fewer instructions per {operation}"
            text = f"After this commit, the program executes {amount}: {factor}"
        case Cause.MEMORY if detail == KERNEL:
            more = "more" if is_more else "less"
            text = f"After this commit, the program takes {more} CPU time in the kernel: {factor} per instruction outside of the kernel"
        case Cause.MEMORY if row.name == PER_INSTRUCTION:
            slower = " (slower memory, or a slower clock)" if is_more else ""
            text = f"After this commit, the program takes {'more' if is_more else 'less'} CPU time per instruction{slower}: {factor}"
        case Cause.MEMORY:
            amount = "more instructions per cycle" if is_more else "fewer instructions per cycle (memory-system bloat)"
            text = f"After this commit, the program executes {amount}: {factor}{f', by the {detail}' if detail else ''}{further_text}"
        case Cause.WAITING:
            conclusion = f"{further_text}; that points to {WAIT_CAUSES[detail]}" if detail else ""
            text = f"After this commit, the program waits {'longer' if is_more else 'less'}: time/CPU time {factor}{conclusion}"
        case Cause.CLOCK:
            text = f"The processor clock was {'faster' if is_more else 'slower'}: {factor}; the commit is not the cause"
        case Cause.LAYOUT:
            same = "the same instructions take a different time"
            text = f"Code placement may be the only difference: {same} ({row.name} {factor}){further_text}"
        case _:
            text = f"After this commit, the program mainly computes {'longer' if is_more else 'less'}: CPU time per {operation} {factor}"
    counted_share = min(counter.share for counter in evidence.rows)
    counted_text = f" (counted {counted_share:.0%} of the time, and extrapolated)" if counted_share < 1 else ""
    return f"{HEDGES[evidence.sure]}{text}{counted_text}."


def named_factor(row: CounterRow) -> str:
    """A counter's name followed by its ratio, for example cs/o ×1.42 (1.38 to 1.47)."""
    return f"{row.name} {factor_text(row.ratio)}"


def factor_text(ratio: Interval) -> str:
    """A ratio with its interval, if the interval is known.

    The number of decimals (at least 2) shows two significant digits of the ratio and of its difference from 1.

    >>> factor_text(Interval(1.38, 1.42, 1.47))
    '×1.42 (1.38 to 1.47)'
    >>> factor_text(Interval(0.0, 1.00213, math.inf))
    '×1.0021'
    >>> factor_text(Interval(0.0068, 0.00692, 0.0071))
    '×0.0069'
    """
    change = abs(ratio.middle - 1)
    decimals = decimals_needed(min(change, ratio.middle), min_decimals=2)
    low, middle, high = (f"{end:.{decimals}f}" for end in (ratio.low, ratio.middle, ratio.high))
    has_interval = ratio.low > 0 and ratio.high < math.inf and ratio.high - ratio.low > change / 50
    return f"×{middle} ({low} to {high})" if has_interval else f"×{middle}"


def function_notes(row: FunctionRow, changed: Collection[str]) -> Iterator[str]:
    """Notes about a function beside its cost in a table; ``changed`` are all functions that the commit changes."""
    if row.changed:
        yield "changed by this commit"
    if row.inlined:
        names = listed([*map(short_name, row.inlined[: functions.MAX_NAMES])])
        verb = "is" if len(row.inlined) == 1 else "are"
        yield f"{names}, which this commit changes, {verb} inlined"
    if row.below_changed:
        is_changed = functions.is_changed(row.below_changed, changed)
        inlined = "into which a function that this commit changes is inlined"
        note = "which this commit changes" if is_changed else inlined
        yield f"called below {short_name(row.below_changed)}, {note}"
    if row.inlined_into:
        yield f"inlined into {short_name(row.inlined_into)}"
    if frequency := functions.call_change_note(row):
        yield frequency.removeprefix(", ")
    if row.partner:
        yield f"cost moved {'from' if row.difference > 0 else 'to'} {short_name(row.partner)}"


def _printable_plan_line(text: str) -> str:
    """A line of a query plan, safe to print, with its indentation, which shows the parent of each step of the plan."""
    return " " * (len(text) - len(text.lstrip(" "))) + printable(text)


# A value in a line of a query plan, except a quoted array.
VALUE = re.compile(r"'(?!\{)(?:[^']|'')*'|(?<![\w.])(?:-?\d[\d.]*|\(?\$\d+\)?)(?:::\w+)?(?!\w)")
SHOWN_VALUES = 3  # the number of values of a long list that are shown
LONG_LIST = 8  # a list with at least this number of values is shortened


def query_plan_lines(rows: Sequence[PlanRow]) -> Iterator[str]:
    """Lines with the query plans of each statement: the plan before the commit, and the plan with the commit."""
    for index, row in enumerate(rows):
        if index:
            yield ""
        yield from map(_printable_plan_line, row.statement.splitlines())
        for title, plan in (("before", row.parent), ("after", row.culprit)):
            for number, line in enumerate(plan.splitlines()):
                yield f"  {'' if number else title:8}{_printable_plan_line(with_short_lists(line))}"


def with_short_lists(plan_line: str) -> str:
    """A line of a query plan in which long lists of values are shortened to the first values and the number of further
    values."""
    values = list(VALUE.finditer(plan_line))
    pairs = enumerate(pairwise(values), 1)
    starts = [0, *(index for index, (one, two) in pairs if plan_line[one.end() : two.start()].strip() != ",")]
    parts, shown = [], 0
    for first, following in pairwise([*starts, len(values)]):
        if following - first >= LONG_LIST:
            parts.append(plan_line[shown : values[first + SHOWN_VALUES - 1].end()])
            parts.append(f", … {following - first - SHOWN_VALUES} more")
            shown = values[following - 1].end()
    return "".join((*parts, plan_line[shown:]))
