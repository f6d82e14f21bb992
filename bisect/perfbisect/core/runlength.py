"""Long rows of probabilities as runs of equal values, for records and for programs that look on."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray


def packed(values: NDArray[np.float64], decimals: int) -> list[list[float]]:
    """``[[how many, value], …]``, values rounded to ``decimals``.

    >>> packed(np.array([0.0, 0.0, 0.25]), 1)
    [[2, 0.0], [1, 0.2]]
    """
    return [[len(list(run)), value] for value, run in groupby(np.round(values, decimals).tolist())]


def unpacked(runs: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """The row again, shape (sum of counts,)."""
    return np.repeat([float(value) for _, value in runs], [int(count) for count, _ in runs])
