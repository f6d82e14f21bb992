"""How much of a change of speed a revert undoes, from rounds in which good, bad and bad without the culprit were visited.

With g[i], b[i] and r[i] the mean logarithms of the metric of the three in round i, x = g - b is what was lost and
y = r - b what the revert regains:

    share = ȳ / x̄

so 1 is all of it, 0 nothing, and shares of several culprits add up. Its 95 % interval is Fieller's: all shares s for which
the paired differences y[i] - s·x[i] may have the mean 0,

    |ȳ - s·x̄| ≤ t(0.975, n - 1) · √((S_yy - 2·s·S_xy + s²·S_xx) / n)

with the sample variances and covariance S of x and y. It is right for any noise of the denominator, where an interval
from the ratio's standard error is not. While x̄ itself may be 0 the solutions have no end, and there is no interval:
nothing is shown to be lost, so that no share of it can be regained.

Of the trials whose differences are normal, at most 5 % have an interval without the true share.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from statistics import correlation, mean, variance

from perfbisect.core.domain.orders import Interval
from perfbisect.core.domain.trials import Trial
from perfbisect.core.stats.distributions import t_of_rounds
from perfbisect.core.stats.paired_comparison import levels

GOOD, BAD, REVERTED = range(3)  # the builds of a proof, by number


@dataclass(frozen=True, slots=True)
class Regained:
    """What a revert undoes of the change from good to bad."""

    lost: float  # mean log of good / bad
    share: Interval | None  # of it; None while good and bad are not shown to differ
    rounds: int


class Outcome(StrEnum):
    """What a trial says of the culprit."""

    REGAINS = "regains"  # the revert undoes something of the change, beyond doubt
    NOTHING = "nothing"  # it is not shown to undo anything, and it does not undo all
    UNCLEAR = "unclear"  # it may undo nothing or all
    NOT_LOST = "not lost"  # good and bad are not shown to differ
    UNMEASURED = "unmeasured"  # fewer than two rounds, or a build that fails


def outcome(found: Regained | None) -> Outcome:
    """What the share says."""
    match found:
        case None:
            return Outcome.UNMEASURED
        case Regained(share=None):
            return Outcome.NOT_LOST
        case Regained(share=Interval(low=low)) if low > 0:
            return Outcome.REGAINS
        case Regained(share=Interval(high=high)) if high < 1:
            return Outcome.NOTHING
        case _:
            return Outcome.UNCLEAR


def regained(trial: Trial) -> Regained | None:
    """The share in the trial's metric; None before all three builds were measured in two rounds."""
    found = levels(trial.runs, trial.request.metric)
    return share(*(found.get(build, {}) for build in (GOOD, BAD, REVERTED)))


def share(good: Mapping[int, float], bad: Mapping[int, float], reverted: Mapping[int, float]) -> Regained | None:
    """The share from the rounds (number → mean logarithm) that all three have; None for fewer than two."""
    rounds = sorted(good.keys() & bad.keys() & reverted.keys())
    n = len(rounds)
    if n < 2:
        return None
    lost = [good[each] - bad[each] for each in rounds]
    back = [reverted[each] - bad[each] for each in rounds]
    x, y = mean(lost), mean(back)
    xx, yy = variance(lost), variance(back)
    xy = correlation(lost, back) * math.sqrt(xx * yy) if xx and yy else 0.0
    square = t_of_rounds(n - 1) ** 2 / n
    a, b, c = x * x - square * xx, x * y - square * xy, y * y - square * yy
    if a <= 0:
        return Regained(x, None, n)
    half = math.sqrt(max(0.0, b * b - a * c))
    middle = y / x
    low, high = min((b - half) / a, middle), max((b + half) / a, middle)  # rounding may put an end beyond the middle
    return Regained(x, Interval(low, middle, high), n)
