"""A lower bound of the cost of any rule: the bits that must be learnt, at the price of a bit.

To name one of N commits wrongly in at most a share d of the hunts, log2 N - h(d) - d log2(N - 1) bits are needed
(Fano). A build reveals at most the one bit "is it slow"; a run reveals at most the capacity of a channel with two
inputs, slow and fast, and normal noise. Both limits hold for one and the same hunt, so their costs add up. Levels,
noise and layout are known to this rule, the host is steady, and the ends cost nothing: no real hunt is so lucky.
"""

import math

import numpy as np

ERROR = 0.05


def entropy(p: float) -> float:
    """Entropy of a binary label, in bits."""
    return -sum(q * math.log2(q) for q in (p, 1 - p) if q > 0)


def bits(commits: int, error: float = ERROR) -> float:
    """The bits that must be learnt."""
    if commits < 2:
        return 0.0
    return max(0.0, math.log2(commits) - entropy(error) - error * math.log2(commits - 1))


def capacity(separation: float) -> float:
    """Bits of information on a label in one reading, when slow and fast lie ``separation`` standard deviations apart.

    With equal odds, 1 - E log2(1 + exp(-2ax)) for x normal around a = separation / 2.
    """
    a = separation / 2
    x, step = np.linspace(a - 9, a + 9, 2001, retstep=True)
    density = np.exp(-0.5 * (x - a) ** 2) / math.sqrt(2 * math.pi)
    return 1 - float((density * np.logaddexp(0, -2 * a * x)).sum() * step) / math.log(2)


def lower_bound(commits: int, drop: float, noise: float, build: float) -> float:
    """The least expected cost in runs; ``drop`` and ``noise`` of the log metric, ``build`` the cost of one in runs."""
    needed = bits(commits)
    return needed * build + needed / capacity(drop / noise)
