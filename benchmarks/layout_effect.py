"""What placement of the code does to one build, by an A/A of its layouts.

Layouts of one build are the same code, linked again with its functions in another order. Every layout is visited once
in every round. With x[l][r] the mean of the logarithms in a visit, L layouts and R rounds, the two-way analysis of
variance without replication separates layouts from rounds, which drift:

    MSL = R Σ (x̄[l] - x̄)² / (L - 1)                                 estimates σe² + R σl²
    MSE = Σ (x[l][r] - x̄[l] - x̄[·r] + x̄)² / ((L - 1)(R - 1))        estimates σe²

so σl² = (MSL - MSE) / R, or 0 (Searle, Casella and McCulloch, Variance Components, 1992, chapter 4). Its interval is
that of Williams (A confidence interval for variance components, Biometrika 49, 1962).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfbisect.core.stats.distributions import Z_975
from perfbisect.core.stats.noise import mean_square_interval_factors

USUAL = 0  # the build of a trial that is measured as it was linked; those after it are its layouts


@dataclass(frozen=True, slots=True)
class LayoutEffect:
    """What placement of the code does to one build; s.d. are of logarithms, so 0.01 is 1 %."""

    layouts: int
    rounds: int  # in which each was visited
    sd: float  # between layouts
    low: float  # its 95 % interval
    high: float
    visit: float  # s.d. of one visit, drift of the host left out
    lowest: float  # of the layouts, relative to their mean
    highest: float
    usual: float  # the build as it was linked, relative to their mean


def effect_of(visits: Mapping[tuple[int, int], float]) -> LayoutEffect:
    """The same of the logarithms of whole visits, by build and round."""
    shape = (max(build for build, _ in visits) + 1, max(number for _, number in visits) + 1)
    everything = np.array([[visits[build, number] for number in range(shape[1])] for build in range(shape[0])])
    shuffled = everything[USUAL + 1 :]
    layouts, rounds = shuffled.shape
    middle = float(shuffled.mean())
    level = shuffled.mean(axis=1)
    rest = shuffled - level[:, None] - shuffled.mean(axis=0)[None, :] + middle
    freedom = (layouts - 1) * (rounds - 1)
    msl = rounds * float(((level - middle) ** 2).sum()) / (layouts - 1)
    mse = float((rest**2).sum()) / freedom
    below, above = mean_square_interval_factors(layouts - 1)
    low = max(0.0, below * (msl - f_quantile(Z_975, layouts - 1, freedom) * mse)) / rounds
    high = max(0.0, above * (msl - f_quantile(-Z_975, layouts - 1, freedom) * mse)) / rounds
    lowest, highest, usual = (math.exp(each - middle) for each in (level.min(), level.max(), everything[USUAL].mean()))
    sd = math.sqrt(max(0.0, msl - mse) / rounds)
    return LayoutEffect(layouts, rounds, sd, math.sqrt(low), math.sqrt(high), math.sqrt(mse), lowest, highest, usual)


def f_quantile(z: float, above: int, below: int) -> float:
    """The quantile of F where the normal's is ``z``, by Paulson's formula; infinite where that has none."""
    w, u = 2 / (9 * above), 2 / (9 * below)
    a, b = 1 - u, 1 - w
    scale = a**2 - z**2 * u
    if scale <= 0:
        return math.inf if z > 0 else 0.0
    root = math.sqrt(max(0.0, (a * b) ** 2 - scale * (b**2 - z**2 * w)))
    return max(0.0, (a * b + math.copysign(root, z)) / scale) ** 3
