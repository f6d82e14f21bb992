"""decide: what to do next, given everything seen so far.

The search is a pure function of its arguments. It remembers nothing, so a hunt that is resumed, replayed
or simulated takes the same course as the one that was watched.
"""

from collections.abc import Sequence

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.observations import Observation
from perfbisect.core.domain.orders import Decision, Measure
from perfbisect.core.domain.policy import Policy
from perfbisect.core.search.all_changes import every
from perfbisect.core.search.host_classes import across
from perfbisect.core.search.older_branches import beyond
from perfbisect.core.search.single_change import largest


def decide(
    graph: Graph, observations: Sequence[Observation], policy: Policy, in_flight: Sequence[Measure] = ()
) -> Decision:
    """The next order of the hunt over ``graph``; ``in_flight`` are measurements that other hosts are at.

    One in flight with an empty plan keeps a host out of the hunt. An order for a host that is busy is for later.
    """
    hunt = across if len(set(policy.kinds)) > 1 else every if policy.all_steps else largest
    return beyond(hunt, graph, observations, policy, in_flight)
