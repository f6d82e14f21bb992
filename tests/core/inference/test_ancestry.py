"""Ancestors and ancestor sums against the obvious slow answer. What the user suspects helps, and never decides."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Found
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference import ancestry as module
from perfbisect.core.inference.ancestry import BOUND, Ancestry, bounded, suspected
from perfbisect.simulate.hunt import hunt
from perfbisect.simulate.world import Habits, World


@st.composite
def histories(draw: st.DrawFn, most: int = 14) -> list[tuple[int, ...]]:
    """Parents of each node: merges, octopuses, criss-crosses, several roots; one bad end above everything."""
    size = draw(st.integers(2, most))
    rows: list[tuple[int, ...]] = [()]
    for v in range(1, size):
        parents = draw(st.lists(st.integers(0, v - 1), min_size=0 if v > 1 else 1, max_size=3, unique=True))
        rows.append(tuple(parents))
    used = {p for row in rows for p in row}
    rows.append(tuple(v for v in range(size) if v not in used))
    return rows


def slow_ancestors(parents: Sequence[Sequence[int]]) -> np.ndarray:
    """Square of booleans: row v marks v and everything below it."""
    square = np.eye(len(parents), dtype=bool)
    for v, row in enumerate(parents):
        for p in row:
            square[v] |= square[p]
    return square


@given(histories(), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_agrees_with_the_slow_answer(parents: list[tuple[int, ...]], random) -> None:
    reach, square = Ancestry(Graph.of(parents)), slow_ancestors(parents)
    weight = np.array([random.random() for _ in parents])
    assert np.array_equal([reach.ancestors(v) for v in range(len(parents))], square)
    assert np.allclose(reach.sums(weight), square @ weight, rtol=1e-5)


@given(histories(), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_large_graphs_are_exact_on_the_trunk_and_where_weight_is_left(parents, random) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "DENSE", 3)
        reach, square = Ancestry(Graph.of(parents)), slow_ancestors(parents)
        weight = np.array([random.random() for _ in parents])
        sums = reach.sums(weight)
        known = ~np.isnan(sums)
        assert np.allclose(sums[known], (square @ weight)[known], rtol=1e-5)
        v = len(parents) - 1
        while parents[v]:  # the trunk is always known
            assert known[v]
            v = parents[v][0]
        few = np.where(reach.segment == reach.segment[-1], weight, 0.0)
        if reach.segments <= module.DENSE**2:  # one segment with weight is few enough
            assert np.allclose(reach.sums(few), square @ few, rtol=1e-5)
            assert np.allclose(reach.sums(2 * few), square @ (2 * few), rtol=1e-5)  # from the columns kept


def test_a_line_is_one_segment() -> None:
    reach = Ancestry(Graph.line(1000))
    assert reach.segments == 1
    assert reach.sums(np.ones(1001))[-1] == 1001
    assert reach.ancestors(17).sum() == 18


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
