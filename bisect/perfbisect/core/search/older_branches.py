"""Branches that began before good: their commits lack what good has since, and may be slower or faster for that alone.

As long as nothing hangs on it, such a branch is taken to have begun with the speed of good, as most have. Before a verdict
that hangs on it, and as soon as the branch's base is measured anyway, base and good are compared like two ends of a range.
If they differ, the readings of the branch are corrected by the difference, and the hunt goes on.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.observations import Built, Observation, Reading, Skipped
from perfbisect.core.domain.orders import (
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
from perfbisect.core.domain.policy import Direction, Policy
from perfbisect.core.inference.dataset import Record, arrange
from perfbisect.core.search import budget
from perfbisect.core.search.single_change import largest
from perfbisect.core.search.stopping import undecided

Hunt = Callable[[Graph, Sequence[Observation], Policy, Sequence[Measure]], Decision]

DOUBTFUL = 0.6  # probability of more than one change from which branches are looked into
NEAR = 4  # runs of a host between two that can be compared
BASE_UNKNOWN = "base not measured"
NOT_IN_BAD = "not in bad"


def beyond(
    hunt: Hunt,
    graph: Graph,
    observations: Sequence[Observation],
    policy: Policy,
    in_flight: Sequence[Measure],
    *,
    piece: bool = False,
) -> Decision:
    """The next order of ``hunt``, if branches of ``graph`` may have begun with another speed than good.

    In a ``piece`` of a range (see `every`) many bases were measured for the sake of other pieces. What is known of them
    is used, but none is compared further unless a name or a suspicion hangs on it.
    """
    if not graph.bases:
        return hunt(graph, observations, policy, in_flight)
    record = arrange(observations, policy, graph.size - 1)
    base = _told_apart(graph, record)
    measured = [each for each in range(1, graph.bases + 1) if base[each] and record.runs(each)]
    unknown = [each for each in range(1, graph.bases + 1) if each in record.skipped]
    compare = partial(
        _compared, observations=observations, record=record, policy=policy, in_flight=in_flight, piece=piece
    )
    compared = {each: compare(each) for each in measured if each not in unknown}
    if piece:
        compared = {each: order for each, order in compared.items() if not isinstance(order, Measure)}
    busy = {share.candidate for order in in_flight for share in order.plan}
    while True:
        offsets = {each: ratio for each, order in compared.items() if (ratio := _difference(order))}
        decision = hunt(graph, list(_corrected(base, observations, offsets, unknown)), policy, in_flight)
        hung_on = [each for each in _hung_on(graph, base, decision, record, piece=piece) if each not in unknown]
        compared |= {each: compare(each) for each in hung_on if each not in compared}
        for each, order in compared.items():
            if each in unknown or (each in busy and isinstance(decision.order, Measure)):
                continue  # nothing can be done, or another host is at it and there is something else to do
            if isinstance(order, Measure) and budget.allows(order, record, policy, in_flight):
                return replace(decision, order=budget.within(order, record, policy, in_flight))
        if any(_difference(order) for each, order in compared.items() if each not in offsets):
            continue
        beyond_reach = [each for each in hung_on if isinstance(compared[each], Measure)]
        if not beyond_reach or isinstance(decision.order, Measure):
            return _told(_afforded(decision, record, policy, in_flight), base, policy, offsets, unknown)
        unknown += beyond_reach


def _told_apart(graph: Graph, record: Record) -> NDArray[np.int64]:
    """``base_of`` the graph, less the bases with the binary of good."""
    base = base_of(graph)
    same = [each for each in range(1, graph.bases + 1) if record.name(each) == record.name(0)]
    return np.where(np.isin(base, same), 0, base)


@lru_cache(maxsize=4)
def base_of(graph: Graph) -> NDArray[np.int64]:
    """For each node, (size,), the newest base that it descends from; 0 where it holds good itself, or knows no base."""
    base = np.zeros(graph.size, np.int64)
    if not graph.bases:
        return base
    base[: graph.bases + 1] = np.arange(graph.bases + 1)
    holds_good = np.zeros(graph.size, bool)
    holds_good[0] = True
    for node in graph.candidates:
        parents = list(graph.parents_of(node))
        if parents:
            holds_good[node] = holds_good[parents].any()
            base[node] = 0 if holds_good[node] else base[parents].max()
    return base


def _compared(
    base: int,
    observations: Sequence[Observation],
    record: Record,
    policy: Policy,
    in_flight: Sequence[Measure],
    *,
    piece: bool,
) -> Order:
    """The comparison of good and ``base``: its next order, or how it ended.

    Only runs with some of the other side nearby count: the rest is for other comparisons, at another time of the host.
    """
    place = {record.name(0): 0, record.name(base): 1}
    near = _side_by_side(record, record.readings(0), record.readings(base))
    told: list[Observation] = []
    number = -1
    for seen in observations:
        number += isinstance(seen, Reading)
        node = place.get(record.name(seen.candidate))
        if node is None or (isinstance(seen, Reading) and number not in near):
            continue
        told.append(
            replace(seen, candidate=node, same_as=None) if isinstance(seen, Built) else replace(seen, candidate=node)
        )
    others = [replace(each, plan=_moved(each.plan, {0: 0, base: 1})) for each in in_flight]
    rules = replace(policy.unlimited(), direction=Direction.ANY)
    order = largest(Graph.line(1), told, rules, others, piece=piece).order
    if isinstance(order, Measure):
        return Measure(_moved(order.plan, {0: 0, 1: base}), Purpose.CONFIRM, order.host)
    return order


def _side_by_side(record: Record, one: NDArray[np.int64], other: NDArray[np.int64]) -> set[int]:
    """The readings of both that have one of the other within NEAR of the same host."""
    return {*one[record.near(one, other, NEAR)].tolist(), *other[record.near(other, one, NEAR)].tolist()}


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
    base: NDArray[np.int64],
    observations: Sequence[Observation],
    offsets: Mapping[int, Interval],
    unknown: Sequence[int],
) -> Iterator[Observation]:
    """The observations as if all branches had begun with the speed of good.

    A branch that began at an ``unknown`` speed cannot be measured: nothing tells which of its builds are slow. And one
    binary on branches of two bases says nothing of the commits between: it counts as two.
    """
    lost = np.isin(base, unknown)
    lost[-1] = False  # how bad compares with good was seen
    for node in np.flatnonzero(lost).tolist():
        yield Skipped(node, BASE_UNKNOWN)
    for seen in observations:
        own = int(base[seen.candidate])
        if lost[seen.candidate]:
            continue
        if isinstance(seen, Built) and seen.same_as is not None and base[seen.same_as] != own:
            yield replace(seen, same_as=None)
        elif isinstance(seen, Reading) and own in offsets:
            yield replace(seen, value=seen.value - math.log(offsets[own].middle))
        else:
            yield seen


def _afforded(decision: Decision, record: Record, policy: Policy, in_flight: Sequence[Measure]) -> Decision:
    """The hunt's own order, as far as all that was spent leaves room for it: it was not told of lost branches."""
    if not isinstance(decision.order, Measure):
        return decision
    if budget.allows(decision.order, record, policy, in_flight):
        return replace(decision, order=budget.within(decision.order, record, policy, in_flight))
    why = budget.spent(record, policy, in_flight) or budget.NO_BUILDS
    return replace(decision, order=undecided(decision.belief, policy, why))


def _hung_on(graph: Graph, base: NDArray[np.int64], decision: Decision, record: Record, *, piece: bool) -> list[int]:
    """The bases without which ``decision`` cannot be believed.

    A step that was compared with parents of its own branch stands by itself. Where nobody can be named, or one
    change explains what is seen no more, a branch that did not begin with the speed of good may be why.
    """
    steps: tuple[Step, ...] = ()
    match decision.order:
        case Found(step):
            steps = (step,)
        case Several(named, improvements):
            steps = (*named, *improvements)
        case Measure() if decision.belief.several < DOUBTFUL:
            return []
        case Inconclusive(candidates) if piece:
            return sorted({int(base[each]) for each in candidates} - {0})
        case NotReproduced() if piece:
            return []
        case Measure() | Inconclusive() | NotReproduced():
            return sorted({int(base[build]) for build in record.builds} - {0})
    hung_on: set[int] = set()
    for step in steps:
        bases = {int(base[node]) for node in (step.candidate, *step.parents, *graph.parents_of(step.candidate))}
        hung_on |= bases if len(bases) > 1 else set()
    return sorted(hung_on - {0})


def _told(
    decision: Decision,
    base: NDArray[np.int64],
    policy: Policy,
    offsets: Mapping[int, Interval],
    unknown: Sequence[int],
) -> Decision:
    """The decision with what was found out of branches."""
    noticed = tuple(
        f"a branch that is older than good began at {ratio.middle:.3f} of good; its builds are judged by that"
        for ratio in offsets.values()
    )
    order = decision.order
    if isinstance(order, NotReproduced) and (ratio := offsets.get(int(base[-1]))) and _hunted(ratio, policy):
        order = Inconclusive((), (), ratio, NOT_IN_BAD)
    elif isinstance(order, Inconclusive) and np.isin(base[list(order.candidates)], unknown).any():
        order = replace(order, reason=BASE_UNKNOWN)
    belief = replace(decision.belief, warnings=(*decision.belief.warnings, *noticed))
    return replace(decision, order=order, belief=belief)


def _hunted(ratio: Interval, policy: Policy) -> bool:
    """Whether a change to ``ratio`` is one of those that are hunted."""
    return policy.direction is Direction.ANY or (ratio.middle < 1) is (policy.direction is Direction.DROP)
