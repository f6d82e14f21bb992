"""Readings that do not behave: how little an outlier may count, and whether a host has two speeds.

A reading is judged against the other readings of *its own build*, never against the favoured answer:
weights taken from residuals of the favourite would talk every contradiction away. A build with a
single reading is judged against the nearer of the two ends, unless it is a count that repeats.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.inference.noise_model import USUAL, NoiseModel
from perfbisect.core.inference.record import Record

FREEDOM = 4.0  # of the Student distribution whose weights are used


@dataclass(frozen=True, slots=True, eq=False)
class Behaviour:
    """A weight for every reading (1 = ordinary, shape (readings,)) and what was noticed of the host."""

    weight: NDArray[np.float64]
    two_speeds: bool
    outliers: int


def behaviour(record: Record, good: int, bad: int, model: NoiseModel = USUAL) -> Behaviour:
    """Judge every reading; ``good`` and ``bad`` are the two ends, at least one of them measured."""
    runs = np.bincount(record.build, minlength=len(record.builds))
    value = record.value[np.lexsort((record.value, record.build))]
    first = np.cumsum(runs) - runs
    centre = (value[first + (runs - 1) // 2] + value[first + runs // 2]) / 2  # the median of each build
    ends = centre[np.isin(record.builds, [good, record.name(bad)])]
    deviation = record.value - centre[record.build]
    repeated = runs[record.build] > 1
    varying = repeated & (record.bound == 0)  # runs that were stopped do not vary
    scale = _scale(deviation[varying], len(np.unique(record.build[varying])), model)
    single = np.abs(record.value[:, None] - ends[None]).min(axis=1)
    distance = np.where(repeated, np.abs(deviation), 0.0 if model.exact else single) / scale
    weight = np.minimum(1.0, (FREEDOM + 2) / (FREEDOM + distance**2))
    return Behaviour(weight, _two_speeds(deviation[varying]), int((repeated & (distance > 6)).sum()))


def _scale(deviation: NDArray[np.float64], builds: int, model: NoiseModel) -> float:
    """S.d. of a run from deviations around build medians; outliers are cut at four times the typical one."""
    if not len(deviation):
        return model.noise
    free = max(len(deviation) - builds, 1)
    typical = 1.4826 * np.median(np.abs(deviation)) * np.sqrt(len(deviation) / free)
    limit = 4 * max(float(typical), model.noise / 3)
    squares = (np.minimum(np.abs(deviation), limit) ** 2).sum()
    return float(np.sqrt((model.worth * model.noise**2 + squares) / (model.worth + free)))


def _two_speeds(deviation: NDArray[np.float64]) -> bool:
    """Whether the deviations fall into two clusters: a normal sample keeps 36 % of its variance when cut in two."""
    n = len(deviation)
    if n < 20:
        return False
    x = np.sort(deviation)
    left = np.arange(1, n)
    total, squares = np.cumsum(x), np.cumsum(x * x)
    within = squares[-1] - total[:-1] ** 2 / left - (total[-1] - total[:-1]) ** 2 / (n - left)
    spread = squares[-1] - total[-1] ** 2 / n
    cut = int(within.argmin())
    return bool(spread > 0 and within[cut] < 0.2 * spread and min(left[cut], n - left[cut]) >= 0.12 * n)
