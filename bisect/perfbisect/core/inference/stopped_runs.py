"""Readings of runs that were stopped because they took too long: bounds of the metric, not values.

Such a reading enters the model at its bound. On which side of a change its build is follows from that with less
certainty than the likelihood of the bound would give: with normal noise, to be at least z standard deviations off has
about 1/(2.5 z) of the density of exactly z on a build that is fast, and a higher one on a build that is slow. Two more
things follow from a bound. Readings at one bound do not vary, so what they seem to show of the noise is left out: the
stopped runs of a build count as one reading, with the weight of all. And how far beyond the bound the builds are is
unknown, which matters where a build half way exists: either step may be the largest. So the posterior is the mean over
several distances.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.inference.record import Record

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
