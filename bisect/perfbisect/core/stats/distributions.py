"""The few functions of the normal and Student distributions that the search needs."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Coefficients of the Chebyshev fit of log(erfc(z) exp(z²) / t), t = 1 / (1 + z / 2); relative error below 1.2e-7.
_ERFC = (-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806,
         0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277)  # fmt: skip


def log_cdf(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """log of the standard normal distribution function, exact far into the lower tail."""
    z = np.abs(x) / np.sqrt(2.0)
    t = 1.0 / (1.0 + 0.5 * z)
    log_upper = np.log(t / 2) - z * z + np.polynomial.polynomial.polyval(t, _ERFC)
    result: NDArray[np.float64] = np.where(x < 0, log_upper, np.log1p(-np.exp(np.minimum(log_upper, -0.69))))
    return result


def t_cdf(t: float, freedom: float) -> float:
    """Student's distribution function, by Wallace's normal score (good to a few 1e-3, and exact for many degrees)."""
    score = (8 * freedom + 1) / (8 * freedom + 3) * np.sqrt(freedom * np.log1p(t * t / freedom))
    return float(np.exp(log_cdf(np.array(np.copysign(score, t)))))


def t_quantile_975(freedom: float) -> float:
    """The 97.5 % point of Student's distribution."""
    return t_quantile(1.959964, freedom)


def t_quantile(z: float, freedom: float) -> float:
    """The point of Student's distribution where the normal's is ``z`` (Cornish and Fisher's expansion)."""
    v = max(freedom, 2.0)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / v + second / v**2 + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)


def log_sum(terms: NDArray[np.float64], axis: int | None = None) -> NDArray[np.float64]:
    """log of the sum of exponentials."""
    top = np.max(terms, axis=axis, keepdims=True)
    total: NDArray[np.float64] = np.log(np.exp(terms - top).sum(axis=axis, keepdims=True)) + top
    return np.squeeze(total, axis=axis)


HALVINGS = 60  # at most, of an interval that contains a quantile


def t_mixture_quantiles(
    weight: NDArray[np.float64],
    location: NDArray[np.float64],
    scale: NDArray[np.float64],
    freedom: float,
    levels: Sequence[float],
) -> NDArray[np.float64]:
    """Quantiles of N mixtures of Student distributions, shape (N, levels), by bisection, to 1e-10 of the least scale.

    ``weight`` (H,) is common to all mixtures and sums to one; ``location`` and ``scale`` have the shape (H, N).
    """
    freedom = float(np.clip(freedom, 1.0, 1000.0))  # normal from there on, to three digits
    # With t = √freedom · tan(angle) the density in the angle is proportional to cos(angle)^(freedom - 1).
    angle = np.linspace(-np.pi / 2, np.pi / 2, 4001)
    density = np.cos(angle) ** (freedom - 1)
    mass = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    mass /= mass[-1]
    width = np.sqrt(freedom) * scale
    close = 1e-10 * scale.min(axis=0)
    found = np.empty((location.shape[1], len(levels)))
    for place, level in enumerate(levels):
        reach = width * np.tan(np.interp(level, mass, angle))  # of each component from its location
        low, high = (location + reach).min(axis=0), (location + reach).max(axis=0)
        for _ in range(HALVINGS):
            if (high - low <= close).all():
                break
            middle = (low + high) / 2
            above = weight @ np.interp(np.arctan((middle - location) / width), angle, mass) > level
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        found[:, place] = (low + high) / 2
    return found
