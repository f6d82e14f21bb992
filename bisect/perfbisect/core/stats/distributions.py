"""Statistical functions: the normal distribution, Student's t distribution and its mixtures, the chi-square
distribution, rank tests, and the information (in bits) that a reading gives.

The p-value of Student's t distribution is exact. Its tabulated 97.5 % point has an error of at most 5e-4. Quantiles of
mixtures have errors of at most 3e-5 of the scale. The search uses ``normal_score`` and ``quantile``, which are less
accurate for few degrees of freedom.

The rank test (Mann and Whitney, On a Test of Whether one of Two Random Variables is Stochastically Larger than the
Other, 1947) assumes no distribution of the values. Under the null hypothesis, the n values x and the m values y are
drawn from one distribution, and all assignments of the n + m ranks to the two samples are equally probable. The
probabilities of the number of pairs (x, y) with x > y are then the coefficients of the Gaussian binomial (a polynomial
in q)

    Π (1 - q^(m + i)) / (1 - q^i),   i = 1 … n

divided by their sum.

The information of a reading is its mutual information with a binary label, such as whether a build is slow. The label
is 1 with probability p. The reading is normally distributed with variance 1, and its means for the labels 0 and 1
differ by d. The mutual information is an integral without a closed form; its values are computed once for a grid of
logit p and log d², and are then interpolated.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

# Coefficients of the Chebyshev fit of log(erfc(z) exp(z²) / t), t = 1 / (1 + z / 2); relative error below 1.2e-7.
_ERFC = (-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806,
         0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277)  # fmt: skip

Array = NDArray[np.float64]

Z_975 = 1.959964  # 97.5 % point of the normal distribution
# 97.5 % point of Student's with 1, 2, … degrees of freedom
FEW_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306)
# Quantiles of chi-square with 1 to 6 degrees of freedom.
FEW_LOW = (0.000982, 0.050636, 0.215795, 0.484419, 0.831212, 1.237344)  # 2.5 %
FEW_HIGH = (5.023886, 7.377759, 9.348404, 11.143287, 12.832502, 14.449375)  # 97.5 %
HALVINGS = 60  # the most bisections of an interval that contains a quantile


def log_normal_cdf(x: Array) -> Array:
    """The log of the standard normal distribution function, exact far into the lower tail."""
    z = np.abs(x) / np.sqrt(2.0)
    t = 1.0 / (1.0 + 0.5 * z)
    log_upper = np.log(t / 2) - z * z + np.polynomial.polynomial.polyval(t, _ERFC)
    result: Array = np.where(x < 0, log_upper, np.log1p(-np.exp(np.minimum(log_upper, -0.69))))
    return result


@dataclass(frozen=True, slots=True)
class Student:
    """Student's t distribution with ``freedom`` degrees of freedom."""

    freedom: float

    def normal_score(self, t: float) -> float:
        """The normal quantile with the same cumulative probability as the value ``t`` of Student's t distribution
        (Wallace's approximation)."""
        v = self.freedom
        return float(np.copysign(np.sqrt(v * np.log1p(t * t / v)) * (8 * v + 1) / (8 * v + 3), t))

    def cdf(self, t: float) -> float:
        """The probability of values below ``t``, computed from the normal score of ``t``. The error is at most 2e-3
        with two degrees of freedom, and 1e-4 with ten.
        """
        return float(np.exp(log_normal_cdf(np.array(self.normal_score(t)))))

    def quantile(self, z: float = Z_975) -> float:
        """The quantile with the same cumulative probability as the normal quantile ``z`` (Cornish and Fisher's
        expansion).

        The computed 97.5 % point is 0.13 too low with two degrees of freedom, 0.003 with five, and 3e-4 with nine.
        """
        v = max(self.freedom, 2.0)
        first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
        return z + first / v + second / v**2 + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)

    def tabulated_quantile(self) -> float:
        """The 97.5 % quantile for a whole number of degrees of freedom, from a table if the number is small."""
        return FEW_T[int(self.freedom) - 1] if self.freedom <= len(FEW_T) else self.quantile()

    def two_sided_p_value(self, t: float) -> float:
        """The two-sided p-value of ``t`` for a whole number of degrees of freedom, exact except for rounding.

        The p-value is computed by the finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4.
        """
        if math.isinf(t):
            return 0.0
        angle, odd = math.atan(abs(t) / math.sqrt(self.freedom)), self.freedom % 2
        cosine = math.cos(angle)
        term, total = (cosine, 0.0) if odd else (1.0, 0.0)
        for power in range(3 if odd else 2, int(self.freedom) + 1, 2):
            total += term
            term *= cosine**2 * (power - 1) / power
        inside = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
        return max(0.0, 1.0 - inside)

    def mixture_quantiles(self, weight: Array, location: Array, scale: Array, probabilities: Sequence[float]) -> Array:
        """Quantiles of several mixtures of shifted and scaled t distributions: a row for each mixture, and a column for
        each of ``probabilities``.

        Quantiles are found by bisection, to 1e-10 of the smallest scale. ``weight`` has the weight of each component,
        which is the same in all mixtures; the weights sum to one. ``location`` and ``scale`` have a row for each
        component and a column for each mixture.
        """
        # above 1000 degrees of freedom, Student's distribution equals the normal distribution in three digits
        freedom = float(np.clip(self.freedom, 1.0, 1000.0))
        # With t = √freedom · tan(angle) the density in the angle is proportional to cos(angle)^(freedom - 1).
        angle = np.linspace(-np.pi / 2, np.pi / 2, 4001)
        density = np.cos(angle) ** (freedom - 1)
        mass = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
        mass /= mass[-1]
        width, close = np.sqrt(freedom) * scale, 1e-10 * scale.min(axis=0)
        points = np.empty((location.shape[1], len(probabilities)))
        for column, level in enumerate(probabilities):
            # Distance of each component's quantile from the component's location.
            reach = width * np.tan(np.interp(level, mass, angle))
            low, high = (location + reach).min(axis=0), (location + reach).max(axis=0)
            for _ in range(HALVINGS):
                if (high - low <= close).all():
                    break
                middle = (low + high) / 2
                above = weight @ np.interp(np.arctan((middle - location) / width), angle, mass) > level
                low, high = np.where(above, low, middle), np.where(above, middle, high)
            points[:, column] = (low + high) / 2
        return points


def log_sum_exp(logs: Array, axis: int | None = None) -> Array:
    """The logarithm of the sum of the exponentials of ``logs``."""
    top = np.max(logs, axis=axis, keepdims=True)
    total: Array = np.log(np.exp(logs - top).sum(axis=axis, keepdims=True)) + top
    return np.squeeze(total, axis=axis)


def chi_square_quantile(z: float, freedom: float) -> float:
    """The 2.5 % or 97.5 % quantile of the chi-square distribution; ``z`` is the same quantile (-Z_975 or Z_975) of the
    normal distribution.

    The quantiles for up to six degrees of freedom are read from tables. For more degrees of freedom, the quantiles are
    computed by Wilson and Hilferty's formula, and are at most 2 % too low.
    """
    table = FEW_LOW if z < 0 else FEW_HIGH
    if freedom <= len(table):
        return float(np.interp(freedom, np.arange(1, len(table) + 1), table))
    share = 2 / (9 * freedom)
    return float(freedom * (1 - share + z * math.sqrt(share)) ** 3)


def rank_sum_p_value(low: Sequence[float], high: Sequence[float]) -> float:
    """The one-sided p-value of the rank test (Mann and Whitney) whether the values ``low`` are smaller than the values
    ``high``.

    The test counts the pairs of a ``low`` value and a ``high`` value in which the ``low`` value is greater or equal.
    The p-value is the probability, if both samples are drawn from one distribution, that the number of these pairs is
    at most the observed number.
    """
    x, y = np.asarray(low), np.asarray(high)
    exceptions = int((x[:, None] >= y[None, :]).sum())
    return float(_mann_whitney_cdf(len(x), len(y))[exceptions])


def signed_rank_p_value(differences: Sequence[float]) -> float:
    """The one-sided p-value of Wilcoxon's signed-rank test whether ``differences`` are above 0.

    The statistic is the sum of the ranks of the differences that are 0 or below. The p-value is the probability, if the
    distribution of differences is symmetric around 0, that this sum is at most the observed sum. Differences with equal
    absolute values get the mean of their ranks. Source: Frank Wilcoxon, "Individual Comparisons by Ranking Methods",
    Biometrics Bulletin 1 (1945).
    """
    values = np.asarray(differences)
    _, size, count = np.unique(np.abs(values), return_inverse=True, return_counts=True)
    ranks = (2 * np.cumsum(count) - count + 1)[size]  # twice the mean rank, so that it is a whole number
    ways = np.ones(1)
    for rank in ranks.tolist():
        with_rank = np.concatenate((np.zeros(rank), ways))
        with_rank[: len(ways)] += ways
        ways = with_rank / 2
    return float(min(ways[: int(ranks[values <= 0].sum()) + 1].sum(), 1.0))


@lru_cache(maxsize=128)
def _mann_whitney_cdf(n: int, m: int) -> Array:
    """For k = 0, 1 … n·m: the probability that the Mann-Whitney statistic U is at most k. U is the number of pairs
    (x, y) with x > y, if ``n`` values x and ``m`` values y are drawn from one distribution."""
    ways = np.ones(1)
    for i in range(1, n + 1):
        longer = np.zeros(len(ways) + m + i)
        longer[: len(ways)] += ways
        longer[m + i :] -= ways
        for start in range(i):  # divides the polynomial by 1 - q^i
            longer[start::i] = np.cumsum(longer[start::i])
        ways = longer[: i * m + 1]
        ways /= ways.sum()
    total: Array = np.minimum(np.cumsum(ways), 1.0)
    return total


LOGIT = np.linspace(0.0, 9.0, 28)  # logits of p from 0.5 on, because the table is symmetric in p
LOG_SQUARE = np.linspace(np.log(1e-3), np.log(150.0), 48)


def binary_entropy(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """The entropy, in bits, of a binary label that is 1 with probability ``p``."""
    q = np.clip(p, 1e-15, 1 - 1e-15)
    return -(q * np.log2(q) + (1 - q) * np.log2(1 - q))


def exact_label_information(p: float, distance: float) -> float:
    """The mutual information, in bits, of a reading and a binary label that is 1 with probability ``p``, computed by
    numerical integration. ``distance`` is the distance between the reading's means for the labels 0 and 1, in standard
    deviations.
    """
    x, step = np.linspace(-9 - distance / 2, 9 + distance / 2, 1001, retstep=True)
    low = np.exp(-0.5 * (x + distance / 2) ** 2) / np.sqrt(2 * np.pi)
    high = np.exp(-0.5 * (x - distance / 2) ** 2) / np.sqrt(2 * np.pi)
    mix = (1 - p) * low + p * high
    uncertainty = binary_entropy(p * high / np.maximum(mix, 1e-300))
    return max(0.0, float(binary_entropy(np.array(p)) - (mix * uncertainty).sum() * step))


@lru_cache(maxsize=1)
def _information_table() -> NDArray[np.float64]:
    return np.array([[exact_label_information(1 / (1 + np.exp(-l)), np.exp(g / 2)) for g in LOG_SQUARE] for l in LOGIT])


def label_information(p: NDArray[np.float64], squared_distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mutual information, in bits, of a reading and a binary label that is 1 with probability ``p``, interpolated
    in a table.

    ``squared_distance`` is the squared distance between the reading's means for the labels 0 and 1, in units of the
    reading's variance.
    """
    p = np.clip(p, 1e-12, 1 - 1e-12)
    row = np.minimum(np.abs(np.log(p / (1 - p))), LOGIT[-1]) / LOGIT[1]
    column = np.log(np.clip(squared_distance, 1e-3, 150.0))
    column = (column - LOG_SQUARE[0]) / (LOG_SQUARE[1] - LOG_SQUARE[0])
    i = np.minimum(row.astype(int), len(LOGIT) - 2)
    j = np.minimum(column.astype(int), len(LOG_SQUARE) - 2)
    a, b, table = row - i, column - j, _information_table()
    low, high = ((1 - b) * table[index, j] + b * table[index, j + 1] for index in (i, i + 1))
    value = (1 - a) * low + a * high
    tiny = squared_distance < 1e-3  # below 1e-3 the information is proportional to d²
    result: NDArray[np.float64] = np.where(tiny, value * np.maximum(squared_distance, 0) / 1e-3, value)
    return result
