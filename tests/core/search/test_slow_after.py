"""Hunts that stop slow runs: what is ordered, and what follows from readings that are bounds."""

import math
from dataclasses import dataclass, field, replace
from statistics import median

import pytest

from named import found
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Found, Inconclusive, Measure, Purpose, Reason, Share
from perfbisect.core.domain.settings import Direction, Policy
from perfbisect.core.inference.observations import Observation, Reading
from perfbisect.core.search.decide import decide
from perfbisect.simulate.hunt import hunt
from perfbisect.simulate.world import Habits, World

FIVE = Policy(slow_after=5.0)
NOISY = Habits(noise=0.05, layout=0.005, outliers=0.02)


@dataclass(slots=True, eq=False)
class ImpatientWorld(World):
    """A world that stops runs as slow as that: the bound is read in their place."""

    slow_after: float = 5.0
    good: list[float] = field(default_factory=list)

    def measure(self, order: Measure) -> list[Observation]:
        """Carry out ``order``."""
        return [self.stopped(seen) if isinstance(seen, Reading) else seen for seen in World.measure(self, order)]

    def stopped(self, seen: Reading) -> Reading:
        """The reading, or the bound."""
        if seen.candidate == 0:
            self.good.append(seen.value)
            return seen
        bound = median(self.good) - math.log(self.slow_after)
        return replace(seen, value=bound, bound=-1) if seen.value < bound else seen


def test_good_is_timed_first_on_each_host() -> None:
    graph = Graph.line(8)
    first = decide(graph, [], FIVE).order
    assert first == Measure((Share(0, 1),), Purpose.ENDS)
    then = decide(graph, [Reading(0, 0.0, 0.0, 0)], FIVE).order
    assert isinstance(then, Measure)
    assert {share.candidate for share in then.plan} == {0, 8}
    without = decide(graph, [], Policy()).order
    assert isinstance(without, Measure)
    assert len(without.plan) == 2


@pytest.mark.parametrize("culprit", [1, 9, 20])
def test_a_change_beyond_the_bound_is_found_with_one_run_of_each_slow_build_between(culprit: int) -> None:
    world = ImpatientWorld(Graph.line(20), {culprit: -6.0}, Habits(noise=0.01, layout=0.002), seed=culprit)
    outcome = hunt(world, FIVE)
    step = found(outcome.verdict)
    assert (step.candidate, step.ratio.bound) == (culprit, -1)
    assert 0.2 <= step.ratio.high < 0.22
    assert outcome.belief.noise < 0.03
    stopped = [seen.candidate for seen in outcome.observations if isinstance(seen, Reading) and seen.bound]
    assert all(stopped.count(build) == 1 for build in set(stopped) - {culprit, 20})
    assert stopped.count(culprit) <= 12


def test_a_culprit_within_the_bound_has_its_ratio_although_a_build_between_was_stopped() -> None:
    world = ImpatientWorld(Graph.line(20), {8: -0.5, 14: -6.0, 15: 6.0}, Habits(noise=0.01, layout=0.002), seed=2)
    outcome = hunt(world, FIVE)
    assert isinstance(outcome.verdict, Found | Inconclusive)
    if isinstance(outcome.verdict, Found):
        assert outcome.verdict.step.candidate in (8, 14)


def test_which_change_is_the_largest_is_left_open_where_the_bound_hides_it() -> None:
    """To a third at 6; from there to somewhere below a fifth at 14, which is either the smaller step or the larger."""
    world = ImpatientWorld(Graph.line(20), {6: math.log(0.3), 14: -3.0}, Habits(noise=0.01, layout=0.002), seed=4)
    outcome = hunt(world, FIVE)
    verdict = outcome.verdict
    assert isinstance(verdict, Inconclusive)
    assert verdict.reason is Reason.STOPPED_RUNS
    assert {6, 14} <= set(verdict.candidates)
    assert verdict.ratio.bound == -1


def test_latency_is_bounded_from_below() -> None:
    graph = Graph.line(3)
    seen: list[Observation] = [Reading(0, 0.01 * (run % 2), run, run) for run in range(4)]
    seen += [Reading(3, math.log(5), 4.0 + run, 4 + run, bound=1) for run in range(3)]
    decision = decide(graph, seen, Policy(direction=Direction.RISE, slow_after=5.0))
    assert isinstance(decision.order, Measure)
    assert decision.order.purpose is Purpose.SEARCH
    assert decision.belief.effect.bound == 1
    assert 4 < decision.belief.effect.low < 5


@pytest.mark.slow
@pytest.mark.calibration
def test_the_stated_confidence_holds() -> None:
    """One change, beyond the bound or near it, on a noisy host: taking a stopped run for a reading at its bound is cautious."""
    named = right = 0
    for seed in range(60):
        size = -(1.2 + 0.05 * seed)
        culprit = 1 + seed * 7 % 40
        world = ImpatientWorld(Graph.line(40), {culprit: size}, NOISY, seed=seed)
        verdict = hunt(world, FIVE).verdict
        if isinstance(verdict, Found):
            named += 1
            right += verdict.step.candidate == culprit
            truth = math.exp(size)
            assert verdict.step.ratio.low <= 1.05 * truth
    assert named >= 54
    assert right >= 0.95 * named
