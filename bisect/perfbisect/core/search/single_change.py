"""The hunt for the largest change of a range: what to do next, given everything seen so far."""

from collections.abc import Sequence

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.observations import Observation
from perfbisect.core.domain.orders import Decision, Found, Measure, Order
from perfbisect.core.domain.policy import Policy
from perfbisect.core.inference import endpoints
from perfbisect.core.inference.analysis import know
from perfbisect.core.inference.belief import prior_belief
from perfbisect.core.inference.dataset import Record, arrange
from perfbisect.core.inference.hypotheses import classes
from perfbisect.core.search import budget
from perfbisect.core.search.next_action import pursue
from perfbisect.core.search.stopping import nothing_found, nothing_known, pointless, undecided


def largest(
    graph: Graph,
    observations: Sequence[Observation],
    policy: Policy,
    in_flight: Sequence[Measure] = (),
    *,
    piece: bool = False,
) -> Decision:
    """The next order of the hunt over ``graph``; ``in_flight`` are measurements that other hosts are at.

    A ``piece`` is part of a range that was searched for its largest change; nobody says that there is another in it.
    """
    bad = graph.size - 1
    record = arrange(observations, policy, bad)
    if early := _before_readings(graph, record, policy, bad, in_flight):
        return Decision(_placed(early, in_flight), prior_belief(graph))
    known = know(graph, policy, record, classes(graph, record), piece=piece)
    ends, belief = known.ends, known.belief
    if known.nothing:
        return Decision(nothing_found(record, ends), belief)
    if not known.differ:
        order: Order = endpoints.further_look(ends, bad)
    else:
        order = pursue(known, _free_host(in_flight), in_flight)
    if not isinstance(order, Found) and (spent := budget.spent(record, policy, in_flight)):
        return Decision(undecided(belief, policy, spent), belief)
    if isinstance(order, Measure):
        order = budget.within(order, record, policy, in_flight)
    return Decision(_placed(order, in_flight), belief)


def _before_readings(
    graph: Graph, record: Record, policy: Policy, bad: int, in_flight: Sequence[Measure]
) -> Order | None:
    """The order while there is nothing to infer from."""
    if (verdict := pointless(graph, record, bad)) or min(record.runs(0), record.runs(bad)) > 0:
        return verdict
    if spent := budget.spent(record, policy, in_flight):
        return nothing_known(spent)
    return budget.within(endpoints.first_look(bad, record.build_runs(policy)), record, policy, in_flight)


def _placed(order: Order, in_flight: Sequence[Measure]) -> Order:
    """``order`` on the first host that is not busy."""
    if not in_flight or not isinstance(order, Measure):
        return order
    return Measure(order.plan, order.purpose, _free_host(in_flight))


def _free_host(in_flight: Sequence[Measure]) -> int:
    """The first host that is not busy."""
    busy = {other.host for other in in_flight}
    return next(h for h in range(len(busy) + 1) if h not in busy)
