"""Distributions compared with tables, with each other, and with simulated samples."""

import math
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.core.stats.distributions import Student, log_normal_cdf, rank_sum_p_value, signed_rank_p_value


@given(st.floats(-30, 8))
def test_log_normal_cdf_agrees_with_erfc(x: float) -> None:
    expected = math.log(math.erfc(-x / math.sqrt(2)) / 2)
    assert float(log_normal_cdf(np.array(x))) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("freedom", "point", "by_rounds", "by_expansion"),
    [
        (1, 12.7062, 1e-3, None), (2, 4.30265, 1e-3, 0.14), (3, 3.18245, 1e-3, 0.024), (5, 2.57058, 1e-3, 3e-3),
        (8, 2.30600, 1e-3, 5e-4), (9, 2.26216, 3e-4, 3e-4), (30, 2.04227, 1e-5, 1e-5), (1000, 1.96234, 1e-5, 1e-5),
    ],
)  # fmt: skip
def test_quantiles_agree_with_tables(freedom: int, point: float, by_rounds: float, by_expansion: float | None) -> None:
    student = Student(freedom)
    assert student.two_sided_p_value(point) == student.two_sided_p_value(-point) == pytest.approx(0.05, abs=1e-6)
    assert student.tabulated_quantile() == pytest.approx(point, abs=by_rounds)
    if by_expansion:
        assert student.quantile() == pytest.approx(point, abs=by_expansion)
    location, scale = np.array([[3.0, 0.0]]), np.array([[1.0, 0.01]])
    found = student.mixture_quantiles(np.ones(1), location, scale, (0.025, 0.5, 0.975))
    assert found[0] == pytest.approx([3 - point, 3.0, 3 + point], rel=1e-4, abs=2e-4)
    assert found[1] == pytest.approx([-0.01 * point, 0.0, 0.01 * point], rel=1e-3, abs=1e-6)


def test_tail_probabilities_agree_with_tables() -> None:
    of_80_percent = [Student(freedom).quantile(0.841621) for freedom in (2, 7, 30)]
    assert of_80_percent == pytest.approx([1.0607, 0.8960, 0.8538], abs=5e-4)
    beyond = [
        Student(freedom).two_sided_p_value(point) for freedom, point in ((2, 31.599), (4, 8.610), (3, 0.0), (4, 0.0))
    ]
    assert beyond == pytest.approx([0.001, 0.001, 1, 1], rel=2e-3)
    assert Student(1).two_sided_p_value(math.inf) == 0 <= Student(7).two_sided_p_value(1e9) < 1e-12


@pytest.mark.parametrize(("freedom", "near"), [(2, 2e-3), (3, 1e-3), (10, 1e-4), (100, 2e-6)])
def test_cdf_of_student_is_close_to_the_exact_cdf(freedom: int, near: float) -> None:
    for t in np.linspace(-6, 6, 49).tolist():
        tail = Student(freedom).two_sided_p_value(t) / 2
        assert Student(freedom).cdf(t) == pytest.approx(tail if t < 0 else 1 - tail, abs=near)


def test_quantiles_of_a_mixture_agree_with_samples() -> None:
    random, part = np.random.default_rng(3), np.arange(400_000) % 10 >= 7
    weight, location, scale = np.array([0.7, 0.3]), np.array([[0.0], [2.0]]), np.array([[1.0], [0.2]])
    sample = np.where(part, 2.0, 0.0) + np.where(part, 0.2, 1.0) * random.standard_t(5, len(part))
    found = Student(5.0).mixture_quantiles(weight, location, scale, (0.025, 0.5, 0.975))[0]
    assert found == pytest.approx(np.quantile(sample, (0.025, 0.5, 0.975)), abs=0.03)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 3), (4, 3), (5, 5), (3, 7)])
def test_rank_sum_p_value_is_the_share_of_assignments(n: int, m: int) -> None:
    sides = [(low, {*range(n + m)}.difference(low)) for low in combinations(range(n + m), n)]
    seen = [(sum(x > y for x in low for y in high), rank_sum_p_value(low, [*high])) for low, high in sides]
    for exceptions, probability in seen:
        assert probability == pytest.approx(sum(other <= exceptions for other, _ in seen) / len(seen))


@pytest.mark.parametrize("sizes", [(5, 5), (60, 60)])
def test_rank_sum_p_value_holds_for_any_distribution(sizes: tuple[int, int]) -> None:
    """Both samples are from one bimodal distribution: p-values of at most p occur in at most the share p of trials."""
    rng, trials, by_chance = np.random.default_rng(1), 2000, []
    for _ in range(trials):
        low, high = (rng.normal(size=size) + 15 * (rng.random(size) < 0.5) for size in sizes)
        by_chance.append(rank_sum_p_value(low.tolist(), high.tolist()))
    for level in (0.3, 0.05):
        assert sum(each <= level for each in by_chance) <= trials * level + 3 * (trials * level) ** 0.5


def test_rank_sum_p_value_of_large_samples_is_precise() -> None:
    assert rank_sum_p_value(range(60), range(60, 120)) < 1e-30
    assert rank_sum_p_value(range(60, 120), range(60)) == pytest.approx(1.0)
    assert rank_sum_p_value([1.0] * 6, [1.0] * 6) == pytest.approx(1.0), "ties are no evidence"


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8))
def test_signed_rank_p_value_is_the_share_of_sign_combinations(differences: list[int]) -> None:
    """Equal sizes have the mean of their ranks, so the order of the differences does not matter."""
    sizes = [abs(each) for each in differences]
    ranks = [(sum(each < size for each in sizes) + sum(each <= size for each in sizes) + 1) / 2 for size in sizes]
    below = sum(rank for rank, each in zip(ranks, differences, strict=True) if each <= 0)
    signs = list(product((False, True), repeat=len(ranks)))
    sums = [sum(rank for rank, is_below in zip(ranks, each, strict=True) if is_below) for each in signs]
    expected = sum(each <= below for each in sums) / len(signs)
    assert signed_rank_p_value(differences) == pytest.approx(expected)
    assert signed_rank_p_value(differences[::-1]) == pytest.approx(expected)
    assert signed_rank_p_value([-1, 1, 1, 1]) == signed_rank_p_value([1, 1, 1, -1]) == pytest.approx(5 / 16)
