"""Histories and what is planted in them; and hunts there, whose state is their log: an interrupted one resumes from it."""

import random
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from planted import Odd, Place, Planted
from shapes import criss_cross, long_branch, octopus, two_roots

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Decision, Inconclusive, Measure
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.ancestry import Ancestry, ancestry_of
from perfbisect.core.inference.observations import Built, Observation, Reading, Skipped
from perfbisect.core.search.decide import decide
from perfbisect.simulate.host_model import Habits, Purpose, generator
from perfbisect.simulate.hunt import hunt
from perfbisect.simulate.scenario import CHANGES, merging, trunk
from perfbisect.simulate.tally import Judgement, judge
from perfbisect.simulate.world import World

BROKEN = Planted(
    merging(300, seed=4, branching=0.3, back=60), effect=0.1, broken=60
)  # a stretch on a history with merges


@pytest.mark.parametrize("shape", [merging, long_branch, criss_cross, octopus, two_roots])
@pytest.mark.parametrize("commits", [30, 101])
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
            drops = {v for v, size in steps.items() if size < 0}
            if name in ("reverted", "slope", "cancelling"):
                assert sum(steps.values()) == pytest.approx(-0.1)
                assert answers <= drops and (name != "reverted" or len(answers) == 2)
            elif name in ("nothing", "improvement"):
                assert not answers
            else:
                assert answers == {70} or (name in ("large", "smaller") and 70 in steps), (
                    "a decoy may fall on the culprit"
                )
            assert all(1 <= v <= 200 for v in steps)
        for commits, last in ((2, 1), (2, 2), (3, 2)):
            assert all(1 <= v <= commits for v in change(Graph.line(commits), last, 0.1, generator(1, Purpose.DECOYS)))


@pytest.mark.parametrize(("place", "fits"), [
    (Place.FIRST, lambda graph, v: v == 1),
    (Place.LAST, lambda graph, v: v == graph.size - 1),
    (Place.BRANCH, lambda graph, v: v not in trunk(graph)),
    (Place.MERGE, lambda graph, v: len(graph.parents_of(v)) > 1),
])  # fmt: skip
def test_places(place: Place, fits: Callable[[Graph, int], bool]) -> None:
    scenario = Planted(merging(100), place=place)
    for seed in range(10):
        (culprit,) = scenario.world(seed).answers
        assert fits(scenario.graph, culprit)
    assert len({scenario.world(4).answers for _ in range(2)}) == 1


def test_what_does_not_build() -> None:
    world = Planted(Graph.line(5000), failing=0.3).world(1)
    assert len(world.unbuildable) / 5000 == pytest.approx(0.27, abs=0.03)
    assert not world.unbuildable & {0, 5000}
    blocked = Planted(Graph.line(500), block=50).world(3)
    assert blocked.answers < blocked.unbuildable
    assert len(blocked.unbuildable) in range(25, 51)
    assert len(Planted(Graph.line(500), crashing=0.2).world(1).crashing) in range(60, 140)


def test_identical_binaries_are_as_fast() -> None:
    world = Planted(merging(300), identical=0.5, changes="smaller").world(2)
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
        scenario = Planted(Graph.line(50), odd=odd)
        world = scenario.world(1)
        (culprit,) = world.answers
        place = {Odd.CULPRIT: culprit, Odd.BEFORE: culprit - 1, Odd.GOOD: 0, Odd.BAD: 50}[odd]
        assert world.layouts == {place: pytest.approx(sign * scenario.drop / 2)}


@pytest.mark.calibration
def test_a_culprit_in_a_broken_stretch_is_as_small_a_set_as_can_be() -> None:
    wide, world = BROKEN.world(1), BROKEN.world(3)
    first = min(wide.unbuildable)
    assert len(wide.unbuildable) > 30 and wide.answers < wide.unbuildable
    assert all(ancestry_of(wide.graph).ancestors(v)[first] for v in wide.unbuildable)
    verdict = hunt(world, Policy()).verdict
    assert isinstance(verdict, Inconclusive)
    assert judge(verdict, world) is Judgement.RIGHT, len(verdict.candidates)


POLICY = Policy(max_runs=60)
HABITS = Habits(drift=0.02, flaky=0.1, host_spread=0.01)
Course = list[tuple[int, Decision]]  # what was decided after so many observations


def drawn(seed: int) -> World:
    """A world that shares nothing with that of another call, as in another process."""
    merging.cache_clear()
    return Planted(merging(80), 0.08, "smaller", habits=HABITS, failing=0.1, identical=0.2).world(seed)


def resume(lab: World, log: list[Observation]) -> Course:
    """Decide and measure to the end, adding to ``log``."""
    course: Course = []
    while True:
        course.append((len(log), decide(lab.graph, log, POLICY)))
        order = course[-1][1].order
        if not isinstance(order, Measure):
            return course
        log += lab.measure(order)


def read_back(log: list[Observation]) -> list[Observation]:
    """Written as text and read again."""
    types = {each.__name__: each for each in (Built, Reading, Skipped)}
    lines = [(type(seen).__name__, msgspec.json.encode(seen)) for seen in log]
    return [msgspec.json.decode(line, type=types[name]) for name, line in lines]


def same(one: Course, other: Course) -> bool:
    """Whether orders and beliefs are equal, to the last bit."""
    return [(n, d.order) for n, d in one] == [(n, d.order) for n, d in other] and all(
        np.array_equal(a.belief.culprit, b.belief.culprit)
        and np.array_equal(a.belief.slow, b.belief.slow, equal_nan=True)
        for (_, a), (_, b) in zip(one, other, strict=True)
    )


@pytest.mark.calibration
def test_interrupted_between_two_orders_it_decides_alike_and_believes_alike_at_any_moment() -> None:
    log: list[Observation] = []
    course, lab, random_ = resume(drawn(1), log), drawn(1), random.Random(1)
    interrupted = random_.randrange(1, len(course) - 1)
    for _, decision in course[:interrupted]:  # what was measured before
        assert isinstance(decision.order, Measure)
        lab.measure(decision.order)
    kept = read_back(log[: course[interrupted][0]])
    assert same(resume(lab, kept), course[interrupted:])
    assert kept == log
    for number in random_.sample(range(len(log)), 3):
        seen = log[:number]
        before, after = (decide(drawn(1).graph, each, POLICY) for each in (seen, read_back(seen)))
        assert same([(number, before)], [(number, after)])
    count = course[3][0]
    assert not same([(count, decide(Graph.line(80), log[:count], POLICY))], course[3:4]), "the comparison can fail"


@pytest.mark.calibration
def test_the_same_seed_writes_the_same_log() -> None:
    one, same_seed, other = (hunt(drawn(seed), POLICY, hosts=3) for seed in (4, 4, 5))
    assert one.observations == same_seed.observations
    assert one.verdict == same_seed.verdict
    assert one.observations != other.observations
