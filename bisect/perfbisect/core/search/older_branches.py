"""Branches that began before good: they lack what good has since, and may be slower or faster than good for that alone.

By default a branch is assumed to start as fast as good, as most do; its branch point is measured only when a verdict
depends on it. As soon as a branch point has readings, it is compared with good like the two ends of a range. If they
differ, the readings of the branch are corrected by the difference, and the hunt continues.
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
from perfbisect.core.domain.settings import Direction
from perfbisect.core.inference.observations import Built, Observation, Reading, Skipped
from perfbisect.core.inference.record import stopped_side
from perfbisect.core.inference.relative_speed import relative_speeds, strongest
from perfbisect.core.search.single_change import single_change
from perfbisect.core.search.situation import Situation, afforded

DOUBTFUL = 0.6  # probability of more than one change from which branch points are measured
NEAR = 4  # runs of a host between two that can be compared


def with_older_branches(hunt: Callable[[Situation], Decision], now: Situation) -> Decision:
    """The next order of ``hunt``, where branches may have started with another speed than good.

    In a subrange many branch points were measured for the sake of other subranges. The comparisons that ended are used,
    but none is continued unless a name or a suspicion depends on it.
    """
    graph, record, budget = now.graph, now.record, now.budget
    if not graph.branch_points:
        return hunt(now)
    points = range(1, graph.branch_points + 1)
    equal = [point for point in points if record.name(point) == 0]  # those that have the binary of good
    start = np.where(np.isin(branch_point_of(graph), equal), 0, branch_point_of(graph))
    unknown = [point for point in points if point in record.skipped or stopped_side(record, point)]
    measured = [point for point in points if start[point] and record.runs(point) and point not in unknown]
    compared = {point: _compared(point, now) for point in measured}
    if now.subrange:
        compared = {point: each for point, each in compared.items() if not isinstance(each.order, Measure)}
    while True:
        offsets = {point: ratios for point, each in compared.items() if (ratios := _difference(each))}
        decision = hunt(_corrected(start, now, offsets, unknown))
        needed = [point for point in _needed(now, start, decision) if point not in unknown]
        compared |= {point: _compared(point, now) for point in needed if point not in compared}
        for point, each in compared.items():
            order = each.order
            if point in unknown or (point in now.fleet.candidates and isinstance(decision.order, Measure)):
                continue  # it cannot be measured, or another host measures it and there is something else to do
            if isinstance(order, Measure) and budget.allows(order):
                if (missing := now.missing(order)) and isinstance(decision.order, Measure):
                    return replace(decision, wanted=(*missing, *decision.wanted))  # there is something to do until then
                return replace(decision, order=budget.within(order))
        if any(_difference(each) for point, each in compared.items() if point not in offsets):
            continue
        out_of_reach = [point for point in needed if isinstance(compared[point].order, Measure)]
        if not out_of_reach or isinstance(decision.order, Measure):
            return _explained(afforded(decision, now), start, now, offsets, unknown)
        unknown += out_of_reach


@lru_cache(maxsize=4)
def branch_point_of(graph: Graph) -> NDArray[np.int64]:
    """For each node, (size,), the newest branch point that it descends from; 0 if it descends from good, or from none."""
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


def _compared(point: int, now: Situation) -> Decision:
    """The comparison of good with a branch point: its next order, or how it ended.

    Only runs with some of the other side nearby count: the rest is of other comparisons, at another time of the host.
    """
    record = now.record
    place = {record.name(0): 0, record.name(point): 1}
    one, other = record.readings(0), record.readings(point)
    near = {*one[record.near(one, other, NEAR)].tolist(), *other[record.near(other, one, NEAR)].tolist()}
    numbers = count()

    def node(seen: Observation) -> int | None:
        far = isinstance(seen, Reading) and seen.partner is None and next(numbers) not in near
        return None if far else place.get(record.name(seen.candidate))

    two = now.seen_as(
        node,
        lambda _: None,
        graph=Graph.line(1),
        policy=replace(now.policy.unlimited(), direction=Direction.ANY),
        fleet=now.fleet.renumbered({0: 0, point: 1}),
    )
    decision = single_change(two)
    if not isinstance(decision.order, Measure):
        return decision
    order = replace(decision.order.renumbered({0: 0, 1: point}), purpose=Purpose.CONFIRM)
    return replace(decision, order=order)


def _difference(compared: Decision) -> tuple[Interval, ...]:
    """The branch point relative to good on each host class; empty if they are taken to be equally fast."""
    return compared.evidence if isinstance(compared.order, Found | Inconclusive) else ()


def _corrected(
    start: NDArray[np.int64], now: Situation, offsets: Mapping[int, Sequence[Interval]], unknown: Sequence[int]
) -> Situation:
    """The situation as if all branches had started with the speed of good.

    A branch that started with an ``unknown`` speed cannot be measured: its builds cannot be classified as slow or fast.
    And where two branches share a binary, the commits between may still have changed the speed: it counts as two.
    """
    lost = np.isin(start, unknown)
    lost[-1] = False  # bad was compared with good itself

    def same(seen: Built) -> int | None:
        return seen.same_as if seen.same_as is not None and start[seen.same_as] == start[seen.candidate] else None

    def offset(seen: Reading) -> float:
        ratios = offsets.get(int(start[seen.candidate]))
        return -math.log(ratios[now.prior.class_of(seen.host)].middle) if ratios else 0.0

    seen = now.seen_as(lambda seen: None if lost[seen.candidate] else seen.candidate, same, offset)
    skipped = [Skipped(node, Reason.BRANCH_POINT_UNKNOWN) for node in np.flatnonzero(lost).tolist()]
    return replace(seen, observations=[*skipped, *seen.observations])


def _needed(now: Situation, start: NDArray[np.int64], decision: Decision) -> list[int]:
    """The branch points on which ``decision`` depends.

    A step that was compared with parents of its own branch depends on none. Where no commit can be named, or several
    changes are likely, a branch that did not start with the speed of good may be the reason.
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
    needed: set[int] = set()
    for step in all_steps(decision.order):
        nodes = (step.candidate, *step.parents, *now.graph.parents_of(step.candidate))
        starts = {int(start[node]) for node in nodes}
        needed |= starts if len(starts) > 1 else set()
    return sorted(needed - {0})


def _explained(
    decision: Decision,
    start: NDArray[np.int64],
    now: Situation,
    offsets: Mapping[int, Sequence[Interval]],
    unknown: Sequence[int],
) -> Decision:
    """The decision with what was learnt of branches, and with bad relative to good as it was measured: readings are
    corrected only to find the change.
    """
    begins = {point: strongest(ratios) for point, ratios in offsets.items()}
    noticed = tuple(
        f"a branch that is older than good began at {ratio.middle:.3f} of good; its builds are judged by that"
        for ratio in begins.values()
    )
    order, effect = decision.order, None
    if isinstance(order, NotReproduced) and (ratio := begins.get(int(start[-1]))) and now.policy.hunts(ratio.middle):
        order = Inconclusive((), (), ratio, Reason.NOT_IN_BAD)
    elif isinstance(order, Inconclusive) and np.isin(start[list(order.candidates)], unknown).any():
        order = replace(order, reason=Reason.BRANCH_POINT_UNKNOWN, detail=None)
    if not now.subrange and (offsets or unknown):
        speeds = relative_speeds(now.observations, now.bad, now.prior.host_classes, now.model)
        effect = speeds.get(now.record.name(now.bad))
    if effect and isinstance(order, NotReproduced | Inconclusive) and order.ratio.known:
        order = replace(order, ratio=effect)
    warnings = (*decision.belief.warnings, *noticed)
    belief = replace(decision.belief, warnings=warnings, ends=effect or decision.belief.ends)
    return replace(decision, order=order, belief=belief)
