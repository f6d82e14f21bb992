"""Whole simulated hunts: histories of each shape, the stated probabilities and the number of runs, and stopped runs."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Found, Inconclusive, Measure, NotReproduced, PlannedRuns, Purpose, Reason
from perfbisect.core.domain.settings import ChangeDirection, Policy, PriorKnowledge
from perfbisect.core.inference.observations import Observation, Reading
from perfbisect.simulate.hunt import HuntResult, simulate_hunt
from perfbisect.simulate.world import HostModel, World
from simulated_worlds import ImpatientWorld, decide, found

pytestmark = pytest.mark.calibration  # simulates whole hunts

QUIET = HostModel(noise=0.005, layout=0.002, outliers=0.0)


#            1 - 2 - 3 ---------- 8 - 9
#           /                    /
#          0 - 4 - 5 - 6 - 7 ----
DIAMOND = Graph.from_parents([(), (0,), (1,), (2,), (0,), (4,), (5,), (6,), (3, 7), (8,)])
#  0 - 1 - 2 - 3 - 5    2 does not build, but 3 after it is fast
#           \ 4 /
FORK = Graph.from_parents([(), (0,), (1,), (2,), (2,), (3, 4)])
STRETCH = frozenset(range(31, 44))
SLOWER: list[tuple[Graph, int, dict[str, Any]]] = [
    *(
        (Graph.straight_history(commits), culprit, {})
        for commits, culprit in ((1, 1), (3, 2), (40, 1), (40, 40), (40, 17))
    ),
    *((DIAMOND, culprit, {}) for culprit in range(1, 10)),
    (Graph.straight_history(40), 25, {"binaries": {v: v - 1 for v in range(2, 41, 2)}}),
    *((Graph.straight_history(80), beside, {"unbuildable": STRETCH}) for beside in (30, 45)),
]


@pytest.mark.parametrize(("graph", "culprit", "more"), SLOWER)
def test_culprit_is_named_in_histories_of_each_shape(graph: Graph, culprit: int, more: dict[str, Any]) -> None:
    outcome = simulate_hunt(World(graph, {culprit: -0.2}, QUIET, seed=graph.size - 1, **more), Policy())
    step = found(outcome.verdict)
    assert (step.candidate, step.parents) == (culprit, graph.parents_of(culprit))
    assert 0.7 < step.ratio.middle < 0.9
    assert outcome.builds <= (21 if "unbuildable" in more else 2 + 9)


@pytest.mark.parametrize("culprit", [31, 38, 44])
def test_culprit_among_unbuildable_commits_gives_a_set_of_candidates(culprit: int) -> None:
    outcome = simulate_hunt(
        World(Graph.straight_history(80), {culprit: -0.2}, QUIET, unbuildable=STRETCH, seed=4), Policy()
    )
    assert isinstance(outcome.verdict, Inconclusive) and outcome.verdict.reason is Reason.UNBUILDABLE
    assert {*outcome.verdict.candidates} == STRETCH | {44} and outcome.builds < 22


def test_unbuildable_parent_is_replaced_by_its_nearest_tested_ancestor() -> None:
    step = found(simulate_hunt(World(FORK, {4: -0.2}, QUIET, unbuildable=frozenset({2}), seed=6), Policy()).verdict)
    assert (step.candidate, step.parents, step.stand_ins) == (4, (0,), (0,)), "3 is no ancestor"


def test_no_runs_are_made_if_only_more_builds_would_help() -> None:
    quiet = HostModel(noise=0.003, layout=0.001, outliers=0.0)
    outcome = simulate_hunt(
        World(Graph.straight_history(64), {20: -0.2, 35: -0.08, 50: -0.1}, quiet, seed=1), Policy(max_builds=7)
    )
    assert isinstance(outcome.verdict, Inconclusive) and outcome.verdict.reason is Reason.BUILDS_SPENT
    assert {*outcome.verdict.candidates} == {19, 20, 21} and outcome.runs < 40


MANY = 40
# A few hunts test the search, and many hunts test whether the stated probabilities are right.
CALIBRATE = pytest.mark.calibrate
SOME_AND_MANY = pytest.mark.parametrize("count", [2, pytest.param(MANY, marks=CALIBRATE)])

STEADY = HostModel(noise=0.01)
NOISY = HostModel(noise=0.1, drift=0.08, drift_memory=6, run_seconds=1, build_seconds=5)
PHASES = HostModel(noise=0.05, phases=(0.3, -0.2, 15), run_seconds=1, build_seconds=5)
DRIFTING = HostModel(noise=0.03, drift=0.02)


def hunts(
    count: int, commits: int, effect: float, habits: HostModel, decoys: bool = False
) -> Iterator[tuple[int, HuntResult]]:
    """The culprit and the outcome of each of ``count`` hunts."""
    prior = PriorKnowledge(build_cost=habits.build_seconds / habits.run_seconds)
    for seed in range(count):
        rng = np.random.default_rng([seed, commits])
        culprit, *others = (int(rng.integers(1, commits + 1)) for _ in range(4 if decoys else 1))
        drop, steps = -math.log1p(-effect), dict.fromkeys([culprit, *others], 0.0)
        for place, share in zip([culprit, *others], (-1, -0.35, 0.3, -0.2), strict=False):
            steps[place] += share * drop
        yield culprit, simulate_hunt(World(Graph.straight_history(commits), steps, habits, seed=seed), Policy(), prior)


@SOME_AND_MANY
@pytest.mark.parametrize(
    ("commits", "effect", "habits", "decoys", "runs"),
    [
        (1000, 0.10, STEADY, False, 30), (1000, 0.05, STEADY, True, 60), (1000, 0.10, DRIFTING, True, 60),
        (60, 0.30, NOISY, True, 70), (60, 0.25, PHASES, False, 45),
        (1000, 0.10, HostModel(noise=0.01, second_speed=(0.3, -0.04)), False, 40),
        (1000, 0.10, HostModel(noise=0.01, jumps=(1 / 3600, 0.04)), False, 45),
    ],
    ids=["steady", "decoys", "drift and decoys", "noisy and decoys", "phases", "two speeds", "jumps"],
)  # fmt: skip
def test_named_culprits_are_right(
    commits: int, effect: float, habits: HostModel, decoys: bool, runs: float, count: int
) -> None:
    named, wrong, doubt, spent = 0, 0, 0.0, 0
    for culprit, outcome in hunts(count, commits, effect, habits, decoys):
        spent += outcome.runs
        match outcome.verdict:
            case Found(step):
                named += 1
                wrong += step.candidate != culprit
                doubt += 1 - step.probability  # the expected number of errors
            case Inconclusive(candidates):
                assert culprit in candidates
    assert named >= 0.9 * count and spent <= runs * count
    assert wrong <= doubt + 2 * math.sqrt(doubt) + 0.5


@SOME_AND_MANY
@pytest.mark.parametrize(
    "habits", [STEADY, *(pytest.param(each, marks=CALIBRATE) for each in (NOISY, PHASES, DRIFTING))]
)
def test_no_culprit_is_named_without_a_change(habits: HostModel, count: int) -> None:
    outcomes = [outcome for _, outcome in hunts(count, 60, 0.0, habits)]
    verdicts = [outcome.verdict for outcome in outcomes]
    assert np.mean([outcome.runs for outcome in outcomes]) <= (34 if count == MANY else 100)
    assert sum(isinstance(verdict, NotReproduced) for verdict in verdicts) >= math.floor(0.925 * count)
    assert sum(isinstance(verdict, Found) for verdict in verdicts) <= 1


@SOME_AND_MANY
@pytest.mark.parametrize("commits", [1, 2])
def test_short_range_is_no_evidence_of_a_change(commits: int, count: int) -> None:
    """With one candidate, the only question is whether the speed changed. A difference in layout is no proof."""
    habits = HostModel(noise=0.01, layout=0.01)
    verdicts = [outcome.verdict for _, outcome in hunts(count, commits, 0.0, habits)]
    assert sum(isinstance(verdict, Found) for verdict in verdicts) <= count / 20


@pytest.mark.calibrate
def test_hunt_that_runs_cannot_decide_ends() -> None:
    """The drop is 8 %, and runs vary by 13 %: a hunt often finds no culprit, but must end."""
    habits = HostModel(noise=0.13, run_seconds=1, build_seconds=5)
    spent = [outcome.runs for _, outcome in hunts(MANY, 60, 0.08, habits)]
    assert max(spent) < 900 and np.mean(spent) < 250


FIVE = Policy(slow_after=5.0)
SLOW_NOISY = HostModel(noise=0.05, layout=0.005, outliers=0.02)


def test_good_is_measured_first_if_slow_runs_are_stopped() -> None:
    graph = Graph.straight_history(8)
    assert decide(graph, [], FIVE).order == Measure((PlannedRuns(0, 1),), Purpose.ENDS)
    then, without = decide(graph, [Reading(0, 0.0, 0.0, 0)], FIVE).order, decide(graph, [], Policy()).order
    assert isinstance(then, Measure) and isinstance(without, Measure)
    assert {share.candidate for share in then.plan} == {share.candidate for share in without.plan} == {0, 8}


@pytest.mark.parametrize("culprit", [1, 9])
def test_large_change_is_found_with_one_stopped_run_of_most_builds(culprit: int) -> None:
    world = ImpatientWorld(
        Graph.straight_history(20), {culprit: -6.0}, HostModel(noise=0.01, layout=0.002), seed=culprit
    )
    outcome = simulate_hunt(world, FIVE)
    step = found(outcome.verdict)
    assert (step.candidate, step.ratio.only_known_bound) == (culprit, -1)
    assert 0.2 <= step.ratio.high < 0.22 and outcome.belief.noise < 0.03
    stopped = [seen.candidate for seen in outcome.observations if isinstance(seen, Reading) and seen.bound]
    assert all(stopped.count(build) == 1 for build in set(stopped) - {culprit, 20})
    assert stopped.count(culprit) <= 12


def test_stopped_runs_bound_latency_from_below() -> None:
    graph = Graph.straight_history(3)
    seen: list[Observation] = [Reading(0, 0.01 * (run % 2), run, run) for run in range(4)]
    seen += [Reading(3, math.log(5), 4.0 + run, 4 + run, bound=1) for run in range(3)]
    decision = decide(graph, seen, Policy(direction=ChangeDirection.RISE, slow_after=5.0))
    assert isinstance(decision.order, Measure) and decision.order.purpose is Purpose.SEARCH
    assert decision.belief.effect.only_known_bound == 1 and 4 < decision.belief.effect.low < 5


@pytest.mark.calibrate
def test_stated_probability_holds_with_stopped_runs() -> None:
    """The change is near the bound or beyond, on a noisy host. A stopped run counts as a reading at the bound."""
    named = right = 0
    for seed in range(60):
        size = -(1.2 + 0.05 * seed)
        culprit = 1 + seed * 7 % 40
        world = ImpatientWorld(Graph.straight_history(40), {culprit: size}, SLOW_NOISY, seed=seed)
        verdict = simulate_hunt(world, FIVE).verdict
        if isinstance(verdict, Found):
            named += 1
            right += verdict.step.candidate == culprit
            assert verdict.step.ratio.low <= 1.05 * math.exp(size)
    assert named >= 54 and right >= 0.95 * named
