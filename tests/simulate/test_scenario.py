"""Simulated histories, the changes that are planted in them, and simulated hunts."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from planted import Odd, Place, Planted
from shapes import criss_cross, long_branch, octopus, two_roots

from perfbisect.cli.commands.simulate import STEPS
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Inconclusive
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.ancestry import Ancestry
from perfbisect.simulate.host_model import HostModel, RandomDraw, random_generator
from perfbisect.simulate.hunt import HuntResult, simulate_hunt
from perfbisect.simulate.scenario import draw_steps, first_parent_line, random_merging_graph
from perfbisect.simulate.tally import Judgement, judge_verdict
from perfbisect.simulate.world import World
from simulated_worlds import decide

# A history with merges, in which up to 60 successive commits do not build.
BROKEN = Planted(random_merging_graph(300, seed=4, merge_chance=0.3, max_branch_age=60), effect=0.1, broken=60)
POLICY = Policy(max_runs=60)


@pytest.mark.parametrize("shape", [random_merging_graph, long_branch, criss_cross, octopus, two_roots])
@pytest.mark.parametrize("commits", [30, 101])
def test_simulated_history_has_its_size_and_ends_with_bad(shape: Callable[[int], Graph], commits: int) -> None:
    graph = shape(commits)
    assert graph.size == commits + 1
    assert Ancestry(graph).with_ancestors(commits)[1:].all()
    assert first_parent_line(graph)[-1] == commits
    assert len(first_parent_line(graph)) < graph.size


def test_simulated_history_has_the_requested_share_of_merges() -> None:
    graph = random_merging_graph(2000, seed=1)
    share = (np.diff(graph.parent_offsets) > 1).sum() / len(first_parent_line(graph))
    assert share == pytest.approx(0.1 + 0.05 * 0.6 * 0.9, abs=0.04)
    assert (np.diff(octopus(100).parent_offsets) == 7).any()
    assert (np.diff(two_roots(100).parent_offsets) == 0).sum() == 2
    assert len(first_parent_line(long_branch(100))) < 45


def test_planted_changes_have_known_culprits() -> None:
    graph = Graph.straight_history(200)
    for name in STEPS:
        for seed in range(20):
            steps = draw_steps(name, graph, 70, 0.1, random_generator(seed, RandomDraw.DECOYS))
            answers = World(graph, steps).right_culprits
            drops = {v for v, size in steps.items() if size < 0}
            if name in ("reverted", "slope", "cancelling"):
                assert sum(steps.values()) == pytest.approx(-0.1)
                assert answers <= drops and (name != "reverted" or len(answers) == 2)
            elif name in ("nothing", "improvement"):
                assert not answers
            else:  # another planted change may be in the culprit
                assert answers == {70} or (name in ("large", "smaller") and 70 in steps)
            assert all(1 <= v <= 200 for v in steps)
        for commits, last in ((2, 1), (2, 2), (3, 2)):
            steps = draw_steps(name, Graph.straight_history(commits), last, 0.1, random_generator(1, RandomDraw.DECOYS))
            assert all(1 <= v <= commits for v in steps)


def test_culprit_is_planted_at_the_requested_place() -> None:
    graph = random_merging_graph(100)
    merges = {v for v in range(101) if len(graph.parents_of(v)) > 1}
    branches = {*range(101)} - {*first_parent_line(graph)}
    for place, fitting in ((Place.FIRST, {1}), (Place.LAST, {100}), (Place.BRANCH, branches), (Place.MERGE, merges)):
        for seed in range(10):
            (culprit,) = Planted(graph, place=place).world(seed).right_culprits
            assert culprit in fitting


def test_requested_share_of_commits_does_not_build() -> None:
    world = Planted(Graph.straight_history(5000), failing=0.3).world(1)
    assert len(world.unbuildable) / 5000 == pytest.approx(0.27, abs=0.03)
    assert not world.unbuildable & {0, 5000}
    blocked = Planted(Graph.straight_history(500), block=50).world(3)
    assert blocked.right_culprits < blocked.unbuildable and 25 <= len(blocked.unbuildable) <= 50
    assert len(Planted(Graph.straight_history(500), crashing=0.2).world(1).crashing) in range(60, 140)


def test_commits_with_identical_binaries_are_equally_fast() -> None:
    world = Planted(random_merging_graph(300), identical=0.5, changes="smaller").world(2)
    assert 60 < len(world.binaries) < 180
    assert not set(world.binaries) & set(world.steps)
    for v, first in world.binaries.items():
        assert first not in world.binaries and Ancestry(world.graph).with_ancestors(v)[first]
    without = World(world.graph, world.steps, world.habits, seed=world.seed)
    levels = {v: without.level(world.binaries.get(v, v)) for v in range(301)}
    assert levels == {v: world.level(v) for v in range(301)}


def test_odd_layout_shifts_one_build_by_half_of_the_effect() -> None:
    for odd, sign in ((Odd.CULPRIT, 1), (Odd.BEFORE, -1), (Odd.GOOD, -1), (Odd.BAD, 1)):
        scenario = Planted(Graph.straight_history(50), odd=odd)
        world = scenario.world(1)
        (culprit,) = world.right_culprits
        place = {Odd.CULPRIT: culprit, Odd.BEFORE: culprit - 1, Odd.GOOD: 0, Odd.BAD: 50}[odd]
        assert world.layouts == {place: pytest.approx(sign * scenario.log_drop / 2)}


@pytest.mark.calibration
def test_verdict_lists_the_fewest_candidates_if_the_culprit_does_not_build() -> None:
    wide, world = BROKEN.world(1), BROKEN.world(3)
    assert len(wide.unbuildable) > 30 and wide.right_culprits < wide.unbuildable
    assert all(Ancestry(wide.graph).with_ancestors(v)[min(wide.unbuildable)] for v in wide.unbuildable)
    verdict = simulate_hunt(world, Policy()).verdict
    assert isinstance(verdict, Inconclusive)
    assert judge_verdict(verdict, world) is Judgement.RIGHT, len(verdict.candidates)


@pytest.mark.calibration
def test_simulated_log_depends_on_the_seed_and_determines_decisions() -> None:
    def hunted(seed: int) -> HuntResult:
        """A hunt in a world that shares no object with the world of another call."""
        random_merging_graph.cache_clear()
        habits = HostModel(drift=0.02, flaky=0.1, host_spread=0.01)
        world = Planted(random_merging_graph(80), 0.08, "smaller", habits=habits, failing=0.1, identical=0.2).world(
            seed
        )
        return simulate_hunt(world, POLICY, hosts=3)

    one, same_seed, other = (hunted(seed) for seed in (4, 4, 5))
    assert (one.observations, one.verdict) == (same_seed.observations, same_seed.verdict)
    assert one.observations != other.observations
    read_back = [msgspec.json.decode(msgspec.json.encode(seen), type=type(seen)) for seen in one.observations]
    resumed = decide(random_merging_graph(80), read_back, POLICY)
    assert resumed.order == one.verdict
    assert np.array_equal(resumed.belief.culprit, one.belief.culprit)
