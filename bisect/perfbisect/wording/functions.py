"""What functions of two profiles say of a change, in sentences."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfbisect.core.domain.explanation import Cause, Explanation, FunctionRow
from perfbisect.core.explain.functions import BEYOND, OTHERS, part_error, whole
from perfbisect.core.explain.names import short
from perfbisect.wording.quantities import figure, share
from perfbisect.wording.text import listed, printable

UNITS = {"us": "µs", "cycles": "cycles"}
SURE = 5.0  # standard errors from which on a difference needs no word of doubt
NAMED = 3  # functions, and groups of them, in a sentence
SMALL = 0.1  # share of the whole difference below which a function is not named beside others


def sentences(found: Explanation) -> tuple[str, ...]:
    """Where the difference is, what of it the commit changes, and which cost has only moved; none without profiles.

    Of a commit that waits longer, first where it waits.
    """
    waits = found.waits if any(each.cause is Cause.WAITING for each in found.classes) else ()
    total, spread = whole(waits)
    longer = [
        row for row in waits if row.difference > 0 and beyond(row) and row.function != OTHERS and total > 2 * spread
    ]
    waiting = [place(replace(found, functions=waits), longer, "longer waiting")] if longer else []
    return (*waiting, *of_cpu(found))


def of_cpu(found: Explanation) -> tuple[str, ...]:
    """The same of profiles on CPU."""
    if not found.functions:
        return ()
    total, spread = whole(found.functions)
    if abs(total) <= 2 * spread:
        moving = [row for row in found.functions if beyond(row) and not row.partner and row.function != OTHERS]
        single = "; ".join(by_itself(row, found) for row in moving[:NAMED])
        where = f", but single functions do: {single}" if single else ""
        return (
            f"The whole cost of an operation in their profiles does not differ beyond noise{where}.",
            *moved(found, "", ""),
        )
    kind = "loss" if total > 0 else "gain"
    same_way = [
        row
        for row in found.functions
        if row.difference * total > 0 and beyond(row) and not row.partner and row.function != OTHERS
    ]
    if not same_way:
        return (
            f"The {kind} is spread over many functions: none of them differs beyond noise.",
            *moved(found, kind, ""),
        )
    return (place(found, same_way, kind), *moved(found, kind, "; that is no part of it"))


def place(found: Explanation, rows: Sequence[FunctionRow], kind: str) -> str:
    """Where the loss or the gain is; ``rows`` have a part of it each, the largest first."""
    by_commit = [row for row in rows if own(row) or row.below]
    first = rows[0]
    named = [row for row in by_commit if row.part >= SMALL or row is first][:NAMED]
    if first in named or sum(row.part for row in named) >= 1 / 2:
        if len(named) == 1:
            text = f"is in {name(named[0])}{because(named[0], found.functions)}"
        else:
            text = f"is in or below functions that this commit changes: {', '.join(each(row) for row in named)}"
        return f"{doubt(named)}{extent(named, found.functions)} of the {kind} {text}."
    text = f"{doubt([first])}{extent([first], found.functions)} of the {kind} is in {name(first)}"
    if not found.change_known:
        return f"{text}."
    if by_commit:
        others = share(sum(row.part for row in by_commit))
        return f"{text}, which this commit does not change; {others} is in or below functions that it changes."
    return f"{text}, which this commit does not change: it shows only there."


def by_itself(row: FunctionRow, found: Explanation) -> str:
    """By how much the cost of a function differs."""
    amount = f"{figure(abs(row.difference))} {UNITS.get(found.unit, found.unit)}"
    return f"{amount} {'more' if row.difference > 0 else 'less'} in {name(row)}{because(row, found.functions)}"


def own(row: FunctionRow) -> bool:
    """Whether the commit changes the function, or one that is inlined into it."""
    return row.changed or bool(row.inlined)


def because(row: FunctionRow, rows: Sequence[FunctionRow]) -> str:
    """What the commit has to do with the function."""
    if row.changed:
        return ", which this commit changes"
    if row.inlined:
        return (
            f", into which {listed([quoted(one) for one in row.inlined[:NAMED]])} is inlined, which this commit changes"
        )
    if not row.below:
        return ""
    above = next((one for one in rows if one.function == row.below), None)
    return f", called below {quoted(row.below)}{because(above, ()) if above and own(above) else ', which this commit changes'}"


def each(row: FunctionRow) -> str:
    """A function in a list, with its part and what the commit has to do with it."""
    more = f", below {quoted(row.below)}" if row.below else ""
    more = f", with {quoted(row.inlined[0])} inlined" if row.inlined else more
    return f"{name(row)} ({share(row.part)}{more})"


def moved(found: Explanation, kind: str, ending: str) -> Iterator[str]:
    """Costs that one function lost and another gained."""
    lost = [row for row in found.functions if row.partner and row.difference < 0]
    done: set[str] = set()
    groups = []
    for row in lost:
        to = [one for one in found.functions if one.difference > 0 and row.function == one.partner]
        to = to or [one for one in found.functions if one.function == row.partner]
        if to and row.function not in done:
            sources = [one for one in lost if one.partner == to[0].function] or [row]
            done |= {one.function for one in sources}
            groups.append((sources, to))
    for group in groups[:NAMED]:
        sources, to = (sorted(side, key=lambda row: -abs(row.difference)) for side in group)
        cost = min(abs(sum(row.difference for row in side)) for side in (sources, to))
        amount = f"{figure(cost)} {UNITS.get(found.unit, found.unit)} an operation"
        whole_ = ending or ("; the whole is unchanged" if not kind else "")
        yield f"Cost moved from {listed([*map(name, sources)])} to {listed([*map(name, to)])} ({amount}){whole_}."


def extent(some: Sequence[FunctionRow], rows: Sequence[FunctionRow]) -> str:
    """The share of the difference that some functions have, with its 95 % interval where that is wider than a digit."""
    part, half = sum(row.part for row in some), 1.96 * part_error(some, rows)
    if half < 0.005:
        return share(part)
    return f"{share(part)} ({100 * (part - half):.0f} to {share(part + half)})".replace("(-", "(−")


def doubt(rows: Sequence[FunctionRow]) -> str:
    """A word of doubt, where the difference is not far beyond noise."""
    total, spread = whole(rows)
    return "" if abs(total) >= SURE * spread else "Probably: "


def beyond(row: FunctionRow) -> bool:
    """Whether the difference of a function is no noise."""
    return abs(row.difference) > BEYOND * row.error


def name(row: FunctionRow) -> str:
    """A function in a sentence."""
    return quoted(row.function)


def quoted(function: str) -> str:
    """The name of a function in a sentence; it comes from a binary or a source of any origin."""
    return f"`{printable(short(function))}`"


def notes(row: FunctionRow) -> Iterator[str]:
    """What is known of a function beside its cost, for a table."""
    if row.changed:
        yield "changed by this commit"
    if row.inlined:
        yield f"{listed([*map(short, row.inlined[:NAMED])])}, changed by this commit, {'is' if len(row.inlined) == 1 else 'are'} inlined"
    if row.below:
        yield f"below {short(row.below)}, changed by this commit"
    if row.partner:
        yield f"cost moved {'from' if row.difference > 0 else 'to'} {short(row.partner)}"
