"""The hunt for the largest change of a range, on hosts of one class or of several.

The next order for a host depends on the levels and the drift of its own class, and on the probabilities of a culprit
that all classes have in common: measure the ends, confirm a probable culprit, learn more, or end with what is known. A
proof on one class is enough.

Host classes have the culprit in common, each with an effect of its own. The readings of each host class are a record of
their own, with its own noise, drift, layout and size of the change. So the log likelihoods of a culprit are summed:

    log P(K | all)  =  log P(K)  +  Σ over the classes  log P(readings of the class | K)  +  a constant

A class on which the ends do not differ does not show where the change is, and is left out. Where there are several
changes, the largest need not be the same on all classes: then each class keeps its own probabilities. How likely that
is follows from how well the classes agree about the place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.orders import (
    UNKNOWN,
    Belief,
    Decision,
    Effect,
    Found,
    Inconclusive,
    Interval,
    Measure,
    NotReproduced,
    Order,
    Purpose,
    Reason,
    Step,
)
from perfbisect.core.domain.settings import CAP
from perfbisect.core.inference.analysis import (
    Analysis,
    PairwiseProof,
    analyse,
    confirmation,
    first_look,
    least,
    pairwise_proofs,
    prior_belief,
    weakest_proof,
)
from perfbisect.core.inference.ancestry import Hypotheses, compared_with, hypotheses
from perfbisect.core.inference.posterior import NEVER, Posterior
from perfbisect.core.inference.record import Record
from perfbisect.core.inference.relative_speed import leading_class, strongest
from perfbisect.core.search.acquisition import choose, hopeless, meanwhile
from perfbisect.core.search.counts import SHARE, Steps, by_counts, counts_of_ends, difference, explained
from perfbisect.core.search.situation import Budget, Situation, no_suspect, pointless, undecided

DOUBTFUL = 0.5  # probability of any change below which a search that cannot go on has found nothing
LARGE = 0.9  # of the smallest effect of interest: smaller steps are not named where every step shows
UNLIKELY = 0.05
SPLIT = 0.05  # a build is undecided if its probability of being slow is not this close to 0 or 1


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


def next_action(known: Analysis | None, now: Situation, host: int) -> Order:
    """The order for ``host``; ``known`` is None while one of the ends has no reading.

    The candidates of interest of other hosts' orders are left to them.
    """
    if known is None:
        return first_look(now.bad, now.model)
    if more := known.second_look(now.build_runs):
        return more
    if known.nothing:
        return known.not_reproduced
    if not known.differ:
        return known.further_look()
    posterior = known.posterior
    answer = leading_hypothesis(known.groups, posterior, known.record)
    required = min(known.policy.confidence, CAP)
    if posterior.change > required:  # otherwise it is the change itself that is in doubt, not its place
        required = min(required / posterior.change, CAP)
    if answer.probability >= required and (order := _conclude(known, answer, now.budget)) is not None:
        return order
    # builds whose runs were stopped may be at the bound, or far beyond it
    extremes = (known.by_distance[0], known.by_distance[-1]) if known.by_distance else ()
    answers = [leading_hypothesis(known.groups, one, known.record) for one in extremes]
    sure = all(each.certain and each.probability >= required for each in answers)
    if sure and len({each.members for each in answers}) > 1:
        return undecided(known.belief, known.policy, Reason.STOPPED_RUNS)
    choice = choose(known, now, host)
    if choice is None or hopeless(choice, known, now, required):
        reason = Reason.BY_CHANCE if answer.probability >= required else _why_stuck(known, now.budget)
        return _give_up(known, reason, now.budget)
    return choice.order


def _give_up(known: Analysis, reason: Reason, budget: Budget) -> Order:
    """The verdict when no measurement promises anything: for a proof a set of neighbours is enough."""
    answer = leading_hypothesis(known.groups, known.posterior, known.record, stuck=True)
    if reason is Reason.UNBUILDABLE and answer.probability >= min(known.policy.confidence, CAP):
        return _conclude(known, answer, budget) or _undecided(known, Reason.BY_CHANCE)
    if known.posterior.change < DOUBTFUL and known.ends.runs >= known.model.fewest:
        return known.not_reproduced
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
    if (more := confirmation(known, answer.slow, proofs)) is not None:
        if not budget.builds_allowed(more):
            return _undecided(known, Reason.BUILDS_SPENT)
        return more
    if not answer.certain:
        return _undecided(known, Reason.UNBUILDABLE)
    if not all(proof.proven for proof in proofs):
        return _undecided(known, Reason.NOT_CONFIRMED)
    proof = weakest_proof(proofs)
    # where every step shows, one is the largest: it may be as large as the smallest effect of interest
    if known.model.exact and not (proof.contrast and proof.contrast.above(LARGE * least(policy)) > UNLIKELY):
        return _undecided(known, Reason.MANY_STEPS)
    stated = min(answer.probability * posterior.change, CAP)
    if stated < min(policy.confidence, CAP):
        return None if known.settled else known.further_look()
    ratio = known.speeds.ratio(answer.slow, proof.parent)
    prior = float(graph.weight[answer.slow])
    stand_ins = tuple(p for p in parents if p not in graph.parents_of(answer.slow))
    return Found(Step(answer.slow, stated, ratio, parents, stand_ins, prior, together=known.model.rounds))


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


@dataclass(frozen=True, slots=True, eq=False)
class _HostClass:
    """The hosts of one class, and what follows from their readings."""

    name: str  # "" where all hosts are of one class
    host: int | None  # that takes the next order: a free one if there is any; None if all are lost
    now: Situation  # the readings are those of the class alone
    known: Analysis | None  # None until both ends were measured

    @property
    def shows(self) -> bool:
        """Whether its readings show a change, and so can show where it is."""
        return self.known is not None and self.known.shows

    def proof(self, step: Step) -> PairwiseProof | None:
        """The proof of a step with the smallest drop; None if it was not compared with each of its parents here."""
        if self.known is None:
            return None
        proofs = pairwise_proofs(self.known.record, self.known.levels, step.candidate, step.parents)
        return weakest_proof(proofs) if all(proof.contrast for proof in proofs) else None


def single_change(now: Situation) -> Decision:
    """The next order, or the verdict. An order for a busy host means that there is nothing to do for the free ones."""
    belief = prior_belief(now.graph, now.model)
    if verdict := pointless(now.graph, now.record, now.policy):
        return Decision(verdict, belief)
    each = _host_classes(now)
    main = _shown(each)
    counting: Measure | None = None
    if main and (counts := by_counts(now)):
        each, counting = _with_counts(now, each, main, counts)
        main = _shown(each)
    if main:
        noticed = [(one.name, text) for one in each if one.known for text in one.known.belief.warnings]
        warnings = tuple(f"{name}: {text}" if name else text for name, text in noticed)
        belief = replace(main.belief, ends=partial(_leading, each), warnings=warnings)
    order, wanted = _order(now, each, main, belief)
    replaced = isinstance(order, Measure) and order.purpose is not Purpose.CONFIRM
    if counting and replaced and now.budget.allows(counting):
        order, wanted = now.budget.within(counting), ()
    step = order.step if isinstance(order, Found) else None
    if len(each) > 1 and step:
        order = Found(replace(step, effects=_effects(each, step)))
    elif len(each) > 1 and isinstance(order, NotReproduced | Inconclusive):
        order = replace(order, ratio=belief.effect if main else order.ratio, effects=_effects(each, step))
    return Decision(order, belief, evidence=_evidence(each, step), wanted=wanted)


def _leading(each: Sequence[_HostClass]) -> Interval:
    """The metric of the bad end relative to the good end, on the leading host class."""
    ratios = [one.known.effect if one.known else None for one in each]
    return ratios[leading_class(ratios)] or UNKNOWN


def _with_counts(
    now: Situation, each: list[_HostClass], main: Analysis, counts: Situation
) -> tuple[list[_HostClass], Measure | None]:
    """The host classes with what ``counts`` say of the culprit, and the order that counts next, if one does."""
    if lacking := counts_of_ends(counts, now, main):
        return each, lacking
    if not explained(difference(counts), main.ends, least(now.policy)):
        return each, None
    steps = Steps.of(counts)
    each = _host_classes(now, steps.prior, SHARE)
    return each, steps.next(counts, now, _shown(each) or main)


def _shown(each: Sequence[_HostClass]) -> Analysis | None:
    """What is shown for all host classes: that of a class that shows a change, if there is one."""
    return next((one.known for one in sorted(each, key=lambda one: not one.shows) if one.known), None)


def _host_classes(now: Situation, by_counts: NDArray[np.float64] | None = None, share: float = 0.0) -> list[_HostClass]:
    """The host classes with the common probabilities of a culprit; its prior is ``by_counts`` (size,) with that ``share``."""
    groups = hypotheses(now.graph, now.record, by_counts, share)
    names = now.prior.classes
    if len(names) == 1:
        return [_HostClass("", now.fleet.free_host, now, _analysis(now, now, groups))]
    hosts, own = [], []
    for name in names:
        members = [host for host, its in enumerate(now.prior.host_classes) if its == name]
        left = sorted(set(members).difference(now.fleet.gone), key=lambda host: (not now.fleet.is_free(host), host))
        hosts.append(left[0] if left else None)
        prior = now.prior if 0 in members else replace(now.prior, noise=None)
        own.append(now.with_readings(lambda seen, members=members: seen.host in members, prior=prior))  # type: ignore[misc]
    known = with_common_culprit([_analysis(now, one, groups) for one in own])
    return [_HostClass(*one) for one in zip(names, hosts, own, known, strict=True)]


def _analysis(now: Situation, own: Situation, groups: Hypotheses) -> Analysis | None:
    """What follows from the readings of one host class; ``groups`` are the classes of candidates by all builds."""
    record = own.record
    if min(record.runs(0), record.runs(own.bad)) == 0:
        return None
    groups = replace(groups, slow=groups.slow[[now.record.builds.index(build) for build in record.builds]])
    return analyse(own.graph, own.policy, record, groups, own.prior.noise, model=own.model, subrange=own.subrange)


def _order(
    now: Situation, each: Sequence[_HostClass], main: Analysis | None, belief: Belief
) -> tuple[Order, tuple[int, ...]]:
    """The next order or the verdict; ``main`` is of the host class that is shown for all, None before there is one.

    And the candidates whose builds a better order waits for, in place of which this one is given.
    """
    order = _best(now, each, main, belief)
    if not isinstance(order, Measure) or not (missing := now.missing(order)):
        return order, ()
    known, its = next((one.known, one.now) for one in each if one.host == order.host)
    if known is None or order.purpose is Purpose.ENDS:
        return order, ()
    wanted = missing if order.purpose is Purpose.CONFIRM else ()  # what is explored follows from the probabilities
    instead = meanwhile(known, its, order.host) if now.fleet.is_free(order.host) else None
    if instead is None or not now.budget.allows(instead):
        return order, wanted
    return now.budget.within(replace(instead, host=order.host)), wanted


def _best(now: Situation, each: Sequence[_HostClass], main: Analysis | None, belief: Belief) -> Order:
    """The order that would be best if builds were there at once, or the verdict."""
    policy, budget = now.policy, now.budget
    here = [one for one in each if one.host is not None]
    lost = [one for one in each if one.host is None and one.shows]
    if not lost and all(one.known and one.known.nothing for one in here):
        return main.not_reproduced if main else no_suspect(Reason.NO_HOST, policy)
    orders = [(next_action(one.known, one.now, one.host), one.host) for one in here if one.host is not None]
    if found := next((order for order, _ in orders if isinstance(order, Found)), None):
        return found
    if spent := budget.spent:
        return undecided(belief, policy, spent) if main else no_suspect(spent, policy)
    measures = [replace(order, host=host) for order, host in orders if isinstance(order, Measure)]
    if measures:
        return budget.within(min(measures, key=lambda order: (not now.fleet.is_free(order.host), order.host)))
    ended = next((order for order, _ in orders if isinstance(order, Inconclusive)), None)
    if lost and not ended:  # the change shows on no other class: an order for a lost host, so that the loop fails
        return replace(first_look(now.bad, now.model), host=now.prior.host_classes.index(lost[0].name))
    assert main
    return ended or main.not_reproduced


def _effects(each: Sequence[_HostClass], step: Step | None) -> tuple[Effect, ...]:
    """The effect on each host class: of ``step`` where it was compared with its parents, of the whole range elsewhere."""
    effects = []
    for one in each:
        if (known := one.known) and step and (proof := one.proof(step)) and proof.contrast:
            effects.append(Effect(one.name, known.speeds.ratio(step.candidate, proof.parent), ends=False))
        elif known:
            effects.append(Effect(one.name, known.effect, ends=True))
    return tuple(effects)


def _evidence(each: Sequence[_HostClass], step: Step | None) -> tuple[Interval, ...]:
    """See ``Decision``: where ``step`` was not compared and the ends differ, that of another class."""
    found: list[Interval | None] = []
    for one in each:
        ratio = None
        if (known := one.known) and step and (proof := one.proof(step)) and proof.contrast:
            ratio = proof.contrast.ratio(known.record.sign)
        elif known:
            ends = known.ends.ratio(known.record.sign)
            ratio = None if step and ends.excludes_one else ends
        found.append(ratio)
    certain = [ratio for ratio in found if ratio]
    return tuple(ratio or strongest(certain) for ratio in found) if certain else ()


APART = 0.01  # prior that the largest change is not the same on all classes


def with_common_culprit(each: Sequence[Analysis | None]) -> list[Analysis | None]:
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
        culprit = shared * share / share.sum() + (1 - shared) * own.culprit
        mixed = shared * change + (1 - shared) * own.change
        return replace(known, posterior=replace(own, culprit=culprit, change=mixed, several=several))

    return [common(known) if known and known.shows else known for known in each]
