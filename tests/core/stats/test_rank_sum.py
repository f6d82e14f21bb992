"""The rank-sum test: against all assignments of ranks, and over many trials."""

from itertools import combinations

import numpy as np
import pytest

from perfbisect.core.stats.rank_sum import below_by_chance


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 3), (4, 3), (5, 5), (3, 7)])
def test_it_is_the_share_of_assignments_with_as_few_exceptions(n: int, m: int) -> None:
    ranks = range(n + m)
    seen = []
    for low in combinations(ranks, n):
        high = [rank for rank in ranks if rank not in low]
        seen.append((sum(x > y for x in low for y in high), below_by_chance(low, high)))
    for exceptions, probability in seen:
        assert probability == pytest.approx(sum(other <= exceptions for other, _ in seen) / len(seen))


def test_ties_are_no_evidence() -> None:
    assert below_by_chance([1.0] * 6, [1.0] * 6) == pytest.approx(1.0)


@pytest.mark.parametrize("sizes", [(5, 5), (12, 9), (60, 60)])
def test_it_is_exact_for_any_distribution(sizes: tuple[int, int]) -> None:
    """Of two samples from one distribution with two modes, at most as many as stated are this far apart."""
    rng = np.random.default_rng(1)
    for level in (0.3, 0.05):
        trials = 2000
        named = 0
        for _ in range(trials):
            low, high = (rng.normal(size=size) + 15 * (rng.random(size) < 0.5) for size in sizes)
            named += below_by_chance(low.tolist(), high.tolist()) <= level
        assert named <= trials * level + 3 * (trials * level) ** 0.5


def test_large_samples_keep_their_digits() -> None:
    assert below_by_chance(range(60), range(60, 120)) < 1e-30
    assert below_by_chance(range(60, 120), range(60)) == pytest.approx(1.0)
