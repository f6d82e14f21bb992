"""The rule of Chromium's Pinpoint: repeat and split between neighbours until each two are the same or different.

Two commits differ when the smaller p-value of a rank test (Mann-Whitney) and of the Kolmogorov-Smirnov test is at most
0.01. They are the same when it lies above a second threshold, which falls as runs grow in number: the p-value that a
true difference of the given size would nearly always undercut. Between the two, the commit with fewer runs gets ten
more. Where neighbours differ, the commits at a half and at the quarters between them are added, ten runs each. The size
of the difference is given: here, the true one.
"""

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from statistics import median

import numpy as np
from credit import along_the_trunk
from numpy.typing import NDArray

from perfbisect.core.domain.orders import NotReproduced, Verdict
from perfbisect.core.domain.policy import Policy
from perfbisect.simulate.graphs import trunk
from perfbisect.simulate.strategies import UNKNOWN, blame, undecided
from perfbisect.simulate.world import World

Array = NDArray[np.float64]

ATTEMPTS = 10
DIFFERENT = 0.01
MISSED = 0.01  # share of true differences that the second threshold takes for none
SMALLEST = 0.3  # difference, in interquartile ranges, below which the second threshold falls no slower
IQR = 1.349  # of a normal distribution, in standard deviations
MOST_RUNS = 5000


@along_the_trunk
def pinpoint(world: World, policy: Policy) -> Verdict:
    """The rule."""
    line = trunk(world.graph)
    drop = -min(world.steps.values(), default=math.log1p(-policy.min_effect))
    values: dict[int, list[float]] = {0: [], len(line) - 1: []}
    broken: set[int] = set()
    wanted = set(values)
    while wanted and world.runs < MOST_RUNS:
        _attempt(world, line, values, broken, wanted)
        wanted = set()
        for a, b in pairwise(sorted(values)):
            different = _differ(values[a], values[b], drop)
            if different is None:
                wanted.add(a if len(values[a]) <= len(values[b]) else b)
            elif different:
                wanted |= _between(a, b, 2, broken)
    return _conclude(line, values, drop)


def _attempt(
    world: World, line: Sequence[int], values: dict[int, list[float]], broken: set[int], wanted: set[int]
) -> None:
    """Ten more runs of each, in turns."""
    for _ in range(ATTEMPTS):
        for place in sorted(wanted - broken):
            value = world.run(line[place])
            if value is None:
                broken.add(place)
                values.pop(place, None)
            else:
                values.setdefault(place, []).append(value)


def _between(a: int, b: int, levels: int, broken: set[int]) -> set[int]:
    """The middle, and the middles of the halves."""
    inside = [place for place in range(a + 1, b) if place not in broken]
    if not levels or not inside:
        return set()
    middle = min(inside, key=lambda place: abs(place - (a + b) // 2))
    return {middle} | _between(a, middle, levels - 1, broken) | _between(middle, b, levels - 1, broken)


def _conclude(line: Sequence[int], values: dict[int, list[float]], drop: float) -> Verdict:
    """The largest of the drops that cannot be narrowed further; credit for one even if Pinpoint would list several."""
    found = [(a, b) for a, b in pairwise(sorted(values)) if _differ(values[a], values[b], drop)]
    drops = [(median(values[a]) - median(values[b]), a, b) for a, b in found]
    if not drops:
        ends = values[0], values[len(line) - 1]
        return undecided(line[1:]) if _differ(*ends, drop) else NotReproduced(UNKNOWN, math.inf)
    _, a, b = max(drops)
    return blame(line[b]) if b - a == 1 else undecided(line[a + 1 : b + 1])


def _differ(one: list[float], other: list[float], drop: float) -> bool | None:
    """None: more runs are needed."""
    x, y = np.array(one), np.array(other)
    p = min(rank_test(x, y), kolmogorov_smirnov(x, y))
    if p <= DIFFERENT:
        return True
    spread = max(float(np.subtract(*np.percentile(v, [75, 25]))) for v in (x, y))
    size = max(abs(drop) / spread if spread else 1000.0, SMALLEST)
    return None if p <= second_threshold(round(min(size, 20.0), 1), (len(x) + len(y)) // 2) else False


def rank_test(x: Array, y: Array) -> float:
    """Two-sided p-value of Mann and Whitney's test, by the normal approximation."""
    n, m = len(x), len(y)
    smaller = float(np.searchsorted(np.sort(x), y).sum())  # pairs with x < y; ties have probability 0 here
    away: float = abs(smaller - n * m / 2) - 0.5
    return math.erfc(max(away, 0) / math.sqrt(n * m * (n + m + 1) / 12) / math.sqrt(2))


def kolmogorov_smirnov(x: Array, y: Array) -> float:
    """Two-sided p-value by the asymptotic series, with Stephens' correction for few values."""
    both = np.concatenate([x, y])
    shares = [np.searchsorted(np.sort(v), both, side="right") / len(v) for v in (x, y)]
    n = math.sqrt(len(x) * len(y) / (len(x) + len(y)))
    t = (n + 0.12 + 0.11 / n) * float(np.abs(shares[0] - shares[1]).max())
    if t < 0.3:
        return 1.0
    return min(1.0, 2 * sum((1 if k % 2 else -1) * math.exp(-2 * (k * t) ** 2) for k in range(1, 40)))


@cache
def second_threshold(size: float, runs: int) -> float:
    """The p-value that a difference of ``size`` interquartile ranges undercuts, but for a share of MISSED."""
    shift = size * IQR
    z = np.linspace(-8, 8, 801)
    density = np.exp(-0.5 * z**2)
    density /= density.sum()
    below = np.array([math.erfc(-(v + shift) / math.sqrt(2)) / 2 for v in z])  # P(x < y), given y
    p, both = float(density @ below), float(density @ below**2)
    variance = runs**2 * (p * (1 - p) + 2 * (runs - 1) * (both - p * p))
    low = runs**2 * p - 2.326 * math.sqrt(max(variance, 0.0))
    away = max(low - runs**2 / 2, 0.0)
    return math.erfc(away / math.sqrt(runs**2 * (2 * runs + 1) / 12) / math.sqrt(2))
