"""The functions of two builds beside each other: what each costs per operation, and what of it the commit changes. Pure.

The cost of a function is what its own code costs, without what it calls: samples × period ÷ operations, over all runs of a
build. So differences of functions sum to the difference of the whole.

A number of samples is Poisson's, with a standard deviation of its root; where there are several rounds, the spread of the
differences between them shows what else varies, and the larger of the two is the error. Exact counts repeat to parts per
million of the whole.

A refactoring moves cost from one function to others. A function that lost what others gained, beyond noise, is reported as
moved, if one of them is called by the other, or both by a third, or if the one is gone and the other new, as after a change
of its name.

Where instructions are counted one by one, a stack is a function and those that are inlined into it, outermost first, and
it is known how often one function calls another.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from statistics import stdev

from perfbisect.core.domain.facts import ChangeFacts, ProfileFacts
from perfbisect.core.explain.evidence import EXACT, FunctionRow
from perfbisect.core.explain.profiles import (
    NO_CALLERS,
    SEPARATOR,
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
MOSTLY = 0.5  # share of a difference from which on it is that of a caller
TOLERANCE = 0.1  # share of a moved cost that may be left over
LEVELS = 5  # of calls from a function that the commit changes to one that it calls more often


Costs = defaultdict[Key, float]


def table() -> defaultdict[Key, Costs]:
    """Costs of each function by another one."""
    return defaultdict(lambda: defaultdict(float))


@dataclass(slots=True)
class Side:
    """The costs of one build; all are per operation but for those in ``callers``."""

    cost: Costs = field(default_factory=lambda: defaultdict(float))
    variance: Costs = field(default_factory=lambda: defaultdict(float))
    least: float = 0.0  # variance of a function without a sample: that of a single one
    rounds: list[dict[Key, float]] = field(default_factory=list)
    callers: defaultdict[Key, Costs] = field(default_factory=table)

    @property
    def whole(self) -> float:
        """The cost of all functions."""
        return sum(self.cost.values())


def side_of(profiles: Sequence[ProfileFacts]) -> Side:
    """The costs of a build in all its runs together."""
    side = Side()
    operations = sum(run.operations for run in profiles)
    for run in profiles:
        costs: Costs = defaultdict(float)
        total = sum(run.stacks.values())
        period = total / run.samples if run.samples else 0.0
        least = ((period if run.samples else EXACT * total) / operations) ** 2
        for stack, cost in run.stacks.items():
            *chain, last = [key_of(text) for text in frames(stack)] or [key_of(stack)]
            costs[last] += cost
            if caller := next((key for key in reversed(chain) if key != last and key[0] not in NO_CALLERS), None):
                side.callers[last][caller] += cost
        for key, cost in costs.items():
            side.cost[key] += cost / operations
            side.variance[key] += period * cost / operations**2 if run.samples else least
        side.least = max(side.least, least)
        side.rounds.append({key: cost / run.operations for key, cost in costs.items()})
    return side


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
    whole = after.whole - before.whole
    by_key = {}
    for key in sorted(before.cost.keys() | after.cost.keys()):
        low, high = before.cost.get(key, 0.0), after.cost.get(key, 0.0)
        part = (high - low) / whole if whole else 0.0
        by_key[key] = FunctionRow(*key, low, high, error(key, before, after), part, callers=callers(key, before, after))
    rank = {key: abs(row.difference) for key, row in by_key.items()}
    for group in moved(by_key, before, after):
        remainder = abs(gained(group, by_key))
        for key, partner in group.items():
            by_key[key], rank[key] = replace(by_key[key], partner=partner[0]), remainder
    rows = shortened([by_key[key] for key in sorted(by_key, key=lambda key: -rank[key])])
    return tuple(marked(rows, both, change, functions_in(chain(*both)) if seen is None else seen) if change else rows)


def error(key: Key, before: Side, after: Side) -> float:
    """The standard error of the difference of a function."""
    counted = math.sqrt(sum(side.variance.get(key, side.least) for side in (before, after)))
    pairs = [high.get(key, 0.0) - low.get(key, 0.0) for low, high in zip(before.rounds, after.rounds, strict=False)]
    return max(counted, stdev(pairs) / math.sqrt(len(pairs))) if len(pairs) > 1 else counted


def callers(key: Key, before: Side, after: Side) -> tuple[str, ...]:
    """The functions that call it, in the build in which it costs more; those with most of its cost first."""
    side = max((after, before), key=lambda side: side.cost.get(key, 0.0))
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

    def near(one: Key, other: Key) -> bool:
        if UNKNOWN in (one[1], other[1]):
            return False
        missing = [not rows[key].parent or not rows[key].culprit for key in (one, other)]
        related = one in above[other] or other in above[one] or bool(above[one] & above[other])
        return related or all(missing) or (any(missing) and not chains)

    while groups := [group for key in free if (group := exchange(key, [one for one in free if near(key, one)], rows))]:
        best = min(groups, key=lambda group: abs(gained(group, rows)) / max(abs(rows[one].difference) for one in group))
        free = [key for key in free if key not in best]
        key, *others = best
        yield {key: others[0], **dict.fromkeys(others, key)}


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
    """By how much what was lost and what was gained may differ: by noise, or a small part of it, which is reported as left over."""
    largest = max(abs(rows[key].difference) for key in keys)
    noise = 2 * math.sqrt(sum(rows[key].error ** 2 for key in keys))
    return min(max(noise, TOLERANCE * largest), largest / 3)


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
    wanted = {split(function)[1] for function in change.functions}
    changed = {each for each in seen if split(each)[1] in wanted and any(same(each, one) for one in change.functions)}
    bodies = dict(inlined(change, seen))
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


def under(own: Collection[str], profiles: Sequence[ProfileFacts]) -> Mapping[Key, Mapping[str, float]]:
    """Function → cost per operation of its stacks by the nearest function above it that is among ``own``."""
    operations = sum(run.operations for run in profiles)
    costs: defaultdict[Key, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for run in profiles:
        for stack, cost in run.stacks.items():
            *above, last = [key_of(text) for text in frames(stack)] or [("", "")]
            callers = (function for function, binary in reversed(above) if not SYSTEM.match(binary))
            if nearest := next((function for function in callers if function in own), None):
                costs[last][nearest] += cost / operations
    return costs


def inlined(change: ChangeFacts, seen: Collection[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each function among ``seen``, those of the profiles, with those that the commit changes and that are inlined into it.

    No profile contains these, and the source code says that it calls them, directly or by way of others that the
    profiles lack, too.
    """
    named: dict[str, list[str]] = {}
    for name in seen:
        named.setdefault(split(name)[1], []).append(name)
    bodies_of: dict[str, dict[str, None]] = {}
    for function in change.functions:
        if split(function)[1] in named:
            continue
        waiting, done = [function], {function}
        while waiting:
            for caller in change.callers.get(waiting.pop(), ()):
                into = [name for name in named.get(split(caller)[1], ()) if same(name, caller)]
                for name in into:
                    bodies_of.setdefault(name, {})[function] = None
                if not into and caller not in done:
                    done.add(caller)
                    waiting.append(caller)
    return ((function, tuple(bodies)) for function, bodies in bodies_of.items())


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


def surplus(group: tuple[Sequence[FunctionRow], Sequence[FunctionRow]]) -> float:
    """By how much functions gained more than others lost to them; 0 where that is noise."""
    left, spread = whole([*group[0], *group[1]])
    return left if abs(left) > 2 * spread else 0.0
