"""Whole hunts in small simulated worlds, one for each shape a history can have."""

import pytest

from named import found
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Inconclusive, NotReproduced, Reason
from perfbisect.core.domain.settings import Direction, Policy
from perfbisect.simulate.hunt import hunt
from perfbisect.simulate.world import Habits, World

pytestmark = pytest.mark.calibration  # simulates whole hunts

QUIET = Habits(noise=0.005, layout=0.002, outliers=0.0)


@pytest.mark.parametrize(("commits", "culprit"), [(1, 1), (2, 1), (2, 2), (3, 2), (40, 1), (40, 40), (40, 17)])
def test_a_line(commits: int, culprit: int) -> None:
    outcome = hunt(World(Graph.line(commits), {culprit: -0.2}, QUIET, seed=commits), Policy())
    step = found(outcome.verdict)
    assert (step.candidate, step.parents) == (culprit, (culprit - 1,))
    assert 0.7 < step.ratio.middle < 0.9
    assert outcome.builds <= 2 + 9


def test_no_change() -> None:
    outcome = hunt(World(Graph.line(50), {}, QUIET, seed=3), Policy())
    assert isinstance(outcome.verdict, NotReproduced)
    assert outcome.builds == 2
    assert 0 < outcome.verdict.detectable < 0.05


def test_an_improvement_is_no_drop() -> None:
    outcome = hunt(World(Graph.line(50), {20: 0.2}, QUIET, seed=3), Policy())
    assert isinstance(outcome.verdict, NotReproduced)
    assert outcome.verdict.ratio.low > 1


@pytest.mark.parametrize("direction", [Direction.RISE, Direction.ANY])
def test_an_improvement_is_found_when_hunted(direction: Direction) -> None:
    step = found(hunt(World(Graph.line(50), {20: 0.2}, QUIET, seed=3), Policy(direction=direction)).verdict)
    assert step.candidate == 20
    assert step.ratio.middle == pytest.approx(1.22, abs=0.03)


#            1 - 2 - 3 ---------- 8 - 9
#           /                    /
#          0 - 4 - 5 - 6 - 7 ----
DIAMOND = [(), (0,), (1,), (2,), (0,), (4,), (5,), (6,), (3, 7), (8,)]


@pytest.mark.parametrize("culprit", range(1, 10))
def test_a_merge(culprit: int) -> None:
    step = found(hunt(World(Graph.of(DIAMOND), {culprit: -0.2}, QUIET, seed=1), Policy()).verdict)
    assert (step.candidate, step.parents) == (culprit, Graph.of(DIAMOND).parents_of(culprit))


def test_equal_binaries_are_measured_once() -> None:
    same = {v: v - 1 for v in range(2, 41, 2)}
    world = World(Graph.line(40), {25: -0.2}, QUIET, binaries=same, seed=2)
    assert found(hunt(world, Policy()).verdict).candidate == 25


def test_equal_ends() -> None:
    world = World(Graph.line(1), {}, QUIET, binaries={1: 0}, seed=2)
    outcome = hunt(world, Policy())
    assert outcome.verdict == NotReproduced(outcome.verdict.ratio, 0.0)


@pytest.mark.parametrize("culprit", [31, 38, 44])
def test_a_culprit_in_an_unbuildable_stretch_is_a_range(culprit: int) -> None:
    stretch = frozenset(range(31, 44))
    world = World(Graph.line(80), {culprit: -0.2}, QUIET, unbuildable=stretch, seed=4)
    outcome = hunt(world, Policy())
    assert isinstance(outcome.verdict, Inconclusive)
    assert set(outcome.verdict.candidates) == set(range(31, 45))
    assert outcome.verdict.reason is Reason.UNBUILDABLE
    assert outcome.builds < 22


@pytest.mark.parametrize("culprit", [30, 45])
def test_a_culprit_beside_an_unbuildable_stretch_is_found(culprit: int) -> None:
    stretch = frozenset(range(31, 44))
    world = World(Graph.line(80), {culprit: -0.2}, QUIET, unbuildable=stretch, seed=4)
    assert found(hunt(world, Policy()).verdict).candidate == culprit


def test_an_unbuildable_parent_is_replaced_by_its_nearest_tested_ancestor() -> None:
    #  0 - 1 - 2 - 3 - 5    2 does not build, but 3 after it is fast
    #           \ 4 /
    graph = Graph.of([(), (0,), (1,), (2,), (2,), (3, 4)])
    step = found(hunt(World(graph, {4: -0.2}, QUIET, unbuildable=frozenset({2}), seed=6), Policy()).verdict)
    assert step.candidate == 4
    assert step.parents == (0,)  # the nearest tested ancestor; 3 is none
    assert step.stand_ins == (0,)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (Policy(max_runs=15), Reason.RUNS_SPENT),
        (Policy(max_builds=5), Reason.BUILDS_SPENT),
        (Policy(max_minutes=60), Reason.MINUTES_SPENT),
    ],
)
def test_a_budget_ends_with_an_honest_set(policy: Policy, reason: Reason) -> None:
    outcome = hunt(World(Graph.line(500), {123: -0.2}, QUIET, seed=5), policy)
    assert isinstance(outcome.verdict, Inconclusive)
    assert outcome.verdict.reason is reason
    assert 123 in outcome.verdict.candidates
    assert sum(outcome.verdict.probabilities) >= 0.9
    assert outcome.runs <= (policy.max_runs or 1000)
    assert outcome.builds <= (policy.max_builds or 1000)


@pytest.mark.parametrize(("end", "reason"), [(0, Reason.GOOD_UNMEASURABLE), (30, Reason.BAD_UNMEASURABLE)])
def test_an_end_that_does_not_build(end: int, reason: Reason) -> None:
    outcome = hunt(World(Graph.line(30), {7: -0.2}, QUIET, unbuildable=frozenset({end})), Policy())
    assert isinstance(outcome.verdict, Inconclusive)
    assert outcome.verdict.reason is reason


def test_no_runs_are_made_where_only_builds_could_help() -> None:
    quiet = Habits(noise=0.003, layout=0.001, outliers=0.0)
    outcome = hunt(World(Graph.line(64), {20: -0.2, 35: -0.08, 50: -0.1}, quiet, seed=1), Policy(max_builds=7))
    assert isinstance(outcome.verdict, Inconclusive)
    assert outcome.verdict.reason is Reason.BUILDS_SPENT
    assert set(outcome.verdict.candidates) == {19, 20, 21}
    assert outcome.runs < 40
