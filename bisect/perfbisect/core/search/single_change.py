"""The hunt for the largest change of a range."""

from dataclasses import replace

from perfbisect.core.domain.orders import Decision, Found, Measure, Order
from perfbisect.core.inference import endpoints
from perfbisect.core.inference.analysis import know
from perfbisect.core.inference.belief import prior_belief
from perfbisect.core.inference.hypotheses import classes
from perfbisect.core.search.next_action import next_action
from perfbisect.core.search.situation import Situation
from perfbisect.core.search.stopping import no_suspect, nothing_found, pointless, undecided


def single_change(now: Situation) -> Decision:
    """The next order, for the first free host; or the verdict."""
    graph, record, budget = now.graph, now.record, now.budget
    if early := _before_readings(now):
        return Decision(_placed(early, now), prior_belief(graph))
    known = know(graph, now.policy, record, classes(graph, record), now.prior.noise, subrange=now.subrange)
    ends, belief = known.ends, known.belief
    if known.nothing:
        return Decision(nothing_found(known.effect, ends), belief)
    if not known.differ:
        order: Order = endpoints.further_look(ends, now.bad)
    else:
        order = next_action(known, now, now.fleet.free_host)
    if not isinstance(order, Found) and (spent := budget.spent):
        return Decision(undecided(belief, now.policy, spent), belief)
    if isinstance(order, Measure):
        order = budget.within(order)
    return Decision(_placed(order, now), belief)


def _before_readings(now: Situation) -> Order | None:
    """The order while one of the ends has no reading."""
    record, budget = now.record, now.budget
    if (verdict := pointless(now.graph, record, now.policy)) or min(record.runs(0), record.runs(now.bad)) > 0:
        return verdict
    if spent := budget.spent:
        return no_suspect(spent, now.policy)
    return budget.within(endpoints.first_look(now.bad, now.build_runs))


def _placed(order: Order, now: Situation) -> Order:
    """``order`` on the first free host."""
    return replace(order, host=now.fleet.free_host) if isinstance(order, Measure) else order
