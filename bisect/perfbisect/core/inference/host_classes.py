"""Host classes have the culprit in common, each with an effect of its own.

The readings of each host class are a record of their own, with its own noise, drift, layout and size of the change. So
the log likelihoods of a culprit are summed:

    log P(K | all)  =  log P(K)  +  Σ over the classes  log P(readings of the class | K)  +  a constant

A class on which the ends do not differ does not show where the change is, and is left out. Where there are several
changes, the largest need not be the same on all classes: then each class keeps its own probabilities. How likely that is
follows from how well the classes agree about the place.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfbisect.core.inference.analysis import Analysis
from perfbisect.core.inference.belief import believed
from perfbisect.core.inference.posterior import NEVER

APART = 0.01  # prior that the largest change is not the same on all classes


def together(each: Sequence[Analysis | None]) -> list[Analysis | None]:
    """The analyses of the host classes, with common probabilities where a class shows a change.

    None stands for a class on which one of the ends has no reading.
    """
    parts = [known for known in each if known and known.shows]
    if len(parts) < 2:
        return list(each)
    prior = parts[0].groups.prior
    total = np.log(prior) + sum(np.log(np.maximum(known.posterior.culprit / prior, NEVER)) for known in parts)
    top = float(total.max())
    share = np.exp(total - top)
    agreement = top + float(np.log(share.sum()))  # log likelihood of a common culprit, relative to one for each class
    shared = float(np.exp(-np.logaddexp(0.0, np.log(APART / (1 - APART)) - agreement)))
    # The odds of a change are multiplied too, corrected for how well the classes agree about its place.
    alone = np.clip([known.posterior.change for known in parts], 1e-12, 1 - 1e-12)
    change = float(np.exp(-np.logaddexp(0.0, (np.log1p(-alone) - np.log(alone)).sum() - agreement)))
    several = max(known.posterior.several for known in parts)

    def common(known: Analysis) -> Analysis:
        own = known.posterior
        posterior = replace(
            own,
            culprit=shared * share / share.sum() + (1 - shared) * own.culprit,
            change=shared * change + (1 - shared) * own.change,
            several=several,
        )
        belief = believed(known.groups, posterior, known.record, known.effect, known.levels, known.seen)
        return replace(known, posterior=posterior, belief=belief)

    return [common(known) if known and known.shows else known for known in each]
