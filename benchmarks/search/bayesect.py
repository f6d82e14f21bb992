"""The rule of git_bayesect: each run passes or fails, and Bayes' rule finds the commit that changed how often it fails.

Fails are more frequent from some commit on; both frequencies are unknown, with beta priors (most runs of slow commits
fail, few of fast ones), and are integrated out. Next is the commit whose run is expected to leave the least entropy;
the search ends at 95 %. "Fails" means slower than midway between the ends, timed three times each at the beginning.
It follows first parents.
"""

import math
from functools import lru_cache

import numpy as np
from credit import along_the_trunk
from numpy.typing import NDArray
from rules import UNKNOWN, threshold

from perfbisect.core.domain.orders import Found, Inconclusive, Reason, Step, Verdict
from perfbisect.core.domain.settings import Policy
from perfbisect.simulate.scenario import first_parent_line
from perfbisect.simulate.world import World

Array = NDArray[np.float64]
SLOW = (0.9, 0.1)  # beta prior of the share of fails from the culprit on
FAST = (0.05, 0.95)  # and before it
SURE = 0.95
MOST_RUNS = 1000


@along_the_trunk
def bayesect(world: World, policy: Policy) -> Verdict:
    """The rule."""
    line = first_parent_line(world.graph)
    limit = threshold(world, 3)
    prior = np.ones(len(line))  # the good end included, as published
    fails, runs = np.zeros(len(line), np.int64), np.zeros(len(line), np.int64)
    while True:
        posterior, slow, fast = _believe(prior, fails, runs)
        best = int(posterior.argmax())
        if posterior[best] >= SURE:
            return Found(Step(line[best], float(posterior[best]), UNKNOWN, ()))
        if runs.sum() >= MOST_RUNS:
            order = np.argsort(-posterior)
            enough = int(np.searchsorted(np.cumsum(posterior[order]), 0.9)) + 1
            chosen = order[:enough].tolist()
            probabilities = tuple(float(posterior[i]) for i in chosen)
            return Inconclusive(tuple(line[i] for i in chosen), probabilities, UNKNOWN, Reason.RUNS_SPENT)
        left = _entropy_left(posterior, slow, fast)
        # they cannot be run; the published rule also assumes that none of them is the culprit
        left[prior == 0] = np.inf
        tested = int(left.argmin())
        value = world.run(line[tested])
        if value is None:
            prior[tested] = 0
        else:
            runs[tested] += 1
            fails[tested] += value < limit


def _believe(prior: Array, fails: NDArray[np.int64], runs: NDArray[np.int64]) -> tuple[Array, Array, Array]:
    """For each commit: the probability that it is the culprit, and, if so, the shares of fails from it on and before."""
    after_runs, after_fails = runs[::-1].cumsum()[::-1], fails[::-1].cumsum()[::-1]
    before_runs, before_fails = runs.sum() - after_runs, fails.sum() - after_fails
    with np.errstate(divide="ignore"):
        log = np.log(prior)
    log = log + _evidence(after_fails, after_runs, SLOW) + _evidence(before_fails, before_runs, FAST)
    weight = np.exp(log - log.max())
    slow = (SLOW[0] + after_fails) / (sum(SLOW) + after_runs)
    fast = (FAST[0] + before_fails) / (sum(FAST) + before_runs)
    return weight / weight.sum(), slow, fast


def _evidence(fails: NDArray[np.int64], runs: NDArray[np.int64], prior: tuple[float, float]) -> Array:
    """Log of the probability of a row of fails and passes, up to a constant."""
    a, b = prior
    result: Array = _log_gamma(a)[fails] + _log_gamma(b)[runs - fails] - _log_gamma(a + b)[runs]
    return result


@lru_cache
def _log_gamma(start: float) -> Array:
    return np.array([math.lgamma(start + n) for n in range(MOST_RUNS + 1)])


def _entropy_left(posterior: Array, slow: Array, fast: Array) -> Array:
    """Expected entropy after one more run of each commit."""
    left = np.zeros(len(posterior))
    for if_slow, if_fast in ((slow, fast), (1 - slow, 1 - fast)):
        one, other = posterior * if_slow, posterior * if_fast
        total = np.cumsum(one) + _after(other)  # the run is slow if the culprit is not younger
        logs = np.cumsum(_x_log_x(one)) + _after(_x_log_x(other))
        left += _x_log_x(total) - logs
    return left


def _after(values: Array) -> Array:
    result: Array = values[::-1].cumsum()[::-1] - values
    return result


def _x_log_x(x: Array) -> Array:
    result: Array = x * np.log2(np.maximum(x, 1e-300))
    return result
