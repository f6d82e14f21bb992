"""Where slow runs are stopped, the good end is timed first on each host: its runs set the limit."""

from dataclasses import replace

from perfbisect.core.domain.observations import Reading
from perfbisect.core.domain.orders import Decision, Measure, Purpose, Share
from perfbisect.core.search.situation import Situation


def with_good_timed(decision: Decision, now: Situation) -> Decision:
    """The decision; in place of an order for a host where the good end has no run, the order for one."""
    order = decision.order
    if not (now.policy.slow_after and isinstance(order, Measure) and now.fleet.is_free(order.host)):
        return decision
    good = now.record.name(0)
    timed = {
        seen.host for seen in now.observations if isinstance(seen, Reading) and now.record.name(seen.candidate) == good
    }
    if order.host in timed:
        return decision
    return replace(decision, order=Measure((Share(0, 1),), Purpose.ENDS, order.host))
