"""What the user suspects helps, and never decides."""

import pytest

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Found
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.ancestry import BOUND, bounded, suspected
from perfbisect.simulate.hunt import hunt
from perfbisect.simulate.world import Habits, World

COMMITS = [f"c{i}" for i in range(41)]
QUIET = Habits(noise=0.005, layout=0.002, outliers=0.0)


def graph_with(path: str, weight: float, *commits: str) -> Graph:
    return suspected(Graph.line(40), COMMITS, {path: commits}, {path: weight})


def test_odds_are_bounded() -> None:
    graph = suspected(Graph.line(40), COMMITS, {"a": ["c3"], "b": ["c3", "c4"]}, {"a": 1e9, "b": 1e-9})
    assert graph.weight[3] / graph.weight[4] == pytest.approx(BOUND)
    assert (graph.weight[0], graph.weight[5]) == (0.0, 1.0)
    assert (bounded(2.0), bounded(0.5)) == pytest.approx((2.0, 0.5))


def test_the_largest_weight_of_a_commit_counts() -> None:
    graph = suspected(Graph.line(40), COMMITS, {"a": ["c3"], "b": ["c3"]}, {"a": 2.0, "b": 3.0})
    assert graph.weight[3] == 3.0


@pytest.mark.calibration
def test_a_right_suspicion_saves_and_a_wrong_one_does_not_mislead() -> None:
    builds = {}
    for suspects in ((), ("c17", "c31"), ("c5", "c36")):
        outcome = hunt(World(graph_with("src", 4.0, *suspects), {17: -0.2}, QUIET, seed=3), Policy())
        assert isinstance(outcome.verdict, Found)
        assert outcome.verdict.step.candidate == 17
        assert outcome.verdict.step.prior == (4.0 if "c17" in suspects else 1.0)
        builds[suspects] = outcome.builds
    assert builds["c17", "c31"] <= builds[()]
