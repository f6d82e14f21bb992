"""What functions of two profiles say of a change, in sentences."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from perfbisect.core.domain.metrics import INSTRUCTIONS
from perfbisect.core.explain.evidence import Explanation, FunctionRow
from perfbisect.core.explain.explanation import waits_of
from perfbisect.core.explain.functions import (
    NAMED_PART,
    OTHERS,
    SURE,
    exchanges,
    part_error,
    surplus,
    telling_rows,
    whole,
)
from perfbisect.core.explain.profiles import COUNTED, same, short
from perfbisect.wording.quantities import decimals, figure, percent, share
from perfbisect.wording.text import listed, printable

SAME = 1e-4  # share of all instructions below which a difference says nothing
FEW = 0.05  # share of one of two reasons below which only the other is named
SMALLEST = 0.005  # of the calls of before, from which on a function is still called
MANY = 10.0  # times as much from which on no percentage is written
TEN = 9.95  # instructions from which on they are written without decimals
NAMED = 3  # functions, and groups of them, in a sentence
LEAST = 0.005  # share of the whole cost from which on a function that the commit changes is named
STRIPPED = ", which has no symbols"


def unit_of(costs: str) -> str:
    """The unit of costs as it is written."""
    return "µs" if costs == "us" else costs


def sentences(found: Explanation) -> tuple[str, ...]:
    """Where the difference is, what of it the commit changes, and which cost has only moved; none without profiles.

    Of a commit that waits longer, first where it waits. Profiles are of times: what they say of a count is only what the
    functions cost that the commit changes.
    """
    said = [] if found.metric == INSTRUCTIONS else [*of_waits(found), *of_cpu(found)]
    said += of_counts(found, " ".join(said))
    return (*said, *costs_of_changed(found, " ".join(said)))


def of_waits(found: Explanation) -> Iterator[str]:
    """Where and for what a commit waits longer."""
    waits = waits_of(found)
    total, spread = whole(waits)
    longer = [row for row in waits if row.difference > 0 and row.beyond_noise and row.function != OTHERS]
    if not longer or total <= 2 * spread:
        return
    yield place(replace(found, functions=waits), longer, "longer waiting")
    if kind := next((row for row in found.kinds_of_waits if row.difference > 0 and row.beyond_noise), None):
        half = 1.96 * kind.error  # of the 95 % interval
        ends = f"{figure(kind.difference - half)} to {figure(kind.difference + half)}"
        yield f"The longer waiting is for {kind.function}: {figure(kind.difference)} ({ends}) µs an operation."


def costs_of_changed(found: Explanation, said: str = "") -> Iterator[str]:
    """The share of the whole cost that functions have which the commit changes, without those that were ``said``."""
    cost = sum(row.culprit for row in found.functions)
    rows = sorted((row for row in found.functions if row.own and row.culprit > 0), key=lambda row: -row.culprit)
    shares = [
        f"{quoted(row.function if row.changed else row.inlined[0])} ({share(row.culprit / cost)} of the cost of an operation"
        f"{'' if row.changed else f', inlined into {quoted(row.function)}'})"
        for row in rows
        if quoted(row.function) not in said and row.culprit >= LEAST * cost
    ]
    if shares:
        yield f"This commit changes {listed(shares[:NAMED])}."


def of_counts(found: Explanation, said: str = "") -> Iterator[str]:
    """The functions that execute more instructions or fewer: the one with most of the difference, and those of the commit.

    What the commit has to do with them is left out where that was ``said``.
    """
    total, spread = whole(found.counts)
    before = sum(row.parent for row in found.counts)
    one = f"{'A run' if found.whole_runs else 'An operation'}"
    if not found.counts:
        return
    if abs(total) <= max(2 * spread, SAME * before):
        yield f"{one} executes as many instructions as before: they differ by less than {percent((abs(total) + 2 * spread) / before)}."
        return
    telling = [row for row in telling_rows(found.counts) if row.difference * total > 0]
    explained = [row for row in telling if row.part >= FEW and (row.own or row.below)]
    first = [*telling[:1], *explained[:1]]  # many may have a little each
    shown = [row for row in telling if row in first or (row in explained and row.part >= NAMED_PART)][:NAMED]
    for row in shown:
        yield executes(row, found, one.lower(), said)
    if not telling:
        counts = replace(found, functions=found.counts, unit=COUNTED)
        yield from moved(counts, "loss" if total > 0 else "gain", "")


def executes(row: FunctionRow, found: Explanation, one: str, said: str) -> str:
    """How many more instructions a function executes in ``one``, whether because of more calls or longer ones, and why."""
    doubt = f" (±{size(float(f'{1.96 * row.error:.2g}'))})" if 1.96 * row.error >= FEW * abs(row.difference) else ""
    more = f"{size(row.difference)}{doubt} {'more' if row.difference > 0 else 'fewer'} instructions {one}"
    if row.parent <= 0:
        more = f"{size(row.difference)} instructions {one}, and none before"
    elif row.culprit >= MANY * row.parent:
        more += f" (×{size(row.culprit / row.parent)})"
    else:
        more += f" ({'+' if row.difference > 0 else '−'}{percent(abs(row.difference) / row.parent)})"
    why = because(row, replace(found, functions=found.counts))
    if not why and found.change_known:
        why = STRIPPED if row.nameless else ", which this commit does not change"
    if f"{quoted(row.function)}{why}" in said:
        why = ""
    inlined = f", inlined into {quoted(row.into)}" if row.into else ""
    return f"{quoted(row.function)}{inlined}{why}{',' if inlined or why else ''} executes {more}{'' if row.nameless else as_often(row)}."


def as_often(row: FunctionRow) -> str:
    """Whether a function is called more often, or each call executes more; "" where calls were not counted."""
    if not (row.calls and min(row.calls) > 0 and row.parent > 0 and row.culprit > 0):
        return ""
    often = math.log(row.calls[1] / row.calls[0])
    each = math.log(row.culprit / row.parent) - often
    if abs(often) <= FEW * abs(each):
        return ", called as often"
    ratio = row.calls[1] / row.calls[0]
    times = f"{decimals(ratio, 0 if ratio >= MANY else 1)} times as often"
    less = f"{percent(abs(math.expm1(often)))} {'more' if often > 0 else 'less'} often"
    called = f", called {less if often < 1 / 3 else times}" if ratio > SMALLEST else ", hardly called any more"
    if abs(each) <= FEW * abs(often):
        return f"{called}, each call as long as before"
    return f"{called}, each call {percent(abs(math.expm1(each)))} {'longer' if each > 0 else 'shorter'}"


def size(difference: float) -> str:
    """How many instructions: 15, 0.33, 1,240."""
    return decimals(abs(difference), 0) if abs(difference) >= TEN else figure(abs(difference))


def of_cpu(found: Explanation) -> tuple[str, ...]:
    """The same of profiles on CPU."""
    if not found.functions:
        return ()
    total, spread = whole(found.functions)
    telling = telling_rows(found.functions)
    if abs(total) <= 2 * spread:
        single = "; ".join(
            f"{more_or_less(row.difference, found)} in {quoted(row.function)}{because(row, found)}"
            for row in telling[:NAMED]
        )
        where = f", but single functions do: {single}" if single else ""
        return (
            f"The whole cost of an operation in their profiles does not differ beyond noise{where}.",
            *moved(found, "", "; the whole does not differ beyond noise"),
        )
    kind, part = "loss" if total > 0 else "gain", "; that is no part of it"
    if same_way := [row for row in telling if row.difference * total > 0]:
        return (place(found, same_way, kind), *moved(found, kind, part))
    if any(surplus(group) * total > 0 for group in exchanges(found.functions)):
        return tuple(moved(found, kind, part))
    rows = [row for row in found.functions if row.part >= NAMED_PART and not row.partner and row.function != OTHERS]
    spread_out = f"The {kind} is spread over many functions: none of them has a part beyond noise."
    if rows:
        named = listed([f"{quoted(row.function)} ({share(row.part)}{because(row, found)})" for row in rows[:NAMED]])
        spread_out = f"No single function has a part of the {kind} beyond noise; it may be in {named}."
    return (spread_out, *moved(found, kind, ""))


def place(found: Explanation, rows: Sequence[FunctionRow], kind: str) -> str:
    """Where the loss or the gain is; ``rows`` have a part of it each, the largest first."""
    by_commit = [row for row in rows if row.own or row.below]
    first = rows[0]
    named = [row for row in by_commit if row.part >= NAMED_PART or row is first][:NAMED]
    if first in named or sum(row.part for row in named) >= 1 / 2:
        if len(named) == 1:
            text = f"is in {quoted(named[0].function)}{because(named[0], found)}"
        else:
            text = f"is in or below functions that this commit changes: {', '.join(each(row) for row in named)}"
        return f"{doubt(named)}{extent(named, found)} of the {kind} {text}."
    text = f"{doubt([first])}{extent([first], found)} of the {kind} is in {quoted(first.function)}"
    if first.nameless:
        return f"{text}{STRIPPED} (its functions cannot be told apart: link it without -s, and do not strip it)."
    if not found.change_known:
        return f"{text}."
    if by_commit:
        others = share(sum(row.part for row in by_commit))
        return f"{text}, which this commit does not change; {others} is in or below functions that it changes."
    left = [row for group in exchanges(found.functions) if surplus(group) for row in (*group[0], *group[1])]
    only = "" if any(row.own for row in left) else ": it shows only there"
    return f"{text}, which this commit does not change{only}."


def more_or_less(difference: float, found: Explanation) -> str:
    """A difference of costs: 1,600 µs more."""
    return f"{figure(abs(difference))} {unit_of(found.unit)} {'more' if difference > 0 else 'less'}"


def because(row: FunctionRow, found: Explanation) -> str:
    """What the commit has to do with the function."""
    if row.changed:
        return ", which this commit changes"
    if row.inlined:
        return f", into which {listed([quoted(body) for body in row.inlined[:NAMED]])} is inlined, which this commit changes"
    if not row.below:
        return ""
    above = next((other for other in found.functions if other.function == row.below and other.own), None)
    if above is None:
        above = replace(row, changed=is_changed(row.below, found.changed), below="")
    why = because(above, found) or ", into which a function that this commit changes is inlined"
    return f", called below {quoted(row.below)}{why}"


def is_changed(function: str, changed: Collection[str]) -> bool:
    """Whether the function is one of those that the commit changes."""
    return any(same(function, one) for one in changed)


def each(row: FunctionRow) -> str:
    """A function in a list, with its part and what the commit has to do with it."""
    more = f", below {quoted(row.below)}" if row.below else ""
    more = f", with {quoted(row.inlined[0])} inlined" if row.inlined else more
    return f"{quoted(row.function)} ({share(row.part)}{more})"


def moved(found: Explanation, kind: str, ending: str) -> Iterator[str]:
    """Costs that one function lost and another gained, with what is left of them beyond noise, or else the ``ending``."""
    total, _ = whole(found.functions)
    for sources, to in exchanges(found.functions)[:NAMED]:
        cost = min(abs(sum(row.difference for row in side)) for side in (sources, to))
        amount = f"{figure(cost)} {unit_of(found.unit)} an operation"
        before, after = (listed([quoted(row.function) for row in side]) for side in (sources, to))
        left = surplus((sources, to))
        if kind and left * total > 0:
            both = [*sources, *to]
            of_all = f"{doubt(both)}{extent(both, found)} of the {kind}"
            is_in = "is left in" if kind == "loss" else "is in"
            yield f"{of_all} {is_in} {after}, to which the cost of {before} moved ({amount})."
        else:
            rest = f", where it is {more_or_less(left, found)}" if left else ending
            yield f"Cost moved from {before} to {after} ({amount}){rest}."


def extent(some: Sequence[FunctionRow], found: Explanation) -> str:
    """The share of the difference that some functions have, with its 95 % interval where that is wider than a digit."""
    part, half = sum(row.part for row in some), 1.96 * part_error(some, found.functions, found.shared)
    if half < 0.005:
        return share(part)
    return f"{share(part)} ({100 * (part - half):.0f} to {share(part + half)})".replace("(-", "(−")


def doubt(rows: Sequence[FunctionRow]) -> str:
    """A word of doubt, where the difference is not far beyond noise."""
    total, spread = whole(rows)
    return "" if abs(total) >= SURE * spread else "Probably: "


def quoted(function: str) -> str:
    """The name of a function in a sentence; it comes from a binary or a source of any origin."""
    return f"`{printable(short(function))}`"


def notes(row: FunctionRow, changed: Collection[str]) -> Iterator[str]:
    """What is known of a function beside its cost, for a table; ``changed`` are all functions that the commit changes."""
    if row.changed:
        yield "changed by this commit"
    if row.inlined:
        yield f"{listed([*map(short, row.inlined[:NAMED])])}, changed by this commit, {'is' if len(row.inlined) == 1 else 'are'} inlined"
    if row.below:
        inlined = "into which a function that this commit changes is inlined"
        yield f"below {short(row.below)}, {'changed by this commit' if is_changed(row.below, changed) else inlined}"
    if row.into:
        yield f"inlined into {short(row.into)}"
    if called := as_often(row):
        yield called.removeprefix(", ")
    if row.partner:
        yield f"cost moved {'from' if row.difference > 0 else 'to'} {short(row.partner)}"
