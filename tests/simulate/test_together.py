"""Hunts of several workloads, simulated together and alone."""

import pytest
from groups import Workload, hunt_together, worlds

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.policy import Policy
from perfbisect.core.domain.prior_knowledge import PriorKnowledge
from perfbisect.core.search.foreseen import builds, foreseen
from perfbisect.simulate.host_model import Habits
from perfbisect.simulate.hunt import hunt
from perfbisect.simulate.judge import Judgement, is_named, judge
from perfbisect.simulate.scenario import Scenario

SCENARIO = Scenario(Graph.line(100), failing=0.1, habits=Habits(noise=0.01))
KNOWN = PriorKnowledge(10.0)


def test_worlds_of_a_group_differ_in_what_is_measured_only() -> None:
    each = worlds(SCENARIO, [Workload(0.05, 0), Workload(0.1, 0), Workload(0.05, 1), Workload(0.05, None)], seed=3)
    assert len({world.unbuildable for world in each}) == 1 and each[0].unbuildable
    assert each[0].answers == each[1].answers != each[2].answers
    assert not each[3].answers
    assert len({world.run(0) for world in each}) == 4
    again = worlds(SCENARIO, [Workload(0.05, 0)], seed=3)[0]
    assert again.run(0) == worlds(SCENARIO, [Workload(0.05, 0), Workload()], seed=3)[0].run(0)
    with pytest.raises(ValueError, match="equal binaries"):
        worlds(Scenario(Graph.line(9), identical=0.5), [Workload()], seed=1)


def test_a_few_groups_cost_what_their_culprits_allow_and_are_as_right_as_alone() -> None:
    """The small version of benchmarks/together."""
    scenario = Scenario(Graph.line(60), habits=Habits(noise=0.01))
    one, two = [Workload(0.08), Workload(0.05), Workload(0.06, None)], [Workload(0.08, 0), Workload(0.05, 1)]
    spent = {}
    for name, members in (("one culprit", one), ("two", two)):
        dearest = together = 0
        for seed in range(1, 6):
            alone, group = worlds(scenario, members, seed), worlds(scenario, members, seed)
            verdicts = [hunt(world, Policy(), KNOWN).verdict for world in alone]
            outcome = hunt_together(group, Policy(), KNOWN)
            dearest += max(world.builds for world in alone)
            together += outcome.builds
            for verdict, world in zip(outcome.verdicts, group, strict=True):
                assert judge(verdict, world) is Judgement.RIGHT
                assert is_named(verdict) is bool(world.answers)
            assert all(judge(each, world) is Judgement.RIGHT for each, world in zip(verdicts, alone, strict=True))
        spent[name] = together / dearest
    assert spent["one culprit"] <= 1.1
    assert spent["two"] <= 1.1 * builds(60, 2) / builds(60, 1)


@pytest.mark.parametrize(("candidates", "culprits", "least"), [
    (1, 3, 2.0),  # the only candidate is bad
    (2, 1, 3.0),
    (2, 5, 3.0),
    (4, 2, 4.5),  # the middle, then one or two quarters
    (1024, 1, 12.0),
])  # fmt: skip
def test_foreseen_builds(candidates: int, culprits: int, least: float) -> None:
    assert builds(candidates, culprits) == pytest.approx(least)


def test_what_is_foreseen_is_about_what_hunts_cost() -> None:
    members = [Workload(0.05, 0), Workload(0.1, 1)]
    scenario = Scenario(Graph.line(60), habits=Habits(noise=0.01))
    outcomes = [hunt_together(worlds(scenario, members, seed), Policy(), KNOWN) for seed in range(1, 6)]
    known = foreseen(60, [0.05, 0.1], [0.01, 0.01], 10.0)
    assert sum(each.builds for each in outcomes) / 5 == pytest.approx(known.most, rel=0.15)
    assert sum(sum(each.runs) for each in outcomes) / 5 == pytest.approx(known.runs, rel=0.3)
    assert known.fewest == builds(60, 1) < known.most
