"""Which of many differences are real: the rate of false discoveries over a whole table is controlled.

A table of 40 workloads by 4 builds has 160 intervals, of which 8 exclude 1 by chance alone if all builds are alike. The
procedure of Benjamini and Hochberg (1995) keeps the largest k such that the k-th smallest of m p-values is at most
k / m · RATE, and calls those k differences real. Then

- at most RATE of the differences called real are expected to be none, and
- where all builds are alike, nothing at all is called real in at least 1 - RATE of tables.

Both also hold for cells that are positively dependent, as those of one workload are, which share its baseline (Benjamini
and Yekutieli, 2001, for one-sided tests; for these two-sided ones a test simulates it).
"""

import math
from collections.abc import Sequence

RATE = 0.05  # of false discoveries


def real(chances: Sequence[float], rate: float = RATE) -> list[bool]:
    """For the p-value of each difference: whether it is real, with ``rate`` false discoveries over all of them."""
    ordered = sorted(chances)
    kept = [p for place, p in enumerate(ordered, 1) if p <= place / len(ordered) * rate]
    return [p <= max(kept, default=-1.0) for p in chances]


def two_sided(t: float, freedom: int) -> float:
    """The p-value of Student's ``t`` with whole degrees of freedom: exact but for rounding, never below 0.

    The finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    if math.isinf(t):
        return 0.0
    angle = math.atan(abs(t) / math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for power in range(3 if odd else 2, freedom + 1, 2):
        total += term
        term *= cosine**2 * (power - 1) / power
    inside = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return max(0.0, 1.0 - inside)
