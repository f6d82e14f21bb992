"""Rules, how their verdicts are judged, and how hunts are added up."""

import math
import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from shapes import criss_cross, octopus, two_roots

from named import found
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import (
    Found,
    Inconclusive,
    Interval,
    NotReproduced,
    Reason,
    Several,
    Step,
    Unsettled,
    Verdict,
)
from perfbisect.core.domain.policy import Policy
from perfbisect.core.inference.ancestry import Ancestry
from perfbisect.simulate import strategies
from perfbisect.simulate.graphs import merging
from perfbisect.simulate.host_model import Habits
from perfbisect.simulate.judge import Account, Judgement, account, favourite, is_named, judge, suspects
from perfbisect.simulate.scenario import Scenario
from perfbisect.simulate.strategies import attempt, git_bisect, ours
from perfbisect.simulate.tally import Chance, Spent, Tally, Trial, summary
from perfbisect.simulate.world import World

STILL = Habits(noise=0.001, layout=0.0, outliers=0.0)
WIDE = Interval(0.9, 0.95, 1.0)


@pytest.mark.parametrize("graph", [Graph.line(33), merging(60), criss_cross(40), octopus(50), two_roots(40)])
def test_git_bisect_is_right_where_nothing_is_uncertain(graph: Graph) -> None:
    for culprit in range(1, graph.size):
        world = World(graph, {culprit: -0.2}, STILL, seed=culprit)
        assert found(git_bisect(1)(world, Policy())).candidate == culprit
        assert world.builds <= 2 + 1.71 * math.log2(graph.size) + 1


def test_git_bisect_splits_as_git_does(tmp_path: Path) -> None:
    graph = merging(80, seed=3)
    lines = []
    for v in range(graph.size):
        lines.append(f"commit refs/heads/v{v}\nmark :{v + 1}\ncommitter A <a@example.org> {v} +0000\ndata 0\n")
        words = ["from", *["merge"] * 8]
        lines += [f"{word} :{p + 1}\n" for word, p in zip(words, graph.parents_of(v), strict=False)]
    subprocess.run(["git", "init", "-q", "--bare", tmp_path], check=True)
    subprocess.run(["git", "fast-import", "--quiet"], cwd=tmp_path, input="".join(lines).encode(), check=True)
    reach, left = Ancestry(graph), np.ones(graph.size, bool)
    left[0] = False
    below = reach.sums(left.astype(float))
    answer = subprocess.run(
        ["git", "rev-list", "--bisect-vars", "v80", "^v0"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    fields = dict(line.split("=") for line in answer.stdout.splitlines())
    chosen = strategies._next(reach, left, set(), np.random.default_rng(0))
    assert chosen is not None
    assert max(below[chosen], 80 - below[chosen]) - 1 == int(fields["bisect_nr"])


def test_git_bisect_skips_what_does_not_build() -> None:
    inside = World(Graph.line(40), {20: -0.2}, STILL, unbuildable=frozenset(range(15, 25)))
    verdict = git_bisect(1)(inside, Policy())
    assert isinstance(verdict, Inconclusive)
    assert set(verdict.candidates) == set(range(15, 26))
    tried = World(Graph.line(40), {30: -0.2}, STILL, unbuildable=frozenset(range(15, 25)))
    git_bisect(5)(tried, Policy())
    assert tried.builds == len(tried.build_seconds)  # what fails once is not tried again
    outside = World(Graph.line(40), {30: -0.2}, STILL, unbuildable=frozenset(range(15, 25)))
    assert judge(git_bisect(1)(outside, Policy()), outside) is Judgement.RIGHT


@pytest.mark.calibration
def test_two_hosts_are_quicker_than_one() -> None:
    graph = Graph.line(400)
    times = []
    for hosts in (1, 2):
        world = World(graph, {133: -0.2}, Habits(noise=0.005), seed=2)
        verdict = ours(world, Policy(), hosts=hosts)
        assert judge(verdict, world) is Judgement.RIGHT
        times.append(world.now)
    assert times[1] < times[0]


def culprit(candidate: int) -> Verdict:
    return Found(Step(candidate, 0.97, WIDE, ()))


def every(
    *candidates: int, left: tuple[int, int] | None = None, of: tuple[int, ...] = (), detectable: float = 0.0
) -> Several:
    known = Inconclusive(of, (1.0 / len(of),) * len(of) if of else (), WIDE, Reason.BUILDS_SPENT)
    unsettled = (Unsettled(*left, known),) if left else ()
    return Several(tuple(Step(v, 0.97, WIDE, ()) for v in candidates), (), unsettled, detectable)


def undecided(*candidates: int) -> Verdict:
    return Inconclusive(candidates, (), WIDE, Reason.BUILDS_SPENT)


@pytest.mark.parametrize(("verdict", "judgement"), [
    (culprit(5), "right"), (culprit(6), "wrong"), (every(5, 9), "right"), (every(5), "wrong"), (every(6, 9), "wrong"), (every(5, 8), "wrong"),
    (every(5, left=(7, 10)), "honest"), (every(5, left=(5, 8)), "wrong"), (every(5, left=(7, 10), of=(8,)), "wrong"),
    (every(5, detectable=0.04), "honest"), (every(9, detectable=0.04), "wrong"),
    (undecided(4, 5), "honest"), (undecided(6, 7), "wrong"), (undecided(), "honest"),
    (NotReproduced(WIDE, 0.2), "honest"), (NotReproduced(WIDE, 0.05), "wrong"),
])  # fmt: skip
def test_judgement(verdict: Verdict, judgement: str) -> None:
    assert judge(verdict, World(Graph.line(10), {5: -0.1, 9: -0.03})) == judgement


@pytest.mark.parametrize(("verdict", "judgement"), [
    (culprit(5), "wrong"), (undecided(1, 2), "honest"), (NotReproduced(WIDE, 0.05), "right"),
])  # fmt: skip
@pytest.mark.parametrize("steps", [{}, {5: 0.1}], ids=["nothing", "improvement"])
def test_judgement_where_there_is_no_culprit(verdict: Verdict, judgement: str, steps: dict[int, float]) -> None:
    assert judge(verdict, World(Graph.line(10), steps)) == judgement


def test_the_account_of_every_step() -> None:
    world = World(Graph.line(20), {5: -0.1, 9: -0.03, 12: -0.06, 15: 0.06, 18: -0.001})
    verdict = every(5, 6, 15, 18, left=(10, 13), detectable=0.04)  # 15 is a rise, named as a drop
    assert account(verdict, world, 0.02) == Account(right=1, wrong=3, missed=1, unsettled=1, unseen=1)
    assert account(NotReproduced(WIDE, 0.05), world, 0.02) == Account(missed=3, unseen=1)
    assert account(undecided(5), world, 0.02) == Account(unsettled=4)


def test_the_favourite() -> None:
    assert favourite(every())[0] is None and not is_named(every())
    assert favourite(culprit(5)) == (5, 0.97)
    assert favourite(Inconclusive((4, 5), (0.6, 0.3), WIDE, Reason.BUILDS_SPENT)) == (4, 0.6)
    assert favourite(undecided(4, 5))[0] is None
    assert favourite(NotReproduced(WIDE, 0.1))[0] is None


@pytest.mark.calibration
def test_the_set_of_an_inconclusive_hunt() -> None:
    assert suspects(Inconclusive((4, 5), (0.6, 0.3), WIDE, Reason.BUILDS_SPENT)) == ((4, 5), pytest.approx(0.9))
    assert suspects(undecided(4, 5)) == suspects(culprit(4)) == ((), None)
    scenario = Scenario(Graph.line(100), effect=0.05)
    trials = [attempt(scenario, seed, ours, Policy(max_runs=16)) for seed in range(6)]
    sets = [trial for trial in trials if trial.together is not None]
    assert {trial.judgement for trial in sets if trial.held} <= {Judgement.HONEST}
    assert {trial.judgement for trial in sets if not trial.held} <= {Judgement.WRONG}
    assert any(trial.held for trial in sets)


def test_a_range_is_right_if_the_rest_of_it_does_not_build() -> None:
    world = World(Graph.line(10), {5: -0.1}, unbuildable=frozenset({4, 5}))
    assert judge(undecided(4, 5, 6), world) is Judgement.RIGHT
    assert judge(undecided(3, 4, 5, 6), world) is Judgement.HONEST
    assert judge(undecided(7, 8), world) is Judgement.WRONG


def test_wilson() -> None:
    assert Chance.of(9, 10) == Chance(pytest.approx(0.596, abs=1e-3), 0.9, pytest.approx(0.982, abs=1e-3))
    assert Chance.of(0, 20) == Chance(0.0, 0.0, pytest.approx(0.161, abs=1e-3))
    assert Chance.of(0, 0).high == 1.0


def test_spent() -> None:
    assert Spent.of([1, 2, 3, 4, 5, 6, 7, 8, 9, 30]) == Spent(7.5, pytest.approx(2.63, abs=0.01), 9)
    assert Spent.of([4]) == Spent(4, 0, 4)


def test_hunts_add_up() -> None:
    trials = [
        Trial(Judgement.RIGHT, True, 0.99, True, 12, 40, 120.0, 140.0),
        Trial(Judgement.WRONG, True, 0.97, False, 14, 60, 240.0, 180.0),
        Trial(Judgement.HONEST, False, 0.4, True, 16, 80, 240.0, 220.0),
    ]
    tally = Tally.of(trials)
    assert (tally.right.middle, tally.named.middle) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert tally.right_if_named.middle == 0.5
    assert tally.stated == pytest.approx(0.98)
    assert (tally.builds.mean, tally.runs.most, tally.cost.mean) == (14, 80, 180)
    assert tally.hours.mean == pytest.approx(10 / 3)
    assert any("right one in 50 % of the hunts and was stated as 98 %" in line for line in summary(tally))
    assert "No hunt named a commit." in list(summary(Tally.of(trials[2:])))
    with pytest.raises(ValueError, match="no hunt"):
        Tally.of([])


def test_the_builds_of_the_ends_are_not_part_of_the_cost() -> None:
    scenario = Scenario(Graph.line(16), effect=0.2, habits=STILL)
    trial = attempt(scenario, 1, git_bisect(1), Policy())
    assert (trial.judgement, trial.builds, trial.runs) == (Judgement.RIGHT, 6, 10)
    assert trial.cost == 10 + 4 * 10
    assert trial.minutes == 10 + 6 * 10


@pytest.mark.calibration
def test_all_rules_search_the_same_world() -> None:
    scenario = Scenario(Graph.line(100), effect=0.3, habits=STILL)
    trials = [attempt(scenario, 9, rule, Policy()) for rule in (ours, partial(ours, hosts=1), git_bisect(2))]
    assert trials[0] == trials[1]
    assert {trial.judgement for trial in trials} == {Judgement.RIGHT}
