"""Hosts of several classes: one culprit, an effect for each; and of one class: nothing changes."""

from dataclasses import replace

import numpy as np
import pytest

from perfbisect.core.domain.events import BuildFinished
from perfbisect.core.domain.facts import BuildFacts
from perfbisect.core.domain.fleet import Fleet
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.observations import Built, Observation, Reading
from perfbisect.core.domain.orders import Found, Measure, NotReproduced
from perfbisect.core.domain.policy import Policy
from perfbisect.core.domain.prior_knowledge import PriorKnowledge
from perfbisect.core.inference.from_log import observations
from perfbisect.core.inference.record import arrange
from perfbisect.core.search.decide import decide
from perfbisect.core.search.host_classes import across_host_classes
from perfbisect.core.search.single_change import single_change
from perfbisect.core.search.situation import Situation
from perfbisect.simulate.world import Habits, World

GRAPH = Graph.line(40)
TWO = PriorKnowledge(host_classes=("x86", "arm"))
GONE = Fleet(gone=(1,))


def readings(drops: dict[int, float], builds: tuple[int, ...], runs: int = 4, seed: int = 1) -> list[Observation]:
    """Runs in turns of each build on each host; ``drops`` is by how much builds from 25 on are slower there."""
    rng, seen = np.random.default_rng(seed), list[Observation]()
    for _ in range(runs):
        for build in builds:
            for host, drop in drops.items():
                value = 5.0 * host - drop * (build >= 25) + rng.normal() * 0.005
                seen.append(Reading(build, float(value), float(len(seen)), len(seen), host))
    return seen


@pytest.mark.parametrize("classes", [(), ("c8",), ("c8", "c8")])
@pytest.mark.parametrize("builds", [(0,), (0, 40), (0, 20, 40), (0, 24, 25, 40)])
def test_one_class_is_as_without_classes(classes: tuple[str, ...], builds: tuple[int, ...]) -> None:
    seen = readings({0: 0.1, 1: 0.1}, builds)
    plain = single_change(Situation(GRAPH, seen, Policy()))
    named = decide(GRAPH, seen, Policy(), PriorKnowledge(host_classes=classes))
    assert repr(plain.order) == repr(named.order)
    assert (plain.belief.culprit == named.belief.culprit).all()
    assert plain.belief.change == named.belief.change


def test_one_class_goes_through_the_same_arithmetic() -> None:
    """Of two classes of which one has measured nothing, the other's answer is its own."""
    seen = readings({0: 0.1}, (0, 20, 30, 40))
    alone, apart = (
        single_change(Situation(GRAPH, seen, Policy())),
        across_host_classes(Situation(GRAPH, seen, Policy(), TWO, GONE)),
    )
    assert np.allclose(alone.belief.culprit, apart.belief.culprit)
    assert alone.belief.change == pytest.approx(apart.belief.change, abs=0.01)


def test_two_classes_know_more_than_one() -> None:
    """Each has measured on one side of the culprit; together they enclose it."""
    one = readings({0: 0.1}, (0, 20, 40))
    other = readings({1: 0.3}, (0, 30, 40))
    belief = decide(GRAPH, [*one, *other], Policy(), TWO).belief
    assert belief.culprit[21:31].sum() > 0.98
    assert belief.culprit[21:31].std() < 0.01 * belief.culprit[25]


def test_a_class_without_the_change_says_nothing() -> None:
    one, steady = readings({0: 0.1}, (0, 20, 30, 40)), readings({1: 0.0}, (0, 40), runs=20)
    together = decide(GRAPH, [*one, *steady], Policy(), TWO, GONE)
    assert np.allclose(together.belief.culprit, single_change(Situation(GRAPH, one, Policy())).belief.culprit)


def test_no_order_for_a_host_that_shows_nothing() -> None:
    one, steady = readings({0: 0.1}, (0, 40)), readings({1: 0.0}, (0, 40), runs=20)
    order = decide(GRAPH, [*one, *steady], Policy(), TWO).order
    assert isinstance(order, Measure)
    assert order.host == 0
    waiting = decide(GRAPH, [*one, *steady], Policy(), TWO, Fleet((order,))).order
    assert isinstance(waiting, Measure)
    assert waiting.host == 0  # which is busy: there is nothing to do for the other


def test_nothing_anywhere() -> None:
    decision = decide(GRAPH, readings({0: 0.0, 1: 0.0}, (0, 40), runs=20), Policy(), TWO)
    assert isinstance(decision.order, NotReproduced)
    assert [effect.host_class for effect in decision.order.effects] == ["x86", "arm"]


def test_a_build_is_there_only_where_it_was_made() -> None:
    """What another host would have to build first costs it a build."""
    seen = [Built(20, 1.0, host=0), Built(30, 1.0, host=1), Built(30, 1.0, host=0), Built(35, 1.0)]
    record = arrange(seen, Policy(), 40)
    assert (record.made(0), record.made(1)) == ({20, 30, 35}, {30, 35})


@pytest.mark.slow
@pytest.mark.calibration
@pytest.mark.parametrize("seed", range(3))
def test_whole_hunts(seed: int) -> None:
    """45 % on one, 22 % on the other: both effects are reported, and the culprit is the same."""
    quiet = Habits(noise=0.01, outliers=0.0)
    worlds = [World(GRAPH, {25: drop}, quiet, seed=seed + 100 * host) for host, drop in enumerate((-0.6, -0.25))]
    seen: list[Observation] = []
    for _ in range(60):
        order = decide(GRAPH, seen, Policy(), TWO).order
        if not isinstance(order, Measure):
            break
        other = decide(GRAPH, seen, Policy(), TWO, Fleet((order,))).order
        for one in (order, other):
            if isinstance(one, Measure):
                made = worlds[one.host].measure(replace(one, host=0))
                hosted = (replace(each, host=one.host) for each in made if isinstance(each, Reading | Built))
                seen += hosted
    assert isinstance(order, Found)
    assert order.step.candidate == 25
    assert [effect.host_class for effect in order.step.effects] == ["x86", "arm"]
    for effect, drop in zip(order.step.effects, (-0.6, -0.25), strict=True):
        assert effect.ratio.low * 0.97 < np.exp(drop) < effect.ratio.high * 1.03


def test_binaries_are_compared_on_one_host_only() -> None:
    facts = [BuildFacts(commit, commit, "same", 1.0, 0, 0, False, "") for commit in "ab"]
    node = {"a": 0, "b": 1}
    apart = [(0.0, BuildFinished(0, facts[0], None, "x")), (1.0, BuildFinished(1, facts[1], None, "y"))]
    assert observations(apart, node, "qps", 0.0, ("x", "y")) == [Built(0, 1.0, None, 0), Built(1, 1.0, None, 1)]
    together = [(0.0, BuildFinished(0, facts[0], None, "y")), (1.0, BuildFinished(1, facts[1], 0, "y"))]
    assert observations(together, node, "qps", 0.0, ("x", "y")) == [Built(0, 1.0, None, 1), Built(1, 1.0, 0, 1)]
    assert observations(together, node, "qps", 0.0) == [Built(0, 1.0), Built(1, 1.0, 0)]
