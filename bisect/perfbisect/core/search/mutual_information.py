"""The information in one measurement: the mutual information of a binary label and a noisy reading of it.

The label is 1 with probability p; the reading is normal with unit variance and means that lie d apart.
The integral has no closed form: it is tabulated once, over logit p and log d², and interpolated.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

LOGIT = np.linspace(0.0, 9.0, 28)  # the table is symmetric in p
LOG_SQUARE = np.linspace(np.log(1e-3), np.log(150.0), 48)


def entropy(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entropy of a binary label, in bits."""
    q = np.clip(p, 1e-15, 1 - 1e-15)
    return -(q * np.log2(q) + (1 - q) * np.log2(1 - q))


def exact_bits(p: float, separation: float) -> float:
    """The integral itself, in bits."""
    x, step = np.linspace(-9 - separation / 2, 9 + separation / 2, 1001, retstep=True)
    low = np.exp(-0.5 * (x + separation / 2) ** 2) / np.sqrt(2 * np.pi)
    high = np.exp(-0.5 * (x - separation / 2) ** 2) / np.sqrt(2 * np.pi)
    mix = (1 - p) * low + p * high
    left = entropy(p * high / np.maximum(mix, 1e-300))
    return max(0.0, float(entropy(np.array(p)) - (mix * left).sum() * step))


@lru_cache(maxsize=1)
def _table() -> NDArray[np.float64]:
    return np.array([[exact_bits(1 / (1 + np.exp(-l)), np.exp(g / 2)) for g in LOG_SQUARE] for l in LOGIT])


def bits(p: NDArray[np.float64], square: NDArray[np.float64]) -> NDArray[np.float64]:
    """Information in bits about a label of probability ``p`` at squared separation ``square`` (in noise variances)."""
    p = np.clip(p, 1e-12, 1 - 1e-12)
    row = np.minimum(np.abs(np.log(p / (1 - p))), LOGIT[-1]) / LOGIT[1]
    column = np.log(np.clip(square, 1e-3, 150.0))
    column = (column - LOG_SQUARE[0]) / (LOG_SQUARE[1] - LOG_SQUARE[0])
    i = np.minimum(row.astype(int), len(LOGIT) - 2)
    j = np.minimum(column.astype(int), len(LOG_SQUARE) - 2)
    a, b, table = row - i, column - j, _table()
    value = (1 - a) * ((1 - b) * table[i, j] + b * table[i, j + 1]) + a * (
        (1 - b) * table[i + 1, j] + b * table[i + 1, j + 1]
    )
    tiny = square < 1e-3  # the information is proportional to d² there
    result: NDArray[np.float64] = np.where(tiny, value * np.maximum(square, 0) / 1e-3, value)
    return result
