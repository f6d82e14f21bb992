"""Branches that began before good: their commits lack what good has since, and may be slower or faster for that alone.

As long as nothing hangs on it, such a branch is taken to have begun with the speed of good, as most have. Before a verdict
that hangs on it, and as soon as the branch's base is measured anyway, base and good are compared like two ends of a range.
If they differ, the readings of the branch are corrected by the difference, and the hunt goes on.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perfbisect.core import budget
from perfbisect.core.graph import Graph
from perfbisect.core.largest import largest
from perfbisect.core.no_culprit import UNBUILDABLE, undecided
from perfbisect.core.observation import Built, Observation, Reading, Skipped
from perfbisect.core.order import (
    Decision,
    Found,
    Inconclusive,
    Interval,
    Measure,
    NotReproduced,
    Order,
    Purpose,
    Several,
    Share,
    Step,
)
from perfbisect.core.policy import Direction, Policy
from perfbisect.core.record import Record, arrange

Hunt = Callable[[Graph, Sequence[Observation], Policy, Sequence[Measure]], Decision]

DOUBTFUL = 0.6  # probability of more than one change from which branches are looked into
BASE_UNKNOWN = "base not measured"
NOT_IN_BAD = "not in bad"


def beyond(
    hunt: Hunt, graph: Graph, observations: Sequence[Observation], policy: Policy, in_flight: Sequence[Measure]
) -> Decision:
    """The next order of ``hunt`` over a graph with bases."""
    record = arrange(observations, policy, graph.size - 1)
    measured = [base for base in range(1, graph.bases + 1) if record.runs(base) and base not in record.skipped]
    compared = {base: _compared(base, observations, policy, in_flight) for base in measured}
    offsets = {base: ratio for base, order in compared.items() if (ratio := _difference(order))}
    unknown = [base for base in range(1, graph.bases + 1) if base in record.skipped]
    decision = hunt(graph, list(_corrected(graph, observations, offsets, unknown)), policy, in_flight)
    stopped = budget.ended(decision.order, record, policy, in_flight)
    hung_on = [] if stopped else _hung_on(graph, decision, record)
    compared |= {base: _compared(base, observations, policy, in_flight) for base in hung_on if base not in compared}
    for order in compared.values():
        if isinstance(order, Measure) and _allowed(order, record, policy, in_flight):
            return replace(decision, order=budget.within(order, record, policy, in_flight))
    if isinstance(decision.order, Found | Several) and any(isinstance(compared[base], Measure) for base in hung_on):
        return replace(decision, order=undecided(decision.belief, policy, BASE_UNKNOWN))
    if unknown and isinstance(decision.order, Inconclusive) and decision.order.reason == UNBUILDABLE:
        return replace(decision, order=replace(decision.order, reason=BASE_UNKNOWN))
    return _told(decision, int(base_of(graph)[-1]), offsets)


@lru_cache(maxsize=4)
def base_of(graph: Graph) -> NDArray[np.int64]:
    """For each node, (size,), the newest base that it descends from; 0 where it holds good itself, or knows no base."""
    base = np.zeros(graph.size, np.int64)
    base[: graph.bases + 1] = np.arange(graph.bases + 1)
    holds_good = np.zeros(graph.size, bool)
    holds_good[0] = True
    for node in range(graph.bases + 1, graph.size):
        parents = list(graph.parents_of(node))
        if parents:
            holds_good[node] = holds_good[parents].any()
            base[node] = 0 if holds_good[node] else base[parents].max()
    return base


def _compared(base: int, observations: Sequence[Observation], policy: Policy, in_flight: Sequence[Measure]) -> Order:
    """The comparison of good and ``base``: its next order, or how it ended."""
    place = {0: 0, base: 1}
    told: list[Observation] = []
    for seen in observations:
        if seen.candidate in place:
            inside = replace(seen, candidate=place[seen.candidate])
            if isinstance(inside, Built) and inside.same_as is not None:
                inside = replace(inside, same_as=place.get(inside.same_as))
            told.append(inside)
    others = [replace(each, plan=_moved(each.plan, place)) for each in in_flight]
    rules = replace(policy, direction=Direction.ANY, all_steps=False, max_builds=0, max_runs=0, max_minutes=0.0)
    order = largest(Graph.line(1), told, rules, others).order
    if isinstance(order, Measure):
        return Measure(_moved(order.plan, {0: 0, 1: base}), Purpose.CONFIRM, order.host)
    return order


def _moved(plan: Sequence[Share], place: Mapping[int, int]) -> tuple[Share, ...]:
    return tuple(replace(share, candidate=place[share.candidate]) for share in plan if share.candidate in place)


def _difference(order: Order) -> Interval | None:
    """Base against good, if they are not taken to be equally fast."""
    match order:
        case Found(step):
            return step.ratio
        case Inconclusive(ratio=ratio) if math.isfinite(ratio.high):
            return ratio
        case _:
            return None


def _corrected(
    graph: Graph, observations: Sequence[Observation], offsets: Mapping[int, Interval], unknown: Sequence[int]
) -> Iterator[Observation]:
    """The observations as if all branches had begun with the speed of good.

    A branch that began at an ``unknown`` speed cannot be measured: nothing tells which of its builds are slow.
    """
    base = base_of(graph)
    lost = np.isin(base, unknown)
    for node in np.flatnonzero(lost).tolist():
        yield Skipped(node, BASE_UNKNOWN)
    for seen in observations:
        if lost[seen.candidate]:
            continue
        if isinstance(seen, Reading) and (offset := offsets.get(int(base[seen.candidate]))):
            yield replace(seen, value=seen.value - math.log(offset.middle))
        else:
            yield seen


def _allowed(order: Measure, record: Record, policy: Policy, in_flight: Sequence[Measure]) -> bool:
    return not budget.spent(record, policy, in_flight) and budget.builds_allowed(order, record, policy, in_flight)


def _hung_on(graph: Graph, decision: Decision, record: Record) -> list[int]:
    """The bases without which ``decision`` cannot be believed.

    A step that was compared with parents of its own branch stands by itself. Where nobody can be named, or one
    change explains what is seen no more, a branch that did not begin with the speed of good may be why.
    """
    base = base_of(graph)
    steps: tuple[Step, ...] = ()
    match decision.order:
        case Found(step):
            steps = (step,)
        case Several(named, improvements):
            steps = (*named, *improvements)
        case Measure() if decision.belief.several < DOUBTFUL:
            return []
        case Measure() | Inconclusive() | NotReproduced():
            return sorted({int(base[build]) for build in record.builds} - {0})
    hung_on: set[int] = set()
    for step in steps:
        bases = {int(base[node]) for node in (step.candidate, *step.parents, *graph.parents_of(step.candidate))}
        hung_on |= bases if len(bases) > 1 else set()
    return sorted(hung_on - {0})


def _told(decision: Decision, bads: int, offsets: Mapping[int, Interval]) -> Decision:
    """The decision with what was found out of branches; ``bads`` is the base of the bad end."""
    noticed = tuple(
        f"a branch that is older than good began at {ratio.middle:.3f} of good; its builds are judged by that"
        for ratio in offsets.values()
    )
    order = decision.order
    if isinstance(order, NotReproduced) and bads in offsets:
        order = Inconclusive((), (), offsets[bads], NOT_IN_BAD)
    return replace(
        decision, order=order, belief=replace(decision.belief, warnings=(*decision.belief.warnings, *noticed))
    )
