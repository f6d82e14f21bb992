"""Do the two ends differ at all? Answered before anything is built between them.

Both ends are measured in turn until the difference is clear of noise and layout, or until a difference
of the size asked for would have shown.
"""

from dataclasses import dataclass

import numpy as np

from perfbisect.core.domain.metrics import LARGEST_LOG
from perfbisect.core.domain.orders import Interval, Measure, Purpose, Share
from perfbisect.core.domain.policy import Policy
from perfbisect.core.inference.noise_model import USUAL, NoiseModel
from perfbisect.core.inference.state_space import Levels
from perfbisect.core.stats.distributions import normal_score, t_cdf, t_quantile_975

CLEAR = ((4, 20, 40), (2.1, 1.9, 1.7))  # standard errors at which the ends are taken to differ: after so many runs
CLEAR_OF_LAYOUT = ((0.4, 0.8), (2.7, 1.9))  # the same, by the share of layout in what is uncertain
STILL = 1.0  # standard errors below which a search that has begun asks for the ends again
SHOWN = 2.7  # standard errors at which a difference between the ends counts as shown
POWER = 1.28  # further standard errors: a change this much larger would have been seen nine times in ten
UNLIKELY = 0.04  # probability of such a change at which it is given up
SETTLED = 0.8  # share of layout in what is uncertain from which more runs of the same builds add nothing
CHEAP = 4.0  # builds that cost fewer runs than this


@dataclass(frozen=True, slots=True)
class Contrast:
    """The difference between two builds: ``drop`` in log units, positive if the second is slower."""

    drop: float
    error: float  # standard error
    freedom: float
    runs: float  # weighted runs of the build with fewer
    noise: float  # s.d. of a run, drift left out
    layout: float = 0.0  # variance in ``error`` that no repetition takes away

    @property
    def clear(self) -> float:
        """The drop in normal standard errors, few degrees of freedom allowed for."""
        return normal_score(self.drop / self.error, self.freedom)

    def above(self, drop: float) -> float:
        """Probability that the true drop is larger than ``drop``."""
        return t_cdf((self.drop - drop) / self.error, self.freedom)

    def ratio(self, sign: float) -> Interval:
        """Second build against first, in the metric's own direction; for decisions (relative_speed.py has what is shown)."""
        half = t_quantile_975(self.freedom) * self.error
        logs = np.clip([-sign * (self.drop + d) for d in (-half, 0.0, half)], -LARGEST_LOG, LARGEST_LOG)
        return Interval(*sorted(np.exp(logs).tolist()))


def contrast(levels: Levels, first: int, second: int) -> Contrast:
    """Compare two builds given by their rows in ``levels``; averaged over laws of noise and sizes of layout."""
    direction = np.zeros(levels.mean.shape[1])
    direction[first], direction[second] = 1.0, -1.0
    drops = levels.mean @ direction
    spread = levels.variance * (levels.covariance @ direction @ direction)
    mean = float(levels.probability @ drops)
    layout = 2 * sum(p * size**2 for size, p in levels.model.layouts)
    variance = float(levels.probability @ (spread + (drops - mean) ** 2)) + layout
    freedom = max(levels.freedom - levels.mean.shape[1], 2.0)
    runs = float(min(levels.runs[first], levels.runs[second]))
    noise = float(np.sqrt(levels.probability @ levels.variance))
    return Contrast(mean, float(np.sqrt(variance)), freedom, runs, noise, layout)


def least(policy: Policy) -> float:
    """The smallest change of interest, in log units."""
    return max(float(-np.log1p(-policy.min_effect)), 1e-4)


def first_look(bad: int, build_cost: float, model: NoiseModel = USUAL) -> Measure:
    """The first runs of both ends: the dearer a build, in runs, the better to know them."""
    return _both(bad, model.first_runs[build_cost > CHEAP])


def differ(ends: Contrast, searching: bool = False) -> bool:
    """Whether the search may begin; or, if it has begun, whether it may go on."""
    return ends.clear >= (STILL if searching else _bar(ends))


def _bar(ends: Contrast) -> float:
    """Standard errors asked for: fewer once the noise is known and layout, not noise, is most of the error."""
    return float(min(np.interp(ends.runs, *CLEAR), np.interp(ends.layout / ends.error**2, *CLEAR_OF_LAYOUT)))


def nothing(ends: Contrast, policy: Policy, searching: bool = False, model: NoiseModel = USUAL) -> bool:
    """Whether to give up: no difference worth a search, or none that this many runs could show or can still support."""
    if ends.runs < model.fewest:
        return False
    wanted = max(least(policy), model.promised * ends.noise)
    if ends.above(wanted) < UNLIKELY or ends.above(least(policy)) < UNLIKELY / 5:
        return True
    return settled(ends, model) and not differ(ends, searching)


def settled(ends: Contrast, model: NoiseModel = USUAL) -> bool:
    """Whether more runs of the ends are pointless."""
    return ends.runs >= model.most or ends.layout > SETTLED * ends.error**2


def further_look(ends: Contrast, bad: int) -> Measure:
    """More runs of both: enough to make the present difference clear, at most about as many as there were."""
    needed = ends.runs * ((1.1 * _bar(ends) / max(ends.clear, 0.3)) ** 2 - 1)
    return _both(bad, int(np.clip(np.ceil(needed), 1, max(2, min(ends.runs // 2 + 1, 8)))))


def _both(bad: int, runs: int) -> Measure:
    return Measure((Share(bad, runs), Share(0, runs)), Purpose.ENDS)


def detectable(ends: Contrast) -> float:
    """The smallest drop that would have been seen, as a fraction."""
    return float(-np.expm1(-(SHOWN + POWER) * ends.error))
