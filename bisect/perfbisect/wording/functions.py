"""Writes sentences about functions: which functions differ between two builds, and what they do differently."""

import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from perfbisect.core.domain.metrics import INSTRUCTIONS
from perfbisect.core.explain.calls import LARGEST_SHARE, PLACE_SHARE, STILL_CALLED_SHARE
from perfbisect.core.explain.evidence import (
    OTHER_FUNCTIONS,
    CallInOneBuild,
    DifferenceLocation,
    Explanation,
    FunctionRow,
    cost_exchanges,
    difference_and_error,
    share_error,
    significant_rows,
)
from perfbisect.core.explain.explanation import waits_if_cause
from perfbisect.core.explain.functions import ALMOST_ALL, NAMED_PART, SURE_ERRORS
from perfbisect.core.explain.profiles import GENERATED, SYSTEM_BINARY, may_be_same, short_name
from perfbisect.wording.quantities import amount, decimals, factor, percent, share
from perfbisect.wording.text import listed, printable

MIN_CHANGE_SHARE = 1e-4  # smallest printed difference of instructions, as a share of all instructions
MIN_REASON_SHARE = 0.05  # if there are two reasons, a reason with a smaller share is not named
MIN_MULTIPLE = 10.0  # smallest ratio that is written as a factor and not as a percentage
MAX_NAMES = 3  # largest number of functions that a sentence names
MAX_CALLS = 2  # largest number of new or removed calls that a sentence names
MIN_CHANGED_SHARE = 0.005  # smallest share of the total cost of a changed function that is named
ABOVE_100_PERCENT = re.compile(r"(?:Probably: )?(?!100 )[\d,]{3,} % .*?of the (loss|gain) ")  # a share above 100 %


def location_and_behaviour(explanation: Explanation) -> tuple[str, str]:
    """Two sentences, each "" if unknown: where the difference is, and what the code does differently."""
    location_text = location_sentence(explanation)
    return location_text, behaviour_sentence(explanation, location_text)


def location_sentence(explanation: Explanation) -> str:
    """A sentence that names the functions with the difference, and says how the commit affects them; "" if unknown."""
    # If the metric is instructions, the sentence has no functions from profiles, because profiles measure time.
    writers = [longer_waits_sentence, instruction_location_sentence, cpu_by_function_sentence]
    if explanation.metric == INSTRUCTIONS:
        writers = [instruction_location_sentence]
    elif explanation.location and explanation.location.top:
        writers = [longer_waits_sentence, cpu_by_function_sentence]
    writers += [instruction_sentence, changed_functions_sentence]
    text = next(filter(None, (write(explanation) for write in writers)), "")
    if above_all := ABOVE_100_PERCENT.match(text):
        text += f" More than 100 % is possible if other functions became {'faster' if above_all[1] == 'loss' else 'slower'}."
    return text


def behaviour_sentence(explanation: Explanation, location_text: str) -> str:
    """A sentence that says what the code does differently, if ``location_text`` does not say this; "" if unknown."""
    call_list = explanation.location.calls if explanation.location else explanation.calls
    candidates = (
        waiting_kind_sentence(explanation),
        changed_calls_sentence(call_list, location_text),
        instruction_sentence(explanation, location_text),
        changed_calls_sentence(call_list),
        changed_functions_sentence(explanation, location_text),
    )
    return next((text for text in candidates if text and text != location_text), "")


def longer_waits_sentence(explanation: Explanation) -> str:
    """A sentence that says in which functions a commit waits longer than its parent; "" if it does not wait longer."""
    waits = waits_if_cause(explanation)
    total, error = difference_and_error(waits)
    longer_waits = [row for row in waits if row.difference > 0 and row.beyond_noise and row.function != OTHER_FUNCTIONS]
    if not longer_waits or total <= 2 * error:
        return ""
    return functions_sentence(replace(explanation, functions=waits, location=None), longer_waits, "longer waiting")


def waiting_kind_sentence(explanation: Explanation) -> str:
    """A sentence that says for what (storage, a lock, …) a commit waits longer than its parent; "" if unknown."""
    kind = next((row for row in explanation.kinds_of_waits if row.difference > 0 and row.beyond_noise), None)
    if not kind or not longer_waits_sentence(explanation):
        return ""
    longer = f"{amount(kind.difference, 'us')} ({error_margin(kind, 'us')}) longer"
    return f"In {an_operation(explanation)}, this commit waits {longer} for {kind.function}."


def error_margin(row: FunctionRow, unit: str = "") -> str:
    """Half of the width of the 95 % interval of a cost difference, with two digits, such as "± 1.2 µs"."""
    return f"± {amount(float(f'{1.96 * row.error:.2g}'), unit)}"


def an_operation(explanation: Explanation) -> str:
    """The operation of the workload, as text within a sentence, such as "an operation" or "1,000 requests"."""
    name = explanation.operation
    return name if name[0].isdigit() else f"{'an' if name.startswith('o') else 'a'} {name}"


def changed_functions_sentence(explanation: Explanation, location_text: str = "") -> str:
    """A sentence that names the changed functions and their costs; "" if ``location_text`` names a changed function."""
    names = [[row.function, *row.inlined] for row in explanation.functions if row.has_changed_code]
    is_named = any(quoted(name) in location_text for name in chain(*names))
    shares = shares_of_changed_functions(explanation)
    return f"This commit changes {listed(shares)}." if shares and not is_named else ""


def shares_of_changed_functions(explanation: Explanation) -> list[str]:
    """The changed functions with at least ``MIN_CHANGED_SHARE`` of the culprit's cost, with shares, largest first."""
    cost = sum(row.culprit for row in explanation.functions)
    by_cost = sorted(explanation.functions, key=lambda row: -row.culprit)
    rows = [row for row in by_cost if row.has_changed_code and row.culprit > MIN_CHANGED_SHARE * cost]
    return [
        f"{quoted(row.function if row.changed else row.inlined[0])} ({share(row.culprit / cost)} of the cost"
        f"{'' if row.changed else f', inlined into {quoted(row.function)}'})"
        for row in rows[:MAX_NAMES]
    ]


def instruction_location_sentence(explanation: Explanation) -> str:
    """A sentence that names the changed function in or below which most of the additional instructions are; or ""."""
    total, error = difference_and_error(explanation.counts)
    if abs(total) <= 2 * error or any(row.part >= PLACE_SHARE for row in explanation.counts):
        return ""
    parts: dict[str, float] = {}
    for row in explanation.counts:
        name = row.function if row.changed else row.below_changed
        parts[name] = parts.get(name, 0.0) + row.part
    names = [name for name, part in parts.items() if PLACE_SHARE <= part <= LARGEST_SHARE]
    for name in names:
        if is_changed(name, explanation.changed):
            text = f"{share(parts[name])} of the {'loss' if total > 0 else 'gain'} in instructions is in or below"
            return f"{text} {quoted(name)}, which this commit changes."
    return ""


def instruction_sentence(explanation: Explanation, earlier: str = "") -> str:
    """A sentence about a function that executes more or fewer instructions than before; "" if instructions were not
    counted, or if the ``earlier`` sentence says the same.

    The function has the largest difference, or is a changed function that the ``earlier`` sentence does not name. If
    the ``earlier`` sentence has a clause such as ", which this commit changes", this clause is not repeated."""
    total, error = difference_and_error(explanation.counts)
    cost_before = sum(row.parent for row in explanation.counts)
    unit = "a run" if explanation.whole_runs else "an operation"
    if not explanation.counts:
        return ""
    if abs(total) <= max(2 * error, MIN_CHANGE_SHARE * cost_before):
        limit = percent((abs(total) + 2 * error) / cost_before)
        return f"{unit.capitalize()} executes as many instructions as before: the difference is less than {limit}."
    significant = [row for row in significant_rows(explanation.counts) if row.difference * total > 0]
    touched = (row for row in significant if row.has_changed_code or row.below_changed)
    candidates = [*significant[:1], *[row for row in touched if row.part >= MIN_REASON_SHARE][:1]]
    head, executed, _ = earlier.partition(" executes ")
    for row in candidates[::-1] if earlier and explanation.functions else candidates:
        if not executed or quoted(row.function) not in head:
            return execution_sentence(row, explanation, unit, earlier)
    if earlier or significant:
        return ""
    if moved_rows := [row for row in explanation.counts if row.partner][:1]:
        return f"Instructions moved from {quoted(moved_rows[0].function)} to {quoted(moved_rows[0].partner)}."
    return "The difference in instructions is spread over many functions."


def execution_sentence(row: FunctionRow, explanation: Explanation, unit: str, earlier: str) -> str:
    """A sentence about a function: its additional instructions, the change of its calls, and how the commit affects
    it."""
    error_text = f" ({error_margin(row)})" if 1.96 * row.error >= MIN_REASON_SHARE * abs(row.difference) else ""
    comparison = "more" if row.difference > 0 else "fewer"
    amount_text = f"{amount(abs(row.difference))}{error_text} {comparison} instructions {unit}"
    if row.parent <= 0:
        amount_text = f"{amount(row.difference)} instructions {unit}, and none before"
    elif row.culprit >= MIN_MULTIPLE * row.parent:
        amount_text += f" (×{amount(row.culprit / row.parent)})"
    elif 0 < row.culprit <= row.parent / MIN_MULTIPLE:
        amount_text += f" ({factor(row.culprit / row.parent)})"
    else:
        amount_text += f" ({'+' if row.difference > 0 else '−'}{percent(abs(row.difference) / row.parent)})"
    reason = change_note(row, replace(explanation, functions=explanation.counts))
    reason = reason or (unchanged_note(row, explanation) if explanation.change_known else "")
    if re.search(rf"{re.escape(quoted(row.function))}( \(called by `[^`]*`\))?{re.escape(reason)}", earlier):
        reason = ""
    timed_rows = (timed for timed in explanation.functions if timed.key == row.key and timed.beyond_noise)
    frequency = "" if row.is_whole_binary else call_change_note(row)
    if (timed := next((timed for timed in timed_rows if timed.parent > 0), None)) and not counts_explain(row, timed):
        direction = "less" if timed.difference < 0 else "more"
        contrast = "though it executes" if timed.difference * row.difference < 0 else "but executes only"
        time_text = f"{percent(abs(timed.difference) / timed.parent)} {direction} time, {contrast} {amount_text}"
        return f"{quoted(row.function)} takes {time_text}{frequency}: memory or branches take {direction} time there."
    inlined_text = f", inlined into {quoted(row.inlined_into)}" if row.inlined_into else ""
    return f"{quoted(row.function)}{inlined_text}{reason}{',' * bool(inlined_text or reason)} executes {amount_text}{frequency}."


def counts_explain(counted: FunctionRow, timed: FunctionRow) -> bool:
    """Whether the log ratio of a function's instructions may be at least half of the log ratio of its time."""
    if timed.difference * counted.difference < 0:
        return False
    certain = max(0.0, abs(timed.difference) - 1.96 * timed.error)  # the smallest difference in the 95 % interval
    time = timed.parent + math.copysign(certain, timed.difference)
    if min(time, counted.parent, counted.culprit) <= 0:
        return True
    return 2 * abs(math.log(counted.culprit / counted.parent)) >= abs(math.log(time / timed.parent))


def call_change_note(row: FunctionRow) -> str:
    """A clause about the change of the number and of the length of a function's calls; "" if calls were not counted."""
    if not (row.calls and min(row.calls) > 0 and row.parent > 0 and row.culprit > 0):
        return ""
    calls = math.log(row.calls[1] / row.calls[0])
    length = math.log(row.culprit / row.parent) - calls
    if abs(calls) <= MIN_REASON_SHARE * abs(length):
        return ", called as often as before"
    ratio = row.calls[1] / row.calls[0]
    multiple = f"{amount(ratio) if ratio >= MIN_MULTIPLE else decimals(ratio, 1)} times as often"
    percentage = f"{percent(abs(math.expm1(calls)))} {'more' if calls > 0 else 'less'} often"
    frequency = f", called {percentage if calls < 1 / 3 else multiple}"
    if ratio <= STILL_CALLED_SHARE:
        frequency = ", almost never called any more"
    if abs(length) <= MIN_REASON_SHARE * abs(calls):
        return f"{frequency}, each call as long as before"
    if length >= math.log(MIN_MULTIPLE):
        return f"{frequency}, each call {amount(math.exp(length))} times as long"
    return f"{frequency}, each call {percent(abs(math.expm1(length)))} {'longer' if length > 0 else 'shorter'}"


def cpu_by_function_sentence(explanation: Explanation) -> str:
    """A sentence that says in which functions the difference in CPU time is; "" if there are no on-CPU profiles."""
    if not explanation.functions:
        return ""
    total, error = difference_and_error(explanation.functions)
    significant = significant_rows(explanation.functions)
    if abs(total) <= 2 * error:
        names = []
        for row in significant[:MAX_NAMES]:
            change = f"{amount(abs(row.difference), explanation.unit)} {'more' if row.difference > 0 else 'less'}"
            names.append(f"{quoted(row.function)} ({change}{change_note(row, explanation)})")
        exception = f", but single functions do: {listed(names)}" if names else next(moved_costs(explanation), "")
        return f"In profiles, the cost of {an_operation(explanation)} does not differ beyond noise{exception}."
    kind = "loss" if total > 0 else "gain"
    if explanation.location:
        return cpu_location_sentence(explanation, explanation.location, kind)
    if same_direction := [row for row in significant if 0 < row.part <= LARGEST_SHARE]:
        return functions_sentence(explanation, same_direction, kind)
    rows = [row for row in explanation.functions if row.part >= NAMED_PART and not row.partner]
    rows = [row for row in rows if row.function != OTHER_FUNCTIONS][:MAX_NAMES]
    if not rows:
        return f"The {kind} is spread over many functions: no single function has a part beyond noise."
    names = [f"{quoted(row.function)} ({share(row.part)}{change_note(row, explanation)})" for row in rows]
    return f"No single function has a part of the {kind} beyond noise; the {kind} may be in {listed(names)}."


def cpu_location_sentence(explanation: Explanation, location: DifferenceLocation, kind: str) -> str:
    """A sentence that names the functions in or below which the difference is; ``kind`` is "loss" or "gain"."""
    top, innermost, changed = location.top, location.innermost, location.changed_functions
    row = innermost if top is None else top
    if location.by_own_code:
        row = next((row for row in explanation.functions if row.key == innermost.key), innermost)
    is_sum = top and not top.has_changed_code and all(0 < function.part <= 1 for function in changed)
    rows = (changed if is_sum else ()) or [row]
    beginning = f"{doubt_prefix(rows)}{share_with_interval(rows, explanation)} of the {kind} is"
    if top is None:
        further = other_changed_functions_note(row, explanation)
        if changed and NAMED_PART <= changed[0].part <= 1:
            note = change_note(changed[0], explanation)
            further = f"; {share(changed[0].part)} is in or below {quoted(changed[0].function)}{note}"
        preposition = "in" if location.by_own_code else "below"
        notes = f"{caller_note(row)}{unchanged_note(innermost, explanation)}{further}"
        return f"{beginning} {preposition} {quoted(innermost.function)}{notes}."
    if not top.has_changed_code:
        parts = [f" ({share(function.part)})" if 0 < function.part <= 1 else "" for function in changed]
        names = [f"{quoted(function.function)}{part}" for function, part in zip(changed, parts, strict=True)]
        parent = sum(function.parent for function in explanation.functions)
        culprit = sum(function.culprit for function in explanation.functions)
        is_everything = min(top.parent / parent, top.culprit / culprit) >= ALMOST_ALL
        where = " in or below" if is_everything else f" below {quoted(top.function)}, in"
        return f"{beginning}{where} functions that this commit changes: {', '.join(names[:MAX_NAMES])}."
    preposition, note = "in" if location.by_own_code else "in or below", change_note(top, explanation)
    if innermost.key == top.key:
        return f"{beginning} {preposition} {quoted(top.function)}{note}."
    callee = f"{quoted(innermost.function)}{no_symbols_note(innermost)}"
    return f"{beginning} {preposition} {callee}, called below {quoted(top.function)}{note}."


def changed_calls_sentence(call_list: Sequence[CallInOneBuild], earlier: str = "") -> str:
    """A sentence that names removed and new calls; "" if the ``earlier`` sentence names all calls, and all are new."""

    def phrases(calls: list[CallInOneBuild], build: str, end: str, verbs: tuple[str, str] = ("is", "are")) -> list[str]:
        shown = [f"{quoted(call.function)} ({share(call.share)} of the {build}'s cost)" for call in calls[:MAX_CALLS]]
        return [f"{listed(shown)} {verbs[len(shown) > 1]} {end}"] if shown else []

    if earlier and all(call.new and quoted(call.function) in earlier for call in call_list):
        return ""
    removed, added = ([call for call in call_list if call.new is is_new] for is_new in (False, True))
    removal = "no longer called" + " (or now inlined)" * any(call.inlined for call in removed)
    addition = "called instead" if removed else "not called before this commit"
    verbs = ("is", "are") if removed else ("was", "were")
    addition += " (or was inlined)" * any(call.inlined for call in added)
    text = "; ".join((*phrases(removed, "parent", removal), *phrases(added, "culprit", addition, verbs)))
    return f"{text}." if text else ""


def functions_sentence(explanation: Explanation, rows: Sequence[FunctionRow], kind: str) -> str:
    """A sentence that names the functions with a loss or a gain (``kind``). ``rows`` are sorted, largest part first."""
    first, touched = rows[0], [row for row in rows if row.has_changed_code or row.below_changed]
    named = [row for row in touched if row.part >= NAMED_PART or row is first][:MAX_NAMES]
    if first in named or sum(row.part for row in named) >= 1 / 2:
        text = f"or below functions that this commit changes: {', '.join(map(function_with_share, named))}"
        if len(named) == 1:
            text = f"{quoted(named[0].function)}{change_note(named[0], explanation)}"
        return f"{doubt_prefix(named)}{share_with_interval(named, explanation)} of the {kind} is in {text}."
    max_names = 1 if touched or first.is_whole_binary or first.part >= 1 / 2 else MAX_NAMES
    named = [row for row in rows if row is first or (row.part >= NAMED_PART and not row.is_whole_binary)][:max_names]
    names = listed([*map(function_with_share, named)]) if named[1:] else f"{quoted(first.function)}{caller_note(first)}"
    text = f"{doubt_prefix(named)}{share_with_interval(named, explanation)} of the {kind} is in {names}"
    text += unchanged_note(first, explanation)
    if touched and not first.is_whole_binary:
        return f"{text}; {share(sum(row.part for row in touched))} is in or below functions that this commit changes."
    return f"{text}{other_changed_functions_note(first, explanation)}."


def caller_note(row: FunctionRow) -> str:
    """A clause that names the main caller of a function of the kernel or of libc; "" for other functions."""
    has_system_caller = row.callers and SYSTEM_BINARY.match(row.binary) and not row.is_whole_binary
    return f" (called by {quoted(row.callers[0])})" if has_system_caller else ""


def unchanged_note(row: FunctionRow, explanation: Explanation) -> str:
    """A clause: the binary of ``row`` has no symbols, or the commit does not change the function; "" if unknown."""
    return no_symbols_note(row) or (", which this commit does not change" if explanation.change_known else "")


def other_changed_functions_note(row: FunctionRow, explanation: Explanation) -> str:
    """A clause that names the changed functions, for a difference in unchanged code; "" if they are unknown."""
    may_hide_changed = row.is_whole_binary or any(name.startswith("[") for name in row.callers[:1])
    names, further = [*map(quoted, explanation.changed[:MAX_NAMES])], len(explanation.changed) - MAX_NAMES
    names = ([*names, *([f"{further} more"] * (further > 0))]) if may_hide_changed or further <= 0 else []
    names = shares_of_changed_functions(explanation) or names
    return f"; this commit changes {listed(names)}" if explanation.change_known and names else ""


def no_symbols_note(row: FunctionRow) -> str:
    """A clause that says why the functions of a binary cannot be distinguished; "" if the binary has symbols."""
    reason = ", code that the program generates at run time" if row.binary == GENERATED else ", which has no symbols"
    return reason if row.is_whole_binary else ""


def change_note(row: FunctionRow, explanation: Explanation) -> str:
    """A clause about a commit's effect on a function, such as ", which this commit changes"; "" for no effect."""
    if row.changed:
        return ", which this commit changes"
    if row.inlined:
        bodies = [body for body in row.inlined if not body.isupper()] or [*row.inlined]  # without names in capitals
        names, verb = listed([*map(quoted, bodies[:MAX_NAMES])]), "is" if len(bodies[:MAX_NAMES]) == 1 else "are"
        return f", into which {names} {verb} inlined, which this commit changes"
    if not row.below_changed:
        return ""
    ancestors = (function for function in explanation.functions if function.function == row.below_changed)
    if (ancestor := next((function for function in ancestors if function.has_changed_code), None)) is None:
        ancestor = replace(row, changed=is_changed(row.below_changed, explanation.changed), below_changed="")
    reason = change_note(ancestor, explanation) or ", into which a function that this commit changes is inlined"
    return f", called below {quoted(row.below_changed)}{reason}"


def is_changed(function: str, changed: Collection[str]) -> bool:
    """Whether a function is among the ``changed`` functions."""
    return any(may_be_same(function, changed_name) for changed_name in changed)


def function_with_share(row: FunctionRow) -> str:
    """A function's name, its share of the difference, and the changed function above it or inlined into it."""
    note = f", below {quoted(row.below_changed)}" if row.below_changed else ""
    note = f", with {quoted(row.inlined[0])} inlined" if row.inlined else note
    return f"{quoted(row.function)} ({share(row.part)}{note})"


def moved_costs(explanation: Explanation) -> Iterator[str]:
    """Clauses about costs that moved between functions, such as "; 2 µs moved from `f` to `g`"."""
    for sources, targets in cost_exchanges(explanation.functions):
        cost = min(abs(sum(row.difference for row in exchanged)) for exchanged in (sources, targets))
        old, new = (listed([quoted(row.function) for row in exchanged]) for exchanged in (sources, targets))
        yield f"; {amount(cost, explanation.unit)} moved from {old} to {new}"


def share_with_interval(part_rows: Sequence[FunctionRow], explanation: Explanation) -> str:
    """The share of some functions in the difference, with its 95 % interval if this is wider than 1 %."""
    part = sum(row.part for row in part_rows)
    half = 1.96 * share_error(part_rows, explanation.functions, explanation.shared_error)
    interval = f" ({share(part - half)[:-2]} to {share(part + half)})" if half >= 0.005 else ""
    return f"{share(part)}{interval}"


def doubt_prefix(rows: Sequence[FunctionRow]) -> str:
    """ "Probably: " if the difference is less than ``SURE_ERRORS`` standard errors; otherwise ""."""
    return "Probably: " * (abs(difference_and_error(rows)[0]) < SURE_ERRORS * difference_and_error(rows)[1])


def quoted(function: str) -> str:
    """The short name of a function in backquotes, safe to print, because names in a binary may have any characters."""
    return f"`{printable(short_name(function))}`"
