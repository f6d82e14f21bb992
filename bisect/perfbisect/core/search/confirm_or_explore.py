"""The next order of one hunt: measure the ends, confirm a probable culprit, learn more, or end with what is known."""

from collections.abc import Sequence
from dataclasses import replace

from perfbisect.core.domain.orders import Found, Inconclusive, Order, Reason, Step
from perfbisect.core.domain.policy import CAP, Policy
from perfbisect.core.inference import endpoints
from perfbisect.core.inference.analysis import Analysis
from perfbisect.core.inference.credible_set import LeadingHypothesis, leading_hypothesis
from perfbisect.core.search.acquisition import choose, hopeless
from perfbisect.core.search.budget import Budget
from perfbisect.core.search.confirmation import PairwiseProof, compared_with, confirmation, pairwise_proofs, weakest
from perfbisect.core.search.no_culprit import nothing_found, undecided
from perfbisect.core.search.situation import Situation

DOUBTFUL = 0.5  # probability of any change below which a search that cannot go on has found nothing
LARGE = 0.9  # of the smallest effect of interest: smaller steps are not named where every step shows
UNLIKELY = 0.05
SPLIT = 0.05  # a build is undecided if its probability of being slow is not this close to 0 or 1


def next_action(known: Analysis | None, now: Situation, host: int) -> Order:
    """The order for ``host``; ``known`` is None while one of the ends has no reading.

    The candidates of interest of other hosts' orders are left to them.
    """
    if known is None:
        return endpoints.first_look(now.bad, now.build_runs, now.model)
    if known.nothing:
        return nothing_found(known.effect, known.ends, known.policy)
    if not known.differ:
        return endpoints.further_look(known.ends, now.bad)
    posterior = known.posterior
    answer = leading_hypothesis(known.groups, posterior, known.record)
    required = min(known.policy.confidence, CAP)
    if posterior.change > required:  # otherwise it is the change itself that is in doubt, not its place
        required = min(required / posterior.change, CAP)
    if answer.probability >= required and (order := _conclude(known, answer, now.budget)) is not None:
        return order
    if _depends_on_stopped_runs(known, required):
        return undecided(known.belief, known.policy, Reason.STOPPED_RUNS)
    choice = choose(known, now, host)
    if choice is None or hopeless(choice, known, now, required):
        reason = Reason.BY_CHANCE if answer.probability >= required else _why_stuck(known, now.budget)
        return _give_up(known, reason, now.budget)
    return choice.order


def _depends_on_stopped_runs(known: Analysis, required: float) -> bool:
    """Whether there is one culprit if builds whose runs were stopped are at the bound, and another if far beyond it."""
    extremes = (known.by_distance[0], known.by_distance[-1]) if known.by_distance else ()
    answers = [leading_hypothesis(known.groups, one, known.record) for one in extremes]
    sure = all(answer.certain and answer.probability >= required for answer in answers)
    return sure and len({answer.members for answer in answers}) > 1


def _give_up(known: Analysis, reason: Reason, budget: Budget) -> Order:
    """The verdict when no measurement promises anything: for a proof a set of neighbours is enough."""
    answer = leading_hypothesis(known.groups, known.posterior, known.record, stuck=True)
    if reason is Reason.UNBUILDABLE and answer.probability >= min(known.policy.confidence, CAP):
        return _conclude(known, answer, budget) or _undecided(known, Reason.BY_CHANCE)
    if known.posterior.change < DOUBTFUL and known.ends.runs >= known.model.fewest:
        return nothing_found(known.effect, known.ends, known.policy)
    return _undecided(known, reason)


def _conclude(known: Analysis, answer: LeadingHypothesis, budget: Budget) -> Order | None:
    """The next order of the proof of a culprit, or the verdict once it is complete.

    None if it is complete, but it is uncertain whether anything changed, and more runs of the ends would not show it.
    """
    graph, policy, record, posterior = known.graph, known.policy, known.record, known.posterior
    if answer.slow in record.skipped:
        return _undecided(known, Reason.UNBUILDABLE)
    parents = compared_with(graph, record, answer.slow) if answer.certain else (answer.fast,)
    proofs = pairwise_proofs(record, known.levels, answer.slow, parents)
    if (more := confirmation(record, posterior, known.levels, answer.slow, proofs)) is not None:
        if not budget.builds_allowed(more):
            return _undecided(known, Reason.BUILDS_SPENT)
        return more
    if not answer.certain:
        return _undecided(known, Reason.UNBUILDABLE)
    if not all(proof.proven for proof in proofs):
        return _undecided(known, Reason.NOT_CONFIRMED)
    if known.model.exact and not _large_enough(proofs, policy):
        return _undecided(known, Reason.MANY_STEPS)
    stated = min(answer.probability * posterior.change, CAP)
    if stated < min(policy.confidence, CAP):
        if endpoints.settled(known.ends, known.model):
            return None
        return endpoints.further_look(known.ends, graph.size - 1)
    ratio = known.speeds.ratio(answer.slow, weakest(proofs).parent)
    prior = float(graph.weight[answer.slow])
    stand_ins = tuple(p for p in parents if p not in graph.parents_of(answer.slow))
    return Found(Step(answer.slow, stated, ratio, parents, stand_ins, prior))


def _large_enough(proofs: Sequence[PairwiseProof], policy: Policy) -> bool:
    """Whether the step may be as large as the smallest effect of interest: where every step shows, one is the largest."""
    contrast = weakest(proofs).contrast
    return contrast is not None and contrast.above(LARGE * endpoints.least(policy)) > UNLIKELY


def _undecided(known: Analysis, reason: Reason) -> Inconclusive:
    """The verdict without a culprit. Where the user left out what would separate the candidates, that is the reason."""
    verdict = undecided(known.belief, known.policy, reason)
    if reason is Reason.UNBUILDABLE and known.record.left_out.intersection(verdict.candidates):
        return replace(verdict, reason=Reason.LEFT_OUT)
    return verdict


def _why_stuck(known: Analysis, budget: Budget) -> Reason:
    """The reason why no measurement promises anything."""
    record, groups, posterior = known.record, known.groups, known.posterior
    if not budget.may_build:
        return Reason.BUILDS_SPENT
    top = groups.of_class(int(posterior.culprit.argmax()))
    if len(top) > 1 and record.skipped.intersection(top.tolist()):
        return Reason.UNBUILDABLE
    if known.model.exact:
        return Reason.MANY_STEPS
    likely = [i for i, b in enumerate(record.builds) if SPLIT < float(groups.slow[i] @ posterior.culprit) < 1 - SPLIT]
    fit = posterior.fit
    noisy = any(known.levels.covariance[fit.law, i, i] > fit.layout for i in likely)
    return Reason.LAYOUT_TIE if likely and not noisy else Reason.TOO_NOISY
