"""Hunts by counts that repeat: one run a build, small steps everywhere, and the largest is named."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Found, Inconclusive, NotReproduced, Reason, Several
from perfbisect.core.domain.settings import COUNTED, Direction, Policy, PriorKnowledge
from perfbisect.core.inference.observations import Reading
from perfbisect.core.search.decide import decide
from perfbisect.simulate.hunt import Outcome, hunt
from perfbisect.simulate.scenario import Scenario, merging
from perfbisect.simulate.world import Habits, World

EXACT = PriorKnowledge(exact=True)
SMALLEST = Policy(min_effect=0.001)
LINE, MERGES = Graph.line(200), merging(200, seed=1)


def counting(noise: float) -> Habits:
    """A host and a program whose counts repeat."""
    return Habits(noise=noise, layout=0.0, outliers=0.0)


def runs_of(outcome: Outcome) -> Counter[int]:
    """The runs of each build."""
    return Counter(seen.candidate for seen in outcome.observations if isinstance(seen, Reading))


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000), st.sampled_from([1e-7, 1e-5, 1e-4]), st.floats(0.003, 0.4), st.booleans(),
    st.sampled_from(["one", "smaller", "adjacent", "before-and-after"]),
)  # fmt: skip
def test_a_culprit_is_the_largest_step(seed: int, noise: float, effect: float, merges: bool, changes: str) -> None:
    graph = MERGES if merges else LINE
    world = Scenario(graph, effect, changes, neutral=(0.3, 1e-4), habits=counting(noise)).world(seed)
    outcome = hunt(world, SMALLEST, EXACT)
    if isinstance(outcome.verdict, Found):
        assert outcome.verdict.step.candidate in world.answers
    else:
        assert isinstance(outcome.verdict, Inconclusive)
        assert world.answers & set(outcome.verdict.candidates)


@pytest.mark.parametrize("noise", [1e-7, 1e-5, 1e-4])
@pytest.mark.parametrize("effect", [0.0015, 0.01, 0.1])
def test_one_run_a_build_and_once_again_as_the_proof(noise: float, effect: float) -> None:
    world = Scenario(LINE, effect, neutral=(0.1, 3e-5), habits=counting(noise)).world(7)
    outcome = hunt(world, SMALLEST, EXACT)
    assert isinstance(outcome.verdict, Found)
    culprit = outcome.verdict.step.candidate
    assert {culprit} == world.answers
    assert outcome.verdict.step.ratio.low < 1 - effect + 5e-4 and outcome.verdict.step.ratio.high > 1 - effect - 5e-4
    runs, proven = runs_of(outcome), {culprit, *outcome.verdict.step.parents}
    assert {runs[v] for v in proven - {0, LINE.size - 1}} == {2}
    assert {runs[0], runs[LINE.size - 1]} <= {2, 3}
    assert {n for v, n in runs.items() if v not in proven | {0, LINE.size - 1}} == {1}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1e-7, 1e-5, 1e-4]), st.sampled_from(list(Direction)))
def test_nothing_is_named_where_no_step_is_of_interest(seed: int, noise: float, direction: Direction) -> None:
    """Neither where the ends agree, nor where steps that are too small for a name add up."""
    world = Scenario(LINE, changes="nothing", neutral=(0.3, 1e-4), habits=counting(noise)).world(seed)
    verdict = hunt(world, Policy(min_effect=0.001, direction=direction), EXACT).verdict
    assert isinstance(verdict, NotReproduced) or (
        isinstance(verdict, Inconclusive) and verdict.reason is Reason.MANY_STEPS
    )


def test_counts_that_do_not_vary_at_all() -> None:
    """Counts can repeat to the last digit."""
    found = hunt(World(LINE, {120: -0.002}, counting(0.0)), SMALLEST, EXACT).verdict
    assert isinstance(found, Found) and found.step.candidate == 120
    same = hunt(World(LINE, {}, counting(0.0)), SMALLEST, EXACT).verdict
    assert isinstance(same, NotReproduced) and same.detectable < 0.0001


def test_counts_have_a_smallest_change_of_their_own() -> None:
    """2 % is for times: by counts a rise of 1.2 % is hunted without an option, one of 0.1 % is not."""
    usual = Policy(min_counted=COUNTED)
    found = hunt(World(LINE, {120: -0.012}, counting(1e-6)), usual, EXACT).verdict
    assert isinstance(found, Found) and found.step.candidate == 120
    small = hunt(World(LINE, {120: -0.001}, counting(1e-6)), usual, EXACT).verdict
    assert isinstance(small, NotReproduced) and small.least == COUNTED and small.direction is Direction.DROP
    assert isinstance(hunt(World(LINE, {120: -0.012}, counting(1e-6)), Policy(), EXACT).verdict, NotReproduced)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_left_below_the_threshold_ends_a_hunt_for_all_changes(seed: int) -> None:
    """Two changes are named; a third is far below the threshold, and no build is counted again for it."""
    world = World(LINE, {60: -0.048, 130: -0.023, 170: -0.00076}, counting(1e-6), seed=seed)
    outcome = hunt(world, Policy(min_effect=0.003, all_steps=True), EXACT)
    assert isinstance(outcome.verdict, Several) and not outcome.verdict.unsettled
    assert [step.candidate for step in outcome.verdict.steps] == [60, 130]
    assert outcome.verdict.left == 0.003 and outcome.verdict.detectable == 0.0
    runs = runs_of(outcome)
    assert max(runs.values()) <= 3 and len(runs) <= 16
    rules, seen = Policy(min_effect=0.003, all_steps=True), outcome.observations
    known = [[step.candidate for step in decide(LINE, seen[:end], rules, EXACT).found] for end in range(len(seen))]
    assert [] in known and [60] in known, "each is known from its proof on"


def test_a_slope_has_no_largest_step() -> None:
    verdict = hunt(Scenario(LINE, changes="slope", habits=counting(1e-5)).world(3), SMALLEST, EXACT).verdict
    assert isinstance(verdict, Inconclusive) and verdict.reason is Reason.MANY_STEPS


def test_noise_is_learnt() -> None:
    """A method that is said to be exact and is not: the ends are measured until their difference is clear, or given up."""
    world = Scenario(LINE, changes="nothing", habits=counting(0.002)).world(5)
    outcome = hunt(world, SMALLEST, EXACT)
    assert isinstance(outcome.verdict, NotReproduced)
    assert outcome.belief.noise > 0.0005
    assert hunt(world, SMALLEST, PriorKnowledge(noise=0.05, exact=True)).belief.noise < 0.01


def test_hosts_that_count_differently() -> None:
    """Another processor takes another path through the C library: a constant difference, far larger than the noise."""
    habits = Habits(noise=1e-6, layout=0.0, outliers=0.0, host_spread=0.003)
    world = World(LINE, {77: -0.01}, habits, seed=2)
    verdict = hunt(world, SMALLEST, EXACT, hosts=3).verdict
    assert isinstance(verdict, Found) and verdict.step.candidate == 77
