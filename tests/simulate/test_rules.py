"""The judgement and the tally of simulated verdicts; the rules and tables of the benchmark benchmarks/search."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from shapes import criss_cross, octopus, two_roots

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import (
    Found,
    Inconclusive,
    Interval,
    NotReproduced,
    Reason,
    Several,
    Step,
    UnsettledRange,
    Verdict,
)
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.ancestry import Ancestry
from perfbisect.simulate.host_model import HostModel
from perfbisect.simulate.scenario import Scenario, random_merging_graph
from perfbisect.simulate.tally import (
    HuntCost,
    JudgedHunt,
    Judgement,
    ShareInterval,
    StepCounts,
    Tally,
    count_steps,
    judge_verdict,
    judged_hunt_of_seed,
    most_probable_candidate,
    summary_lines,
    suspect_set_and_probability,
)
from perfbisect.simulate.world import World
from repos import Repo
from simulated_worlds import found

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "search"))

import bayesect
import bounds
import cells
import contest
import figures
import oracle
import results
import rules
import run
from bayesect import bayesect as git_bayesect

STILL = HostModel(noise=0.001, layout=0.0, outliers=0.0)
WIDE = Interval(0.9, 0.95, 1.0)


def culprit(candidate: int) -> Verdict:
    return Found(Step(candidate, 0.97, WIDE, ()))


def every(
    *candidates: int, left: tuple[int, int] | None = None, of: tuple[int, ...] = (), detectable: float = 0.0
) -> Several:
    known = Inconclusive(of, (1.0 / len(of),) * len(of) if of else (), WIDE, Reason.BUILDS_SPENT)
    unsettled = (UnsettledRange(*left, known),) if left else ()
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
def test_verdict_is_judged_right_wrong_or_honest(verdict: Verdict, judgement: str) -> None:
    assert judge_verdict(verdict, World(Graph.straight_history(10), {5: -0.1, 9: -0.03})) == judgement


def test_verdict_without_culprit_or_with_unbuildable_commits_is_judged() -> None:
    empty = (culprit(5), undecided(1, 2), NotReproduced(WIDE, 0.05))
    steps: list[dict[int, float]] = [{}, {5: 0.1}]
    for world in (World(Graph.straight_history(10), each) for each in steps):  # nothing, or an improvement
        assert [judge_verdict(verdict, world) for verdict in empty] == ["wrong", "honest", "right"]
    world = World(Graph.straight_history(10), {5: -0.1}, unbuildable=frozenset({4, 5}))
    judged = [judge_verdict(undecided(*candidates), world) for candidates in ((4, 5, 6), (3, 4, 5, 6), (7, 8))]
    assert judged == [Judgement.RIGHT, Judgement.HONEST, Judgement.WRONG]


def test_steps_of_a_verdict_are_counted_by_outcome() -> None:
    world = World(Graph.straight_history(20), {5: -0.1, 9: -0.03, 12: -0.06, 15: 0.06, 18: -0.001})
    verdict = every(5, 6, 15, 18, left=(10, 13), detectable=0.04)  # 15 is a rise, named as a drop
    assert count_steps(verdict, world, 0.02) == StepCounts(right=1, wrong=3, missed=1, unsettled=1, unseen=1)
    assert count_steps(NotReproduced(WIDE, 0.05), world, 0.02) == StepCounts(missed=3, unseen=1)
    assert count_steps(undecided(5), world, 0.02) == StepCounts(unsettled=4)


def test_most_probable_candidate_and_suspects_of_a_verdict() -> None:
    sure = Inconclusive((4, 5), (0.6, 0.3), WIDE, Reason.BUILDS_SPENT)
    assert (most_probable_candidate(culprit(5)), most_probable_candidate(sure)) == ((5, 0.97), (4, 0.6))
    assert {most_probable_candidate(one)[0] for one in (every(), undecided(4, 5), NotReproduced(WIDE, 0.1))} == {None}
    assert suspect_set_and_probability(sure) == ((4, 5), pytest.approx(0.9))
    assert suspect_set_and_probability(undecided(4, 5)) == suspect_set_and_probability(culprit(4)) == ((), None)


def test_intervals_of_shares_and_means_of_costs() -> None:
    assert ShareInterval.of(9, 10) == ShareInterval(pytest.approx(0.596, abs=1e-3), 0.9, pytest.approx(0.982, abs=1e-3))
    assert ShareInterval.of(0, 20) == ShareInterval(0.0, 0.0, pytest.approx(0.161, abs=1e-3))
    assert ShareInterval.of(0, 0).high == 1.0
    assert HuntCost.of([1, 2, 3, 4, 5, 6, 7, 8, 9, 30]) == HuntCost(7.5, pytest.approx(2.63, abs=0.01), 9)
    assert HuntCost.of([4]) == HuntCost(4, 0, 4)


def test_tally_of_judged_hunts() -> None:
    trials = [
        JudgedHunt(Judgement.RIGHT, True, 0.99, True, 12, 40, 120.0, 140.0),
        JudgedHunt(Judgement.WRONG, True, 0.97, False, 14, 60, 240.0, 180.0),
        JudgedHunt(Judgement.HONEST, False, 0.4, True, 16, 80, 240.0, 220.0),
    ]
    tally = Tally.of(trials)
    shares = (tally.right.middle, tally.named.middle, tally.right_if_named.middle, tally.stated)
    assert shares == pytest.approx((1 / 3, 2 / 3, 0.5, 0.98))
    spent = (tally.builds.mean, tally.runs.most, tally.cost.mean, tally.hours.mean)
    assert spent == pytest.approx((14, 80, 180, 10 / 3))
    lines = [*summary_lines(tally)]
    assert "The mean probability that the hunts stated for the named commit is 98 %." in lines
    assert "No hunt named a commit." in list(summary_lines(Tally.of(trials[2:])))
    with pytest.raises(ValueError, match="no hunt"):
        Tally.of([])
    one = judged_hunt_of_seed(
        Scenario(Graph.straight_history(16), effect=0.2, habits=STILL), 1, rules.git_bisect(1), Policy()
    )
    assert (one.judgement, one.builds, one.runs) == (Judgement.RIGHT, 6, 10)
    assert (one.cost, one.minutes) == (10 + 4 * 10, 10 + 6 * 10), "the builds of the ends are not part of the cost"


@pytest.mark.parametrize(
    "graph", [Graph.straight_history(33), random_merging_graph(60), criss_cross(40), octopus(50), two_roots(40)]
)
def test_git_bisect_finds_the_culprit_without_noise(graph: Graph) -> None:
    for first in range(1, graph.size):
        world = World(graph, {first: -0.2}, STILL, seed=first)
        assert found(rules.git_bisect(1)(world, Policy())).candidate == first
        assert world.builds <= 2 + 1.71 * math.log2(graph.size) + 1


def test_git_bisect_splits_the_range_as_git_does(git: Repo) -> None:
    graph = random_merging_graph(80, seed=3)
    lines = []
    for v in range(graph.size):
        lines.append(f"commit refs/heads/v{v}\nmark :{v + 1}\ncommitter A <a@example.org> {v} +0000\ndata 0\n")
        lines += [f"{'merge' if place else 'from'} :{p + 1}\n" for place, p in enumerate(graph.parents_of(v))]
    subprocess.run(["git", "fast-import", "--quiet"], cwd=git.path, input="".join(lines).encode(), check=True)
    fields = dict(line.split("=") for line in git("rev-list", "--bisect-vars", "v80", "^v0").splitlines())
    reach, left = Ancestry(graph), np.arange(graph.size) > 0
    chosen = rules._next(reach, left, set(), np.random.default_rng(0))
    assert chosen is not None
    below = reach.ancestor_sums(left.astype(float))[chosen]
    assert max(below, 80 - below) - 1 == int(fields["bisect_nr"])


def test_git_bisect_skips_unbuildable_commits() -> None:
    inside, outside = (
        World(Graph.straight_history(40), {step: -0.2}, STILL, unbuildable=frozenset(range(15, 25)))
        for step in (20, 30)
    )
    verdict = rules.git_bisect(1)(inside, Policy())
    assert isinstance(verdict, Inconclusive) and {*verdict.candidates} == {*range(15, 26)}
    assert judge_verdict(rules.git_bisect(5)(outside, Policy()), outside) is Judgement.RIGHT
    assert outside.builds == len(outside.build_seconds)  # a build that has failed is not repeated


def test_git_bayesect_finds_the_culprit_with_little_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_merging_graph(60, seed=2)
    for first in range(1, 61, 12):
        world = World(graph, {first: -0.2}, STILL, seed=first)
        assert judge_verdict(git_bayesect(world, Policy()), world) is Judgement.RIGHT
    monkeypatch.setattr(bayesect, "MOST_RUNS", 5)
    assert (
        90
        in suspect_set_and_probability(git_bayesect(World(Graph.straight_history(200), {90: -0.2}, STILL), Policy()))[0]
    )


def test_bayesect_posterior_equals_numerical_integrals() -> None:
    """The posterior and the expected entropy are compared with beta integrals on a grid."""
    fails, runs = np.array([0, 1, 0, 3, 2]), np.array([2, 2, 0, 3, 3])
    posterior, slow, fast = bayesect._believe(np.ones(5), fails, runs)
    x = np.linspace(-400, 400, 200_001)  # p = 1 / (1 + exp(-x)): no poles

    def integral(some: slice, prior: tuple[float, float]) -> float:
        a, b = prior[0] + fails[some].sum(), prior[1] + (runs - fails)[some].sum()
        return float(np.exp(-a * np.logaddexp(0, -x) - b * np.logaddexp(0, x)).sum())

    weights = [integral(slice(h, 5), bayesect.SLOW) * integral(slice(h), bayesect.FAST) for h in range(5)]
    assert posterior == pytest.approx(np.array(weights) / sum(weights))
    left = bayesect._entropy_left(posterior, slow, fast)
    for tested in range(5):
        share = np.where(np.arange(5) <= tested, slow, fast)
        joint = posterior * np.array([share, 1 - share])
        assert left[tested] == pytest.approx(-(joint * np.log2(joint / joint.sum(axis=1, keepdims=True))).sum())


def test_bounds_match_known_values_and_cells_have_unique_names() -> None:
    assert bounds.capacity(0.2) == pytest.approx(0.1**2 / 2 / math.log(2), rel=0.02)
    assert [bounds.capacity(d) for d in (1, 2, 3, 5)] == pytest.approx([0.161, 0.486, 0.760, 0.975], abs=1e-3)
    assert (bounds.bits(1024, 1e-9), bounds.bits(1)) == (pytest.approx(10, abs=1e-6), 0)
    assert bounds.lower_bound(1000, 0.5, 0.01, 10) == pytest.approx(bounds.bits(1000) * 11)
    assert sum(cell.group == "grid" for cell in cells.all_cells()) == 320
    assert len({cell.name for cell in cells.all_cells()}) == len(cells.all_cells())


def test_oracle_takes_the_cheapest_rule_that_is_right_often_enough() -> None:
    def trial(right: bool, cost: float) -> JudgedHunt:
        return JudgedHunt(Judgement.RIGHT if right else Judgement.WRONG, True, math.nan, right, 1, 1, 1.0, cost)

    played = {
        ("a", f"git bisect R={r}"): {s: trial(r >= 5 or s > 1, 10.0 * r) for s in range(20)} for r in contest.ORACLE
    }
    chosen = oracle.with_oracle(["a", "b"], played)
    assert chosen["a", contest.BEST] is played["a", "git bisect R=5"]
    assert ("b", contest.BEST) not in chosen


def test_stated_probabilities_are_grouped_in_bins() -> None:
    stated = [(0.5, True), (0.5, False), (0.995, True), (1.0, True), (None, True), (math.nan, False)]
    seen = [(name, count, mean, true.middle) for name, count, mean, true in figures.bins(stated)]
    assert seen == [("0.4 to 0.6", 2, 0.5, 0.5), ("0.99 to 1", 2, pytest.approx(0.9975), 1.0)]


@pytest.mark.calibration
def test_benchmark_with_more_hunts_keeps_earlier_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "out.md"

    def benchmark(hunts: int) -> None:
        words = f"--hunts {hunts} --peer-hunts 1 --rules all --results {tmp_path} --table {table} --cells".split()
        monkeypatch.setattr("sys.argv", ["run.py", *words, "world/(3 comm|budget: 20)"])
        run.main()

    benchmark(2)
    first = results.load(tmp_path, ["ours"])["world/3 commits", "ours"]
    benchmark(3)
    again = results.load(tmp_path, ["ours"])["world/3 commits", "ours"]
    assert first == {seed: again[seed] for seed in (0, 1)} != again
    text = table.read_text()
    assert "among the suspects: budget: 20 runs" in text and "| git bisect R=100 |" not in text
    assert "| never dearer than git bisect, best R, where it is right |" in text
    rows = {(row["rule"], row["hunts"]) for row in json.loads(table.with_suffix(".json").read_text())}
    assert rows >= {("ours", 3), ("git_bayesect", 1), ("git bisect, best R", 1)}
