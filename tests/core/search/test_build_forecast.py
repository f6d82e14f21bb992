"""What a build is expected to cost."""

import numpy as np
import pytest
from shapes import criss_cross, octopus, two_roots

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.ancestry import ancestry_of
from perfbisect.core.inference.observations import Built, Observation, Reading, Skipped
from perfbisect.core.inference.record import arrange
from perfbisect.core.search.build_forecast import chance_to_build, price
from perfbisect.simulate.scenario import merging

RUN = [Reading(0, 0.0, 1.0, 0, 0, 60.0)]
WORKS = np.ones(2)
USUAL = 10.0


def priced(seen: list[Observation], chance: np.ndarray[tuple[int], np.dtype[np.float64]] = WORKS) -> list[float]:
    """Of one candidate next to a build, and of one far from any."""
    record = arrange([*RUN, *seen], Policy(), 1000)
    return price(record, record.build_runs(USUAL), [501, 875], chance).tolist()


def test_builds_that_all_take_as_long_have_one_price() -> None:
    builds: list[Observation] = [Built(v, 613.7) for v in (0, 1000, 500, 750)]
    assert priced(builds) == [613.7 / 60] * 2
    assert priced([*builds, Skipped(600, "fails", 613.7)], np.array([0.3, 0.9])) == [613.7 / 60] * 2
    assert priced([]) == [USUAL] * 2


def test_near_a_build_it_is_cheaper_where_that_was_seen() -> None:
    builds: list[Observation] = [Built(v, s) for v, s in ((0, 600.0), (1000, 600.0), (500, 500.0), (750, 250.0))]
    more: list[Observation] = [Built(v, s) for v, s in ((625, 125.0), (562, 60.0), (531, 30.0))]
    little, much = priced(builds), priced([*builds, *more])
    assert little[0] < little[1]
    assert much[0] < much[1] / 4
    assert little[1] / little[0] < much[1] / much[0], "one learns it by and by"
    other_way = [Built(v, s) for v, s in ((0, 60.0), (1000, 60.0), (500, 500.0), (750, 600.0), (625, 700.0))]
    assert priced([*other_way])[0] == priced([*other_way])[1], "nearness never makes it dearer"


def test_failures_have_their_own_price() -> None:
    builds: list[Observation] = [Built(v, 600.0) for v in (0, 1000, 500)]
    seen = [*builds, Skipped(600, "fails", 120.0)]
    assert priced(seen, np.array([1.0, 0.25])) == pytest.approx([10.0, 0.25 * 10 + 0.75 * 2])
    crash = [*builds, Skipped(500, "crashes", 60.0)]
    assert priced(crash, np.array([1.0, 0.25])) == [10.0, 10.0], "that was a run"


def test_each_build_host_has_a_compiler_cache_of_its_own() -> None:
    """The first build of each, with an empty cache, says nothing about the others; distances are those of its own cache."""
    first: list[Observation] = [Built(0, 6000.0, build_host=0), Built(1000, 6000.0, build_host=1)]
    near = [(500, 500.0, 0), (510, 20.0, 0), (750, 250.0, 1), (720, 45.0, 1), (875, 125.0, 1)]
    record = arrange([*RUN, *first, *(Built(v, s, build_host=host) for v, s, host in near)], Policy(), 1000)
    assert record.caches == {0: {0, 500, 510}, 1: {1000, 750, 720, 875}}
    assert [attempt.seconds for attempt in record.builds_after(1)] == [seconds for _, seconds, _ in near]
    costs = [price(record, record.build_runs(USUAL), [505, 870], WORKS, build_host=host).tolist() for host in (0, 1)]
    assert costs[0][0] < costs[1][0] and costs[1][1] < costs[0][1]
    assert record.made(0) == {0, 1000, 500, 510, 750, 720, 875}, "every host gets them"


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
