"""The information table and the distribution functions against what is known of them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.core.search.mutual_information import bits, entropy, exact_bits
from perfbisect.core.stats import distributions


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


@given(st.floats(-30, 8))
def test_log_cdf(x: float) -> None:
    expected = math.log(math.erfc(-x / math.sqrt(2)) / 2)
    assert float(distributions.log_cdf(np.array(x))) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("freedom", "point"), [(3, 3.182), (5, 2.571), (10, 2.228), (1000, 1.962)])
def test_student(freedom: float, point: float) -> None:
    assert distributions.t_quantile_975(freedom) == pytest.approx(point, rel=0.012)
    assert distributions.t_cdf(point, freedom) == pytest.approx(0.975, abs=2e-3)
    assert distributions.t_cdf(-point, freedom) == pytest.approx(0.025, abs=2e-3)
