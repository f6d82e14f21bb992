"""The time left of a hunt: the bits of belief that are missing, at the cost of the bits gained so far."""

from dataclasses import dataclass

import numpy as np

from perfbisect.core.domain.orders import Belief

RUNS_PER_BIT = 4.0  # first guess: one build and this many runs halve the range
CONFIRMING = 6.0  # runs that prove a culprit against its parent
PRIOR_BITS = 1.0  # weight of the first guess against what is observed


@dataclass(frozen=True, slots=True)
class Pace:
    """What a hunt has cost; times in minutes."""

    searching: float  # since the ends were found to differ
    gained: float  # bits since then
    build: float  # a typical build
    run: float  # a typical run, the start of the server included


def bits(belief: Belief) -> float:
    """Entropy of the culprit: yes/no questions still open. 0 when one candidate has all of the probability."""
    share = belief.culprit[belief.culprit > 0]
    share = share / share.sum() if len(share) else share
    return float(-(share * np.log2(share)).sum())


def within(belief: Belief, mass: float) -> int:
    """The smallest number of candidates whose probabilities sum up to ``mass``."""
    together = np.cumsum(np.sort(belief.culprit)[::-1])
    return min(len(together), int(np.searchsorted(together, mass * together[-1])) + 1)


def remaining(missing: float, pace: Pace, confirming: bool) -> float:
    """Minutes until a verdict, ``missing`` bits from now; ``confirming`` during the last comparison."""
    guess = pace.build + RUNS_PER_BIT * pace.run
    per_bit = (pace.searching + PRIOR_BITS * guess) / (max(0.0, pace.gained) + PRIOR_BITS)
    proof = CONFIRMING * pace.run * (0.5 if confirming else 1.0)
    return missing * per_bit + proof
