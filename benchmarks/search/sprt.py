"""Bisection with Wald's sequential probability ratio test at each commit, the ends measured again beside it.

A triple is a run of the good end, of the commit and of the bad end. Its middle run, less the mean of the other two, is
normal around half the drop, up or down; triples are added until the odds of the two are beyond a limit, which shares
out an error of 5 % over the tests of a halving search. Drop and noise are taken from all pairs of ends so far, and no
triple counts for more than half of the limit, so that no outlier decides alone. The next commit is git's.
"""

import math
from statistics import median, stdev

from perfbisect.core.domain.orders import NotReproduced, Verdict
from perfbisect.core.domain.policy import Policy
from perfbisect.simulate.strategies import UNKNOWN, halve
from perfbisect.simulate.world import World

ERROR = 0.05
FIRST_PAIRS, MOST_PAIRS = 6, 24  # of the ends alone, before the search
CLEAR = 3.0  # standard errors by which the ends must differ
MOST_TRIPLES = 60  # after them the more probable side is taken


def sprt(world: World, policy: Policy) -> Verdict:
    """The rule."""
    bad = world.graph.size - 1
    limit = math.log((1 - _error(bad)) / _error(bad))
    pairs: list[float] = []

    def pair(good: float | None, slow: float | None) -> None:
        assert good is not None and slow is not None, "ends can be measured"
        pairs.append(good - slow)

    def is_slow(candidate: int) -> bool | None:
        above: list[float] = []
        while True:
            values = [world.run(v) for v in (0, candidate, bad)]
            good, middle, slow = values
            if middle is None:
                return None
            pair(good, slow)
            above.append(middle - ((good or 0.0) + (slow or 0.0)) / 2)
            odds = _log_odds(above, *_drop_and_noise(pairs), most=limit / 2)
            if abs(odds) >= limit or len(above) == MOST_TRIPLES:
                return odds < 0

    while len(pairs) < FIRST_PAIRS or not _differ(pairs):
        if len(pairs) == MOST_PAIRS:
            return NotReproduced(UNKNOWN, math.inf)
        pair(world.run(0), world.run(bad))
    return halve(world, is_slow)


def _error(commits: int) -> float:
    """The result of one test."""
    return ERROR / max(1, math.ceil(math.log2(commits)))


def _drop_and_noise(pairs: list[float]) -> tuple[float, float]:
    """The drop between the ends, and the standard deviation of a run."""
    return median(pairs), max(stdev(pairs) / math.sqrt(2), 1e-6)


def _differ(pairs: list[float]) -> bool:
    drop, noise = _drop_and_noise(pairs)
    return drop > CLEAR * noise * math.sqrt(2 / len(pairs))


def _log_odds(above: list[float], drop: float, noise: float, most: float) -> float:
    """The log likelihood ratio of fast against slow; each triple adds at most ``most``."""
    weight = drop / (1.5 * noise**2)
    return sum(max(-most, min(most, weight * value)) for value in above)
