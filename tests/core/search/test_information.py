"""The expected information of runs, beliefs on levels, the expected cost of builds, and ancestors in a graph."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from shapes import criss_cross, octopus, two_roots

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Measure
from perfbisect.core.domain.settings import Policy, PriorKnowledge
from perfbisect.core.inference import ancestry as module
from perfbisect.core.inference.ancestry import (
    BOUND,
    Ancestry,
    Hypotheses,
    ancestry_of,
    bound_weight,
    distinguishable_hypotheses,
    with_suspected_weights,
)
from perfbisect.core.inference.observations import Built, Observation, Reading, Skipped
from perfbisect.core.inference.posterior import (
    HypothesisSeparation,
    Posterior,
    PredictedLevels,
    posterior_of,
    predict_levels,
)
from perfbisect.core.inference.record import arrange_observations
from perfbisect.core.inference.state_space import Levels, fit_levels, levels_for_search
from perfbisect.core.search.build_forecast import build_cost, chance_to_build
from perfbisect.core.search.situation import Situation
from perfbisect.core.stats.distributions import binary_entropy, exact_label_information, label_information
from perfbisect.simulate.hunt import simulate_hunt
from perfbisect.simulate.scenario import random_merging_graph
from perfbisect.simulate.world import HostModel, World
from simulated_worlds import decide, found


@given(st.floats(0.001, 0.999), st.floats(0.05, 11))
@settings(deadline=None)
def test_the_table_is_near_the_integral(p: float, separation: float) -> None:
    found = float(label_information(np.array(p), np.array(separation**2)))
    assert found == pytest.approx(exact_label_information(p, separation), abs=0.012)
    assert found <= float(binary_entropy(np.array(p))) + 3e-3


def test_label_information_matches_known_values() -> None:
    assert label_information(np.array([0.5, 0.5]), np.array([1e4, 0.0])) == pytest.approx([1.0, 0.0], abs=1e-3)
    assert exact_label_information(0.5, 2.0) == pytest.approx(
        0.486, abs=2e-3
    )  # capacity of the binary-input Gaussian channel


BAD = 20
DROP = 0.05

Array = NDArray[np.float64]


def seen_of(levels: dict[int, float], runs: int = 6, noise: float = 0.004) -> list[Observation]:
    """Interleaved runs of builds with these levels."""
    rng = np.random.default_rng(5)
    turns = [v for _ in range(runs) for v in levels]
    return [Reading(v, levels[v] + rng.normal() * noise, float(i), i, 0, 60.0) for i, v in enumerate(turns)]


def believed(seen: list[Observation], bad: int = BAD, drop: float = DROP) -> tuple[Levels, Hypotheses, Posterior]:
    record = arrange_observations(seen, Policy(), bad)
    levels = levels_for_search(fit_levels(record, np.ones(len(record.value))))
    groups = distinguishable_hypotheses(Graph.straight_history(bad), record)
    return levels, groups, posterior_of(levels, groups, drop, 0.004)


def test_a_combination_of_levels_is_predicted_as_one_joint_distribution() -> None:
    """A build minus itself has no variance; a build minus another build has the variance of their difference."""
    levels, groups, posterior = believed(seen_of({0: 0.0, 8: 0.0, BAD: -DROP}))
    seen = predict_levels(levels, groups, posterior, [8, 14], [1, -1])
    good, self_, bad = np.eye(3)
    read = _read(seen, [np.zeros(3), self_, good, bad])
    assert (read.between[0, 1], read.within[0, 1]) == pytest.approx((0, 0), abs=1e-6)
    assert read.between[1, 0] > 100 * read.between[0, 0], "only a run of the new build separates the open candidates"
    assert read.between[1, 2] == pytest.approx(read.between[1, 0], rel=0.2), "the ends are known"
    assert (read.within[1, 2:] >= 0).all()
    own, o = seen.covariance, seen.candidates
    difference = own[1, 1] - 2 * own[1, o] + own[o, o]
    steps = (seen.uncertain[1] - seen.uncertain[o]) ** 2 @ seen.step
    assert read.within[1, 2] == pytest.approx(difference + steps)


def _read(seen: PredictedLevels, weights: Sequence[Array]) -> HypothesisSeparation:
    """The separation by readings of each candidate minus each of these combinations of levels."""
    every = [seen.separation(*(np.tile(w, (seen.candidates, 1)),) * 2, np.ones((seen.candidates, 1))) for w in weights]
    columns = (np.hstack([getattr(one, name) for one in every]) for name in ("above", "between", "within"))
    return HypothesisSeparation(*columns)


def test_trust_interpolates_between_two_combinations_of_levels() -> None:
    levels, groups, posterior = believed(seen_of({0: 0.0, 5: -0.01, 8: 0.0, 15: -DROP, BAD: -DROP}))
    seen = predict_levels(levels, groups, posterior, [8, 14, 5], [2, -1, 1])
    one, other = np.random.default_rng(3).random((2, 3, 5))
    trust = np.array([[0.0, 0.3, 1.0]] * 3)
    mixed = seen.separation(one, other, trust)
    for column, share in enumerate(trust[0]):
        plain = seen.separation(share * one + (1 - share) * other, np.zeros((3, 5)), np.ones((3, 1)))
        for name in ("above", "between", "within"):
            assert getattr(mixed, name)[:, column] == pytest.approx(getattr(plain, name)[:, 0]), name


@pytest.mark.calibration
def test_search_on_a_drifting_host_does_not_repeat_one_build_alone() -> None:
    """On a drifting host, runs of one build give information only in comparison with runs of another build."""
    habits = HostModel(noise=0.01, drift=0.04, drift_memory=7200, run_seconds=60, build_seconds=600)
    world = World(Graph.straight_history(200), {90: -DROP}, habits, seed=3)
    seen: list[Observation] = []
    alone = longest = 0
    for _ in range(200):
        order = decide(world.graph, seen, Policy()).order
        if not isinstance(order, Measure):
            break
        repeated = len(order.plan) == 1 and bool(seen) and order.plan[0].candidate == seen[-1].candidate
        alone = alone + order.plan[0].runs if repeated else 0
        longest = max(longest, alone)
        seen += world.measure(order)
    assert not isinstance(order, Measure) and longest <= 6


@pytest.mark.parametrize("level", [0.4, 0.5, 0.6])
def test_level_between_fast_and_slow_leaves_two_candidates_open(level: float) -> None:
    """The build may be fast but slowed by its layout, or slow but sped up by its layout."""
    shares = {0: 0.0, 9: 0.0, 10: level, 11: 1.0, BAD: 1.0}
    _, groups, posterior = believed(seen_of({v: -share * DROP for v, share in shares.items()}, noise=0.002))
    culprit = groups.candidate_probabilities(posterior.culprit)[[10, 11]]
    assert culprit.sum() > 0.9 and culprit.min() > 0.04


def test_layout_does_not_explain_a_bad_end_many_times_slower() -> None:
    """Bad itself is the culprit of a long range, and no other build shows the change."""
    bad, drop = 3000, 1.1
    levels = dict.fromkeys((0, 1500, 2250, bad - 1), 0.0) | {bad: -drop}
    _, groups, posterior = believed(seen_of(levels, runs=3, noise=0.15), bad, drop)
    assert groups.candidate_probabilities(posterior.culprit)[bad] > 0.99


def test_probability_of_a_change_grows_with_difference_of_the_ends() -> None:
    """A small difference between two builds is no proof of a change, because layouts may cause the difference."""
    none, small, large = (believed(seen_of({0: 0.0, BAD: -drop}))[2].change for drop in (0.0, 0.02, 0.10))
    assert none <= 0.4 and small <= 0.9 and large >= 0.99


RUN = [Reading(0, 0.0, 1.0, 0, 0, 60.0)]
USUAL = 10.0


def situation(seen: list[Observation]) -> Situation:
    return Situation(Graph.straight_history(1000), [*RUN, *seen], Policy(), PriorKnowledge(build_cost=USUAL))


def priced(seen: list[Observation], chance: np.ndarray[tuple[int], np.dtype[np.float64]] | float = 1.0) -> list[float]:
    """The costs of a candidate next to a build, and of a candidate far from all builds."""
    return build_cost(situation(seen), [501, 875], chance).tolist()


def test_expected_build_cost_is_uniform_if_builds_took_equally_long() -> None:
    builds: list[Observation] = [Built(v, 613.7) for v in (0, 1000, 500, 750)]
    assert priced(builds) == [613.7 / 60] * 2
    assert priced([*builds, Skipped(600, "fails", 613.7)], np.array([0.3, 0.9])) == [613.7 / 60] * 2
    assert priced([]) == [USUAL] * 2


def test_build_near_another_is_cheaper_if_earlier_builds_were() -> None:
    def built(**seconds: float) -> tuple[float, float]:
        near, far = priced([Built(int(candidate[1:]), each) for candidate, each in seconds.items()])
        return near, far

    seen = {"c0": 600.0, "c1000": 600.0, "c500": 500.0, "c750": 250.0}
    little, much = built(**seen), built(**seen, c625=125.0, c562=60.0, c531=30.0)
    assert 1 < little[1] / little[0] < much[1] / much[0] > 4, "more builds show the saving more clearly"
    near, far = built(c0=60.0, c1000=60.0, c500=500.0, c750=600.0, c625=700.0)
    assert near == far, "a build near another is never expected to cost more"


def test_failed_builds_have_their_own_cost() -> None:
    builds: list[Observation] = [Built(v, 600.0) for v in (0, 1000, 500)]
    chance = np.array([1.0, 0.25])
    assert priced([*builds, Skipped(600, "fails", 120.0)], chance) == pytest.approx([10.0, 0.25 * 10 + 0.75 * 2])
    assert priced([*builds, Skipped(500, "crashes", 60.0)], chance) == [10.0, 10.0], "a crash is no failed build"


def test_build_cost_depends_on_the_cache_of_the_build_host() -> None:
    """The first build of a host, with an empty cache, is left out. Distances are to builds in the cache of the host."""
    first = [(0, 6000.0, 0), (1000, 6000.0, 1)]
    near = [(500, 500.0, 0), (510, 20.0, 0), (750, 250.0, 1), (720, 45.0, 1), (875, 125.0, 1)]
    now = situation([Built(v, seconds, build_host=host) for v, seconds, host in first + near])
    assert now.record.caches == {0: {0, 500, 510}, 1: {1000, 750, 720, 875}}
    assert [attempt.seconds for attempt in now.record.builds_with_warm_cache(1)] == [seconds for _, seconds, _ in near]
    own, other = (build_cost(now, [505, 870], build_host=host) for host in (0, 1))
    assert own[0] < other[0] and other[1] < own[1]
    assert now.record.builds_on(0) == {0, 1000, 500, 510, 750, 720, 875}, "builds are shared by all hosts"


def test_chance_to_build_on_a_line_grows_with_distance_from_failures() -> None:
    one, two, four = (
        chance_to_build(ancestry_of(Graph.straight_history(20)), failed, [0, 20])
        for failed in ([10], [8, 12], [6, 8, 12, 14])
    )
    assert one[[10, 11, 12, 15]].tolist() == [0.0, 1 / 2, 2 / 3, 5 / 6]
    assert np.array_equal(one, one[::-1])
    assert two[[9, 10, 11, 13]] == pytest.approx([3 / 16, 4 / 25, 3 / 16, 1 / (1 + 3)], abs=0.1)
    assert four[10] == pytest.approx(two[10] * 0.6**2)


def fork() -> Graph:
    """0 - 1 … 10 - 11 … 20 - 31 and, from 10, 21 … 30 - 31: a trunk, and a branch that left it at 10."""
    rows: list[tuple[int, ...]] = [(), *((v,) for v in range(20)), (10,), *((v,) for v in range(21, 30)), (20, 30)]
    return Graph.from_parents([*rows, (31,)])


def test_chance_to_build_on_a_trunk_and_on_a_branch() -> None:
    def chance(failed: list[int], *built: int) -> Array:
        return chance_to_build(ancestry_of(fork()), failed, [0, 32, *built])

    numbered = chance([20, 31], 10)
    assert numbered[30] > 0.4, "30 is an ancestor of the failure 31, but no descendant of the failure 20"
    assert numbered[21] > 0.9
    assert chance([5, 11])[21] < chance([5])[21] / 2, "10, where the branch begins, is between two failures"
    assert chance([5, 11], 10)[21] == 1.0
    mended = chance([5, 11], 21)
    assert (mended[21:31] == 1.0).all() and mended[10] < 1.0, "21 builds, so the failure was fixed before 21"


@pytest.mark.parametrize(
    "graph",
    [random_merging_graph(200, merge_chance=0.3, max_branch_age=60), criss_cross(100), octopus(100), two_roots(80)],
)
def test_ancestry_computes_heights_and_cuts_graph_into_pieces(graph: Graph) -> None:
    reach = ancestry_of(graph)
    marked = np.random.default_rng(1).choice(graph.size, 20, replace=False).tolist()
    segment, below = reach.pieces_with_parents(marked)
    height = [0] * graph.size
    for v in range(graph.size):
        parents = graph.parents_of(v)
        height[v] = max((height[p] + 1 for p in parents), default=0)
        assert {int(segment[p]) for p in parents} <= {int(segment[v]), *below[segment[v]]}
        assert v not in marked or (segment == segment[v]).sum() == 1
    assert reach.height.tolist() == height


def test_commits_left_out_are_not_built_and_are_no_evidence() -> None:
    reach = ancestry_of(Graph.straight_history(20))
    for others, left_out in (([], [9, 10, 11]), ([4], [10])):
        chance = chance_to_build(reach, [*others, *left_out], [0, 20], left_out)
        expected = chance_to_build(reach, others, [0, 20])
        expected[left_out] = 0.0
        assert np.array_equal(chance, expected)


# Ancestors and their sums, compared with a slow computation; and weights of commits that the user suspects.


@st.composite
def histories(draw: st.DrawFn, most: int = 14) -> list[tuple[int, ...]]:
    """Parents of each node: merges, octopuses, criss-crosses, several roots; the last node, bad, descends from all."""
    size = draw(st.integers(2, most))
    rows: list[tuple[int, ...]] = [()]
    for v in range(1, size):
        parents = draw(st.lists(st.integers(0, v - 1), min_size=0 if v > 1 else 1, max_size=3, unique=True))
        rows.append(tuple(parents))
    used = {p for row in rows for p in row}
    rows.append(tuple(v for v in range(size) if v not in used))
    return rows


def slow_ancestors(parents: Sequence[Sequence[int]]) -> np.ndarray:
    """A matrix of booleans: row v marks v and its ancestors."""
    square = np.eye(len(parents), dtype=bool)
    for v, row in enumerate(parents):
        for p in row:
            square[v] |= square[p]
    return square


@given(histories(), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_ancestors_and_sums_equal_a_slow_computation(parents: list[tuple[int, ...]], random) -> None:
    reach, square = Ancestry(Graph.from_parents(parents)), slow_ancestors(parents)
    weight = np.array([random.random() for _ in parents])
    assert np.array_equal([reach.with_ancestors(v) for v in range(len(parents))], square)
    assert np.allclose(reach.ancestor_sums(weight), square @ weight, rtol=1e-5)


@given(histories(), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_sums_in_large_graphs_are_exact_on_trunk_and_near_weight(parents, random) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "DENSE", 3)
        reach, square = Ancestry(Graph.from_parents(parents)), slow_ancestors(parents)
        weight = np.array([random.random() for _ in parents])
        sums = reach.ancestor_sums(weight)
        known = ~np.isnan(sums)
        assert np.allclose(sums[known], (square @ weight)[known], rtol=1e-5)
        v = len(parents) - 1
        while parents[v]:  # sums are known on the whole trunk
            assert known[v]
            v = parents[v][0]
        few = np.where(reach.segment == reach.segment[-1], weight, 0.0)
        if reach.segments <= module.DENSE**2:  # all sums can be computed if one segment has weight
            for some in (few, 2 * few):  # the second time from stored columns
                assert np.allclose(reach.ancestor_sums(some), square @ some, rtol=1e-5)
    assert Ancestry(Graph.straight_history(1000)).segments == 1


QUIET = HostModel(noise=0.005, layout=0.002, outliers=0.0)


def suspecting(commits: Mapping[str, Sequence[str]], **weights: float) -> Graph:
    return with_suspected_weights(Graph.straight_history(40), [f"c{i}" for i in range(41)], commits, weights)


def test_weights_of_suspected_commits_are_bounded() -> None:
    graph = suspecting({"a": ["c3"], "b": ["c3", "c4"]}, a=1e9, b=1e-9)
    assert graph.weight[3] / graph.weight[4] == pytest.approx(BOUND)
    assert (graph.weight[0], graph.weight[5]) == (0.0, 1.0)
    assert (bound_weight(2.0), bound_weight(0.5)) == pytest.approx((2.0, 0.5))
    two = suspecting({"a": ["c3"], "b": ["c3"]}, a=2.0, b=3.0)
    assert two.weight[3] == 3.0, "the largest weight of a commit counts"


@pytest.mark.calibration
def test_right_suspicion_saves_builds_and_wrong_does_not_mislead() -> None:
    builds = {}
    for suspects in ((), ("c17", "c31"), ("c5", "c36")):
        outcome = simulate_hunt(World(suspecting({"src": suspects}, src=4.0), {17: -0.2}, QUIET, seed=3), Policy())
        step = found(outcome.verdict)
        assert (step.candidate, step.prior) == (17, 4.0 if "c17" in suspects else 1.0)
        builds[suspects] = outcome.builds
    assert builds["c17", "c31"] <= builds[()]
