"""The effect of layout in an A/A of layouts, which benchmarks measure."""

import numpy as np
import pytest
from layout_effect import LayoutEffect, effect_of


def drawn(rng: np.random.Generator, layouts: int, rounds: int, sd: float, visit: float) -> LayoutEffect:
    """An A/A of layouts on a host that drifts from round to round."""
    level = np.concatenate([[0.0], rng.normal(0, sd, layouts)])
    drift = np.cumsum(rng.normal(0, 0.05, rounds))
    visits = level[:, None] + drift[None, :] + rng.normal(0, visit, (layouts + 1, rounds)) + 3.0
    return effect_of({(build, at): float(visits[build, at]) for build in range(layouts + 1) for at in range(rounds)})


@pytest.mark.parametrize(("sd", "visit"), [(0.08, 0.01), (0.02, 0.02), (0.005, 0.02)])
def test_the_spread_between_layouts_is_found_whatever_drifts(sd: float, visit: float) -> None:
    rng = np.random.default_rng(4)
    found = [drawn(rng, 10, 3, sd, visit) for _ in range(400)]
    assert float(np.mean([each.sd**2 for each in found])) == pytest.approx(sd**2, rel=0.25, abs=3e-5)
    assert float(np.median([each.visit for each in found])) == pytest.approx(visit, rel=0.1)
    covered = float(np.mean([each.low <= sd <= each.high for each in found]))
    assert covered > 0.92


def test_layouts_that_do_not_differ_have_an_interval_that_begins_at_zero() -> None:
    found = [drawn(np.random.default_rng(seed), 10, 3, 0.0, 0.01) for seed in range(100)]
    assert sum(each.low == 0 for each in found) >= 92
    assert max(each.sd for each in found) < 0.015


def test_the_usual_layout_and_the_extremes_are_relative_to_the_mean_of_the_layouts() -> None:
    speeds = {0: 1.21, 1: 1.1, 2: 1.0, 3: 1 / 1.1}
    found = effect_of({(build, at): float(np.log(speed) + at) for build, speed in speeds.items() for at in range(2)})
    assert (found.layouts, found.rounds) == (3, 2)
    assert (found.lowest, found.highest, found.usual) == (
        pytest.approx(1 / 1.1), pytest.approx(1.1), pytest.approx(1.21)
    )  # fmt: skip
    assert found.visit == pytest.approx(0.0, abs=1e-9)
