"""The expected cost of building a candidate, from the builds of this hunt.

With a compiler cache a build is the cheaper, the nearer an existing build is. The cost is a power of the distance in
candidates, fitted to the builds so far and shrunk to the median. Builds that fail have a price of their own.
"""

from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.inference.record import Record

Array = NDArray[np.float64]

PRIOR = 4.0  # weight of the power 0, in squares of the logarithm of the distance


def price(
    record: Record, usual: float, candidates: Sequence[int], chance: Array, host: int = 0, build_host: int | None = None
) -> Array:
    """The expected cost in runs of an attempt on ``host``, or on a build host, to build each of ``candidates``.

    ``usual`` is the usual cost of a build that works, ``chance`` the probability that each builds.
    """
    made = record.made(host) - record.ahead if build_host is None else record.caches.get(build_host, frozenset())
    works = usual * _share(record, candidates, made)
    failed = [attempt.seconds for attempt in record.attempts if not attempt.works]
    if not failed:
        return works
    return works + (1 - chance) * (float(np.median(failed)) / record.run_seconds - works)


def _share(record: Record, candidates: Sequence[int], made: Collection[int]) -> Array:
    """The share of the usual cost of a build that works, by the distance to the nearest of those that were ``made``."""
    law = _law(record)
    if law is None or not made:
        return np.ones(len(candidates))
    power, middle = law
    distance = np.abs(np.array(candidates)[:, None] - np.array(list(made))).min(axis=1)
    share: Array = np.exp(power * (np.log(np.maximum(distance, 1)) - middle))
    return share


@lru_cache(maxsize=8)
def _law(record: Record) -> tuple[float, float] | None:
    """The power of the distance, and the logarithm of the distance of usual builds; None before there are any."""
    seen = record.builds_after(1)
    if not seen:
        return None
    usual = record.builds_after(2) or seen
    seconds = np.log([attempt.seconds for attempt in seen])
    seconds -= np.log(np.median([attempt.seconds for attempt in usual]))
    middle = float(np.median(np.log([max(attempt.distance, 1) for attempt in usual])))
    far = np.log([max(attempt.distance, 1) for attempt in seen]) - middle
    return float(np.clip(far @ seconds / (far @ far + PRIOR), 0.0, 1.0)), middle
