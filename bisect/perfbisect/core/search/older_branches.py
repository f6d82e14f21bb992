"""Corrects the readings of branches that began before good. A branch that began before good may be slower or faster
than good only because the branch lacks changes that good has.

The search assumes that a branch point is as fast as good, because most branch points are. A branch point is measured
only if a verdict depends on its speed. To measure a branch point, the search compares it with good, as it compares the
ends of a range. If the levels of the branch point and of good differ, the difference is subtracted from the readings of
the branch, and the hunt continues.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import (
    CodePlacement,
    Decision,
    Found,
    Inconclusive,
    Interval,
    Measure,
    NotReproduced,
    Purpose,
    Reason,
    Several,
    all_steps,
)
from perfbisect.core.domain.settings import ChangeDirection
from perfbisect.core.inference.observations import Built, Observation, Reading, Skipped
from perfbisect.core.inference.record import censoring_direction
from perfbisect.core.inference.relative_speed import ratios_of_candidates_to_good, strongest_ratio
from perfbisect.core.search.single_change import decide_single_change
from perfbisect.core.search.situation import Situation, within_budget

DOUBTFUL = 0.6  # branch points are measured if more than one change has at least this probability
NEAR = 4  # two runs can be compared if at most this number of other runs of the host is between them


def decide_with_older_branches(decide: Callable[[Situation], Decision], now: Situation) -> Decision:
    """The decision of ``decide`` from corrected readings, or a work order that compares a branch point with good.

    The search of a subrange uses all finished comparisons of branch points with good, also comparisons from the search
    of other subranges. An unfinished comparison continues only if it affects a commit that the subrange's verdict names
    or suspects.
    """
    graph, record, budget = now.graph, now.record, now.budget
    if not graph.branch_points:
        return decide(now)
    points = range(1, graph.branch_points + 1)
    equal = [point for point in points if record.build_id(point) == 0]  # branch points with the same binary as good
    start = np.where(np.isin(branch_point_of(graph), equal), 0, branch_point_of(graph))
    unmeasurable = [point for point in points if point in record.skipped or censoring_direction(record, point)]
    measured = [point for point in points if start[point] and record.run_count(point) and point not in unmeasurable]
    comparisons = {point: _compare_with_good(point, now) for point in measured}
    if now.subrange:
        comparisons = {p: result for p, result in comparisons.items() if not isinstance(result.order, Measure)}
    while True:
        offsets = {
            point: ratios for point, comparison in comparisons.items() if (ratios := _branch_point_ratios(comparison))
        }
        decision = decide(_with_equal_starts(start, now, offsets, unmeasurable))
        needed_points = [point for point in _needed_branch_points(now, start, decision) if point not in unmeasurable]
        comparisons |= {point: _compare_with_good(point, now) for point in needed_points if point not in comparisons}
        for point, comparison in comparisons.items():
            order = comparison.order
            is_in_measurement = point in now.fleet.candidates_in_measurement and isinstance(decision.order, Measure)
            if point in unmeasurable or is_in_measurement:
                continue  # it cannot be measured; or another host measures it, and this host has another order
            if isinstance(order, Measure) and budget.allows(order):
                if (missing := now.missing_builds(order)) and isinstance(decision.order, Measure):
                    # until the branch point is built, ``decision.order`` is carried out
                    return replace(decision, needed_builds=(*missing, *decision.needed_builds))
                return replace(decision, order=budget.limit_runs(order))
        if any(_branch_point_ratios(comparison) for point, comparison in comparisons.items() if point not in offsets):
            continue
        out_of_reach = [point for point in needed_points if isinstance(comparisons[point].order, Measure)]
        if not out_of_reach or isinstance(decision.order, Measure):
            return _with_branch_point_speeds(within_budget(decision, now), start, now, offsets, unmeasurable)
        unmeasurable += out_of_reach


@lru_cache(maxsize=4)
def branch_point_of(graph: Graph) -> NDArray[np.int64]:
    """For each node, shape (size,): the newest branch point among its ancestors; 0 if good is an ancestor of the node,
    or if no branch point is an ancestor."""
    start = np.zeros(graph.size, np.int64)
    if not graph.branch_points:
        return start
    start[: graph.branch_points + 1] = np.arange(graph.branch_points + 1)
    has_good = np.zeros(graph.size, bool)
    has_good[0] = True
    for node in graph.candidates:
        parents = list(graph.parents_of(node))
        if parents:
            has_good[node] = has_good[parents].any()
            start[node] = 0 if has_good[node] else start[parents].max()
    return start


def _compare_with_good(point: int, now: Situation) -> Decision:
    """The next work order of the comparison of good with a branch point, or the result of the comparison.

    A run of good or of the branch point is used only if a run of the other build is near in time, because the speed of
    the host changes.
    """
    record = now.record
    nodes = {record.build_id(0): 0, record.build_id(point): 1}
    of_good, of_point = record.reading_positions(0), record.reading_positions(point)
    near_good = of_good[record.are_near(of_good, of_point, NEAR)]
    near_point = of_point[record.are_near(of_point, of_good, NEAR)]
    near = {*near_good.tolist(), *near_point.tolist()}
    numbers = count()

    def node(item: Observation) -> int | None:
        is_far = isinstance(item, Reading) and item.partner is None and next(numbers) not in near
        return None if is_far else nodes.get(record.build_id(item.candidate))

    two_builds = now.remapped(
        node,
        lambda _: None,
        graph=Graph.straight_history(1),
        policy=replace(now.policy.unlimited(), direction=ChangeDirection.ANY),
        fleet=now.fleet.renumbered({0: 0, point: 1}),
    )
    decision = decide_single_change(two_builds)
    if not isinstance(decision.order, Measure):
        return decision
    order = replace(decision.order.renumbered({0: 0, 1: point}), purpose=Purpose.CONFIRM)
    return replace(decision, order=order)


def _branch_point_ratios(comparison: Decision) -> tuple[Interval, ...]:
    """The ratio of a branch point to good for each host class; empty if ``comparison`` shows no difference."""
    return comparison.evidence if isinstance(comparison.order, Found | Inconclusive) else ()


def _with_equal_starts(
    start: NDArray[np.int64], now: Situation, offsets: Mapping[int, Sequence[Interval]], unmeasurable: Sequence[int]
) -> Situation:
    """The situation with readings that are corrected as if all branch points were as fast as good.

    ``start``, shape (size,), is the branch point of each node; ``offsets`` are the ratios of branch points to good.
    Builds of a branch are skipped if its branch point cannot be measured, because such builds cannot be classified. If
    builds of two branches have the same binary, their readings stay separate, because the corrections of the two
    branches may differ.
    """
    unusable = np.isin(start, unmeasurable)
    unusable[-1] = False  # bad is never unusable, because it was compared with good directly

    def same_as(build: Built) -> int | None:
        return build.same_as if build.same_as is not None and start[build.same_as] == start[build.candidate] else None

    def offset(reading: Reading) -> float:
        ratios = offsets.get(int(start[reading.candidate]))
        return -math.log(ratios[now.prior.class_of(reading.host)].middle) if ratios else 0.0

    corrected = now.remapped(lambda item: None if unusable[item.candidate] else item.candidate, same_as, offset)
    skipped = [Skipped(node, Reason.BRANCH_POINT_UNKNOWN) for node in np.flatnonzero(unusable).tolist()]
    return replace(corrected, observations=[*skipped, *corrected.observations])


def _needed_branch_points(now: Situation, start: NDArray[np.int64], decision: Decision) -> list[int]:
    """The branch points on whose speed ``decision`` depends.

    The decision about a step does not depend on branch points if the step was compared with parents in its own branch.
    If no commit can be named, or if several changes are likely, the reason may be the speed of a branch point, so the
    decision depends on all branch points of measured builds.
    """
    match decision.order:
        case Found() | Several():
            pass
        case Measure() if decision.belief.several < DOUBTFUL:
            return []
        case Inconclusive(candidates) if now.subrange:
            return sorted({int(start[candidate]) for candidate in candidates} - {0})
        case NotReproduced() if now.subrange:
            return []
        case Measure() | Inconclusive() | NotReproduced() | CodePlacement():
            return sorted({int(start[build]) for build in now.record.builds} - {0})
    points: set[int] = set()
    for step in all_steps(decision.order):
        nodes = (step.candidate, *step.parents, *now.graph.parents_of(step.candidate))
        starts = {int(start[node]) for node in nodes}
        points |= starts if len(starts) > 1 else set()
    return sorted(points - {0})


def _with_branch_point_speeds(
    decision: Decision,
    start: NDArray[np.int64],
    now: Situation,
    offsets: Mapping[int, Sequence[Interval]],
    unmeasurable: Sequence[int],
) -> Decision:
    """The decision with a warning for each branch point that is not as fast as good, and with the uncorrected ratio of
    bad to good.

    Corrected readings are used only to find the change, and not for the ratio of bad to good.
    """
    starts = {point: strongest_ratio(ratios) for point, ratios in offsets.items()}
    of_branches = tuple(
        f"a branch that is older than good began at {ratio.middle:.3f} of good; its builds are judged by that"
        for ratio in starts.values()
    )
    order, effect = decision.order, None
    if (
        isinstance(order, NotReproduced)
        and (ratio := starts.get(int(start[-1])))
        and now.policy.is_hunted(ratio.middle)
    ):
        order = Inconclusive((), (), ratio, Reason.NOT_IN_BAD)
    elif isinstance(order, Inconclusive) and np.isin(start[list(order.candidates)], unmeasurable).any():
        order = replace(order, reason=Reason.BRANCH_POINT_UNKNOWN, detail=None)
    if not now.subrange and (offsets or unmeasurable):
        speeds = ratios_of_candidates_to_good(now.observations, now.bad, now.prior.host_classes, now.model)
        effect = speeds.get(now.record.build_id(now.bad))
    if effect and isinstance(order, NotReproduced | Inconclusive) and order.ratio.has_known_bound:
        order = replace(order, ratio=effect)
    warnings = (*decision.belief.warnings, *of_branches)
    belief = replace(decision.belief, warnings=warnings, ends=effect or decision.belief.ends)
    return replace(decision, order=order, belief=belief)
