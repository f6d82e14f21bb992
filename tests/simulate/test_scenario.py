"""Histories and what is planted in them."""

from collections.abc import Callable

import numpy as np
import pytest
from shapes import criss_cross, long_branch, octopus, two_roots

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Inconclusive
from perfbisect.core.domain.policy import Policy
from perfbisect.core.inference.ancestry import Ancestry, ancestry_of
from perfbisect.simulate.graphs import merging, trunk
from perfbisect.simulate.hunt import hunt
from perfbisect.simulate.judge import Judgement, judge
from perfbisect.simulate.random_streams import Purpose, generator
from perfbisect.simulate.scenario import CHANGES, Odd, Place, Scenario
from perfbisect.simulate.world import World

BROKEN = Scenario(
    merging(300, seed=4, branching=0.3, back=60), effect=0.1, broken=60
)  # a stretch on a history with merges


@pytest.mark.parametrize("shape", [merging, long_branch, criss_cross, octopus, two_roots])
@pytest.mark.parametrize("commits", [30, 31, 100])
def test_a_history_has_its_size_and_leads_to_the_bad_end(shape: Callable[[int], Graph], commits: int) -> None:
    graph = shape(commits)
    assert graph.size == commits + 1
    assert Ancestry(graph).ancestors(commits)[1:].all()
    assert trunk(graph)[-1] == commits
    assert len(trunk(graph)) < graph.size


def test_merges_are_as_frequent_as_requested() -> None:
    graph = merging(2000, seed=1)
    parents = np.diff(graph.first)
    share = (parents > 1).sum() / len(trunk(graph))
    assert share == pytest.approx(0.1 + 0.05 * 0.6 * 0.9, abs=0.04)
    assert (np.diff(octopus(100).first) == 7).any()
    assert (np.diff(two_roots(100).first) == 0).sum() == 2
    assert len(trunk(long_branch(100))) < 45


def test_only_known_answers_are_planted() -> None:
    graph = Graph.line(200)
    for name, change in CHANGES.items():
        for seed in range(20):
            steps = change(graph, 70, 0.1, generator(seed, Purpose.DECOYS))
            answers = World(graph, steps).answers
            match name:
                case "nothing" | "improvement":
                    assert not answers
                case "reverted":
                    assert len(answers) == 2
                    assert sum(steps.values()) == pytest.approx(-0.1)
                case "slope":
                    assert sum(steps.values()) == pytest.approx(-0.1)
                case "cancelling":
                    assert answers <= {v for v, size in steps.items() if size < 0}
                    assert sum(steps.values()) == pytest.approx(-0.1)
                case "large" | "smaller":  # a decoy may fall on the culprit
                    assert answers == {70} or 70 in steps
                case _:
                    assert answers == {70}
            assert all(1 <= v <= 200 for v in steps)


def test_every_change_fits_the_shortest_range() -> None:
    for change in CHANGES.values():
        for commits in (2, 3):
            for culprit in range(1, commits + 1):
                steps = change(Graph.line(commits), culprit, 0.1, generator(1, Purpose.DECOYS))
                assert all(1 <= v <= commits for v in steps)


@pytest.mark.parametrize(("place", "fits"), [
    (Place.FIRST, lambda graph, v: v == 1),
    (Place.LAST, lambda graph, v: v == graph.size - 1),
    (Place.BRANCH, lambda graph, v: v not in trunk(graph)),
    (Place.MERGE, lambda graph, v: len(graph.parents_of(v)) > 1),
])  # fmt: skip
def test_places(place: Place, fits: Callable[[Graph, int], bool]) -> None:
    scenario = Scenario(merging(100), place=place)
    for seed in range(10):
        (culprit,) = scenario.world(seed).answers
        assert fits(scenario.graph, culprit)


def test_no_branch_on_a_line() -> None:
    with pytest.raises(ValueError, match="branch"):
        Scenario(Graph.line(9), place=Place.BRANCH).world(1)


def test_what_does_not_build() -> None:
    world = Scenario(Graph.line(5000), failing=0.3).world(1)
    assert len(world.unbuildable) / 5000 == pytest.approx(0.27, abs=0.03)
    assert not world.unbuildable & {0, 5000}
    blocked = Scenario(Graph.line(500), block=50).world(3)
    assert blocked.answers < blocked.unbuildable
    assert len(blocked.unbuildable) in range(25, 51)
    assert len(Scenario(Graph.line(500), crashing=0.2).world(1).crashing) in range(60, 140)


def test_identical_binaries_are_as_fast() -> None:
    world = Scenario(merging(300), identical=0.5, changes="smaller").world(2)
    assert 60 < len(world.binaries) < 180
    assert not set(world.binaries) & set(world.steps)
    for v, first in world.binaries.items():
        assert first not in world.binaries
        assert Ancestry(world.graph).ancestors(v)[first]
    without = World(world.graph, world.steps, world.habits, seed=world.seed)
    levels = {v: without.level(world.binaries.get(v, v)) for v in range(301)}
    assert levels == {v: world.level(v) for v in range(301)}


def test_a_layout_halfway() -> None:
    for odd, sign in ((Odd.CULPRIT, 1), (Odd.BEFORE, -1), (Odd.GOOD, -1), (Odd.BAD, 1)):
        scenario = Scenario(Graph.line(50), odd=odd)
        world = scenario.world(1)
        (culprit,) = world.answers
        place = {Odd.CULPRIT: culprit, Odd.BEFORE: culprit - 1, Odd.GOOD: 0, Odd.BAD: 50}[odd]
        assert world.layouts == {place: pytest.approx(sign * scenario.drop / 2)}


def test_the_same_seed_is_the_same_world() -> None:
    scenario = Scenario(merging(200), changes="smaller", failing=0.1)
    one, same, other = scenario.world(4), scenario.world(4), scenario.world(5)
    assert (one.steps, one.unbuildable) == (same.steps, same.unbuildable)
    assert one.steps != other.steps


def test_a_broken_stretch_has_the_commit_that_breaks_and_not_the_one_that_fixes() -> None:
    world = BROKEN.world(1)
    reach = ancestry_of(world.graph)
    assert world.answers < world.unbuildable
    first = min(world.unbuildable)
    assert all(reach.ancestors(v)[first] for v in world.unbuildable)
    assert len(world.unbuildable) > 30
    assert not world.unbuildable & {0, world.graph.size - 1}


@pytest.mark.calibration
def test_a_culprit_in_a_broken_stretch_is_as_small_a_set_as_can_be() -> None:
    world = BROKEN.world(3)
    verdict = hunt(world, Policy()).verdict
    assert isinstance(verdict, Inconclusive)
    assert judge(verdict, world) is Judgement.RIGHT, len(verdict.candidates)
