"""The functions below which most of a difference is, and what is called there: in another number, no longer, or newly. Pure.

Of profiles the cost of a function with all that it calls is taken first: a commit changes one function, and what that calls costs
less, or something else is called in its place. A function that the commit changes, and that carries most of the difference so, is
the place; of several that do the innermost; where only several together do, the nearest function that calls them.

Where instructions are counted one by one, a stack is a function and those that are inlined into it, outermost first, and
it is known how often one function calls another.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise

from perfbisect.core.domain.facts import ChangeFacts, ProfileFacts
from perfbisect.core.explain.evidence import Call, FunctionRow, Place
from perfbisect.core.explain.functions import (
    MOSTLY,
    NAMED_PART,
    depth,
    everything,
    function_rows,
    keys_of,
    named,
    of_change,
    rows_of,
    side_of,
    table,
    tally,
    whole,
)
from perfbisect.core.explain.profiles import (
    RARE,
    SEPARATOR,
    SYSTEM,
    Key,
    Sides,
    frames,
    functions_in,
    key_of,
)

MOST = 0.8  # share of a difference from which on it is the place of it
EXACT, LOOSE = 1.25, 2.0  # shares up to which: beyond these, another function has lost as much as it gained
LEVELS = 5  # of calls from a function that the commit changes to one that it calls more often
SMALLEST = 0.005  # of the calls of the other build, from which on a function is still called
CALLED = 0.02  # share of the whole cost from which on a call that is new or gone is named
FEWEST = 30  # samples from which on a share is stated


def place_of(
    both: Sides, rows: Sequence[FunctionRow], change: ChangeFacts | None, seen: Collection[str]
) -> Place | None:
    """The place of the difference between two builds; None where there is none beyond noise, or that carries most of it.

    ``rows`` are what ``function_rows`` returns of ``both``, with ``seen``.
    """
    total, spread = whole(rows)
    if not all(both) or abs(total) <= 2 * spread:
        return None
    moved = {row.key for row in rows if row.partner}
    # What has moved is no part of the difference, and would make its new callers dearer, and its old ones cheaper.
    both = [without(moved, run) for run in both[0]], [without(moved, run) for run in both[1]]
    difference = of_known(both, total)
    changed, bodies = of_change(change, seen, both) if change else (set[str](), dict[str, tuple[str, ...]]())
    before, after = map(side_of, both)
    found = {
        key: row if SYSTEM.match(key[1]) else replace(row, changed=key[0] in changed, inlined=bodies.get(key[0], ()))
        for key, row in rows_of((before.inclusive, after.inclusive), difference).items()
    }
    own = {key: row for key, row in found.items() if row.own and key not in moved}
    places = {key: depth(key, before, after) for key in found}
    of_diff: tuple[FunctionRow, ...] = ()
    # One that is new may do what another did that is gone: then only both together say anything.
    replaced = len({row.difference > 0 for row in own.values() if absent(row) and row.beyond_noise}) > 1
    steady = partial(keeps_its_callees, both=both, rows={row.key: row for row in rows}, difference=difference)
    if (
        top := innermost((row for row in own.values() if not (replaced and absent(row))), places, steady)
    ) is None and own:
        above = (tally(runs, lambda keys: named(keys[: last_of(own, keys)])) for runs in both)
        carried = {key: row.part for key, row in rows_of(above, difference).items() if MOST <= row.part <= LOOSE}
        top = max((found[key] for key in carried), key=lambda row: places[row.key], default=None)
        of_diff = tuple(sorted((row for row in own.values() if row.beyond_noise), key=lambda row: -abs(row.part)))

    def below(keys: Sequence[Key]) -> Sequence[Key]:
        """The part of a stack that begins at the place."""
        return keys if top is None else keys[keys.index(top.key) :] if top.key in keys else ()

    def perhaps(keys: Sequence[Key]) -> Sequence[Key]:
        """The same, and all of a stack without callers, which may be below it."""
        return keys if len(keys) == 1 else below(keys)

    certain = rows_of((tally(runs, lambda keys: named(below(keys))) for runs in both), difference)
    inside = rows_of((tally(runs, lambda keys: named(perhaps(keys))) for runs in both), difference)
    inner = innermost((row for row in certain.values() if not absent(row)), places, steady) or top
    if inner is None:
        return None
    alone = any(row.key == inner.key and row.part >= MOST for row in rows)
    if top is None and not alone and everything(inner, before, after):
        return None
    only = {key: row for key, row in inside.items() if absent(row) and abs(row.difference) > FEWEST**0.5 * row.error}
    if top and top.culprit <= 0:
        only.pop(top.key, None)  # it may be called yet, and cost nothing
    calls = calls_of_one(both, perhaps, only, {row.key: row for row in rows})
    return Place(
        top, found.get(inner.key, inner), alone, of_diff, tuple(call for call in calls if call.share >= CALLED)
    )


def calls_anywhere(
    both: Sides, rows: Sequence[FunctionRow], change: ChangeFacts | None, seen: Collection[str]
) -> tuple[Call, ...]:
    """The functions that only one of two builds calls, with a good part of their difference: where that has no place.

    A function that the commit changes, or that costs nothing but by what it calls, may be called yet, and do nothing: what it calls
    is named.
    """
    total, spread = whole(rows)
    if not all(both) or abs(total) <= 2 * spread:
        return ()
    changed, bodies = of_change(change, seen, both) if change else (set[str](), dict[str, tuple[str, ...]]())
    before, after = map(side_of, both)
    own = {row.key: row for row in rows}
    only = {
        key: row
        for key, row in rows_of((before.inclusive, after.inclusive), total).items()
        if absent(row) and row.part >= NAMED_PART and abs(row.difference) > FEWEST**0.5 * row.error
        if key[0] not in changed
        and key[0] not in bodies
        and not key[1].startswith("[")
        and not (key in own and own[key].partner)
        if SYSTEM.match(key[1]) or (key in own and own[key].difference / row.difference >= NAMED_PART)
    }
    return tuple(call for call in calls_of_one(both, lambda keys: keys, only, own) if call.share >= CALLED)


def really(calls: Sequence[Call], counts: Iterable[FunctionRow]) -> tuple[Call, ...]:
    """The calls without those that both builds make, by their exact counts: what costs too little has no samples."""
    both = {row.function for row in counts if row.calls and min(row.calls) > SMALLEST * max(row.calls)}
    return tuple(call for call in calls if call.function not in both)


def samples_of(runs: Iterable[ProfileFacts]) -> int:
    """The samples of several runs together."""
    return sum(run.samples for run in runs)


def without(some: Collection[Key], run: ProfileFacts) -> ProfileFacts:
    """A profile without the own costs of some functions."""
    stacks = {stack: cost for stack, cost in run.stacks.items() if keys_of(stack)[-1] not in some}
    left = sum(stacks.values()) / (sum(run.stacks.values()) or 1.0)
    return replace(run, stacks=stacks, samples=round(left * run.samples))


def of_known(both: Sides, total: float) -> float:
    """The difference of the stacks whose callers were kept, where that is most of the ``total``."""
    rare = [sum(tally(runs, lambda keys: keys[-1:]).cost.values()) for runs in map(rare_only, both)]
    left = total - (rare[1] - rare[0])
    return left if left / total > MOSTLY else total


def rare_only(runs: Sequence[ProfileFacts]) -> list[ProfileFacts]:
    """The profiles with the stacks alone whose callers were not kept."""
    return [replace(run, stacks={stack: cost for stack, cost in run.stacks.items() if RARE in stack}) for run in runs]


def keeps_its_callees(row: FunctionRow, both: Sides, rows: Mapping[Key, FunctionRow], difference: float) -> bool:
    """Whether a function carries its part because what it calls costs more or less, and not because that has other callers now.

    Inlining and calls at the end of a function hide callers, so other options of the compiler show others.
    """
    below = rows_of((tally(runs, lambda keys: keys[-1:] if row.key in keys else ()) for runs in both), difference)
    own = {key: rows.get(key, part) for key, part in below.items()}
    mostly = {
        key
        for key, part in below.items()
        if part.parent > MOSTLY * own[key].parent or part.culprit > MOSTLY * own[key].culprit
    }
    carried = sum((own[key] if key in mostly else part).difference for key, part in below.items())
    return carried / difference >= MOST * row.part


def innermost(
    rows: Iterable[FunctionRow], places: Mapping[Key, float], steady: Callable[[FunctionRow], bool]
) -> FunctionRow | None:
    """The innermost of the functions that carry most of the difference, and no more than that if there is such a one."""
    carrying = [row for row in rows if row.beyond_noise and MOST <= row.part <= LOOSE and steady(row)]
    exact = [row for row in carrying if row.part <= EXACT]
    return max(exact or carrying, key=lambda row: (places.get(row.key, 0.0), row.key), default=None)


def absent(row: FunctionRow) -> bool:
    """Whether only one of the builds calls a function."""
    return min(row.parent, row.culprit) <= 0


def last_of(some: Collection[Key], keys: Sequence[Key]) -> int:
    """How many functions of a stack there are up to the last of ``some``; 0 without any."""
    return max((place for place, key in enumerate(keys, 1) if key in some), default=0)


def calls_of_one(
    both: Sides,
    below: Callable[[Sequence[Key]], Sequence[Key]],
    only: Mapping[Key, FunctionRow],
    rows: Mapping[Key, FunctionRow],
) -> list[Call]:
    """The calls from functions of both builds to those that ``only`` one of them calls ``below`` a place, the largest first.

    A compiler may have made a part of its caller of one: its binary has both, and the caller costs more by that.
    """
    costs = table()
    wholes = sum(row.parent for row in rows.values()), sum(row.culprit for row in rows.values())
    for runs in both:
        operations = sum(run.operations for run in runs)
        for run in runs:
            for stack, cost in run.stacks.items():
                keys = keys_of(stack)
                part = below(keys)
                place = next((len(keys) - len(part) + place for place, key in enumerate(part) if key in only), None)
                if place is not None:
                    costs[keys[place]][keys[place - 1] if place else ("", "")] += cost / operations
    calls = []
    for key, by_caller in costs.items():
        new, cost = only[key].difference > 0, sum(by_caller.values())
        caller = max(by_caller, key=lambda each: (by_caller[each], each))
        instead = -rows[caller].difference if caller in rows else 0.0
        inlined = (
            caller[1] == key[1] and instead * only[key].difference > 0 and MOSTLY * cost < abs(instead) < cost / MOSTLY
        )
        calls.append(Call(key[0], cost / wholes[new], new, inlined))
    return sorted(calls, key=lambda call: (-call.share, call.function))


Calls = Mapping[Key, Mapping[Key, float]]  # function → what calls it → how often in an operation


def count_rows(both: Sides, change: ChangeFacts | None = None) -> tuple[FunctionRow, ...]:
    """As ``function_rows``, of instructions; where they are counted exactly, with calls."""
    rows = function_rows(both, change, functions_in(chain(*both), inlined=True))
    # What costs most is last.
    stacks = [stack for run in chain(*both) if not run.samples for stack in reversed([*run.stacks])]
    inlined = {inner: outer for stack in stacks for outer, inner in pairwise(map(key_of, frames(stack)))}
    before, after = map(calls_of, both)
    changed = above(rows, before, after)
    calls = {key: (sum(before.get(key, {}).values()), sum(after.get(key, {}).values())) for key in {*before, *after}}
    outers = [(row, inlined.get(row.key)) for row in rows]
    due = [(replace(row, below=changed.get(outer or row.key, row.below)), outer) for row, outer in outers]
    return tuple(replace(row, into=outer[0]) if outer else replace(row, calls=calls.get(row.key)) for row, outer in due)


def calls_of(runs: Sequence[ProfileFacts]) -> Calls:
    """The calls of each function, without those by which the parts of a function that the compiler has split call each other."""
    operations, calls = sum(run.operations for run in runs), table()
    for run in runs:
        for pair, number in run.calls.items():
            caller, _, callee = pair.partition(SEPARATOR)
            if caller == callee or key_of(caller) != key_of(callee):
                calls[key_of(callee)][key_of(caller)] += number / operations
    return calls


def above(rows: Sequence[FunctionRow], before: Calls, after: Calls) -> dict[Key, str]:
    """The functions that the commit leaves as they are, and the changed one due to which each is called more or less often,
    by others than itself."""
    own = {row.key: row.function for row in rows if row.own}
    due_to = dict(own)
    for _ in range(LEVELS):
        for key in sorted({*before, *after} - due_to.keys()):
            low, high = before.get(key, {}), after.get(key, {})
            grown = {caller: high.get(caller, 0.0) - low.get(caller, 0.0) for caller in {*low, *high} - {key}}
            total = sum(grown.values())
            due: defaultdict[str, float] = defaultdict(float)
            for caller in sorted(due_to.keys() & grown.keys()):
                due[due_to[caller]] += grown[caller] * total
            most = max(due, key=lambda one: due[one], default=None)
            if most and due[most] > MOSTLY * total**2 > 0:
                due_to[key] = most
    return {key: function for key, function in due_to.items() if key not in own}
