"""Long rows of numbers as runs of equal values, for records and for programs that look on."""

from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray


def packed(values: Iterable[float]) -> list[list[float]]:
    """``[[how many, value], …]``; round the values first, so that nearly equal ones share a run.

    >>> packed([0.0, 0.0, 0.2])
    [[2, 0.0], [1, 0.2]]
    """
    return [[len(list(run)), value] for value, run in groupby(values)]


def unpacked(runs: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """The row again, shape (sum of counts,)."""
    return np.repeat([float(value) for _, value in runs], [int(count) for count, _ in runs])
