"""Which candidates are believed to build."""

import numpy as np
import pytest

from perfbisect.core.domain.graph import Graph
from perfbisect.core.inference.ancestry import ancestry_of
from perfbisect.core.search.build_failures import chance_to_build
from perfbisect.simulate.graphs import criss_cross, merging, octopus, two_roots


def test_on_a_line_by_distance_and_room() -> None:
    chance = chance_to_build(ancestry_of(Graph.line(20)), [10], [0, 20])
    assert chance[[10, 11, 12, 15]].tolist() == [0.0, 1 / 2, 2 / 3, 5 / 6]
    assert np.array_equal(chance, chance[::-1])
    two = chance_to_build(ancestry_of(Graph.line(20)), [8, 12], [0, 20])
    assert two[[9, 10, 11]] == pytest.approx([3 / 16, 4 / 25 * 25 / 25, 3 / 16], abs=0.1)
    assert two[13] == 1 / (1 + 3)
    four = chance_to_build(ancestry_of(Graph.line(20)), [6, 8, 12, 14], [0, 20])
    assert four[10] == pytest.approx(two[10] * 0.6**2)


def fork() -> Graph:
    """0 - 1 … 10 - 11 … 20 - 31 and, from 10, 21 … 30 - 31: a trunk, and a branch that left it at 10."""
    rows: list[tuple[int, ...]] = [(), *((v,) for v in range(20)), (10,), *((v,) for v in range(21, 30)), (20, 30)]
    return Graph.of([*rows, (31,)])


def test_what_is_only_numbered_between_failures_is_not_between_them() -> None:
    reach = ancestry_of(fork())
    failed = [20, 31]
    chance = chance_to_build(reach, failed, [0, 32, 10])
    assert chance[30] > 0.4, "it leads up to a failure, but lacks the other one"
    assert chance[21] > 0.9


def test_a_branch_that_left_a_failing_line_took_along_what_fails() -> None:
    reach = ancestry_of(fork())
    before, after = (chance_to_build(reach, failed, [0, 32]) for failed in ([5], [5, 11]))
    assert after[21] < before[21] / 2, "10 is between two failures"
    cleared = chance_to_build(reach, [5, 11], [0, 32, 10])
    assert cleared[21] == 1.0


def test_a_success_on_the_way_shows_that_it_was_mended() -> None:
    chance = chance_to_build(ancestry_of(fork()), [5, 11], [0, 32, 21])
    assert (chance[21:31] == 1.0).all()
    assert chance[10] < 1.0


@pytest.mark.parametrize(
    "graph", [merging(200, branching=0.3, back=60), criss_cross(100), octopus(100), two_roots(80)]
)  # fmt: skip
def test_heights_and_pieces(graph: Graph) -> None:
    reach = ancestry_of(graph)
    marked = np.random.default_rng(1).choice(graph.size, 20, replace=False).tolist()
    segment, below = reach.cut(marked)
    height = [0] * graph.size
    for v in range(graph.size):
        parents = graph.parents_of(v)
        height[v] = max((height[p] + 1 for p in parents), default=0)
        assert {int(segment[p]) for p in parents} <= {int(segment[v]), *below[segment[v]]}
        assert v not in marked or (segment == segment[v]).sum() == 1
    assert reach.height.tolist() == height


def test_what_was_left_out_is_never_built_and_no_evidence_against_others() -> None:
    reach = ancestry_of(Graph.line(20))
    alone = chance_to_build(reach, [9, 10, 11], [0, 20], [9, 10, 11])
    assert np.flatnonzero(alone == 0).tolist() == [9, 10, 11]
    assert (np.delete(alone, [9, 10, 11]) == 1.0).all()
    beside = chance_to_build(reach, [4, 10], [0, 20], [10])
    expected = chance_to_build(reach, [4], [0, 20])
    assert beside[10] == 0.0
    assert np.array_equal(np.delete(beside, 10), np.delete(expected, 10))
