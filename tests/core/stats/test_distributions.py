"""Quantiles of mixtures of Student distributions."""

import numpy as np
import pytest

from perfbisect.core.stats.distributions import t_mixture_quantiles


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (10, 2.2281), (200, 1.9719), (1e6, 1.9623)]
)
def test_one_component_has_the_quantiles_of_the_tables(freedom: float, expected: float) -> None:
    location, scale = np.array([[3.0, 0.0]]), np.array([[1.0, 0.01]])
    found = t_mixture_quantiles(np.ones(1), location, scale, freedom, (0.025, 0.5, 0.975))
    assert found[0] == pytest.approx([3 - expected, 3.0, 3 + expected], rel=1e-4, abs=2e-4)
    assert found[1] == pytest.approx([-0.01 * expected, 0.0, 0.01 * expected], rel=1e-3, abs=1e-6)


def test_a_mixture_has_the_quantiles_of_its_samples() -> None:
    random = np.random.default_rng(3)
    weight, location, scale = np.array([0.7, 0.3]), np.array([[0.0], [2.0]]), np.array([[1.0], [0.2]])
    part = random.choice(2, 400_000, p=weight)
    sample = location[part, 0] + scale[part, 0] * random.standard_t(5, len(part))
    found = t_mixture_quantiles(weight, location, scale, 5.0, (0.025, 0.5, 0.975))[0]
    assert found == pytest.approx(np.quantile(sample, (0.025, 0.5, 0.975)), abs=0.03)
