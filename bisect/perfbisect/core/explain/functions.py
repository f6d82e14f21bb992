"""Compares the costs per operation of functions in two builds, and finds the functions that the commit changes.

The self cost of a function is the cost of its own code, without its callees: samples × period ÷ operations, over all
runs of a build. So the differences of all functions add up to the difference between the builds.

A number of samples has a Poisson distribution, so its standard deviation is the square root of the number. The spread
of the differences between rounds shows further sources of variation. The error is the larger of the Poisson error and
the spread. Exact counts repeat to parts per million of the total.

A refactoring moves cost between functions: one function lost an amount of cost that other functions gained, and the
amount is larger than the noise. Functions that exchange cost call each other or have a common caller; or one function
disappeared and another is new, as after renaming. Cost has moved between functions if their nearest common caller,
including its callees, costs as much as before.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import stdev

from perfbisect.core.domain.facts import ChangeFacts, ProfileFacts
from perfbisect.core.explain.evidence import MIN_EXACT_ERROR, OTHER_FUNCTIONS, FunctionRow, total_difference
from perfbisect.core.explain.profiles import (
    NO_CALLERS,
    SYSTEM_BINARY,
    UNKNOWN,
    FunctionKey,
    ProfilesOfBoth,
    function_key,
    functions_in,
    may_be_same,
    scope_and_name,
    stack_frames,
    without_system_frames,
)

NAMED_PART = 0.1  # smallest share of the total difference of a function that is named beside others
SURE_ERRORS = 5.0  # smallest difference that is stated without “Probably”, in standard errors of the difference
MAX_ROWS = 200  # functions with a separate row
MAX_CALLERS = 5
MAX_EXAMINED = 60  # number of functions between which moved cost is sought, largest differences first
MIN_MOVED_SHARE = 0.005  # smallest moved cost that is reported, as a share of the cost of an operation
ALMOST_ALL = 0.95  # a function with this share of the total cost does not locate a difference
MAIN_SHARE = 0.5  # smallest share of a difference that is attributed to a caller
MOVED_TOLERANCE = 0.1  # largest imbalance of moved cost, as a share of the cost


Costs = defaultdict[FunctionKey, float]


def caller_cost_table() -> defaultdict[FunctionKey, Costs]:
    """An empty table: function → caller → cost."""
    return defaultdict(lambda: defaultdict(float))


@dataclass(slots=True)
class FunctionCosts:
    """The costs per operation of the functions of a build: either all self costs, or all costs including callees."""

    cost: Costs = field(default_factory=lambda: defaultdict(float))
    variance: Costs = field(default_factory=lambda: defaultdict(float))
    unsampled_variance: float = 0.0  # variance of a function without a sample: the variance of a single sample
    rounds: list[dict[FunctionKey, float]] = field(default_factory=list)


def function_costs(
    profiles: Sequence[ProfileFacts], charged_functions: Callable[[Sequence[FunctionKey]], Iterable[FunctionKey]]
) -> FunctionCosts:
    """The costs per operation over all runs of a build.

    ``charged_functions`` maps a stack, outermost function first, to the functions that are charged with its cost.
    """
    totals = FunctionCosts()
    operations = sum(run.operations for run in profiles)
    for run in profiles:
        costs: Costs = defaultdict(float)
        for stack, cost in run.stacks.items():
            for key in charged_functions(stack_keys(stack)):
                costs[key] += cost
        total = sum(run.stacks.values())
        period = total / run.samples if run.samples else 0.0
        unsampled_variance = ((period if run.samples else MIN_EXACT_ERROR * total) / operations) ** 2
        for key, cost in costs.items():
            totals.cost[key] += cost / operations
            totals.variance[key] += period * cost / operations**2 if run.samples else unsampled_variance
        totals.unsampled_variance = max(totals.unsampled_variance, unsampled_variance)
        totals.rounds.append({key: cost / run.operations for key, cost in costs.items()})
    return totals


@dataclass(slots=True)
class BuildCosts:
    """The costs of the functions of one build, and their callers."""

    own: FunctionCosts
    inclusive: FunctionCosts
    costs_by_caller: defaultdict[FunctionKey, Costs] = field(
        default_factory=caller_cost_table
    )  # totals, not per operation
    ancestors: defaultdict[FunctionKey, set[FunctionKey]] = field(
        default_factory=lambda: defaultdict(set)
    )  # callers of the function, callers of these callers, …, and the function itself
    depth_sums: Costs = field(
        default_factory=lambda: defaultdict(float)
    )  # sum of position in stacks × cost per operation

    @property
    def total(self) -> float:
        """The total cost of all functions per operation."""
        return sum(self.own.cost.values())

    @property
    def largest_inclusive(self) -> float:
        """The largest cost of any function, including its callees, per operation."""
        return max(self.inclusive.cost.values(), default=0.0)


def build_costs(profiles: Sequence[ProfileFacts]) -> BuildCosts:
    """The self costs, the costs including callees, and the callers of all functions, over all runs of a build."""
    build = BuildCosts(function_costs(profiles, lambda keys: keys[-1:]), function_costs(profiles, known_functions))
    operations = sum(run.operations for run in profiles)
    for run in profiles:
        for stack, cost in run.stacks.items():
            *outer_keys, leaf = stack_keys(stack)
            build.ancestors[leaf] |= known_functions([*outer_keys, leaf])
            for depth, key in enumerate([*outer_keys, leaf]):
                build.depth_sums[key] += depth * cost / operations
            if caller := next((key for key in reversed(outer_keys) if key != leaf and key[0] not in NO_CALLERS), None):
                build.costs_by_caller[leaf][caller] += cost
    return build


def mean_depth(key: FunctionKey, *builds: BuildCosts) -> float:
    """The mean depth of a function in stacks, weighted by cost. A callee is deeper than its only caller."""
    cost = sum(build.inclusive.cost.get(key, 0.0) for build in builds)
    return sum(build.depth_sums[key] for build in builds) / (cost or 1.0)


def stack_keys(stack: str) -> list[FunctionKey]:
    """The functions of a stack, outermost first; the program if the stack has no function."""
    return [function_key(text) for text in stack_frames(stack)] or [function_key(stack)]


def known_functions(keys: Iterable[FunctionKey]) -> set[FunctionKey]:
    """The keys of functions, without placeholders for unknown callers."""
    return {key for key in keys if key[0] not in NO_CALLERS}


def off_cpu_rows(
    profiles: ProfilesOfBoth, change: ChangeFacts | None = None, function_names: Collection[str] | None = None
) -> tuple[FunctionRow, ...]:
    """The rows of ``function_rows`` for off-CPU profiles. A wait is charged to the function that called the library or
    the kernel.

    All threads wait in the kernel's scheduler, and most threads call it through a library of their language. Stacks of
    interrupted threads are excluded, because such threads waited only for a processor. Idle threads wait as long as the
    other threads work, so the costs of the parent are scaled to the duration of an operation of the culprit. The result
    is empty for fewer than two rounds, because the variation of waits is estimated from the differences between rounds.
    """
    if min(map(len, profiles)) < 2:
        return ()
    parent, culprit = (sum(run.seconds for run in runs) / sum(run.operations for run in runs) for runs in profiles)
    scale = culprit / parent if parent else 1.0
    waits = [without_system_frames(run, scale) for run in profiles[0]], [*map(without_system_frames, profiles[1])]
    return function_rows(waits, change, function_names)


def function_rows(
    profiles: ProfilesOfBoth, change: ChangeFacts | None = None, function_names: Collection[str] | None = None
) -> tuple[FunctionRow, ...]:
    """The functions of both builds, largest difference first. Functions that exchanged cost are ordered by the net
    difference of their group.

    ``profiles`` are returned by ``comparable_profiles``, in order of time. ``function_names`` are the functions that
    occur in profiles of the builds and are not inlined everywhere; the default is the functions in ``profiles``.
    """
    if not all(profiles):
        return ()
    before, after = map(build_costs, profiles)
    by_key = cost_rows((before.own, after.own))
    by_key = {key: replace(row, callers=main_callers(key, before, after)) for key, row in by_key.items()}
    rank = {key: abs(row.difference) for key, row in by_key.items()}
    for group in exchange_groups(by_key, before, after):
        remainder = abs(net_difference(group, by_key))
        for key, partner in group.items():
            by_key[key], rank[key] = replace(by_key[key], partner=partner[0]), remainder
    rows = with_summary_row([by_key[key] for key in sorted(by_key, key=lambda key: -rank[key])])
    names = functions_in(chain(*profiles)) if function_names is None else function_names
    return tuple(with_commit_changes(rows, profiles, change, names) if change else rows)


def cost_rows(builds: Iterable[FunctionCosts], total: float = 0.0) -> dict[FunctionKey, FunctionRow]:
    """The functions of two builds with their costs. The part of a function is its difference as a share of ``total``;
    by default, ``total`` is the sum of all differences."""
    before, after = builds
    total = total or sum(after.cost.values()) - sum(before.cost.values())
    rows = {}
    for key in sorted(before.cost.keys() | after.cost.keys()):
        parent, culprit = before.cost.get(key, 0.0), after.cost.get(key, 0.0)
        part = (culprit - parent) / total if total else 0.0
        rows[key] = FunctionRow(*key, parent, culprit, difference_error(key, before, after), part)
    return rows


def difference_error(key: FunctionKey, before: FunctionCosts, after: FunctionCosts) -> float:
    """The standard error of the difference between the costs of a function in two builds."""
    counted = math.sqrt(sum(build.variance.get(key, build.unsampled_variance) for build in (before, after)))
    rounds = zip(before.rounds, after.rounds, strict=False)
    differences = [culprit.get(key, 0.0) - parent.get(key, 0.0) for parent, culprit in rounds]
    return max(counted, stdev(differences) / math.sqrt(len(differences))) if len(differences) > 1 else counted


def main_callers(key: FunctionKey, before: BuildCosts, after: BuildCosts) -> tuple[str, ...]:
    """The callers that account for most of a function's cost, largest share first, in the build where the function
    costs more."""
    build = max((after, before), key=lambda build: build.own.cost.get(key, 0.0))
    costs: Mapping[FunctionKey, float] = build.costs_by_caller.get(key, {})
    return tuple(function for function, _ in sorted(costs, key=lambda caller: (-costs[caller], caller))[:MAX_CALLERS])


def exchange_groups(
    rows: Mapping[FunctionKey, FunctionRow], before: BuildCosts, after: BuildCosts
) -> Iterator[Mapping[FunctionKey, FunctionKey]]:
    """Groups of functions that exchanged cost: a function that lost (gained) cost, and partners that gained (lost) it.

    Each group maps a function to its partner. The partner of the first function is the function with which it exchanged
    most; the partner of all other functions is the first function. A function that fits into several groups is put into
    the group in which lost and gained costs agree best.
    """
    smallest_cost = MIN_MOVED_SHARE * max(before.total, after.total)
    differing = [key for key, row in rows.items() if row.beyond_noise and abs(row.difference) > smallest_cost]
    free = sorted(differing, key=lambda key: -abs(rows[key].difference))[:MAX_EXAMINED]
    callers = {key: {*before.costs_by_caller.get(key, ()), *after.costs_by_caller.get(key, ())} for key in free}
    have_callers = bool(before.costs_by_caller and after.costs_by_caller)
    with_calls = cost_rows((before.inclusive, after.inclusive))
    total = after.total - before.total

    def are_related(first: FunctionKey, second: FunctionKey) -> bool:
        """Whether one of the functions calls the other, or both have a common caller, or each is missing in one of the
        builds."""
        if UNKNOWN in (first[1], second[1]):
            return False
        missing = [not rows[key].parent or not rows[key].culprit for key in (first, second)]
        is_caller = first in callers[second] or second in callers[first] or bool(callers[first] & callers[second])
        return is_caller or all(missing) or (any(missing) and not have_callers)

    def has_constant_total(group: Sequence[FunctionKey]) -> bool:
        """Whether the nearest common ancestor of the group, or a member that calls the rest, costs as much as before."""
        shared = set.intersection(
            *(before.ancestors.get(key, set()) | after.ancestors.get(key, set()) for key in group)
        )
        ancestors = (with_calls[key] for key in shared)
        nearest = max(ancestors, key=lambda row: mean_depth(row.key, before, after), default=None)
        tolerance = MOVED_TOLERANCE * min(abs(total), largest_difference(group))
        if nearest is None or calls_almost_everything(nearest, before, after):
            return True  # the ancestor calls all other functions, too
        return abs(nearest.difference) <= max(2 * nearest.error, tolerance)

    def largest_difference(group: Sequence[FunctionKey]) -> float:
        return max(abs(rows[key].difference) for key in group)

    def all_groups() -> Iterator[list[FunctionKey]]:
        return (exchange_partners(key, [other for other in free if are_related(key, other)], rows) for key in free)

    groups = [group for group in all_groups() if group]
    while groups := [group for group in groups if has_constant_total(group)]:
        best = min(groups, key=lambda group: abs(net_difference(group, rows)) / largest_difference(group))
        free = [key for key in free if key not in best]
        first, *partners = best
        yield {first: partners[0], **dict.fromkeys(partners, first)}
        groups = [group for group in all_groups() if group]


def calls_almost_everything(row: FunctionRow, before: BuildCosts, after: BuildCosts) -> bool:
    """Whether a function's costs including callees are almost as large as the largest such costs of any function, in
    both builds."""
    return row.parent >= ALMOST_ALL * before.largest_inclusive and row.culprit >= ALMOST_ALL * after.largest_inclusive


def exchange_partners(
    key: FunctionKey, candidates: Sequence[FunctionKey], rows: Mapping[FunctionKey, FunctionRow]
) -> list[FunctionKey]:
    """The function ``key``, and candidates that together gained the cost that ``key`` lost, or the reverse.

    The largest candidate follows ``key``. The list is empty if no candidates together match the cost.
    """
    own_difference = rows[key].difference
    group = [key]
    for candidate in sorted(candidates, key=lambda other: (abs(own_difference + rows[other].difference), other)):
        wider = [*group, candidate]
        is_opposite = rows[candidate].difference * own_difference < 0
        net = net_difference(wider, rows)
        if is_opposite and net / own_difference >= -exchange_tolerance(wider, rows) / abs(own_difference):
            group = wider
    is_balanced = len(group) > 1 and abs(net_difference(group, rows)) <= exchange_tolerance(group, rows)
    return [key, *sorted(group[1:], key=lambda candidate: -abs(rows[candidate].difference))] if is_balanced else []


def net_difference(keys: Iterable[FunctionKey], rows: Mapping[FunctionKey, FunctionRow]) -> float:
    """The sum of the differences of several functions."""
    return sum(rows[key].difference for key in keys)


def exchange_tolerance(keys: Sequence[FunctionKey], rows: Mapping[FunctionKey, FunctionRow]) -> float:
    """The tolerated gap between lost and gained cost: 2 standard errors, at most a third of the largest difference."""
    largest = max(abs(rows[key].difference) for key in keys)
    return min(2 * math.sqrt(sum(rows[key].error ** 2 for key in keys)), largest / 3)


def with_summary_row(rows: Sequence[FunctionRow]) -> Sequence[FunctionRow]:
    """The first ``MAX_ROWS`` rows, and one row with the sums of all further rows."""
    first_rows, further = rows[:MAX_ROWS], rows[MAX_ROWS:]
    parent, culprit = sum(row.parent for row in further), sum(row.culprit for row in further)
    error, part = total_difference(further)[1], sum(row.part for row in further)
    return [*first_rows, FunctionRow(OTHER_FUNCTIONS, "", parent, culprit, error, part)] if further else first_rows


def with_commit_changes(
    rows: Sequence[FunctionRow], profiles: ProfilesOfBoth, change: ChangeFacts, function_names: Collection[str]
) -> Iterator[FunctionRow]:
    """The rows with the commit's changes added: changes to the function, to functions inlined into it, or to its
    callers. Functions of the kernel and of libc (``SYSTEM_BINARY``) are treated as unchanged, even if the commit
    changes functions with the same names."""
    changed, bodies = changed_and_inlined(change, function_names, profiles)
    changed_names = changed | bodies.keys()
    below_in_parent, below_in_culprit = (costs_below(changed_names, runs) for runs in profiles)
    for row in rows:
        if row.function in changed_names and not SYSTEM_BINARY.match(row.binary):
            is_changed = row.function in changed
            yield replace(row, changed=is_changed, inlined=() if is_changed else bodies[row.function])
            continue
        before, after = below_in_parent.get(row.key, {}), below_in_culprit.get(row.key, {})
        growth = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in changed_names}
        sign = math.copysign(1, row.difference)
        cause = max(sorted(growth), key=lambda name: growth[name] * sign, default="")
        is_main_cause = cause and growth[cause] * row.difference > MAIN_SHARE * row.difference**2
        yield replace(row, below_changed=cause) if is_main_cause else row


def changed_and_inlined(
    change: ChangeFacts, function_names: Collection[str], profiles: ProfilesOfBoth
) -> tuple[set[str], dict[str, tuple[str, ...]]]:
    """The functions among ``function_names`` that a commit changes; and a map from a function to the changed functions
    that are inlined into it. A function that calls all other functions and has almost no self cost is not in the second
    result, because the functions inlined into such a function may never run."""
    short_names = {scope_and_name(function)[1] for function in change.functions}
    named_alike = [name for name in function_names if scope_and_name(name)[1] in short_names]
    changed = {name for name in named_alike if any(may_be_same(name, function) for function in change.functions)}
    before, after = map(build_costs, profiles)
    with_calls = cost_rows((before.inclusive, after.inclusive))
    outermost = {key for key, row in with_calls.items() if calls_almost_everything(row, before, after)}
    empty = {key[0] for key in outermost if own_share(key, before) + own_share(key, after) < NAMED_PART}
    inlined = inlined_changes(change, function_names)
    return changed, {name: inlined_names for name, inlined_names in inlined if name not in empty}


def own_share(key: FunctionKey, build: BuildCosts) -> float:
    """The self cost of a function as a share of the cost of the build."""
    return build.own.cost.get(key, 0.0) / (build.total or 1.0)


def costs_below(names: Collection[str], profiles: Sequence[ProfileFacts]) -> Mapping[FunctionKey, Mapping[str, float]]:
    """Function → its nearest ancestor among ``names`` → cost per operation of the function in calls by this
    ancestor."""
    operations = sum(run.operations for run in profiles)
    costs: defaultdict[FunctionKey, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for run in profiles:
        for stack, cost in run.stacks.items():
            *outer_keys, leaf = stack_keys(stack)
            callers = (function for function, binary in reversed(outer_keys) if not SYSTEM_BINARY.match(binary))
            if nearest := next((function for function in callers if function in names), None):
                costs[leaf][nearest] += cost / operations
    return costs


def inlined_changes(change: ChangeFacts, function_names: Collection[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """For each function among ``function_names``, the changed functions that are inlined into it, nearest callee first.
    Profiles do not contain inlined functions as functions of their own. The source code shows that the function calls
    the inlined function: directly, or through other functions that are also missing in all profiles."""
    names_by_short_name: dict[str, list[str]] = {}
    for name in function_names:
        names_by_short_name.setdefault(scope_and_name(name)[1], []).append(name)
    bodies_of: dict[str, dict[str, int]] = {}  # function → functions in its body → distance of the call
    for function in change.functions:
        if scope_and_name(function)[1] in names_by_short_name:
            continue
        queue, visited = [(function, 0)], {function}
        for callee, distance in queue:
            for caller in change.callers.get(callee, ()):
                named_alike = names_by_short_name.get(scope_and_name(caller)[1], ())
                targets = [name for name in named_alike if may_be_same(name, caller)]
                for name in targets:
                    bodies_of.setdefault(name, {}).setdefault(function, distance)
                if not targets and caller not in visited:
                    visited.add(caller)
                    queue.append((caller, distance + 1))
    return ((function, tuple(sorted(bodies, key=bodies.__getitem__))) for function, bodies in bodies_of.items())
