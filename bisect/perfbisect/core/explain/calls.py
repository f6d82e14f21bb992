"""Locates a difference in cost between two builds in the call tree. Finds functions that only one build calls, or that
one build calls more often.

The location is found by the inclusive cost of functions (with their callees), because a commit may change a function so
that its callees cost less, or so that it calls other functions. The location of a difference is the changed function
that, with its callees, has most of the difference. A function and its caller may both have most of the difference,
because the caller's cost includes the function's cost; the location is then the innermost such function. If only
several functions together have most of the difference, the location is their nearest common caller.

For exact counts of instructions, a stack consists of a function and the functions that are inlined into it, outermost
first. Exact counts also have the number of calls from each function to each other function.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise

from perfbisect.core.domain.facts import ChangeFacts, ProfileFacts
from perfbisect.core.explain.evidence import CallInOneBuild, DifferenceLocation, FunctionRow, difference_and_error
from perfbisect.core.explain.functions import (
    MAIN_SHARE,
    NAMED_PART,
    build_costs,
    calls_almost_everything,
    changed_and_inlined,
    cost_rows,
    empty_caller_costs,
    function_costs,
    function_rows,
    mean_depth,
    stack_keys,
    without_placeholders,
)
from perfbisect.core.explain.profiles import (
    RARE,
    SEPARATOR,
    SYSTEM_BINARY,
    FunctionKey,
    ProfilesOfBoth,
    function_key,
    non_system_functions,
    stack_frames,
)

PLACE_SHARE = 0.8  # smallest share of a difference that makes a function its location
# Largest preferred share, and largest allowed share, of the difference in a location. A location with a larger share
# has gained what other functions have lost.
EXACT_SHARE, LARGEST_SHARE = 1.25, 2.0
MAX_CALL_LEVELS = 5  # levels of calls below a changed function that are searched for additional calls
STILL_CALLED_SHARE = 0.005  # a function is still called if it has more than this share of its calls in the other build
NAMED_CALL_SHARE = 0.02  # smallest share of the total cost of a new or removed call that is named
MIN_SAMPLES = 30  # smallest number of samples from which shares are computed


def locate_difference(
    profiles: ProfilesOfBoth, rows: Sequence[FunctionRow], change: ChangeFacts | None, function_names: Collection[str]
) -> DifferenceLocation | None:
    """The location of the difference in cost between two builds; None if the difference is within noise, or cannot be
    located.

    ``rows`` are the result of ``function_rows`` for the same ``profiles`` and ``function_names``.
    """
    total, spread = difference_and_error(rows)
    if not all(profiles) or abs(total) <= 2 * spread:
        return None
    moved_keys = {row.key for row in rows if row.partner}
    # Moved cost is excluded from the difference, because moved cost makes its new callers costlier, and its old callers
    # cheaper.
    without_moved_costs = partial(without_own_costs, moved_keys)
    profiles = [*map(without_moved_costs, profiles[0])], [*map(without_moved_costs, profiles[1])]
    difference = difference_of_known_callers(profiles, total)
    changed, inlined_bodies = changed_and_inlined(change, function_names, profiles)
    before, after = map(build_costs, profiles)
    rows_by_key = {
        key: row
        if SYSTEM_BINARY.match(key[1])
        else replace(row, changed=key[0] in changed, inlined=inlined_bodies.get(key[0], ()))
        for key, row in cost_rows((before.inclusive, after.inclusive), difference).items()
    }
    touched_rows = {key: row for key, row in rows_by_key.items() if row.has_changed_code and key not in moved_keys}
    depths = {key: mean_depth(key, before, after) for key in rows_by_key}
    touched_beyond_noise: tuple[FunctionRow, ...] = ()
    # If a new function replaces a removed function, only both functions together show a difference.
    one_sided = [row for row in touched_rows.values() if is_in_one_build(row)]
    has_replacement = len({row.difference > 0 for row in one_sided if row.beyond_noise}) > 1
    own_rows = {row.key: row for row in rows}
    is_due_to_callees = partial(callees_explain_part, profiles=profiles, rows_by_key=own_rows, difference=difference)
    candidates = (row for row in touched_rows.values() if not (has_replacement and is_in_one_build(row)))
    top = innermost_cause(candidates, depths, is_due_to_callees)
    if top is None and touched_rows:

        def down_to_touched(keys: Sequence[FunctionKey]) -> Iterable[FunctionKey]:
            return without_placeholders(keys[: length_to_last(touched_rows, keys)])

        common_rows = cost_rows((function_costs(runs, down_to_touched) for runs in profiles), difference)
        carriers = [rows_by_key[key] for key, row in common_rows.items() if PLACE_SHARE <= row.part <= LARGEST_SHARE]
        top = max(carriers, key=lambda row: depths[row.key], default=None)
        beyond_noise = (row for row in touched_rows.values() if row.beyond_noise)
        touched_beyond_noise = tuple(sorted(beyond_noise, key=lambda row: -abs(row.part)))

    def below_location(keys: Sequence[FunctionKey]) -> Sequence[FunctionKey]:
        """The part of a stack from the location (a function) to the innermost function; empty if the stack does not
        contain the location."""
        return keys if top is None else keys[keys.index(top.key) :] if top.key in keys else ()

    def perhaps_below_location(keys: Sequence[FunctionKey]) -> Sequence[FunctionKey]:
        """Like ``below_location``, except that a stack without stored callers is returned whole, because the location
        may be one of the callers."""
        return keys if len(keys) == 1 else below_location(keys)

    def rows_of(stack_part: Callable[[Sequence[FunctionKey]], Sequence[FunctionKey]]) -> dict[FunctionKey, FunctionRow]:
        """The rows with the costs of functions, computed from the part of each stack that ``stack_part`` returns."""
        costs = (function_costs(runs, lambda keys: without_placeholders(stack_part(keys))) for runs in profiles)
        return cost_rows(costs, difference)

    rows_below, rows_perhaps_below = rows_of(below_location), rows_of(perhaps_below_location)
    in_both = (row for row in rows_below.values() if not is_in_one_build(row))
    innermost_row = innermost_cause(in_both, depths, is_due_to_callees) or top
    if innermost_row is None:
        return None
    has_own_cost = any(row.key == innermost_row.key and row.part >= PLACE_SHARE for row in rows)
    if top is None and not has_own_cost and calls_almost_everything(innermost_row, before, after):
        return None
    one_sided_rows = {
        key: row
        for key, row in rows_perhaps_below.items()
        if is_in_one_build(row) and abs(row.difference) > MIN_SAMPLES**0.5 * row.error
    }
    if top and top.culprit <= 0:
        one_sided_rows.pop(top.key, None)  # its cost of 0 does not show that nothing calls the function
    calls = calls_by_one_build(profiles, perhaps_below_location, one_sided_rows, own_rows)
    named_calls = tuple(call for call in calls if call.share >= NAMED_CALL_SHARE)
    innermost = rows_by_key.get(innermost_row.key, innermost_row)
    return DifferenceLocation(top, innermost, has_own_cost, touched_beyond_noise, named_calls)


def calls_in_one_build(
    profiles: ProfilesOfBoth, rows: Sequence[FunctionRow], change: ChangeFacts | None, function_names: Collection[str]
) -> tuple[CallInOneBuild, ...]:
    """If a difference was not located: the functions that only one build calls, and that cost a large part of the
    difference.

    Functions that the commit changes are left out. A function is also left out if its self cost is only a small part of
    its difference (except in system libraries), because then the other build may also call the function, without a
    sample in the profile.
    """
    total, spread = difference_and_error(rows)
    if not all(profiles) or abs(total) <= 2 * spread:
        return ()
    changed, inlined_bodies = changed_and_inlined(change, function_names, profiles)
    before, after = map(build_costs, profiles)
    rows_by_key = {row.key: row for row in rows}
    one_sided_rows = {
        key: row
        for key, row in cost_rows((before.inclusive, after.inclusive), total).items()
        if is_in_one_build(row) and row.part >= NAMED_PART and abs(row.difference) > MIN_SAMPLES**0.5 * row.error
        if key[0] not in changed
        and key[0] not in inlined_bodies
        and not key[1].startswith("[")
        and not (key in rows_by_key and rows_by_key[key].partner)
        if SYSTEM_BINARY.match(key[1])
        or (key in rows_by_key and rows_by_key[key].difference / row.difference >= NAMED_PART)
    }
    calls = calls_by_one_build(profiles, lambda keys: keys, one_sided_rows, rows_by_key)
    return tuple(call for call in calls if call.share >= NAMED_CALL_SHARE)


def without_calls_in_both_builds(
    calls: Sequence[CallInOneBuild], exact_counts: Iterable[FunctionRow]
) -> tuple[CallInOneBuild, ...]:
    """The elements of ``calls``, except functions that both builds call according to ``exact_counts``: the profile of
    one build may have no sample of a function that the build calls."""
    in_both = {
        row.function for row in exact_counts if row.calls and min(row.calls) > STILL_CALLED_SHARE * max(row.calls)
    }
    return tuple(call for call in calls if call.function not in in_both)


def total_samples(runs: Iterable[ProfileFacts]) -> int:
    """The total number of profile samples in several runs."""
    return sum(run.samples for run in runs)


def without_own_costs(keys: Collection[FunctionKey], profile: ProfileFacts) -> ProfileFacts:
    """The profile, in which the self costs of the functions ``keys`` are set to 0."""
    stacks = {stack: cost for stack, cost in profile.stacks.items() if stack_keys(stack)[-1] not in keys}
    kept_share = sum(stacks.values()) / (sum(profile.stacks.values()) or 1.0)
    return replace(profile, stacks=stacks, samples=round(kept_share * profile.samples))


def difference_of_known_callers(profiles: ProfilesOfBoth, total: float) -> float:
    """The difference in cost of the stacks whose callers are stored; ``total`` if this is not most of the difference
    ``total``."""

    def cost_of_rare_stacks(runs: Sequence[ProfileFacts]) -> float:
        """The cost per operation of rare stacks. For a rare stack, the profile stores only the innermost function."""
        operations = sum(run.operations for run in runs)
        return sum(cost / operations for run in runs for stack, cost in run.stacks.items() if RARE in stack)

    parent, culprit = map(cost_of_rare_stacks, profiles)
    difference_of_known = total - (culprit - parent)
    return difference_of_known if difference_of_known / total > MAIN_SHARE else total


def callees_explain_part(
    row: FunctionRow, profiles: ProfilesOfBoth, rows_by_key: Mapping[FunctionKey, FunctionRow], difference: float
) -> bool:
    """Whether a function's callees explain its part of the difference by their own costs, and not only because they
    have other callers now.

    Inlining and tail calls hide callers in a profile, so a build with other compiler options may seem to have new
    callers.
    """
    costs = (function_costs(runs, lambda keys: keys[-1:] if row.key in keys else ()) for runs in profiles)
    rows_below = cost_rows(costs, difference)
    own_rows = {key: rows_by_key.get(key, part) for key, part in rows_below.items()}
    mainly_called_here = {
        key
        for key, part in rows_below.items()
        if part.parent > MAIN_SHARE * own_rows[key].parent or part.culprit > MAIN_SHARE * own_rows[key].culprit
    }
    carried = sum((own_rows[key] if key in mainly_called_here else part).difference for key, part in rows_below.items())
    return carried / difference >= PLACE_SHARE * row.part


def innermost_cause(
    rows: Iterable[FunctionRow], depths: Mapping[FunctionKey, float], is_due_to_callees: Callable[[FunctionRow], bool]
) -> FunctionRow | None:
    """The innermost function that has most of the difference. A function with more than the share ``EXACT_SHARE`` (more
    than the whole difference) is returned only if no other function has most of it."""
    carrying = [row for row in rows if row.beyond_noise and PLACE_SHARE <= row.part <= LARGEST_SHARE]
    carrying = [row for row in carrying if is_due_to_callees(row)]
    within_total = [row for row in carrying if row.part <= EXACT_SHARE]
    return max(within_total or carrying, key=lambda row: (depths.get(row.key, 0.0), row.key), default=None)


def is_in_one_build(row: FunctionRow) -> bool:
    """Whether a function has cost in only one of the builds."""
    return min(row.parent, row.culprit) <= 0


def length_to_last(sought: Collection[FunctionKey], keys: Sequence[FunctionKey]) -> int:
    """The length of the stack ``keys`` up to its last function that is in ``sought``; 0 if it has no such function."""
    return max((position for position, key in enumerate(keys, 1) if key in sought), default=0)


def calls_by_one_build(
    profiles: ProfilesOfBoth,
    stack_part: Callable[[Sequence[FunctionKey]], Sequence[FunctionKey]],
    one_sided_rows: Mapping[FunctionKey, FunctionRow],
    rows_by_key: Mapping[FunctionKey, FunctionRow],
) -> list[CallInOneBuild]:
    """The calls to functions that only one build calls, largest share of the cost first. Only the part of each stack
    that ``stack_part`` returns is searched.

    A call is marked as possibly inlined in the other build if the caller is in the same binary, and the caller's self
    cost changed by a similar amount in the opposite direction.
    """
    costs = empty_caller_costs()
    total_costs = sum(row.parent for row in rows_by_key.values()), sum(row.culprit for row in rows_by_key.values())
    for runs in profiles:
        operations = sum(run.operations for run in runs)
        for run in runs:
            for stack, cost in run.stacks.items():
                keys = stack_keys(stack)
                start = len(keys) - len(stack_part(keys))
                position = next((index for index in range(start, len(keys)) if keys[index] in one_sided_rows), None)
                if position is not None:
                    costs[keys[position]][keys[position - 1] if position else ("", "")] += cost / operations
    calls = []
    for key, by_caller in costs.items():
        is_new, cost = one_sided_rows[key].difference > 0, sum(by_caller.values())
        caller = max(by_caller, key=lambda candidate: (by_caller[candidate], candidate))
        caller_saving = -rows_by_key[caller].difference if caller in rows_by_key else 0.0
        is_alike = MAIN_SHARE * cost < abs(caller_saving) < cost / MAIN_SHARE
        may_be_inlined = caller[1] == key[1] and caller_saving * one_sided_rows[key].difference > 0 and is_alike
        calls.append(CallInOneBuild(key[0], cost / total_costs[is_new], is_new, may_be_inlined))
    return sorted(calls, key=lambda call: (-call.share, call.function))


CallCounts = Mapping[FunctionKey, Mapping[FunctionKey, float]]  # function → its caller → calls per operation


def instruction_rows(profiles: ProfilesOfBoth, change: ChangeFacts | None = None) -> tuple[FunctionRow, ...]:
    """The rows of ``function_rows`` for instructions. If calls were counted exactly, the rows have the numbers of
    calls."""
    rows = function_rows(profiles, change, non_system_functions(chain(*profiles), with_inlined=True))
    # The costliest stack is last, so that its caller remains for a function that is inlined into several functions.
    stacks = [stack for run in chain(*profiles) if not run.samples for stack in reversed([*run.stacks])]
    outer_of = {inner: outer for stack in stacks for outer, inner in pairwise(map(function_key, stack_frames(stack)))}
    before, after = map(calls_per_operation, profiles)
    causes = causes_of_more_calls(rows, before, after)
    calls = {key: (sum(before.get(key, {}).values()), sum(after.get(key, {}).values())) for key in {*before, *after}}

    def with_calls_or_inliner(row: FunctionRow) -> FunctionRow:
        """The row of a function with its number of calls, or with the name of the function into which it is inlined."""
        outer = outer_of.get(row.key)
        row = replace(row, below_changed=causes.get(outer or row.key, row.below_changed))
        return replace(row, inlined_into=outer[0]) if outer else replace(row, calls=calls.get(row.key))

    return tuple(map(with_calls_or_inliner, rows))


def calls_per_operation(runs: Sequence[ProfileFacts]) -> CallCounts:
    """The calls of each function per operation. Calls between the parts into which a compiler split a function are left
    out."""
    operations, calls = sum(run.operations for run in runs), empty_caller_costs()
    for run in runs:
        for pair, number in run.calls.items():
            caller, _, callee = pair.partition(SEPARATOR)
            if caller == callee or function_key(caller) != function_key(callee):
                calls[function_key(callee)][function_key(caller)] += number / operations
    return calls


def causes_of_more_calls(rows: Sequence[FunctionRow], before: CallCounts, after: CallCounts) -> dict[FunctionKey, str]:
    """For each unchanged function that is called more or less often in the second build: the changed function that
    causes most of this difference.

    Recursive calls are not counted.
    """
    changed_keys = {row.key: row.function for row in rows if row.has_changed_code}
    due_to = dict(changed_keys)
    for _ in range(MAX_CALL_LEVELS):
        for key in sorted({*before, *after} - due_to.keys()):
            calls_before, calls_after = before.get(key, {}), after.get(key, {})
            callers = {*calls_before, *calls_after} - {key}
            growth = {caller: calls_after.get(caller, 0.0) - calls_before.get(caller, 0.0) for caller in callers}
            total = sum(growth.values())
            growth_by_cause: defaultdict[str, float] = defaultdict(float)
            for caller in sorted(due_to.keys() & growth.keys()):
                growth_by_cause[due_to[caller]] += growth[caller] * total
            main_cause = max(growth_by_cause, key=lambda cause: growth_by_cause[cause], default=None)
            if main_cause and growth_by_cause[main_cause] > MAIN_SHARE * total**2 > 0:
                due_to[key] = main_cause
    return {key: function for key, function in due_to.items() if key not in changed_keys}
