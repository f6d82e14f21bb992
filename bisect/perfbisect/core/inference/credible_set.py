"""The leading hypothesis: one culprit, or the set of candidates that no measurement can tell apart."""

from dataclasses import dataclass

import numpy as np

from perfbisect.core.inference.hypotheses import Hypotheses
from perfbisect.core.inference.posterior import Posterior
from perfbisect.core.inference.record import Record


@dataclass(frozen=True, slots=True)
class LeadingHypothesis:
    """A class of culprits whose members nothing measurable separates, and the builds on its two sides."""

    members: tuple[int, ...]
    probability: float
    slow: int  # the build that is slow if the hypothesis is right: the culprit itself, or the first slow one after it
    fast: int  # the last fast one before

    @property
    def certain(self) -> bool:
        """Whether it is a single candidate."""
        return len(self.members) == 1


def leading_hypothesis(
    classes: Hypotheses, posterior: Posterior, record: Record, *, stuck: bool = False
) -> LeadingHypothesis:
    """The likeliest single candidate, or the likeliest class that only failed candidates could split.

    A class that can still be split is not returned, however probable; its likeliest member is. If the search is
    ``stuck``, nothing can be split any more.
    """
    each = classes.spread(posterior.culprit)
    top = int(posterior.culprit.argmax())
    members = classes.of_class(top)
    tried = np.array([*record.skipped, *record.builds, *record.same], np.int64)
    untried = len(np.setdiff1d(members, tried)) > 0
    usable = [(i, b) for i, b in enumerate(record.builds) if b not in record.skipped]
    slow_builds = [b for i, b in usable if classes.slow[i, top]]
    fast_builds = [b for i, b in usable if not classes.slow[i, top]]
    slow = int(members[0]) if len(members) == 1 else min(slow_builds)
    below = classes.reach.ancestors(slow)
    fast = max((b for b in fast_builds if below[b]), default=0)
    if len(members) > 1 and untried and not stuck:
        best = int(each.argmax())
        return LeadingHypothesis((best,), float(each[best]), best, fast)
    return LeadingHypothesis(tuple(int(v) for v in members), float(posterior.culprit[top]), slow, fast)


def credible_set(culprit: np.ndarray, confidence: float) -> tuple[int, ...]:
    """The fewest candidates that hold ``confidence`` together, most probable first.

    Candidates as probable as the last one belong to it as well: no reading separates them.
    """
    order = np.argsort(-culprit, kind="stable")
    held = np.cumsum(culprit[order])
    needed = int(np.searchsorted(held, min(confidence, held[-1] * (1 - 1e-9)))) + 1
    last = culprit[order[needed - 1]]
    while needed < len(order) and culprit[order[needed]] >= last * (1 - 1e-6) > 0:
        needed += 1
    return tuple(int(c) for c in order[:needed])
