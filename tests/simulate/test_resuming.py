"""The state of a hunt is its log: the same seed writes the same one, and an interrupted hunt resumes from it."""

import random

import msgspec
import numpy as np
import pytest

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.observations import Built, Observation, Reading, Skipped
from perfbisect.core.domain.orders import Decision, Measure
from perfbisect.core.domain.policy import Policy
from perfbisect.core.search.decide import decide
from perfbisect.simulate.graphs import merging
from perfbisect.simulate.host_model import Habits
from perfbisect.simulate.hunt import hunt
from perfbisect.simulate.scenario import Scenario
from perfbisect.simulate.world import World

POLICY = Policy(max_runs=60)
HABITS = Habits(drift=0.02, flaky=0.1, host_spread=0.01)
Course = list[tuple[int, Decision]]  # what was decided after so many observations


def world(seed: int) -> World:
    """A world that shares nothing with that of another call, as in another process."""
    merging.cache_clear()
    return Scenario(merging(80), 0.08, "smaller", habits=HABITS, failing=0.1, identical=0.2).world(seed)


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
@pytest.mark.parametrize("seed", range(3))
def test_interrupted_between_two_orders_it_decides_alike(seed: int) -> None:
    log: list[Observation] = []
    course = resume(world(seed), log)
    interrupted = random.Random(seed).randrange(1, len(course) - 1)
    lab = world(seed)
    for _, decision in course[:interrupted]:  # what was measured before
        assert isinstance(decision.order, Measure)
        lab.measure(decision.order)
    kept = read_back(log[: course[interrupted][0]])
    assert same(resume(lab, kept), course[interrupted:])
    assert kept == log


@pytest.mark.calibration
@pytest.mark.parametrize("seed", range(3))
def test_interrupted_at_any_moment_it_believes_alike(seed: int) -> None:
    log: list[Observation] = []
    resume(world(seed), log)
    for interrupted in random.Random(seed).sample(range(len(log)), 5):
        seen = log[:interrupted]
        before, after = decide(world(seed).graph, seen, POLICY), decide(world(seed).graph, read_back(seen), POLICY)
        assert same([(interrupted, before)], [(interrupted, after)])


@pytest.mark.calibration
@pytest.mark.parametrize("hosts", [1, 3])
def test_the_same_seed_writes_the_same_log(hosts: int) -> None:
    one, same_seed, other = (hunt(world(seed), POLICY, hosts=hosts) for seed in (4, 4, 5))
    assert one.observations == same_seed.observations
    assert one.verdict == same_seed.verdict
    assert one.observations != other.observations


@pytest.mark.calibration
def test_another_history_would_decide_otherwise() -> None:
    """The comparison above can fail."""
    log: list[Observation] = []
    course = resume(world(0), log)
    count, _ = course[3]
    assert not same([(count, decide(Graph.line(80), log[:count], POLICY))], course[3:4])
