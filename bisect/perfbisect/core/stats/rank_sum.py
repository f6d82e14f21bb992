"""How probable it is by chance that one sample lies as far below another: for values of any distribution.

Under the hypothesis that both are drawn alike, all assignments of the n + m ranks to the two samples are equally probable.
The number of pairs (x, y) with x > y is then distributed as the coefficients of the Gaussian binomial

    Π (1 - q^(m + i)) / (1 - q^i),   i = 1 … n

divided by their sum (Mann and Whitney, On a Test of Whether one of Two Random Variables is Stochastically Larger than the
Other, 1947).
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def below_by_chance(low: Sequence[float], high: Sequence[float]) -> float:
    """The probability of so few pairs in which ``low`` is not below ``high``, if both are drawn alike. Ties count as not below."""
    x, y = np.asarray(low), np.asarray(high)
    exceptions = int((x[:, None] >= y[None, :]).sum())
    return float(_cumulated(len(x), len(y))[exceptions])


@lru_cache(maxsize=128)
def _cumulated(n: int, m: int) -> NDArray[np.float64]:
    """The probabilities of at most 0, 1 … n·m pairs."""
    ways = np.ones(1)
    for i in range(1, n + 1):
        longer = np.zeros(len(ways) + m + i)
        longer[: len(ways)] += ways
        longer[m + i :] -= ways
        for start in range(i):  # division by 1 - q^i
            longer[start::i] = np.cumsum(longer[start::i])
        ways = longer[: i * m + 1]
        ways /= ways.sum()
    total: NDArray[np.float64] = np.minimum(np.cumsum(ways), 1.0)
    return total
