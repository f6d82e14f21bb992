"""The functions of two builds beside each other: what each costs per operation, and what of it the commit changes. Pure.

The cost of a function is what its own code costs, without what it calls: samples × period ÷ operations, over all runs of a
build. So differences of functions sum to the difference of the whole.

A number of samples is Poisson's, with a standard deviation of its root; where there are several rounds, the spread of the
differences between them shows what else varies, and the larger of the two is the error. Exact counts repeat to parts per
million of the whole.

A refactoring moves cost from one function to others: one lost what others gained, beyond noise, and one of them is called by
the other, or both by a third, or the one is gone and the other new, as after a change of its name. It has only moved if the
whole neither lost nor gained it: the nearest function that calls all of them costs as much as before, with all that it calls.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import stdev

from perfbisect.core.domain.facts import ChangeFacts, ProfileFacts
from perfbisect.core.explain.evidence import EXACT, FunctionRow
from perfbisect.core.explain.profiles import (
    NO_CALLERS,
    SYSTEM,
    UNKNOWN,
    Key,
    Sides,
    called,
    frames,
    functions_in,
    key_of,
    same,
    split,
)

NAMED_PART = 0.1  # share of the whole difference below which a function is not named beside others
SURE = 5.0  # standard errors from which on a difference needs no word of doubt
MOST = 200  # functions with a row of their own
CALLERS = 5
OTHERS = "[other functions]"  # the row of all further ones: differences must sum to the whole
EXAMINED = 60  # functions between which cost may have moved, those whose costs differ most
SMALL = 0.005  # share of the cost of an operation below which nothing is reported as moved
ALL = 0.95  # share of the whole cost from which on a function says nothing of a place
MOSTLY = 0.5  # share of a difference from which on it is that of a caller
TOLERANCE = 0.1  # share of a moved cost that may be left over


Costs = defaultdict[Key, float]


def table() -> defaultdict[Key, Costs]:
    """Costs of each function by another one."""
    return defaultdict(lambda: defaultdict(float))


@dataclass(slots=True)
class Tally:
    """What the functions of a build cost in an operation: by their own code, or with all that they call."""

    cost: Costs = field(default_factory=lambda: defaultdict(float))
    variance: Costs = field(default_factory=lambda: defaultdict(float))
    least: float = 0.0  # variance of a function without a sample: that of a single one
    rounds: list[dict[Key, float]] = field(default_factory=list)


def tally(profiles: Sequence[ProfileFacts], charged: Callable[[Sequence[Key]], Iterable[Key]]) -> Tally:
    """The costs of a build in all its runs together; ``charged`` says which functions of a stack, outermost first, have its cost."""
    made = Tally()
    operations = sum(run.operations for run in profiles)
    for run in profiles:
        costs: Costs = defaultdict(float)
        for stack, cost in run.stacks.items():
            for key in charged(keys_of(stack)):
                costs[key] += cost
        total = sum(run.stacks.values())
        period = total / run.samples if run.samples else 0.0
        least = ((period if run.samples else EXACT * total) / operations) ** 2
        for key, cost in costs.items():
            made.cost[key] += cost / operations
            made.variance[key] += period * cost / operations**2 if run.samples else least
        made.least = max(made.least, least)
        made.rounds.append({key: cost / run.operations for key, cost in costs.items()})
    return made


@dataclass(slots=True)
class Side:
    """The costs of one build."""

    own: Tally
    inclusive: Tally
    callers: defaultdict[Key, Costs] = field(default_factory=table)  # totals, not of an operation
    above: defaultdict[Key, set[Key]] = field(
        default_factory=lambda: defaultdict(set)
    )  # its callers, theirs, and itself
    places: Costs = field(default_factory=lambda: defaultdict(float))  # place in stacks × their cost in an operation

    @property
    def whole(self) -> float:
        """The cost of all functions."""
        return sum(self.own.cost.values())

    @property
    def root(self) -> float:
        """That of the function which has most, with all that it calls."""
        return max(self.inclusive.cost.values(), default=0.0)


def side_of(profiles: Sequence[ProfileFacts]) -> Side:
    """The costs of a build in all its runs together."""
    side = Side(tally(profiles, lambda keys: keys[-1:]), tally(profiles, named))
    operations = sum(run.operations for run in profiles)
    for run in profiles:
        for stack, cost in run.stacks.items():
            *chain, last = keys_of(stack)
            side.above[last] |= named([*chain, last])
            for place, key in enumerate([*chain, last]):
                side.places[key] += place * cost / operations
            if caller := next((key for key in reversed(chain) if key != last and key[0] not in NO_CALLERS), None):
                side.callers[last][caller] += cost
    return side


def depth(key: Key, *sides: Side) -> float:
    """The mean place of a function in stacks: of two that have almost all in common, the one that the other calls has more."""
    return sum(side.places[key] for side in sides) / (sum(side.inclusive.cost.get(key, 0.0) for side in sides) or 1.0)


def keys_of(stack: str) -> list[Key]:
    """The functions of a stack, outermost first; the program where there are none."""
    return [key_of(text) for text in frames(stack)] or [key_of(stack)]


def named(keys: Iterable[Key]) -> set[Key]:
    """Those of the functions that are known."""
    return {key for key in keys if key[0] not in NO_CALLERS}


def waiter_rows(
    both: Sides, change: ChangeFacts | None = None, seen: Collection[str] | None = None
) -> tuple[FunctionRow, ...]:
    """As ``function_rows``, of profiles off CPU: time is that of the function that called what waits.

    All threads wait in the scheduler of the kernel, and most of them call it by way of the language's library. What was
    only interrupted, and waited for nothing but a processor, is left out: other work on the host does that. Threads
    without work wait for as long as the others work, so the costs of the parent are those of operations as long as the
    culprit's. None where there are not two rounds: how much waits vary by themselves is seen between rounds alone.
    """
    if min(map(len, both)) < 2:
        return ()
    parent, culprit = (sum(run.seconds for run in runs) / sum(run.operations for run in runs) for runs in both)
    longer = culprit / parent if parent else 1.0
    return function_rows(([called(run, longer) for run in both[0]], [called(run) for run in both[1]]), change, seen)


def function_rows(
    both: Sides, change: ChangeFacts | None = None, seen: Collection[str] | None = None
) -> tuple[FunctionRow, ...]:
    """The functions of both builds, those first whose costs differ most; functions whose cost has moved, by what is left.

    ``both`` are what ``comparable`` returns, in order of time. ``seen`` are the functions of all profiles
    of both builds, which are not inlined everywhere; those of the given ones if it is None.
    """
    if not all(both):
        return ()
    before, after = map(side_of, both)
    by_key = rows_of((before.own, after.own))
    by_key = {key: replace(row, callers=callers(key, before, after)) for key, row in by_key.items()}
    rank = {key: abs(row.difference) for key, row in by_key.items()}
    for group in moved(by_key, before, after):
        remainder = abs(gained(group, by_key))
        for key, partner in group.items():
            by_key[key], rank[key] = replace(by_key[key], partner=partner[0]), remainder
    rows = shortened([by_key[key] for key in sorted(by_key, key=lambda key: -rank[key])])
    return tuple(marked(rows, both, change, functions_in(chain(*both)) if seen is None else seen) if change else rows)


def rows_of(sides: Iterable[Tally], whole: float = 0.0) -> dict[Key, FunctionRow]:
    """The functions of two builds; parts are of the difference of the ``whole``, by default of all of them together."""
    before, after = sides
    whole = whole or sum(after.cost.values()) - sum(before.cost.values())
    rows = {}
    for key in sorted(before.cost.keys() | after.cost.keys()):
        low, high = before.cost.get(key, 0.0), after.cost.get(key, 0.0)
        rows[key] = FunctionRow(*key, low, high, error(key, before, after), (high - low) / whole if whole else 0.0)
    return rows


def error(key: Key, before: Tally, after: Tally) -> float:
    """The standard error of the difference of a function."""
    counted = math.sqrt(sum(side.variance.get(key, side.least) for side in (before, after)))
    pairs = [high.get(key, 0.0) - low.get(key, 0.0) for low, high in zip(before.rounds, after.rounds, strict=False)]
    return max(counted, stdev(pairs) / math.sqrt(len(pairs))) if len(pairs) > 1 else counted


def callers(key: Key, before: Side, after: Side) -> tuple[str, ...]:
    """The functions that call it, in the build in which it costs more; those with most of its cost first."""
    side = max((after, before), key=lambda side: side.own.cost.get(key, 0.0))
    above: Mapping[Key, float] = side.callers.get(key, {})
    return tuple(function for function, _ in sorted(above, key=lambda each: (-above[each], each))[:CALLERS])


def moved(rows: Mapping[Key, FunctionRow], before: Side, after: Side) -> Iterator[Mapping[Key, Key]]:
    """Groups of functions that exchanged cost: one that lost or gained, and those that it went to or came from.

    Each function is mapped to that of the other side; the one, to the largest of the others. Where a function could be in
    several groups, it is in the one whose costs agree best.
    """
    least = SMALL * max(before.whole, after.whole)
    beyond = [key for key, row in rows.items() if row.beyond_noise and abs(row.difference) > least]
    free = sorted(beyond, key=lambda key: -abs(rows[key].difference))[:EXAMINED]
    above = {key: {*before.callers.get(key, ()), *after.callers.get(key, ())} for key in free}
    chains = bool(before.callers and after.callers)
    with_calls = rows_of((before.inclusive, after.inclusive))
    total = after.whole - before.whole

    def near(one: Key, other: Key) -> bool:
        if UNKNOWN in (one[1], other[1]):
            return False
        missing = [not rows[key].parent or not rows[key].culprit for key in (one, other)]
        related = one in above[other] or other in above[one] or bool(above[one] & above[other])
        return related or all(missing) or (any(missing) and not chains)

    def kept(group: Sequence[Key]) -> bool:
        """Whether the nearest function above all of them, or one of them, costs as much as before."""
        shared = set.intersection(*(before.above.get(key, set()) | after.above.get(key, set()) for key in group))
        nearest = max((with_calls[key] for key in shared), key=lambda row: depth(row.key, before, after), default=None)
        largest = max(abs(rows[key].difference) for key in group)
        slight = TOLERANCE * min(abs(total), largest)
        if nearest is None or everything(nearest, before, after):
            return True  # it calls everything else, too
        return abs(nearest.difference) <= max(2 * nearest.error, slight)

    groups = [group for key in free if (group := exchange(key, [one for one in free if near(key, one)], rows))]
    while groups := [group for group in groups if kept(group)]:
        best = min(groups, key=lambda group: abs(gained(group, rows)) / max(abs(rows[one].difference) for one in group))
        free = [key for key in free if key not in best]
        key, *others = best
        yield {key: others[0], **dict.fromkeys(others, key)}
        groups = [group for key in free if (group := exchange(key, [one for one in free if near(key, one)], rows))]


def everything(row: FunctionRow, before: Side, after: Side) -> bool:
    """Whether a function, whose costs are with all that it calls, calls almost all that has known callers."""
    return row.parent >= ALL * before.root and row.culprit >= ALL * after.root


def exchange(key: Key, others: Sequence[Key], rows: Mapping[Key, FunctionRow]) -> list[Key]:
    """The function ``key`` and those of the others that together gained what it lost, or lost what it gained.

    The largest of them is first. Empty where there are none.
    """
    own = rows[key].difference
    chosen = [key]
    for candidate in sorted(others, key=lambda candidate: (abs(own + rows[candidate].difference), candidate)):
        wider = [*chosen, candidate]
        opposite = rows[candidate].difference * own < 0
        if opposite and gained(wider, rows) / own >= -slack(wider, rows) / abs(own):
            chosen = wider
    fits = len(chosen) > 1 and abs(gained(chosen, rows)) <= slack(chosen, rows)
    return [key, *sorted(chosen[1:], key=lambda candidate: -abs(rows[candidate].difference))] if fits else []


def gained(keys: Iterable[Key], rows: Mapping[Key, FunctionRow]) -> float:
    """The difference of several functions together."""
    return sum(rows[key].difference for key in keys)


def slack(keys: Sequence[Key], rows: Mapping[Key, FunctionRow]) -> float:
    """By how much what was lost and what was gained may differ: by noise, and not by much."""
    largest = max(abs(rows[key].difference) for key in keys)
    return min(2 * math.sqrt(sum(rows[key].error ** 2 for key in keys)), largest / 3)


def shortened(rows: Sequence[FunctionRow]) -> Sequence[FunctionRow]:
    """The first rows, and one for all others together."""
    first, further = rows[:MOST], rows[MOST:]
    parent, culprit = sum(row.parent for row in further), sum(row.culprit for row in further)
    others = FunctionRow(OTHERS, "", parent, culprit, whole(further)[1], sum(row.part for row in further))
    return [*first, others] if further else first


def marked(
    rows: Sequence[FunctionRow], both: Sides, change: ChangeFacts, seen: Collection[str]
) -> Iterator[FunctionRow]:
    """The rows with what the commit changes: their own code, that of functions inlined into them, or what calls them.

    Functions of the binaries of `SYSTEM`, the kernel and libc, are not changed, whatever their names.
    """
    changed, bodies = of_change(change, seen, both)
    own = changed | bodies.keys()
    low, high = (under(own, runs) for runs in both)
    for row in rows:
        if row.function in own and not SYSTEM.match(row.binary):
            is_changed = row.function in changed
            yield replace(row, changed=is_changed, inlined=() if is_changed else bodies[row.function])
            continue
        before, after = (side.get(row.key, {}) for side in (low, high))
        grown = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in own}
        most = max(sorted(grown), key=lambda name: grown[name] * math.copysign(1, row.difference), default="")
        enough = most and grown[most] * row.difference > MOSTLY * row.difference**2
        yield replace(row, below=most) if enough else row


def of_change(change: ChangeFacts, seen: Collection[str], both: Sides) -> tuple[set[str], dict[str, tuple[str, ...]]]:
    """The functions among ``seen`` that a commit changes, and those into which it changes something that is inlined.

    Not one that calls everything else, and costs nothing itself: what is said to be inlined there may never run.
    """
    wanted = {split(function)[1] for function in change.functions}
    changed = {each for each in seen if split(each)[1] in wanted and any(same(each, one) for one in change.functions)}
    before, after = map(side_of, both)
    with_calls = rows_of((before.inclusive, after.inclusive))
    around = {key for key, row in with_calls.items() if everything(row, before, after)}
    empty = {key[0] for key in around if side_share(key, before) + side_share(key, after) < NAMED_PART}
    return changed, {name: into for name, into in inlined(change, seen) if name not in empty}


def side_share(key: Key, side: Side) -> float:
    """The share of the cost of a build that is a function's own."""
    return side.own.cost.get(key, 0.0) / (side.whole or 1.0)


def under(own: Collection[str], profiles: Sequence[ProfileFacts]) -> Mapping[Key, Mapping[str, float]]:
    """Function → cost per operation of its stacks by the nearest function above it that is among ``own``."""
    operations = sum(run.operations for run in profiles)
    costs: defaultdict[Key, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for run in profiles:
        for stack, cost in run.stacks.items():
            *above, last = keys_of(stack)
            callers = (function for function, binary in reversed(above) if not SYSTEM.match(binary))
            if nearest := next((function for function in callers if function in own), None):
                costs[last][nearest] += cost / operations
    return costs


def inlined(change: ChangeFacts, seen: Collection[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each function among ``seen``, those of the profiles, with those that the commit changes and that are inlined into it.

    No profile contains these, and the source code says that it calls them, directly or by way of others that the
    profiles lack, too. The nearest come first.
    """
    named: dict[str, list[str]] = {}
    for name in seen:
        named.setdefault(split(name)[1], []).append(name)
    bodies_of: dict[str, dict[str, int]] = {}  # with their distance
    for function in change.functions:
        if split(function)[1] in named:
            continue
        waiting, done = [(function, 0)], {function}
        for callee, steps in waiting:
            for caller in change.callers.get(callee, ()):
                into = [name for name in named.get(split(caller)[1], ()) if same(name, caller)]
                for name in into:
                    bodies_of.setdefault(name, {}).setdefault(function, steps)
                if not into and caller not in done:
                    done.add(caller)
                    waiting.append((caller, steps + 1))
    return ((function, tuple(sorted(bodies, key=bodies.__getitem__))) for function, bodies in bodies_of.items())


def whole(rows: Sequence[FunctionRow]) -> tuple[float, float]:
    """The difference of all functions together, and its standard error."""
    return sum(row.difference for row in rows), math.sqrt(sum(row.error**2 for row in rows))


def part_error(some: Sequence[FunctionRow], rows: Sequence[FunctionRow], shared: float = 0.0) -> float:
    """The standard error of the share of some rows in the whole difference; by the delta method.

    ``shared`` is a relative error that the costs of all have in common: of a share of the difference as large as that of
    the cost it changes nothing.
    """
    total, spread = whole(rows)
    own, noise = whole(some)
    if not total:
        return math.inf
    share = own / total
    common = shared * (sum(row.culprit for row in some) - share * sum(row.culprit for row in rows))
    error = (1 - share) ** 2 * noise**2 + share**2 * max(0.0, spread**2 - noise**2) + common**2
    return math.sqrt(error) / abs(total)


def telling_rows(rows: Sequence[FunctionRow]) -> list[FunctionRow]:
    """The functions that differ beyond noise, without those whose cost has only moved."""
    return [row for row in rows if row.beyond_noise and not row.partner and row.function != OTHERS]


def exchanges(rows: Sequence[FunctionRow]) -> list[tuple[list[FunctionRow], list[FunctionRow]]]:
    """The functions that lost cost to others, and these; the largest of each first."""
    partners = {row.function: row.partner for row in rows if row.partner}
    groups: dict[frozenset[str], tuple[list[FunctionRow], list[FunctionRow]]] = {}
    for row in sorted(rows, key=lambda row: row.difference > 0):
        if row.partner:  # two of a group have each other, all further ones the first of these
            group = groups.setdefault(frozenset((row.partner, partners.get(row.partner, ""))), ([], []))
            group[row.difference > 0].append(row)
    by_size = ([sorted(side, key=lambda row: -abs(row.difference)) for side in group] for group in groups.values())
    return [(sources, to) for sources, to in by_size if sources and to]
