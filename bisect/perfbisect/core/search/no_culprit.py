"""The verdicts that name no culprit."""

from dataclasses import replace

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import (
    UNKNOWN,
    Belief,
    Decision,
    Inconclusive,
    Interval,
    Measure,
    NotReproduced,
    Reason,
    Verdict,
)
from perfbisect.core.domain.policy import CAP, Policy
from perfbisect.core.inference import endpoints
from perfbisect.core.inference.credible_set import credible_set
from perfbisect.core.inference.endpoints import Contrast
from perfbisect.core.inference.record import Record
from perfbisect.core.search.situation import Situation


def pointless(graph: Graph, record: Record, policy: Policy) -> Verdict | None:
    """The verdict where no search is possible: an end cannot be measured, or both have the same binary."""
    bad = graph.size - 1
    if bad in record.skipped or 0 in record.skipped:
        return no_suspect(Reason.GOOD_UNMEASURABLE if 0 in record.skipped else Reason.BAD_UNMEASURABLE, policy)
    if record.name(bad) == 0 or not (graph.weight[1:] > 0).any():
        return NotReproduced(Interval(1.0, 1.0, 1.0), 0.0)
    return None


def undecided(belief: Belief, policy: Policy, reason: Reason) -> Inconclusive:
    """The smallest set of candidates that contains the culprit with the requested confidence."""
    candidates = credible_set(belief.culprit, min(policy.confidence, CAP))
    probabilities = tuple(min(float(belief.culprit[c]) * belief.change, CAP) for c in candidates)
    return Inconclusive(
        candidates, probabilities, belief.effect, reason, (), float(belief.several), limit(reason, policy)
    )


def nothing_found(effect: Interval, ends: Contrast, policy: Policy) -> NotReproduced:
    """That the ends do not differ as ``policy`` asks, with the smallest change that would have been seen."""
    return NotReproduced(effect, endpoints.detectable(ends), (), policy.min_effect, policy.direction)


def no_suspect(reason: Reason, policy: Policy, ratio: Interval = UNKNOWN) -> Inconclusive:
    """The verdict where no candidate can be suspected, as before both ends were measured."""
    return Inconclusive((), (), ratio, reason, detail=limit(reason, policy))


def limit(reason: Reason, policy: Policy) -> float | None:
    """The budget that is used up, if that is the reason."""
    match reason:
        case Reason.RUNS_SPENT:
            return float(policy.max_runs)
        case Reason.MINUTES_SPENT:
            return policy.max_minutes
        case _:
            return None


def afforded(decision: Decision, now: Situation) -> Decision:
    """The decision within the whole budget, of which the search that made it may not have seen all that was spent."""
    order, budget = decision.order, now.budget
    if not isinstance(order, Measure):
        return decision
    if budget.allows(order):
        return replace(decision, order=budget.within(order))
    return replace(decision, order=undecided(decision.belief, now.policy, budget.spent or Reason.BUILDS_SPENT))
