"""Rules that see only the first-parent line are credited with the merge that brought the culprit in."""

from bisect import bisect_left
from collections.abc import Sequence

from perfbisect.core.domain.orders import Verdict
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.ancestry import Ancestry, ancestry_of
from perfbisect.simulate.scenario import first_parent_line
from perfbisect.simulate.tally import SearchRule
from perfbisect.simulate.world import World


def along_the_trunk(rule: SearchRule) -> SearchRule:
    """``rule``, where naming the merge is as right as naming the commit on the side branch."""

    def credited(world: World, policy: Policy) -> Verdict:
        line, reach = first_parent_line(world.graph), ancestry_of(world.graph)
        world.culprits = world.right_culprits | {brought_in(reach, line, culprit) for culprit in world.right_culprits}
        return rule(world, policy)

    return credited


def brought_in(reach: Ancestry, line: Sequence[int], culprit: int) -> int:
    """The first commit of ``line`` that contains ``culprit``."""
    return line[bisect_left(line, True, key=lambda v: bool(reach.with_ancestors(v)[culprit]))]
