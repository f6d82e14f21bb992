"""The rules of other tools, in worlds where nothing is uncertain, and their mathematics against plain answers."""

import importlib
import json
import math
from itertools import combinations
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from named import found
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Found, Inconclusive, NotReproduced
from perfbisect.core.domain.policy import Policy
from perfbisect.simulate.graphs import merging
from perfbisect.simulate.host_model import Habits
from perfbisect.simulate.judge import Judgement, judge
from perfbisect.simulate.strategies import Rule
from perfbisect.simulate.tally import Trial
from perfbisect.simulate.world import World

STILL = Habits(noise=0.001, layout=0.0, outliers=0.0)
PEERS = Path(__file__).parents[2] / "benchmarks" / "search"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):
    """``load(name)`` imports a module of the benchmark."""
    monkeypatch.syspath_prepend(PEERS)

    def module(name: str) -> ModuleType:
        return importlib.import_module(name)

    return module


@pytest.fixture(params=["asv_find", "bayesect", "pinpoint", "sprt"])
def peer(request: pytest.FixtureRequest, load) -> Rule:
    rule = getattr(load(request.param), request.param)
    return rule(3) if request.param == "asv_find" else rule


@pytest.mark.parametrize("culprit", [1, 2, 20, 39, 40])
def test_a_line(peer: Rule, culprit: int) -> None:
    world = World(Graph.line(40), {culprit: -0.2}, STILL, seed=culprit)
    assert found(peer(world, Policy())).candidate == culprit


def test_credit_for_the_merge(peer: Rule) -> None:
    graph = merging(60, seed=2)
    for culprit in range(1, 61, 6):
        world = World(graph, {culprit: -0.2}, STILL, seed=culprit)
        assert judge(peer(world, Policy()), world) is Judgement.RIGHT
        assert culprit in world.answers


def test_what_does_not_build_is_skipped(peer: Rule) -> None:
    world = World(Graph.line(40), {30: -0.2}, STILL, unbuildable=frozenset([*range(18, 23), 27, 28, 32]))
    assert judge(peer(world, Policy()), world) is not Judgement.WRONG
    assert world.runs < 300


def test_where_nothing_changed_each_does_as_its_authors_say(load) -> None:
    line = Graph.line(30)
    assert isinstance(load("asv_find").asv_find(1)(World(line, {}, Habits()), Policy()), Found)
    assert isinstance(load("pinpoint").pinpoint(World(line, {}, Habits()), Policy()), NotReproduced)


@pytest.mark.calibration
def test_a_sequential_test_errs_as_seldom_as_it_promises(load) -> None:
    """Beside levels and noise that are known well, each side is mistaken for the other within Wald's bound."""
    module = load("sprt")
    habits = Habits(noise=0.05, layout=0.0, outliers=0.0)
    wrong = 0
    for seed in range(150):
        world = World(Graph.line(4), {4 - seed % 2: -0.1}, habits, seed=seed)
        wrong += judge(module.sprt(world, Policy()), world) is not Judgement.RIGHT
    assert wrong / 150 < 0.1
    assert isinstance(module.sprt(World(Graph.line(4), {}, habits), Policy()), NotReproduced)


def test_bayes_by_the_book(load) -> None:
    """The posterior against beta integrals done on a grid."""
    module = load("bayesect")
    fails, runs = np.array([0, 1, 0, 3, 2]), np.array([2, 2, 0, 3, 3])
    posterior, slow, fast = module._believe(np.ones(5), fails, runs)
    x = np.linspace(-400, 400, 200_001)  # p = 1 / (1 + exp(-x)): no poles

    def integral(k: int, n: int, prior: tuple[float, float]) -> float:
        a, b = k + prior[0], n - k + prior[1]
        return float(np.exp(-a * np.logaddexp(0, -x) - b * np.logaddexp(0, x)).sum())

    weights = np.array([
        integral(fails[h:].sum(), runs[h:].sum(), module.SLOW) * integral(fails[:h].sum(), runs[:h].sum(), module.FAST)
        for h in range(5)
    ])  # fmt: skip
    assert posterior == pytest.approx(weights / weights.sum())
    left = module._entropy_left(posterior, slow, fast)
    for tested in range(5):
        expected = 0.0
        share = np.where(np.arange(5) <= tested, slow, fast)
        for likelihood in (share, 1 - share):
            joint = posterior * likelihood
            expected -= (joint * np.log2(joint / joint.sum())).sum()
        assert left[tested] == pytest.approx(expected)


def test_the_rank_test_against_all_orders(load) -> None:
    rank_test = load("pinpoint").rank_test
    places = np.arange(12.0)
    sums = [sum(chosen) for chosen in combinations(range(12), 6)]
    for chosen in ((0, 1, 2, 3, 4, 5), (0, 1, 2, 4, 6, 7), (0, 3, 4, 7, 8, 11)):
        exact = np.mean([abs(total - 33) >= abs(sum(chosen) - 33) for total in sums])
        mask = np.isin(np.arange(12), chosen)
        assert rank_test(places[mask], places[~mask]) == pytest.approx(exact, abs=0.02)


def test_the_other_test_and_the_second_threshold(load) -> None:
    module = load("pinpoint")
    rng = np.random.default_rng(1)
    same = [module.kolmogorov_smirnov(rng.normal(size=20), rng.normal(size=20)) for _ in range(1000)]
    assert np.mean(np.array(same) <= 0.05) == pytest.approx(0.04, abs=0.02)
    shift = 1.0 * module.IQR
    shifted = [module.rank_test(rng.normal(size=20), rng.normal(size=20) + shift) for _ in range(2000)]
    assert np.mean(np.array(shifted) > module.second_threshold(1.0, 20)) == pytest.approx(module.MISSED, abs=0.015)


def test_bounds(load) -> None:
    bounds = load("bounds")
    assert bounds.capacity(0.2) == pytest.approx(0.1**2 / 2 / math.log(2), rel=0.02)
    assert [bounds.capacity(d) for d in (1, 2, 3, 5)] == pytest.approx([0.161, 0.486, 0.760, 0.975], abs=1e-3)
    assert bounds.bits(1024, 1e-9) == pytest.approx(10, abs=1e-6)
    assert bounds.bits(1) == 0
    assert bounds.lower_bound(1000, 0.5, 0.01, 10) == pytest.approx(bounds.bits(1000) * 11)


def test_cells_are_many_and_have_names_of_their_own(load) -> None:
    cells = load("cells").all_cells()
    assert sum(cell.group == "grid" for cell in cells) == 320
    assert len({cell.name for cell in cells}) == len(cells)


@pytest.mark.calibration
def test_an_interrupted_benchmark_is_continued(load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, results = load("run"), load("results")
    table = tmp_path / "out.md"

    def benchmark(hunts: int) -> None:
        words = ["--hunts", str(hunts), "--cells", "world/3 commits", "--rules", "ours;git_bayesect"]
        monkeypatch.setattr("sys.argv", ["run.py", *words, "--results", str(tmp_path), "--table", str(table)])
        run.main()

    benchmark(2)
    first = results.load(tmp_path, ["ours"])
    benchmark(3)
    again = results.load(tmp_path, ["ours"])[("world/3 commits", "ours")]
    assert {seed: again[seed] for seed in (0, 1)} == first[("world/3 commits", "ours")]
    assert set(again) == {0, 1, 2}
    assert sum(len(file.read_text().splitlines()) for file in tmp_path.glob("*.jsonl")) == 6
    rows = {row["rule"]: row for row in json.loads(table.with_suffix(".json").read_text())}
    assert rows["ours"]["hunts"] == 3
    assert "| 3 commits |" in table.read_text()


def trial(*, right: bool, cost: float) -> Trial:
    judgement = Judgement.RIGHT if right else Judgement.WRONG
    return Trial(judgement, True, math.nan, right, 1, 1, 1.0, cost)


def test_the_oracle_takes_the_cheapest_that_is_right_often_enough(load) -> None:
    contest, oracle = load("contest"), load("oracle")
    played = {
        ("a", f"git bisect R={r}"): {s: trial(right=r >= 5 or s > 1, cost=10.0 * r) for s in range(20)}
        for r in contest.ORACLE
    }
    chosen = oracle.with_oracle(["a", "b"], played)
    assert chosen["a", contest.BEST] is played["a", "git bisect R=5"]
    assert ("b", contest.BEST) not in chosen
    hopeless = {
        key: {s: trial(right=s < 8 + (t == 3), cost=1.0) for s in by_seed}
        for t, (key, by_seed) in enumerate(played.items())
    }
    assert oracle.with_oracle(["a"], hopeless)["a", contest.BEST] is hopeless["a", f"git bisect R={contest.ORACLE[3]}"]


def test_stated_probabilities_bin_by_bin(load) -> None:
    stated = [(0.5, True), (0.5, False), (0.995, True), (1.0, True), (None, True), (math.nan, False)]
    seen = [(name, count, mean, true.middle) for name, count, mean, true in load("figures").bins(stated)]
    assert seen == [("0.4 to 0.6", 2, 0.5, 0.5), ("0.99 to 1", 2, pytest.approx(0.9975), 1.0)]


def test_the_missing_tasks_of_a_benchmark(load, monkeypatch: pytest.MonkeyPatch) -> None:
    run = load("run")
    cells = ["world/usual", "grid/1000/5%@3%/B=1/steady,plain", "grid/100/5%@3%/B=1/steady,plain"]
    rules = ("ours", "ours, noise known", "git_bayesect")
    played = {(cells[0], "ours"): {s: trial(right=True, cost=1.0) for s in range(10)}}
    tasks = list(run.missing(cells, rules, {rules[0]: 20, rules[1]: 20, rules[2]: 5}, played))
    assert len(tasks) == 1 + 2 + 2 + 2 + 2 + 3
    assert [cell for cell, *_ in tasks[-5:]] == [cells[2]] * 5  # what is less urgent comes last
    assert not any(cell == cells[0] and rule == rules[1] for cell, rule, _ in tasks)
    progress = load("progress").Progress(tasks, jobs=2)
    progress.add(tasks[0], 30.0)
    left = sum(len(seeds) for *_, seeds in tasks[1:])
    assert progress.minutes_left() == pytest.approx(left * (30.0 / len(tasks[0][2])) / 2 / 60)


@pytest.mark.calibration
def test_every_rule_is_in_the_goals(load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "out.md"
    words = ["--hunts", "2", "--peer-hunts", "1", "--cells", "world/(2 comm|budget: 20)", "--rules", "all"]
    monkeypatch.setattr("sys.argv", ["run.py", *words, "--results", str(tmp_path), "--table", str(table)])
    load("run").main()
    text = table.read_text()
    assert "among the suspects: budget: 20 runs" in text
    assert "| never dearer than git bisect, best R, where it is right |" in text
    assert "| git bisect R=100 |" not in text
    rows = [(row["rule"], row["hunts"]) for row in json.loads(table.with_suffix(".json").read_text())]
    assert set(rows) >= {("ours", 2), ("SPRT", 1), ("git bisect, best R", 1)}


def test_an_inconclusive_search_ends_with_a_set(load, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("bayesect")
    monkeypatch.setattr(module, "MOST_RUNS", 5)
    verdict = module.bayesect(World(Graph.line(200), {90: -0.2}, STILL), Policy())
    assert isinstance(verdict, Inconclusive)
    assert 90 in verdict.candidates
