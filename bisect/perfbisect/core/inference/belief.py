"""What the search believes, in the form that views and the record show."""

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Belief, Interval
from perfbisect.core.domain.policy import CAP
from perfbisect.core.inference.ancestry import ancestry_of
from perfbisect.core.inference.hypotheses import Hypotheses
from perfbisect.core.inference.noise_model import USUAL, NoiseModel
from perfbisect.core.inference.outliers import Behaviour
from perfbisect.core.inference.posterior import BASE, Posterior
from perfbisect.core.inference.record import Record
from perfbisect.core.inference.state_space import Levels

NOISY = 0.05  # s.d. of one run from which a host is called noisy
DRIFTING = 0.9


def prior_belief(graph: Graph, model: NoiseModel = USUAL) -> Belief:
    """Before both ends were measured."""
    weight = graph.weight.copy()
    weight[0] = 0.0
    culprit = weight / max(weight.sum(), 1e-300)
    effect = Interval(float(np.exp(-2 * BASE)), 1.0, float(np.exp(2 * BASE)))
    return Belief(culprit, 0.5, model.noise, effect, slow=_known(ancestry_of(graph).sums(culprit)))


def believed(
    groups: Hypotheses, posterior: Posterior, record: Record, effect: Interval, levels: Levels, behaviour: Behaviour
) -> Belief:
    """The belief that ``levels`` support; ``effect`` is bad relative to good."""
    culprit = groups.spread(posterior.culprit)
    slow = groups.reach.sums(culprit)
    slow[list(record.builds)] = groups.slow @ posterior.culprit
    change = float(np.clip(posterior.change, 1 - CAP, CAP))
    noticed = warnings(levels, behaviour, posterior.several)
    return Belief(culprit, change, levels.noise, effect, noticed, _known(slow), posterior.several)


def _known(slow: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities without what rounding adds, and 0.5 where nothing is known."""
    result: NDArray[np.float64] = np.clip(np.where(np.isnan(slow), 0.5, slow), 0.0, 1.0)
    return result


def warnings(levels: Levels, behaviour: Behaviour, several: float) -> tuple[str, ...]:
    """What the user should know of the host and the range, a short sentence each."""
    found = []
    if behaviour.two_speeds:
        found.append("the host runs at two speeds: readings fall into two groups")
    if float(levels.probability @ (levels.drift > 0)) > DRIFTING:
        found.append("the host drifts; builds are compared only with neighbours in time")
    if levels.noise > NOISY:
        found.append(f"runs of one build vary by {100 * levels.noise:.0f} %")
    if behaviour.outliers > max(1, 0.03 * len(behaviour.weight)):
        found.append(f"{behaviour.outliers} readings are far from the others of their build and hardly count")
    if several > 0.9:
        found.append("there is more than one change in the range; the largest is hunted first")
    return tuple(found)
