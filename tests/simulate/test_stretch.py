"""A stretch of a history with merges that does not build."""

import pytest

from perfbisect.core.domain.orders import Inconclusive
from perfbisect.core.domain.policy import Policy
from perfbisect.core.inference.ancestry import reach_of
from perfbisect.simulate.graphs import merging
from perfbisect.simulate.hunt import hunt
from perfbisect.simulate.judge import Judgement, judge
from perfbisect.simulate.scenario import Scenario

SCENARIO = Scenario(merging(300, seed=4, branching=0.3, back=60), effect=0.1, broken=60)


def test_it_has_the_commit_that_breaks_and_not_the_one_that_fixes() -> None:
    world = SCENARIO.world(1)
    reach = reach_of(world.graph)
    assert world.answers < world.unbuildable
    first = min(world.unbuildable)
    assert all(reach.ancestors(v)[first] for v in world.unbuildable)
    assert len(world.unbuildable) > 30
    assert not world.unbuildable & {0, world.graph.size - 1}


@pytest.mark.calibration
def test_a_culprit_in_it_is_as_small_a_set_as_can_be() -> None:
    world = SCENARIO.world(3)
    verdict = hunt(world, Policy()).verdict
    assert isinstance(verdict, Inconclusive)
    assert judge(verdict, world) is Judgement.RIGHT, len(verdict.candidates)
