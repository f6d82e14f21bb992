"""The expected cost of building a candidate, from the builds of this hunt.

With a compiler cache a build is the cheaper, the nearer an existing build is. The cost is a power of the distance in
candidates, fitted to the builds so far and shrunk to the median. Builds that fail have a price of their own.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.inference.record import Record

Array = NDArray[np.float64]

PRIOR = 4.0  # weight of the power 0, in squares of the logarithm of the distance


def price(record: Record, usual: float, candidates: Sequence[int], chance: Array, host: int = 0) -> Array:
    """The expected cost in runs of an attempt on ``host`` to build each of ``candidates``.

    ``usual`` is the usual cost of a build that works, ``chance`` the probability that each builds.
    """
    works = usual * _share(record, candidates, host)
    failed = [attempt.seconds for attempt in record.attempts if not attempt.works]
    if not failed:
        return works
    return works + (1 - chance) * (float(np.median(failed)) / record.run_seconds - works)


def _share(record: Record, candidates: Sequence[int], host: int) -> Array:
    """The share of the usual cost of a build that works, by the distance to the nearest existing build."""
    seen = [attempt for attempt in record.attempts if attempt.works][record.builders :]
    made = record.made(host)
    if not seen or not made:
        return np.ones(len(candidates))
    usual = seen[record.builders :] or seen
    seconds = np.log([attempt.seconds for attempt in seen])
    seconds -= np.log(np.median([attempt.seconds for attempt in usual]))
    middle = float(np.median(np.log([max(attempt.distance, 1) for attempt in usual])))
    far = np.log([max(attempt.distance, 1) for attempt in seen]) - middle
    power = float(np.clip(far @ seconds / (far @ far + PRIOR), 0.0, 1.0))
    distance = np.abs(np.array(candidates)[:, None] - np.array(list(made))).min(axis=1)
    share: Array = np.exp(power * (np.log(np.maximum(distance, 1)) - middle))
    return share
