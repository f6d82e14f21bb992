"""The share of a change that a revert undoes: what it says, and how often its interval is right."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perfbisect.core.stats.distributions import t_of_rounds
from perfbisect.core.stats.paired_comparison import share

Levels = dict[int, float]


def levels(*values: float) -> Levels:
    return dict(enumerate(values))


def test_of_a_loss_of_a_half_a_rise_by_the_square_root_of_two_is_half() -> None:
    """The machine is half as fast in the second round, which says nothing of any build."""
    drift = [0.0, math.log(0.5), 0.1]
    good, bad, back = (
        levels(*(math.log(rate) + each for each in drift)) for rate in (1000.0, 500.0, 500 * math.sqrt(2))
    )
    found = share(good, bad, back)
    assert found is not None
    assert found.lost == pytest.approx(math.log(2))
    assert found.share is not None
    assert (found.share.low, found.share.middle, found.share.high) == pytest.approx((0.5, 0.5, 0.5))
    assert found.rounds == 3


def test_only_rounds_with_all_three_count() -> None:
    good, bad, back = levels(1.0, 1.1, 1.0), levels(0.0, 0.1), {0: 1.0, 1: 0.9, 7: -5.0}
    found = share(good, bad, back)
    assert found is not None
    assert found.rounds == 2
    assert found.share is not None
    assert found.share.middle == pytest.approx(0.9)
    assert share({0: 1.0}, {0: 0.0}, {0: 1.0}) is None
    assert share({0: 1.0, 1: 1.0}, {2: 0.0, 3: 0.0}, {0: 1.0, 1: 1.0}) is None


def test_nothing_can_be_regained_of_what_is_not_shown_to_be_lost() -> None:
    found = share(levels(0.1, -0.1, 0.05), levels(0.0, 0.0, 0.0), levels(0.5, 0.5, 0.5))
    assert found is not None
    assert found.share is None
    same = share(levels(1.0, 2.0), levels(1.0, 2.0), levels(3.0, 4.0))
    assert same is not None
    assert same.share is None


small = st.floats(-0.2, 0.2)


@st.composite
def trials(draw: st.DrawFn) -> list[tuple[float, float, float]]:
    """Levels of good, bad and the revert in each round: a loss of at least a half, a share, and noise."""
    lost, truth = draw(st.floats(0.7, 3)), draw(st.floats(-1, 2))
    noise = draw(st.lists(st.tuples(small, small, small), min_size=3, max_size=8))
    return [(lost + one, two, truth * lost + three) for one, two, three in noise]


def per_build(rounds: list[tuple[float, float, float]]) -> list[Levels]:
    return [levels(*(each[build] for each in rounds)) for build in range(3)]


@given(trials())
def test_the_interval_holds_exactly_the_shares_that_a_test_of_paired_differences_does_not_refuse(
    rounds: list[tuple[float, float, float]],
) -> None:
    found = share(*per_build(rounds))
    assert found is not None
    assume(found.share is not None)
    assert found.share is not None
    low, middle, high = found.share.low, found.share.middle, found.share.high
    assert low <= middle <= high

    def excess(candidate: float) -> float:
        """Above 0 where Student's test refuses the share."""
        rest = np.array([(back - bad) - candidate * (good - bad) for good, bad, back in rounds])
        return abs(float(rest.mean())) - t_of_rounds(len(rounds) - 1) * float(rest.std(ddof=1)) / math.sqrt(len(rounds))

    exact = 1e-6 * (1 + abs(low) + abs(high))
    assert excess(middle) <= exact
    for end, step in ((low, -0.5), (high, 0.5)):
        assert abs(excess(end)) < exact
        assert excess(end + step) > 0


@given(trials(), st.floats(-5, 5), st.floats(-2, 2))
def test_neither_unit_nor_drift_matters_nor_whether_more_is_better(
    rounds: list[tuple[float, float, float]], unit: float, drift: float
) -> None:
    plain = share(*per_build(rounds))
    moved = share(*({at: unit + drift * at - level for at, level in build.items()} for build in per_build(rounds)))
    assert plain is not None
    assert moved is not None
    assert moved.lost == pytest.approx(-plain.lost)
    assume(plain.share is not None and plain.share.high - plain.share.low < 10)
    assert plain.share is not None
    assert moved.share is not None
    for end in ("low", "middle", "high"):
        assert getattr(moved.share, end) == pytest.approx(getattr(plain.share, end), rel=1e-5, abs=1e-5)


@pytest.mark.slow
@pytest.mark.calibration
@pytest.mark.parametrize("rounds", [3, 6])
@pytest.mark.parametrize("truth", [0.0, 0.83, 1.3])
@pytest.mark.parametrize("noise", [0.005, 0.03, 0.1])
def test_of_a_hundred_trials_five_state_an_interval_without_the_truth(rounds: int, truth: float, noise: float) -> None:
    """A loss of 10 %, visits with that noise (s.d. of a logarithm), on a machine that drifts from round to round.

    Where the noise leaves open whether anything was lost no interval is stated, which is no error. Three standard errors
    of 3000 trials are 1.2 %.
    """
    random = np.random.default_rng([rounds, round(100 * truth), round(1000 * noise)])
    lost, count = -math.log(0.9), 3000
    wrong = stated = 0
    for _ in range(count):
        machine = np.cumsum(random.normal(0, 0.05, rounds))
        found = share(
            *(levels(*(level + machine + random.normal(0, noise, rounds))) for level in (lost, 0.0, truth * lost))
        )
        assert found is not None
        if found.share is not None:
            stated += 1
            wrong += not found.share.low <= truth <= found.share.high
    assert wrong / count < 0.062
    if noise == 0.005:  # one that always shows the loss
        assert stated == count
        assert wrong / count > 0.038
