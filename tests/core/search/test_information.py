"""The information table and the distribution functions against what is known of them."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Measure
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.ancestry import Hypotheses, hypotheses
from perfbisect.core.inference.observations import Observation, Reading
from perfbisect.core.inference.posterior import Posterior, infer
from perfbisect.core.inference.record import arrange
from perfbisect.core.inference.state_space import Levels, fit, levels_of
from perfbisect.core.search.decide import decide
from perfbisect.core.search.information import Prediction, Separation, bits, entropy, exact_bits, predict
from perfbisect.simulate.world import Habits, World


@given(st.floats(0.001, 0.999), st.floats(0.05, 11))
@settings(deadline=None)
def test_the_table_is_near_the_integral(p: float, separation: float) -> None:
    found = float(bits(np.array(p), np.array(separation**2)))
    assert found == pytest.approx(exact_bits(p, separation), abs=0.012)
    assert found <= float(entropy(np.array(p))) + 3e-3


def test_limits() -> None:
    assert bits(np.array(0.5), np.array(1e4)) == pytest.approx(1.0, abs=1e-3)
    assert bits(np.array(0.5), np.array(0.0)) == 0.0
    assert exact_bits(0.5, 2.0) == pytest.approx(0.486, abs=2e-3)  # capacity of the binary-input Gaussian channel


BAD = 20
DROP = 0.05

Array = NDArray[np.float64]


def seen_of(levels: dict[int, float], runs: int = 6, noise: float = 0.004) -> list[Observation]:
    """Runs in turns of builds with these levels."""
    rng = np.random.default_rng(5)
    turns = [v for _ in range(runs) for v in levels]
    return [Reading(v, levels[v] + rng.normal() * noise, float(i), i, 0, 60.0) for i, v in enumerate(turns)]


def believed(seen: list[Observation], bad: int = BAD, drop: float = DROP) -> tuple[Levels, Hypotheses, Posterior]:
    record = arrange(seen, Policy(), bad)
    levels = levels_of(fit(record, np.ones(len(record.value))))
    groups = hypotheses(Graph.line(bad), record)
    return levels, groups, infer(levels, groups, drop, 0.004)


def test_a_combination_of_levels_is_predicted_as_one_joint_distribution() -> None:
    """Weights on a build itself leave nothing to be read; weights on others add their uncertainty."""
    levels, groups, posterior = believed(seen_of({0: 0.0, 8: 0.0, BAD: -DROP}))
    seen = predict(levels, groups, posterior, [8, 14], [1, -1])
    none, self_, good, bad = np.zeros(3), np.eye(3)[1], np.eye(3)[0], np.eye(3)[2]
    read = _read(seen, [none, self_, good, bad])
    assert read.between[0, 1] == pytest.approx(0, abs=1e-9)
    assert read.within[0, 1] == pytest.approx(0, abs=1e-6)
    assert read.between[1, 0] > 100 * read.between[0, 0], "only the new build splits what is open"
    assert read.between[1, 2] == pytest.approx(read.between[1, 0], rel=0.2), "the ends are known"
    assert (read.within[1, 2:] >= 0).all()
    own, o = seen.covariance, seen.candidates
    difference = own[1, 1] - 2 * own[1, o] + own[o, o]
    steps = (seen.left[1] - seen.left[o]) ** 2 @ seen.step
    assert read.within[1, 2] == pytest.approx(difference + steps)


def _read(seen: Prediction, weights: Sequence[Array]) -> Separation:
    """Of readings of every candidate less each of these combinations of levels."""
    every = [seen.against(*(np.tile(w, (seen.candidates, 1)),) * 2, np.ones((seen.candidates, 1))) for w in weights]
    columns = (np.hstack([getattr(one, name) for one in every]) for name in ("above", "between", "within"))
    return Separation(*columns)


def test_trust_goes_evenly_from_one_combination_to_the_other() -> None:
    levels, groups, posterior = believed(seen_of({0: 0.0, 5: -0.01, 8: 0.0, 15: -DROP, BAD: -DROP}))
    seen = predict(levels, groups, posterior, [8, 14, 5], [2, -1, 1])
    one, other = np.random.default_rng(3).random((2, 3, 5))
    trust = np.array([[0.0, 0.3, 1.0]] * 3)
    mixed = seen.against(one, other, trust)
    for column, share in enumerate(trust[0]):
        plain = seen.against(share * one + (1 - share) * other, np.zeros((3, 5)), np.ones((3, 1)))
        for name in ("above", "between", "within"):
            assert getattr(mixed, name)[:, column] == pytest.approx(getattr(plain, name)[:, 0]), name


@pytest.mark.calibration
def test_on_a_drifting_host_builds_are_not_repeated_alone() -> None:
    """Without a reference, more runs of one build have no information on it."""
    habits = Habits(noise=0.01, drift=0.04, drift_memory=7200, run_seconds=60, build_seconds=600)
    world = World(Graph.line(200), {90: -DROP}, habits, seed=3)
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
    assert not isinstance(order, Measure)
    assert longest <= 6


@pytest.mark.parametrize("level", [0.4, 0.5, 0.6])
def test_a_level_half_way_leaves_both_sides_open(level: float) -> None:
    """The build may be fast, slowed by its layout, or slow, sped up by it."""
    shares = {0: 0.0, 9: 0.0, 10: level, 11: 1.0, BAD: 1.0}
    _, groups, posterior = believed(seen_of({v: -share * DROP for v, share in shares.items()}, noise=0.002))
    culprit = groups.spread(posterior.culprit)
    assert culprit[10] + culprit[11] > 0.9
    assert min(culprit[10], culprit[11]) > 0.04


def test_no_layout_explains_a_bad_end_that_is_many_times_slower() -> None:
    """However long the rest of the range is, and although only the end itself shows the change."""
    bad, drop = 3000, 1.1
    levels = dict.fromkeys((0, 1500, 2250, bad - 1), 0.0) | {bad: -drop}
    _, groups, posterior = believed(seen_of(levels, runs=3, noise=0.15), bad, drop)
    assert groups.spread(posterior.culprit)[bad] > 0.99


@pytest.mark.parametrize(("drop", "low", "high"), [(0.0, 0.0, 0.4), (0.02, 0.0, 0.9), (0.10, 0.99, 1.0)])
def test_that_nothing_changed_is_weighed(drop: float, low: float, high: float) -> None:
    """Where layout may be the reason, a small difference between two builds is no proof of a change."""
    posterior = believed(seen_of({0: 0.0, BAD: -drop}))[2]
    assert low <= posterior.change <= high
