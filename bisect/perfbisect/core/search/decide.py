"""decide: what to do next, given everything seen so far.

The search is a pure function of its arguments. It keeps no state, so a hunt that is resumed, replayed or simulated
takes the same course as the first time.

Where slow runs are stopped, the good end is timed first on each host: its runs set the limit.
"""

from collections.abc import Sequence
from dataclasses import replace

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import ALL_FREE, Fleet, Measure, Purpose, Share
from perfbisect.core.domain.settings import NOTHING_KNOWN, Policy, PriorKnowledge
from perfbisect.core.inference.noise_model import EXACT, USUAL
from perfbisect.core.inference.observations import Built, Observation, Reading
from perfbisect.core.search.all_changes import all_changes
from perfbisect.core.search.build_orders import with_builds
from perfbisect.core.search.fresh_layouts import with_layouts
from perfbisect.core.search.older_branches import with_older_branches
from perfbisect.core.search.single_change import single_change
from perfbisect.core.search.situation import Proposal, Situation


def with_good_timed(decision: Proposal, now: Situation) -> Proposal:
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


def decide(
    graph: Graph,
    observations: Sequence[Observation],
    policy: Policy,
    prior: PriorKnowledge = NOTHING_KNOWN,
    fleet: Fleet = ALL_FREE,
) -> Proposal:
    """The next order of the hunt over ``graph``, for a free host of ``fleet``; or its verdict.

    An order for a busy host means that there is nothing to do for the free ones. Where build hosts build ahead, the builds
    that they begin are part of the decision, and an order whose builds are not there waits.
    """
    return decide_in(Situation(graph, observations, policy, prior, fleet))


def decide_in(now: Situation) -> Proposal:
    """The same in a situation; the model of its noise follows from what is known of the metric."""
    policy = now.policy.of_counts() if now.prior.exact else now.policy
    if policy.layouts and any(isinstance(seen, Built) and seen.fixed for seen in now.observations):
        now = now.with_readings(lambda seen: not seen.layout)
        policy = replace(policy, layouts=False)
    now = replace(now, policy=policy, model=EXACT if now.prior.exact else USUAL)
    hunt = every_change if policy.all_steps else largest_change
    return with_builds(with_good_timed(with_layouts(hunt, now), now), now)


def largest_change(now: Situation) -> Proposal:
    """The hunt for one change, in a range whose branches may have begun with another speed than good."""
    return with_older_branches(single_change, now)


def every_change(now: Situation) -> Proposal:
    """The same for all changes."""
    return with_older_branches(all_changes, now)
