"""The verdicts that name nobody."""

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import UNKNOWN, Belief, Inconclusive, Interval, NotReproduced, Verdict
from perfbisect.core.domain.policy import CAP, Policy
from perfbisect.core.inference import endpoints
from perfbisect.core.inference.credible_set import credible_set
from perfbisect.core.inference.dataset import Record
from perfbisect.core.inference.endpoints import Contrast

UNBUILDABLE = "unbuildable"
BY_CHANCE = "by chance"


def pointless(graph: Graph, record: Record) -> Verdict | None:
    """The verdict where a search is pointless: an end cannot be measured, or both have the same binary."""
    bad = graph.size - 1
    if bad in record.skipped or 0 in record.skipped:
        return nothing_known(f"the {'good' if 0 in record.skipped else 'bad'} end cannot be measured")
    if record.name(bad) == 0 or not (graph.weight[1:] > 0).any():
        return NotReproduced(Interval(1.0, 1.0, 1.0), 0.0)
    return None


def undecided(belief: Belief, policy: Policy, reason: str) -> Inconclusive:
    candidates = credible_set(belief.culprit, min(policy.confidence, CAP))
    probabilities = tuple(min(float(belief.culprit[c]) * belief.change, CAP) for c in candidates)
    return Inconclusive(candidates, probabilities, belief.effect, reason, several=float(belief.several))


def nothing_found(record: Record, ends: Contrast) -> NotReproduced:
    return NotReproduced(ends.ratio(record.sign), endpoints.detectable(ends))


def nothing_known(reason: str) -> Inconclusive:
    """Before both ends were measured there is nobody to suspect, and nothing to suspect them of."""
    return Inconclusive((), (), UNKNOWN, reason)
