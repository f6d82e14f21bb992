"""Instructions counted one by one, function by function, and how often one function calls another. Pure.

A stack of such ``ProfileFacts`` is a function and those that are inlined into it, outermost first. A host has added up equal
ones (``lab/measure/counting.py``) and prints lines as of profiles, "INSTRUCTIONS 1 PROGRAM FRAME …" with tabs between, and
"N calls CALLEE CALLER". All of an execution is counted; of two, what the longer one has beyond the shorter.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from perfbisect.core.domain.facts import ChangeFacts, ProfileFacts
from perfbisect.core.explain.evidence import FunctionRow
from perfbisect.core.explain.functions import MOSTLY, Key, function_rows, functions_in, key_of
from perfbisect.core.explain.profiles import SEPARATOR, fold, frames, readable

LEVELS = 5  # of calls from a function that the commit changes to one that it calls more often
CALLS = 5000  # pairs of caller and callee that are kept, those with most calls
_NUMBER = re.compile(r"[0-9]{1,18}")


def counts_of(short: Iterable[str], long: Iterable[str]) -> tuple[dict[str, float], dict[str, float]]:
    """The stacks and the calls that were counted in a ``long`` execution and not in a ``short`` one, in what a host printed."""
    beyond = counted(long) - counted(short)
    calls: Counter[str] = Counter()
    for what, number in beyond.items():
        kind, *pair = what.split("\t")
        if kind == "calls" and len(pair) == 2:
            calls[SEPARATOR.join(readable(each) for each in reversed(pair))] += number
    stacks = fold(f"{number}\t{what}" for what, number in beyond.items()).stacks
    return dict(stacks), {pair: float(number) for pair, number in calls.most_common(CALLS)}


def counted(lines: Iterable[str]) -> Counter[str]:
    """What was counted → its number."""
    found: Counter[str] = Counter()
    for line in lines:
        number, _, what = line.partition("\t")
        if _NUMBER.fullmatch(number):
            found[what] += int(number)
    return found


Calls = Mapping[Key, Mapping[Key, float]]  # function → what calls it → how often in an operation


def count_rows(
    parent: Sequence[ProfileFacts], culprit: Sequence[ProfileFacts], change: ChangeFacts | None = None
) -> tuple[FunctionRow, ...]:
    """As ``function_rows``, of instructions; where they are counted exactly, with calls."""
    both = (*parent, *culprit)
    rows = function_rows(parent, culprit, change, functions_in(both, inlined=True))
    stacks = [stack for run in both if not run.samples for stack in reversed([*run.stacks])]  # what costs most is last
    chains = [[key_of(each) for each in frames(stack)] for stack in stacks]
    inlined = {inner: outer for chain in chains for outer, inner in pairwise(chain)}
    before, after = (calls_of(runs) for runs in (parent, culprit))
    changed = above(rows, before, after)
    called = {key: (sum(before.get(key, {}).values()), sum(after.get(key, {}).values())) for key in {*before, *after}}

    def with_calls(row: FunctionRow) -> FunctionRow:
        key = row.function, row.binary
        if outer := inlined.get(key):
            return replace(row, into=outer[0], below=changed.get(outer, row.below))
        return replace(row, calls=called.get(key), below=changed.get(key, row.below))

    return tuple(map(with_calls, rows))


def calls_of(runs: Sequence[ProfileFacts]) -> Calls:
    """The calls of each function, without those by which the parts of a function that the compiler has split call each other."""
    operations, found = sum(run.operations for run in runs), dict[Key, dict[Key, float]]()
    for run in runs:
        for pair, number in run.calls.items():
            caller, _, callee = pair.partition(SEPARATOR)
            if caller == callee or key_of(caller) != key_of(callee):
                callers = found.setdefault(key_of(callee), {})
                callers[key_of(caller)] = callers.get(key_of(caller), 0.0) + number / operations
    return found


def above(rows: Sequence[FunctionRow], before: Calls, after: Calls) -> dict[Key, str]:
    """The functions that the commit leaves as they are, and the changed one due to which each is called more or less often,
    by others than itself."""
    own = {(row.function, row.binary): row.function for row in rows if row.changed or row.inlined}
    found = dict(own)
    for _ in range(LEVELS):
        for key in sorted({*before, *after} - found.keys()):
            low, high = before.get(key, {}), after.get(key, {})
            grown = {caller: high.get(caller, 0.0) - low.get(caller, 0.0) for caller in {*low, *high} - {key}}
            total = sum(grown.values())
            due: dict[str, float] = {}
            for caller in sorted(found.keys() & grown.keys()):
                due[found[caller]] = due.get(found[caller], 0.0) + grown[caller] * total
            most = max(due, key=lambda one: due[one], default=None)
            if most and due[most] > MOSTLY * total**2 > 0:
                found[key] = most
    return {key: function for key, function in found.items() if key not in own}
