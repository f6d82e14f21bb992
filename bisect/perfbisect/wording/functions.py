"""What functions of two profiles say of a change, in sentences: where it is, and what the code does in another way."""

import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from perfbisect.core.domain.metrics import INSTRUCTIONS
from perfbisect.core.explain.calls import LARGEST_SHARE, PLACE_SHARE, STILL_CALLED_SHARE
from perfbisect.core.explain.evidence import (
    OTHER_FUNCTIONS,
    Call,
    DifferenceLocation,
    Explanation,
    FunctionRow,
    cost_exchanges,
    part_error,
    significant_rows,
    total_difference,
)
from perfbisect.core.explain.explanation import waits_if_cause
from perfbisect.core.explain.functions import ALMOST_ALL, NAMED_PART, SURE_ERRORS
from perfbisect.core.explain.profiles import GENERATED, SYSTEM_BINARY, may_be_same, short_name
from perfbisect.wording.quantities import amount, decimals, factor, percent, share
from perfbisect.wording.text import listed, printable

SAME = 1e-4  # share of all instructions below which a difference says nothing
FEW = 0.05  # share of one of two reasons below which only the other is named
MANY = 10.0  # times as much from which on no percentage is written
NAMED = 3  # functions, and groups of them, in a sentence
CALLS = 2  # that are new, or gone, in a sentence
LEAST = 0.005  # share of the whole cost from which on a function that the commit changes is named


def sentences(found: Explanation) -> tuple[str, str]:
    """Where the difference is, and what the code does in another way there; "" for what is not known."""
    place = where(found)
    return place, differently(found, place)


def where(found: Explanation) -> str:
    """Where the difference is, and how it is reached from the diff: a sentence; "" where nothing says it.

    Of a commit that waits longer, where it waits. Profiles are of times: of a count they say nothing but what the functions cost
    that the commit changes.
    """
    ways: tuple[str, ...]
    if found.metric == INSTRUCTIONS:
        ways = (counted_place(found),)
    elif found.location and found.location.top:
        ways = (of_waits(found), of_cpu(found))
    else:
        ways = (of_waits(found), counted_place(found), of_cpu(found))
    return next(filter(None, (*ways, of_counts(found), costs_of_changed(found))), "")


def differently(found: Explanation, said: str) -> str:
    """What the code does in another way, beside what was ``said`` of where: a sentence; "" where that is not known."""
    called = found.location.calls if found.location else found.calls
    ways = (
        longer_for(found),
        calls(called, said),
        of_counts(found, said),
        calls(called),
        costs_of_changed(found, said),
    )
    return next((text for text in ways if text and text != said), "")


def of_waits(found: Explanation) -> str:
    """Where a commit waits longer."""
    waits = waits_if_cause(found)
    total, spread = total_difference(waits)
    longer = [row for row in waits if row.difference > 0 and row.beyond_noise and row.function != OTHER_FUNCTIONS]
    if not longer or total <= 2 * spread:
        return ""
    return single(replace(found, functions=waits, location=None), longer, "longer waiting")


def longer_for(found: Explanation) -> str:
    """For what a commit waits longer."""
    kind = next((row for row in found.kinds_of_waits if row.difference > 0 and row.beyond_noise), None)
    if not kind or not of_waits(found):
        return ""
    return f"It waits {amount(kind.difference, 'us')} ({give_or_take(kind, 'us')}) longer for {kind.function} in {one(found)}."


def give_or_take(row: FunctionRow, unit: str = "") -> str:
    """Half of the 95 % interval of a difference, in two digits."""
    return f"± {amount(float(f'{1.96 * row.error:.2g}'), unit)}"


def one(found: Explanation) -> str:
    """An operation, as a sentence goes on."""
    name = found.operation
    return name if name[0].isdigit() else f"{'an' if name.startswith('o') else 'a'} {name}"


def costs_of_changed(found: Explanation, said: str = "") -> str:
    """The share of the whole cost that functions have which the commit changes, where none of them was ``said``."""
    named = any(
        quoted(name) in said for row in found.functions if row.has_changed_code for name in (row.function, *row.inlined)
    )
    shares = shares_of_changed(found)
    return f"This commit changes {listed(shares)}." if shares and not named else ""


def shares_of_changed(found: Explanation) -> list[str]:
    """The functions that the commit changes, with their shares of the cost since: those that have a part of it."""
    cost = sum(row.culprit for row in found.functions)
    by_cost = sorted(found.functions, key=lambda row: -row.culprit)
    rows = [row for row in by_cost if row.has_changed_code and row.culprit > LEAST * cost]
    return [
        f"{quoted(row.function if row.changed else row.inlined[0])} ({share(row.culprit / cost)} of the cost"
        f"{'' if row.changed else f', inlined into {quoted(row.function)}'})"
        for row in rows[:NAMED]
    ]


def counted_place(found: Explanation) -> str:
    """In or below which function of the diff most of a difference in instructions is; "" where one function alone has it."""
    total, spread = total_difference(found.counts)
    if abs(total) <= 2 * spread or any(row.part >= PLACE_SHARE for row in found.counts):
        return ""
    parts: dict[str, float] = {}
    for row in found.counts:
        name = row.function if row.changed else row.below_changed
        parts[name] = parts.get(name, 0.0) + row.part
    carrying = [
        name for name, part in parts.items() if PLACE_SHARE <= part <= LARGEST_SHARE and is_changed(name, found.changed)
    ]
    if not carrying:
        return ""
    text = f"{share(parts[carrying[0]])} of the {'loss' if total > 0 else 'gain'} in instructions is in or below"
    return f"{text} {quoted(carrying[0])}, which this commit changes."


def of_counts(found: Explanation, said: str = "") -> str:
    """A function that executes more instructions or fewer: that with most of the difference, or one of the diff that was not ``said``.

    What the commit has to do with it is left out where that was said.
    """
    total, spread = total_difference(found.counts)
    before = sum(row.parent for row in found.counts)
    per = "a run" if found.whole_runs else "an operation"
    if not found.counts:
        return ""
    if abs(total) <= max(2 * spread, SAME * before):
        less = percent((abs(total) + 2 * spread) / before)
        return f"{per.capitalize()} executes as many instructions as before: they differ by less than {less}."
    telling = [row for row in significant_rows(found.counts) if row.difference * total > 0]
    explained = [row for row in telling if row.part >= FEW and (row.has_changed_code or row.below_changed)]
    shown = [*telling[:1], *explained[:1]]  # many may have a little each
    head, executed, _ = said.partition(" executes ")
    for row in shown[::-1] if said and found.functions else shown:
        if not executed or quoted(row.function) not in head:
            return executes(row, found, per, said)
    if said or telling:
        return ""
    if gone := [row for row in found.counts if row.partner][:1]:
        return f"Instructions moved from {quoted(gone[0].function)} to {quoted(gone[0].partner)}."
    return "The difference in instructions is spread over many functions."


def executes(row: FunctionRow, found: Explanation, per: str, said: str) -> str:
    """How many more instructions a function executes in an operation, whether because of more calls or longer ones, and why."""
    doubt = f" ({give_or_take(row)})" if 1.96 * row.error >= FEW * abs(row.difference) else ""
    more = f"{amount(abs(row.difference))}{doubt} {'more' if row.difference > 0 else 'fewer'} instructions {per}"
    if row.parent <= 0:
        more = f"{amount(row.difference)} instructions {per}, and none before"
    elif row.culprit >= MANY * row.parent:
        more += f" (×{amount(row.culprit / row.parent)})"
    elif 0 < row.culprit <= row.parent / MANY:
        more += f" ({factor(row.culprit / row.parent)})"
    else:
        more += f" ({'+' if row.difference > 0 else '−'}{percent(abs(row.difference) / row.parent)})"
    why = because(row, replace(found, functions=found.counts))
    why = why or (unchanged(row, found) if found.change_known else "")
    if re.search(rf"{re.escape(quoted(row.function))}( \(called by `[^`]*`\))?{re.escape(why)}", said):
        why = ""
    timed = (each for each in found.functions if each.key == row.key and each.beyond_noise and each.parent > 0)
    often = "" if row.has_no_symbols else as_often(row)
    if (time := next(timed, None)) and not of_instructions(row, time):
        less = "less" if time.difference < 0 else "more"
        but = "though it executes" if time.difference * row.difference < 0 else "but executes only"
        taken = f"{percent(abs(time.difference) / time.parent)} {less} time, {but} {more}{often}"
        return f"{quoted(row.function)} takes {taken}: memory or branches cost {less} there."
    inlined = f", inlined into {quoted(row.inlined_into)}" if row.inlined_into else ""
    comma = "," if inlined or why else ""
    return f"{quoted(row.function)}{inlined}{why}{comma} executes {more}{often}."


def of_instructions(row: FunctionRow, time: FunctionRow) -> bool:
    """Whether a function's instructions differ as its time does, at least by half of that, as far as samples show."""
    if time.difference * row.difference < 0:
        return False
    surely = time.parent + math.copysign(max(0.0, abs(time.difference) - 1.96 * time.error), time.difference)
    if min(surely, row.parent, row.culprit) <= 0:
        return True
    return 2 * abs(math.log(row.culprit / row.parent)) >= abs(math.log(surely / time.parent))


def as_often(row: FunctionRow) -> str:
    """Whether a function is called more often, or each call executes more; "" where calls were not counted."""
    if not (row.calls and min(row.calls) > 0 and row.parent > 0 and row.culprit > 0):
        return ""
    often = math.log(row.calls[1] / row.calls[0])
    each = math.log(row.culprit / row.parent) - often
    if abs(often) <= FEW * abs(each):
        return ", called as often"
    ratio = row.calls[1] / row.calls[0]
    times = f"{amount(ratio) if ratio >= MANY else decimals(ratio, 1)} times as often"
    less = f"{percent(abs(math.expm1(often)))} {'more' if often > 0 else 'less'} often"
    called = (
        f", called {less if often < 1 / 3 else times}" if ratio > STILL_CALLED_SHARE else ", hardly called any more"
    )
    if abs(each) <= FEW * abs(often):
        return f"{called}, each call as long as before"
    if each >= math.log(MANY):
        return f"{called}, each call {amount(math.exp(each))} times as long"
    return f"{called}, each call {percent(abs(math.expm1(each)))} {'longer' if each > 0 else 'shorter'}"


def of_cpu(found: Explanation) -> str:
    """The same of profiles on CPU."""
    if not found.functions:
        return ""
    total, spread = total_difference(found.functions)
    telling = significant_rows(found.functions)
    if abs(total) <= 2 * spread:
        told = [(row, amount(abs(row.difference), found.unit), row.difference > 0) for row in telling[:NAMED]]
        names = [
            f"{quoted(row.function)} ({size} {'more' if up else 'less'}{because(row, found)})" for row, size, up in told
        ]
        but = f", but that of single functions does: {listed(names)}" if names else next(moved(found), "")
        return f"The cost of {one(found)} does not differ beyond noise in profiles{but}."
    kind = "loss" if total > 0 else "gain"
    if found.location:
        return within(found, found.location, kind)
    if same_way := [row for row in telling if 0 < row.part <= LARGEST_SHARE]:
        return single(found, same_way, kind)
    rows = [
        row for row in found.functions if row.part >= NAMED_PART and not row.partner and row.function != OTHER_FUNCTIONS
    ]
    if not rows:
        return f"The {kind} is spread over many functions: none of them has a part beyond noise."
    names = [f"{quoted(row.function)} ({share(row.part)}{because(row, found)})" for row in rows[:NAMED]]
    return f"No single function has a part of the {kind} beyond noise; it may be in {listed(names)}."


def within(found: Explanation, place: DifferenceLocation, kind: str) -> str:
    """In or below which functions the loss or the gain is."""
    top, inner = place.top, place.innermost
    some = inner if top is None else top
    own = next((row for row in found.functions if row.key == inner.key), inner) if place.by_own_code else some
    together = (
        place.changed_functions
        if top and not top.has_changed_code and all(0 < row.part <= 1 for row in place.changed_functions)
        else ()
    )
    text = f"{doubt(together or [own])}{extent(together or [own], found)} of the {kind} is"
    if top is None:
        further = (
            place.changed_functions[0]
            if place.changed_functions and NAMED_PART <= place.changed_functions[0].part <= 1
            else None
        )
        also = of_diff(own, found)
        if further:
            also = f"; {share(further.part)} is in or below {quoted(further.function)}{because(further, found)}"
        into = "in" if place.by_own_code else "below"
        return f"{text} {into} {quoted(inner.function)}{caller(own)}{unchanged(inner, found)}{also}."
    if not top.has_changed_code:
        parts = [f" ({share(row.part)})" if 0 < row.part <= 1 else "" for row in place.changed_functions]
        names = [f"{quoted(row.function)}{part}" for row, part in zip(place.changed_functions, parts, strict=True)][
            :NAMED
        ]
        costs = [sum(row.parent for row in found.functions), sum(row.culprit for row in found.functions)]
        around = (
            "" if min(top.parent / costs[0], top.culprit / costs[1]) >= ALMOST_ALL else f" below {quoted(top.function)}"
        )
        return f"{text}{around or ' in or below'}{', in' * bool(around)} functions that this commit changes: {', '.join(names)}."
    if inner.key == top.key:
        return f"{text} {'in' if place.by_own_code else 'in or below'} {quoted(top.function)}{because(top, found)}."
    into = "in" if place.by_own_code else "in or below"
    return f"{text} {into} {quoted(inner.function)}{stripped(inner)}, called below {quoted(top.function)}{because(top, found)}."


def calls(some: Sequence[Call], said: str = "") -> str:
    """What is not called any more, and what is called newly; "" where the latter alone was ``said``."""

    def named(calls: Sequence[Call], side: str, end: str) -> list[str]:
        shown = [f"{quoted(call.function)} ({share(call.share)} of the cost {side})" for call in calls[:CALLS]]
        return [f"{listed(shown)} {'is' if len(shown) == 1 else 'are'} {end}"] if shown else []

    if said and all(call.new and quoted(call.function) in said for call in some):
        return ""
    gone, new = ([call for call in some if call.new is side] for side in (False, True))
    before = named(gone, "before", "not called any more" + " (or inlined now)" * any(call.inlined for call in gone))
    how = "instead" if gone else "now"
    since = named(new, "since", f"called {how}" + " (or inlined before)" * any(call.inlined for call in new))
    return f"{'; '.join((*before, *since))}." if before or since else ""


def single(found: Explanation, rows: Sequence[FunctionRow], kind: str) -> str:
    """Where the loss or the gain is by the own costs of functions; ``rows`` have a part of it each, the largest first."""
    by_commit = [row for row in rows if row.has_changed_code or row.below_changed]
    first = rows[0]
    named = [row for row in by_commit if row.part >= NAMED_PART or row is first][:NAMED]
    if first in named or sum(row.part for row in named) >= 1 / 2:
        if len(named) == 1:
            text = f"is in {quoted(named[0].function)}{because(named[0], found)}"
        else:
            text = f"is in or below functions that this commit changes: {', '.join(each(row) for row in named)}"
        return f"{doubt(named)}{extent(named, found)} of the {kind} {text}."
    few = 1 if by_commit or first.has_no_symbols or first.part >= 1 / 2 else NAMED
    some = [row for row in rows if row is first or (row.part >= NAMED_PART and not row.has_no_symbols)][:few]
    name = listed([*map(each, some)]) if some[1:] else f"{quoted(first.function)}{caller(first)}"
    text = f"{doubt(some)}{extent(some, found)} of the {kind} is in {name}{unchanged(first, found)}"
    if by_commit and not first.has_no_symbols:
        return f"{text}; {share(sum(row.part for row in by_commit))} is in or below functions that it changes."
    return f"{text}{of_diff(first, found)}."


def caller(row: FunctionRow) -> str:
    """Of a function in a library that all use or in the kernel: what calls it."""
    known = row.callers and SYSTEM_BINARY.match(row.binary) and not row.has_no_symbols
    return f" (called by {quoted(row.callers[0])})" if known else ""


def unchanged(row: FunctionRow, found: Explanation) -> str:
    """That the commit does not change a function, as far as that is known."""
    return stripped(row) or (", which this commit does not change" if found.change_known else "")


def of_diff(row: FunctionRow, found: Explanation) -> str:
    """The functions of the diff, which the place is none of: a few, or the first of what a binary without symbols may hide."""
    hidden = row.has_no_symbols or any(name.startswith("[") for name in row.callers[:1])
    names, more = [*map(quoted, found.changed[:NAMED])], len(found.changed) - NAMED
    names = shares_of_changed(found) or ([*names, *([f"{more} more"] * (more > 0))] if hidden or more <= 0 else [])
    it = "this commit" if row.has_no_symbols else "it"
    return f"; {it} changes {listed(names)}" if found.change_known and names else ""


def stripped(row: FunctionRow) -> str:
    """Why the functions of a binary cannot be told apart; "" if they can."""
    why = ", code that the program generates as it runs" if row.binary == GENERATED else ", which has no symbols"
    return why if row.has_no_symbols else ""


def because(row: FunctionRow, found: Explanation) -> str:
    """What the commit has to do with the function."""
    if row.changed:
        return ", which this commit changes"
    if row.inlined:
        bodies = ([body for body in row.inlined if not body.isupper()] or [*row.inlined])[:NAMED]  # without flags
        names, are = listed([quoted(body) for body in bodies]), "is" if len(bodies) == 1 else "are"
        return f", into which {names} {are} inlined, which this commit changes"
    if not row.below_changed:
        return ""
    above = next(
        (other for other in found.functions if other.function == row.below_changed and other.has_changed_code), None
    )
    if above is None:
        above = replace(row, changed=is_changed(row.below_changed, found.changed), below_changed="")
    why = because(above, found) or ", into which a function that this commit changes is inlined"
    return f", called below {quoted(row.below_changed)}{why}"


def is_changed(function: str, changed: Collection[str]) -> bool:
    """Whether the function is one of those that the commit changes."""
    return any(may_be_same(function, one) for one in changed)


def each(row: FunctionRow) -> str:
    """A function in a list, with its part and what the commit has to do with it."""
    more = f", below {quoted(row.below_changed)}" if row.below_changed else ""
    more = f", with {quoted(row.inlined[0])} inlined" if row.inlined else more
    return f"{quoted(row.function)} ({share(row.part)}{more})"


def moved(found: Explanation) -> Iterator[str]:
    """Costs that some functions lost and others gained, as a sentence goes on."""
    for sources, to in cost_exchanges(found.functions):
        cost = min(abs(sum(row.difference for row in side)) for side in (sources, to))
        before, after = (listed([quoted(row.function) for row in side]) for side in (sources, to))
        yield f"; {amount(cost, found.unit)} of it moved from {before} to {after}"


def extent(some: Sequence[FunctionRow], found: Explanation) -> str:
    """The share of the difference that some functions have, with its 95 % interval where that is wider than a digit."""
    part, half = sum(row.part for row in some), 1.96 * part_error(some, found.functions, found.shared_error)
    if half < 0.005:
        return share(part)
    return f"{share(part)} ({100 * (part - half):.0f} to {share(part + half)})".replace("(-", "(−")


def doubt(rows: Sequence[FunctionRow]) -> str:
    """A word of doubt, where the difference is not far beyond noise."""
    total, spread = total_difference(rows)
    return "" if abs(total) >= SURE_ERRORS * spread else "Probably: "


def quoted(function: str) -> str:
    """The name of a function in a sentence; it comes from a binary or a source of any origin."""
    return f"`{printable(short_name(function))}`"


def notes(row: FunctionRow, changed: Collection[str]) -> Iterator[str]:
    """What is known of a function beside its cost, for a table; ``changed`` are all functions that the commit changes."""
    if row.changed:
        yield "changed by this commit"
    if row.inlined:
        yield f"{listed([*map(short_name, row.inlined[:NAMED])])}, changed by this commit, {'is' if len(row.inlined) == 1 else 'are'} inlined"
    if row.below_changed:
        inlined = "into which a function that this commit changes is inlined"
        yield f"below {short_name(row.below_changed)}, {'changed by this commit' if is_changed(row.below_changed, changed) else inlined}"
    if row.inlined_into:
        yield f"inlined into {short_name(row.inlined_into)}"
    if called := as_often(row):
        yield called.removeprefix(", ")
    if row.partner:
        yield f"cost moved {'from' if row.difference > 0 else 'to'} {short_name(row.partner)}"
