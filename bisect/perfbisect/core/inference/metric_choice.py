"""`--metric auto`: which of the recorded metrics shows the change between the ends best.

A hunt compares builds by the difference between the ends, over and over. What a run shows of that difference is
z² = (difference / s.d. of a run)², so the best metric has the largest z² for each second of measuring. The s.d. contains
what the layout of a build adds to a time: no repetition takes that away.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.metrics import METRICS, exact, find_metric, value
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.noise_model import EXACT, USUAL

RUNS = 3  # of each end, before the choice
COUNTS = 2  # the same of runs in which instructions are counted exactly
GUESS = 0.002  # s.d. of a run: a first guess, worth one run, so that no metric seems free of noise after a few
CLEAR = 5.0  # standard errors at which a metric shows a change: there are many metrics, and few runs
SHARE = 0.5  # of what the usual metric shows clearly: a metric that shows less shows another change, not this one
# s.d. of the layout of a build, in metrics that measure time
LAYOUT = math.sqrt(sum(share * size**2 for size, share in USUAL.layouts))
BY_TIME = ("qps", "rate", "cost", "latency", "cpu/o", "cycles/o")
BY_COUNT = ("instructions/o", "branches/o", "cs/o", "page-faults/o", "r/o", "rKB/o", "wKB/o")


@dataclass(frozen=True, slots=True)
class Shown:
    """What the runs of both ends show of the change by one metric."""

    metric: str
    ratio: float  # bad relative to good
    noise: float  # s.d. of a run, as a fraction
    error: float  # of the logarithm of the ratio
    layout: float  # s.d. of a build
    seconds: float  # of measuring a run takes
    exact: bool = False  # whether it is a count that repeats

    @property
    def information(self) -> float:
        """z² of a run for each second."""
        return math.log(self.ratio) ** 2 / (self.noise**2 + self.layout**2) / self.seconds

    @property
    def loss(self) -> float:
        """The change for the worse, in log units."""
        return -math.log(self.ratio) if find_metric(self.metric).higher_is_better else math.log(self.ratio)

    def clear(self, policy: Policy) -> bool:
        """Whether it shows a change for the worse that is of interest."""
        least = (policy.of_counts() if self.exact else policy).min_effect
        return self.loss >= max(-math.log1p(-least), CLEAR * self.error)

    def allows(self, loss: float) -> bool:
        """Whether its change may be as small as ``loss``, in log units, at 95 %."""
        return self.loss - 1.96 * math.hypot(self.error, math.sqrt(2) * self.layout) <= loss


@dataclass(frozen=True, slots=True)
class Choice:
    """The metric of a hunt."""

    metric: str
    best: Shown | None  # what it shows; None where no metric shows a change
    usual: Shown | None  # what the workload's own metric shows; None where it has no value
    small: Shown | None = None  # an exact count that shows a change below the smallest of interest, where none is taken


def choose(usual: str, good: Sequence[RunFacts], bad: Sequence[RunFacts], policy: Policy) -> Choice:
    """The metric that shows the change from ``good`` to ``bad`` best; ``usual``, that of the workload, if none does.

    An exact count shows a change too small for any timing. It is that change, unless ``usual`` shows a larger one.
    """
    names = dict.fromkeys((usual, *(name for name in (*BY_TIME, *BY_COUNT) if not METRICS[name].from_output)))
    found = {name: one for name in names if (one := shown_by(name, good, bad)) is not None}
    own = found.get(usual)
    least = SHARE * abs(math.log(own.ratio)) if own and own.clear(policy) else 0.0
    clear = [one for one in found.values() if one.clear(policy) and abs(math.log(one.ratio)) >= least]
    clear = [one for one in clear if not (one.exact and own) or own.allows(one.loss)]
    best = max(clear, key=lambda one: one.information, default=None)
    exact = (one for one in found.values() if one.exact and one.loss >= CLEAR * one.error)
    return Choice(best.metric if best else usual, best, own, None if best else next(exact, None))


def shown_by(metric: str, good: Sequence[RunFacts], bad: Sequence[RunFacts]) -> Shown | None:
    """What a metric shows; None unless two runs of each end have a value that is positive and finite."""
    counted = any(exact(run, metric) for run in (*good, *bad))
    ours = [[run for run in runs if exact(run, metric) is counted] for runs in (good, bad)]
    values = [[v for run in runs if (v := value(run, metric)) is not None and 0 < v < math.inf] for runs in ours]
    if min(map(len, values)) < 2:
        return None
    first, second = (np.log(each) for each in values)
    squares = sum(float(((each - each.mean()) ** 2).sum()) for each in (first, second))
    noise = math.sqrt(((EXACT.noise if counted else GUESS) ** 2 + squares) / (1 + len(first) + len(second) - 2))
    error = noise * math.sqrt(1 / len(first) + 1 / len(second))
    seconds = float(np.mean([run.seconds for runs in ours for run in runs]))
    layout = 0.0 if metric in BY_COUNT else LAYOUT
    return Shown(metric, float(np.exp(second.mean() - first.mean())), noise, error, layout, max(seconds, 1e-3), counted)
