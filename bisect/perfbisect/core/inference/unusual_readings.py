"""Readings that are no ordinary values: outliers, those of a host with two speeds, and bounds from runs that were stopped.

A reading is judged against the other readings of *its own build*, never against the favoured answer:
weights taken from residuals of the favourite would talk every contradiction away. A build with a
single reading is judged against the nearer of the two ends, unless it is a count that repeats.

A run that was stopped because it took too long gives a bound of the metric, not a value. Such a reading enters the
model at its bound. On which side of a change its build is follows from that with less certainty than the likelihood of
the bound would give: with normal noise, to be at least z standard deviations off has about 1/(2.5 z) of the density of
exactly z on a build that is fast, and a higher one on a build that is slow. Two more things follow from a bound.
Readings at one bound do not vary, so what they seem to show of the noise is left out: the stopped runs of a build count
as one reading, with the weight of all. And how far beyond the bound the builds are is unknown, which matters where a
build half way exists: either step may be the largest. So the posterior is the mean over several distances.
"""

from dataclasses import dataclass, replace

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


Array = NDArray[np.float64]

BEYOND = (1.0, 3.0)  # distances beyond the bound besides 0, in log units: 2.7 and 20 times as slow


def united(record: Record, weight: Array) -> tuple[Record, Array, float]:
    """The readings and their weights with the stopped runs of each build on each host as one, and the weight of the rest.

    That rest is what these readings count for more than one; it shows nothing of the noise.
    """
    if not record.bound.any():
        return record, weight, 0.0
    kept, total = np.ones(len(weight), bool), weight.copy()
    value, repeated = record.value.copy(), 0.0
    stopped = record.bound != 0
    for build, host in np.unique(np.column_stack((record.build, record.host))[stopped], axis=0).tolist():
        members = np.flatnonzero(stopped & (record.build == build) & (record.host == host))
        first = members[0]
        total[first] = weight[members].sum()
        value[first] = weight[members] @ record.value[members] / total[first]
        kept[members[1:]] = False
        repeated += max(float(total[first]) - 1.0, 0.0)
    fewer = replace(
        record, build=record.build[kept], value=value[kept], at=record.at[kept], visit=record.visit[kept],
        host=record.host[kept], seconds=record.seconds[kept], bound=record.bound[kept],
    )  # fmt: skip
    return fewer, total[kept], repeated


def beyond(record: Record, distance: float) -> Record:
    """The record if each stopped run had gone on to a metric that is ``distance`` log units worse than its bound."""
    return replace(record, value=record.value + record.sign * record.bound * distance)


def direction(record: Record, build: int) -> int:
    """Where the level of a build lies of which at least half of the runs were stopped: -1 below, +1 above; else 0."""
    found = record.bound[record.readings(build)]
    return int(np.sign(found.sum())) if 2 * np.count_nonzero(found) >= len(found) > 0 else 0
