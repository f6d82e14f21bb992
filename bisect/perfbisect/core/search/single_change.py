"""The hunt for the largest change of a range."""

from dataclasses import replace

from perfbisect.core.domain.orders import Decision, Found, Measure, Step
from perfbisect.core.inference.analysis import Analysis, analyse
from perfbisect.core.inference.belief import prior_belief
from perfbisect.core.inference.hypotheses import hypotheses
from perfbisect.core.search.confirm_or_explore import next_action
from perfbisect.core.search.confirmation import PairwiseProof, pairwise_proofs, weakest
from perfbisect.core.search.no_culprit import no_suspect, pointless, undecided
from perfbisect.core.search.situation import Situation


def single_change(now: Situation) -> Decision:
    """The next order, for the first free host; or the verdict."""
    graph, record, policy, budget = now.graph, now.record, now.policy, now.budget
    if verdict := pointless(graph, record, policy):
        return Decision(verdict, prior_belief(graph, now.model))
    known = None
    if min(record.runs(0), record.runs(now.bad)) > 0:
        known = analyse(
            graph, policy, record, hypotheses(graph, record), now.prior.noise, model=now.model, subrange=now.subrange
        )
    belief = known.belief if known else prior_belief(graph, now.model)
    host = now.fleet.free_host
    order = next_action(known, now, host)
    if not (isinstance(order, Found) or (known and known.nothing)) and (spent := budget.spent):
        order = undecided(belief, policy, spent) if known else no_suspect(spent, policy)
    if isinstance(order, Measure):
        order = replace(budget.within(order), host=host)
    evidence = None
    if known:
        contrast = weakest_proof(known, order.step).contrast if isinstance(order, Found) else known.ends
        evidence = contrast.ratio(record.sign) if contrast else None
    return Decision(order, belief, evidence)


def weakest_proof(known: Analysis, step: Step) -> PairwiseProof:
    """The proof of a named step with the smallest drop."""
    return weakest(pairwise_proofs(known.record, known.levels, step.candidate, step.parents))
