"""Compares the costs per operation of functions in two builds, and finds the functions that the commit changes.

The self cost of a function is the cost of its own code, without its callees: samples × period ÷ operations, over all
runs of a build. The differences of the self costs of all functions add up to the difference between the builds.

A number of samples has a Poisson distribution, so its standard deviation is the square root of the number. The standard
error of a difference is the larger of two estimates: the Poisson error, and the standard error computed from the
differences of the rounds, which also contains other variation. If instructions are counted exactly, the error is
``MIN_EXACT_ERROR`` (parts per million) of the total cost.

A refactoring moves cost between functions: the cost of one function falls, and the costs of other functions rise by the
same amount. Cost can move only between functions that call each other or have a common caller, or between a function
that disappeared and a new function, as after renaming. If the cost of the nearest common caller of the functions,
including its callees, has changed, the cost has not moved."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import stdev

from perfbisect.core.domain.facts import ChangeFacts, ProfileFacts
from perfbisect.core.explain.evidence import MIN_EXACT_ERROR, OTHER_FUNCTIONS, FunctionRow, difference_and_error
from perfbisect.core.explain.profiles import (
    NO_CALLERS,
    SYSTEM_BINARY,
    UNKNOWN,
    FunctionKey,
    ProfilesOfBoth,
    function_key,
    may_be_same,
    non_system_functions,
    scope_and_name,
    stack_frames,
    without_system_leaves,
)

NAMED_PART = 0.1  # a function is named beside other functions if it has at least this share of the total difference
SURE_ERRORS = 5.0  # smallest difference that is stated without “Probably”, in standard errors of the difference
MAX_ROWS = 200  # functions with a separate row
MAX_CALLERS = 5
MAX_EXAMINED = 60  # number of functions between which moved cost is sought, largest differences first
MIN_MOVED_SHARE = 0.005  # smallest moved cost that is reported, as a share of the cost of an operation
ALMOST_ALL = 0.95  # a function with this share of the total cost does not locate a difference
MAIN_SHARE = 0.5  # smallest share of a difference that is attributed to a caller
MOVED_TOLERANCE = 0.1  # largest imbalance of moved cost, as a share of the cost


Costs = defaultdict[FunctionKey, float]


def empty_caller_costs() -> defaultdict[FunctionKey, Costs]:
    """An empty table: function → caller → cost."""
    return defaultdict(lambda: defaultdict(float))


@dataclass(slots=True)
class FunctionCosts:
    """For each function of a build: its cost per operation (self cost, or cost including callees) and the variance."""

    cost: Costs = field(default_factory=lambda: defaultdict(float))
    variance: Costs = field(default_factory=lambda: defaultdict(float))
    unsampled_variance: float = 0.0  # variance of a function without a sample: the variance of a single sample
    rounds: list[dict[FunctionKey, float]] = field(default_factory=list)


def function_costs(
    profiles: Sequence[ProfileFacts], charged_functions: Callable[[Sequence[FunctionKey]], Iterable[FunctionKey]]
) -> FunctionCosts:
    """The cost per operation of each function, over all runs of a build.

    ``charged_functions`` returns, for a stack (outermost function first), the functions to which the cost of the stack
    is added."""
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
    """The costs and the callers of the functions of one build."""

    own: FunctionCosts
    inclusive: FunctionCosts
    # Totals, not per operation.
    costs_by_caller: defaultdict[FunctionKey, Costs] = field(default_factory=empty_caller_costs)
    # Function → its callers, the callers of these callers, …, and the function itself.
    ancestors: defaultdict[FunctionKey, set[FunctionKey]] = field(default_factory=lambda: defaultdict(set))
    # Function → sum of (position in a stack × cost per operation) over all stacks.
    depth_sums: Costs = field(default_factory=lambda: defaultdict(float))

    @property
    def total(self) -> float:
        """The total cost of all functions per operation."""
        return sum(self.own.cost.values())

    @property
    def largest_inclusive(self) -> float:
        """The largest cost per operation of any function including its callees."""
        return max(self.inclusive.cost.values(), default=0.0)


def build_costs(profiles: Sequence[ProfileFacts]) -> BuildCosts:
    """The self costs, the costs including callees, and the callers of all functions, over all runs of a build."""
    build = BuildCosts(function_costs(profiles, lambda keys: keys[-1:]), function_costs(profiles, without_placeholders))
    operations = sum(run.operations for run in profiles)
    for run in profiles:
        for stack, cost in run.stacks.items():
            *outer_keys, leaf = stack_keys(stack)
            build.ancestors[leaf] |= without_placeholders([*outer_keys, leaf])
            for depth, key in enumerate([*outer_keys, leaf]):
                build.depth_sums[key] += depth * cost / operations
            if caller := next((key for key in reversed(outer_keys) if key != leaf and key[0] not in NO_CALLERS), None):
                build.costs_by_caller[leaf][caller] += cost
    return build


def mean_depth(key: FunctionKey, *builds: BuildCosts) -> float:
    """The mean depth of a function in stacks, weighted by cost. The nearest common caller is the common caller with the
    largest depth."""
    cost = sum(build.inclusive.cost.get(key, 0.0) for build in builds)
    return sum(build.depth_sums[key] for build in builds) / (cost or 1.0)


def stack_keys(stack: str) -> list[FunctionKey]:
    """The functions of a stack, outermost first; only the name of the program if the stack has no function."""
    return [function_key(text) for text in stack_frames(stack)] or [function_key(stack)]


def without_placeholders(keys: Iterable[FunctionKey]) -> set[FunctionKey]:
    """The functions among ``keys``, without the placeholders for unknown callers."""
    return {key for key in keys if key[0] not in NO_CALLERS}


def off_cpu_rows(
    profiles: ProfilesOfBoth, change: ChangeFacts | None = None, function_names: Collection[str] | None = None
) -> tuple[FunctionRow, ...]:
    """The functions of both builds with their off-CPU time per operation, in the form of ``function_rows``. The time of
    a wait is added to the function that called the system library or the kernel.

    Every wait is in the kernel's scheduler, and most threads call the scheduler through a system library. Stacks of
    interrupted threads are excluded, because such threads waited only for a processor. The costs of the parent are
    multiplied by the culprit's seconds per operation and divided by the parent's seconds per operation, because idle
    threads wait longer if operations take longer. The result is empty if there are fewer than two rounds, because the
    variation of waits is estimated from the differences between rounds."""
    if min(map(len, profiles)) < 2:
        return ()
    parent, culprit = (sum(run.seconds for run in runs) / sum(run.operations for run in runs) for runs in profiles)
    scale = culprit / parent if parent else 1.0
    waits = [without_system_leaves(run, scale) for run in profiles[0]], [*map(without_system_leaves, profiles[1])]
    return function_rows(waits, change, function_names)


def function_rows(
    profiles: ProfilesOfBoth, change: ChangeFacts | None = None, function_names: Collection[str] | None = None
) -> tuple[FunctionRow, ...]:
    """The functions of both builds, largest difference first. If cost moved between functions, each of these functions
    is ranked by the sum of their differences.

    ``profiles`` is the result of ``comparable_profiles``, in order of time. ``function_names`` are the functions that
    occur in any profile of the builds; the default is the functions in ``profiles``."""
    if not all(profiles):
        return ()
    before, after = map(build_costs, profiles)
    by_key = cost_rows((before.own, after.own))
    by_key = {key: replace(row, callers=main_callers(key, before, after)) for key, row in by_key.items()}
    rank = {key: abs(row.difference) for key, row in by_key.items()}
    for group in cost_exchange_groups(by_key, before, after):
        remainder = abs(net_difference(group, by_key))
        for key, partner in group.items():
            by_key[key], rank[key] = replace(by_key[key], partner=partner[0]), remainder
    rows = with_summary_row([by_key[key] for key in sorted(by_key, key=lambda key: -rank[key])])
    names = non_system_functions(chain(*profiles)) if function_names is None else function_names
    return tuple(with_commit_changes(rows, profiles, change, names) if change else rows)


def cost_rows(builds: Iterable[FunctionCosts], total: float = 0.0) -> dict[FunctionKey, FunctionRow]:
    """A row for each function, with its costs in two builds. The ``part`` of a row is the difference of the function
    divided by ``total``, which by default is the sum of all differences."""
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
    """At most ``MAX_CALLERS`` callers of a function, ordered by the cost of their calls, in the build in which the
    function costs more."""
    build = max((after, before), key=lambda build: build.own.cost.get(key, 0.0))
    costs: Mapping[FunctionKey, float] = build.costs_by_caller.get(key, {})
    return tuple(function for function, _ in sorted(costs, key=lambda caller: (-costs[caller], caller))[:MAX_CALLERS])


def cost_exchange_groups(
    rows: Mapping[FunctionKey, FunctionRow], before: BuildCosts, after: BuildCosts
) -> Iterator[Mapping[FunctionKey, FunctionKey]]:
    """Groups of functions between which cost moved: a function whose cost fell and functions whose costs rose, or a
    function whose cost rose and functions whose costs fell.

    Each group maps each of its functions to a partner. The partner of the first function is the function with the
    largest opposite difference; the partner of every other function is the first function. A function that fits into
    several groups is put into the group in which falls and rises agree best."""
    smallest_cost = MIN_MOVED_SHARE * max(before.total, after.total)
    differing = [key for key, row in rows.items() if row.beyond_noise and abs(row.difference) > smallest_cost]
    free = sorted(differing, key=lambda key: -abs(rows[key].difference))[:MAX_EXAMINED]
    callers = {key: {*before.costs_by_caller.get(key, ()), *after.costs_by_caller.get(key, ())} for key in free}
    have_callers = bool(before.costs_by_caller and after.costs_by_caller)
    with_calls = cost_rows((before.inclusive, after.inclusive))
    total = after.total - before.total

    def may_exchange_cost(first: FunctionKey, second: FunctionKey) -> bool:
        """Whether one function calls the other, or both have a common caller, or each occurs in only one build."""
        if UNKNOWN in (first[1], second[1]):
            return False
        missing = [not rows[key].parent or not rows[key].culprit for key in (first, second)]
        is_caller = first in callers[second] or second in callers[first] or bool(callers[first] & callers[second])
        return is_caller or all(missing) or (any(missing) and not have_callers)

    def has_unchanged_total_cost(group: Sequence[FunctionKey]) -> bool:
        """Whether the nearest common caller of a group (or the member that calls all other members) costs as much as
        before."""
        ancestor_sets = (before.ancestors.get(key, set()) | after.ancestors.get(key, set()) for key in group)
        ancestors = (with_calls[key] for key in set.intersection(*ancestor_sets))
        nearest = max(ancestors, key=lambda row: mean_depth(row.key, before, after), default=None)
        tolerance = MOVED_TOLERANCE * min(abs(total), largest_difference(group))
        if nearest is None or calls_almost_everything(nearest, before, after):
            return True  # an ancestor that calls nearly all functions says nothing about the group
        return abs(nearest.difference) <= max(2 * nearest.error, tolerance)

    def largest_difference(group: Sequence[FunctionKey]) -> float:
        return max(abs(rows[key].difference) for key in group)

    def all_groups() -> Iterator[list[FunctionKey]]:
        return (exchange_partners(key, [each for each in free if may_exchange_cost(key, each)], rows) for key in free)

    groups = [group for group in all_groups() if group]
    while groups := [group for group in groups if has_unchanged_total_cost(group)]:
        best = min(groups, key=lambda group: abs(net_difference(group, rows)) / largest_difference(group))
        free = [key for key in free if key not in best]
        first, *partners = best
        yield {first: partners[0], **dict.fromkeys(partners, first)}
        groups = [group for group in all_groups() if group]


def calls_almost_everything(row: FunctionRow, before: BuildCosts, after: BuildCosts) -> bool:
    """Whether, in both builds, the cost of a function including callees is at least ``ALMOST_ALL`` of the largest such
    cost of any function."""
    return row.parent >= ALMOST_ALL * before.largest_inclusive and row.culprit >= ALMOST_ALL * after.largest_inclusive


def exchange_partners(
    key: FunctionKey, candidates: Sequence[FunctionKey], rows: Mapping[FunctionKey, FunctionRow]
) -> list[FunctionKey]:
    """``key``, and functions among ``candidates`` whose costs together rose as much as the cost of ``key`` fell, or
    fell as much as it rose.

    The list begins with ``key`` and the function with the largest difference. The list is empty if no candidates match.
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
    """The largest sum of differences that counts as 0: 2 standard errors, but at most a third of the largest
    difference.
    """
    largest = max(abs(rows[key].difference) for key in keys)
    return min(2 * math.sqrt(sum(rows[key].error ** 2 for key in keys)), largest / 3)


def with_summary_row(rows: Sequence[FunctionRow]) -> Sequence[FunctionRow]:
    """The first ``MAX_ROWS`` rows, and one row with the sums of all further rows."""
    first_rows, further = rows[:MAX_ROWS], rows[MAX_ROWS:]
    parent, culprit = sum(row.parent for row in further), sum(row.culprit for row in further)
    error, part = difference_and_error(further)[1], sum(row.part for row in further)
    return [*first_rows, FunctionRow(OTHER_FUNCTIONS, "", parent, culprit, error, part)] if further else first_rows


def with_commit_changes(
    rows: Sequence[FunctionRow], profiles: ProfilesOfBoth, change: ChangeFacts, function_names: Collection[str]
) -> Iterator[FunctionRow]:
    """Each row, with the information whether the commit changes the function, functions that are inlined into the
    function, or its callers. Functions of the kernel and of libc (``SYSTEM_BINARY``) are treated as unchanged, even if
    the commit changes functions with the same names."""
    changed, bodies = changed_and_inlined(change, function_names, profiles)
    changed_names = changed | bodies.keys()
    below_in_parent, below_in_culprit = (costs_by_nearest_caller(changed_names, runs) for runs in profiles)
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
    change: ChangeFacts | None, function_names: Collection[str], profiles: ProfilesOfBoth
) -> tuple[set[str], dict[str, tuple[str, ...]]]:
    """The functions among ``function_names`` that a commit changes; and a map from each function to the changed
    functions that are inlined into it. The map lacks functions that call almost all functions and have almost no self
    cost, because the functions inlined into them may never run."""
    if change is None:
        return set(), {}
    short_names = {scope_and_name(function)[1] for function in change.functions}
    named_alike = [name for name in function_names if scope_and_name(name)[1] in short_names]
    changed = {name for name in named_alike if any(may_be_same(name, function) for function in change.functions)}
    before, after = map(build_costs, profiles)
    with_calls = cost_rows((before.inclusive, after.inclusive))
    outermost = {key for key, row in with_calls.items() if calls_almost_everything(row, before, after)}
    empty = {key[0] for key in outermost if own_share(key, before) + own_share(key, after) < NAMED_PART}
    inlined = inlined_changed_functions(change, function_names)
    return changed, {name: inlined_names for name, inlined_names in inlined if name not in empty}


def own_share(key: FunctionKey, build: BuildCosts) -> float:
    """The self cost of a function as a share of the cost of the build."""
    return build.own.cost.get(key, 0.0) / (build.total or 1.0)


def costs_by_nearest_caller(
    callers: Collection[str], profiles: Sequence[ProfileFacts]
) -> Mapping[FunctionKey, Mapping[str, float]]:
    """A map: function → its nearest direct or indirect caller in ``callers`` → its cost per operation below it."""
    operations = sum(run.operations for run in profiles)
    costs: defaultdict[FunctionKey, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for run in profiles:
        for stack, cost in run.stacks.items():
            *outer_keys, leaf = stack_keys(stack)
            outer = (function for function, binary in reversed(outer_keys) if not SYSTEM_BINARY.match(binary))
            if nearest := next((function for function in outer if function in callers), None):
                costs[leaf][nearest] += cost / operations
    return costs


def inlined_changed_functions(change: ChangeFacts, callers: Collection[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """For each function in ``callers``, the changed functions that are inlined into it, nearest callee first.
    A changed function counts as inlined if it is missing in all profiles, and the source code shows that the function
    calls it, directly or through other functions that are missing in all profiles."""
    names_by_short_name: dict[str, list[str]] = {}
    for name in callers:
        names_by_short_name.setdefault(scope_and_name(name)[1], []).append(name)
    bodies_of: dict[str, dict[str, int]] = {}  # changed function → functions that its body reaches → number of calls
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
