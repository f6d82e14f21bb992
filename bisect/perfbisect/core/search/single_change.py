"""The search for the largest change in a range, on hosts of one host class (hosts of the same model) or several.

The next work order (the description of the next measurement) for a host depends on the levels and the drift of the
host's class, and on the probability of each culprit, which all classes share. The next work order measures the ends,
confirms a probable culprit, or narrows the range. If no useful work order is left, the hunt ends with a verdict. A
proof on one host class is sufficient for a verdict.

All host classes are assumed to have the same culprit K. Each host class has separate readings, noise, drift and effects
of layouts, and a separate size of the change. So the log likelihoods of K are summed:

    log P(K | all)  =  log P(K)  +  Σ over the classes  log P(readings of the class | K)  +  a constant

A host class on which the ends do not differ gives no evidence about the culprit, and is left out of the sum. If the
range has several changes, host classes may differ in the largest change. So the more the host classes disagree about
the culprit, the more weight have the probabilities that each host class gives alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.orders import (
    UNKNOWN,
    Belief,
    ClassEffect,
    Decision,
    Found,
    Inconclusive,
    Interval,
    Measure,
    NotReproduced,
    Order,
    Purpose,
    Reason,
    Step,
)  # fmt: skip
from perfbisect.core.domain.settings import MAX_PROBABILITY
from perfbisect.core.inference.analysis import (
    Analysis,
    PairwiseProof,
    analyse,
    first_end_runs,
    min_log_change,
    missing_proof_runs,
    pairwise_proofs,
    prior_belief,
    proof_of_smallest_drop,
)
from perfbisect.core.inference.ancestry import Hypotheses, comparison_builds, distinguishable_hypotheses
from perfbisect.core.inference.posterior import NEVER, Posterior
from perfbisect.core.inference.record import Record
from perfbisect.core.inference.relative_speed import shown_host_class, strongest_ratio
from perfbisect.core.search.acquisition import best_measurement, is_hopeless, measurement_while_waiting
from perfbisect.core.search.counts import SHARE, CountRises, count_rise, count_situation, ends_to_count, explains_time
from perfbisect.core.search.situation import Budget, Situation, verdict_without_search, with_suspects, without_suspects

DOUBTFUL = 0.5  # if a search cannot continue, and a change is less probable than this: not reproduced
LARGE = 0.9  # exact counts name no step that is probably smaller than this share of the smallest effect of interest
UNLIKELY = 0.05  # a step is probably smaller than LARGE if the probability of a larger step is at most UNLIKELY
SPLIT = 0.05  # a build is undecided if its probability to be slow is between SPLIT and 1 - SPLIT


@dataclass(frozen=True, slots=True)
class LeadingHypothesis:
    """The most probable candidate, or the most probable set of candidates that no build separates, with a slow and a
    fast build."""

    members: tuple[int, ...]
    probability: float
    slow: int  # the build that is slow if the hypothesis is right: the culprit, or the first slow build after it
    fast: int  # the last build before it that is fast if the hypothesis is right

    @property
    def is_single_candidate(self) -> bool:
        """Whether the hypothesis is one candidate, not a set of candidates that no build separates."""
        return len(self.members) == 1


def leading_hypothesis(
    hypotheses: Hypotheses, posterior: Posterior, record: Record, *, is_stuck: bool = False
) -> LeadingHypothesis:
    """The most probable candidate; or the most probable set of candidates that the measured builds do not separate, if
    each candidate of the set was measured or skipped, or if ``is_stuck`` is true."""
    by_candidate = hypotheses.candidate_probabilities(posterior.culprit)
    top = int(posterior.culprit.argmax())
    members = hypotheses.class_members(top)
    tried = np.array([*record.skipped, *record.builds, *record.build_name], np.int64)
    untried = len(np.setdiff1d(members, tried)) > 0
    usable = [(i, b) for i, b in enumerate(record.builds) if b not in record.skipped]
    slow_builds = [b for i, b in usable if hypotheses.slow[i, top]]
    fast_builds = [b for i, b in usable if not hypotheses.slow[i, top]]
    slow = int(members[0]) if len(members) == 1 else min(slow_builds)
    below = hypotheses.ancestry.with_ancestors(slow)
    fast = max((b for b in fast_builds if below[b]), default=0)
    if len(members) > 1 and untried and not is_stuck:
        best = int(by_candidate.argmax())
        return LeadingHypothesis((best,), float(by_candidate[best]), best, fast)
    return LeadingHypothesis(tuple(int(v) for v in members), float(posterior.culprit[top]), slow, fast)


def next_order(analysis: Analysis | None, now: Situation, host: int) -> Order:
    """The next work order for ``host``, or the verdict; candidates that another host measures now are left out.
    ``analysis`` is None as long as good or bad has no reading."""
    if analysis is None:
        return first_end_runs(now.bad, now.model)
    if end_runs := analysis.missing_first_end_runs(now.build_cost_in_runs):
        return end_runs
    if analysis.should_give_up:
        return analysis.not_reproduced
    if not analysis.ends_differ:
        return analysis.further_end_runs()
    posterior = analysis.posterior
    leading = leading_hypothesis(analysis.hypotheses, posterior, analysis.record)
    required = min(analysis.policy.confidence, MAX_PROBABILITY)
    if posterior.change > required:  # else it is in doubt whether there is a change
        required = min(required / posterior.change, MAX_PROBABILITY)
    if leading.probability >= required and (order := _proof_or_verdict(analysis, leading, now.budget)) is not None:
        return order
    # A stopped run shows only a bound: its build may be much slower. The answer must be the same in both cases.
    extremes = (analysis.by_distance[0], analysis.by_distance[-1]) if analysis.by_distance else ()
    answers = [leading_hypothesis(analysis.hypotheses, extreme, analysis.record) for extreme in extremes]
    is_sure = all(answer.is_single_candidate and answer.probability >= required for answer in answers)
    if is_sure and len({answer.members for answer in answers}) > 1:
        return with_suspects(analysis.belief, analysis.policy, Reason.STOPPED_RUNS)
    choice = best_measurement(analysis, now, host)
    if choice is None or is_hopeless(choice, analysis, now, required):
        reason = Reason.BY_CHANCE if leading.probability >= required else _reason_to_stop(analysis, now.budget)
        return _verdict_without_progress(analysis, reason, now.budget)
    return choice.order


def _verdict_without_progress(analysis: Analysis, reason: Reason, budget: Budget) -> Order:
    """The verdict if no measurement is useful; or a work order for a proof, if the ``reason`` is that builds failed."""
    leading = leading_hypothesis(analysis.hypotheses, analysis.posterior, analysis.record, is_stuck=True)
    if reason is Reason.UNBUILDABLE and leading.probability >= min(analysis.policy.confidence, MAX_PROBABILITY):
        return _proof_or_verdict(analysis, leading, budget) or _inconclusive(analysis, Reason.BY_CHANCE)
    if analysis.posterior.change < DOUBTFUL and analysis.ends.runs >= analysis.model.fewest_end_runs:
        return analysis.not_reproduced
    return _inconclusive(analysis, reason)


def _proof_or_verdict(analysis: Analysis, leading: LeadingHypothesis, budget: Budget) -> Order | None:
    """The next work order for the proof of a culprit; the verdict if the proof is complete. None if it remains too
    uncertain that there is a change."""
    graph, policy, record, posterior = analysis.graph, analysis.policy, analysis.record, analysis.posterior
    if leading.slow in record.skipped:
        return _inconclusive(analysis, Reason.UNBUILDABLE)
    parents = comparison_builds(graph, record, leading.slow) if leading.is_single_candidate else (leading.fast,)
    proofs = pairwise_proofs(record, analysis.levels, leading.slow, parents)
    if (order := missing_proof_runs(analysis, leading.slow, proofs)) is not None:
        if not budget.allows_builds_of(order):
            return _inconclusive(analysis, Reason.BUILDS_SPENT)
        return order
    if not leading.is_single_candidate:
        return _inconclusive(analysis, Reason.UNBUILDABLE)
    if not all(proof.is_proven for proof in proofs):
        return _inconclusive(analysis, Reason.NOT_CONFIRMED)
    proof = proof_of_smallest_drop(proofs)
    # Exact counts prove even the smallest steps, so the largest step may be smaller than the smallest effect of
    # interest.
    large = LARGE * min_log_change(policy)
    if analysis.model.exact and not (proof.contrast and proof.contrast.probability_above(large) > UNLIKELY):
        return _inconclusive(analysis, Reason.MANY_STEPS)
    probability = min(leading.probability * posterior.change, MAX_PROBABILITY)
    if probability < min(policy.confidence, MAX_PROBABILITY):
        return None if analysis.ends_are_settled else analysis.further_end_runs()
    ratio = analysis.speeds.ratio(leading.slow, proof.parent)
    prior = float(graph.weight[leading.slow])
    stand_ins = tuple(p for p in parents if p not in graph.parents_of(leading.slow))
    return Found(Step(leading.slow, probability, ratio, parents, stand_ins, prior, together=analysis.model.paired))


def _inconclusive(analysis: Analysis, reason: Reason) -> Inconclusive:
    """An inconclusive verdict. Its reason is LEFT_OUT if --skip excluded a listed candidate."""
    verdict = with_suspects(analysis.belief, analysis.policy, reason)
    if reason is Reason.UNBUILDABLE and analysis.record.left_out.intersection(verdict.candidates):
        return replace(verdict, reason=Reason.LEFT_OUT)
    return verdict


def _reason_to_stop(analysis: Analysis, budget: Budget) -> Reason:
    """The reason why no measurement promises enough information, so that the search stops."""
    record, groups, posterior = analysis.record, analysis.hypotheses, analysis.posterior
    if not budget.may_build:
        return Reason.BUILDS_SPENT
    top = groups.class_members(int(posterior.culprit.argmax()))
    if len(top) > 1 and record.skipped.intersection(top.tolist()):
        return Reason.UNBUILDABLE
    if analysis.model.exact:
        return Reason.MANY_STEPS
    likely = [i for i, b in enumerate(record.builds) if SPLIT < float(groups.slow[i] @ posterior.culprit) < 1 - SPLIT]
    fit = posterior.fit
    noisy = any(analysis.levels.covariance[fit.law, i, i] > fit.layout for i in likely)
    return Reason.LAYOUT_TIE if likely and not noisy else Reason.TOO_NOISY


@dataclass(frozen=True, slots=True, eq=False)
class _HostClass:
    """The hosts of one host class, and the analysis of their readings."""

    name: str  # "" if all hosts are of one class
    host: int | None  # the host for the next order, a free host if possible; None if all hosts are lost
    now: Situation  # with the readings of the class alone
    analysis: Analysis | None  # None until both ends were measured

    @property
    def shows_change(self) -> bool:
        """Whether the readings show a change; without a change, they cannot show which commit is the culprit."""
        return self.analysis is not None and self.analysis.shows_change

    def proof(self, step: Step) -> PairwiseProof | None:
        """The comparison of the culprit with its parent closest in speed; None if a parent was not measured."""
        if self.analysis is None:
            return None
        proofs = pairwise_proofs(self.analysis.record, self.analysis.levels, step.candidate, step.parents)
        return proof_of_smallest_drop(proofs) if all(proof.contrast for proof in proofs) else None


def decide_single_change(now: Situation) -> Decision:
    """The next work order, or the verdict. If the work order is for a busy host, free hosts have nothing to measure."""
    belief = prior_belief(now.graph, now.model)
    if verdict := verdict_without_search(now.graph, now.record, now.policy):
        return Decision(verdict, belief)
    classes = _host_classes(now)
    main = _first_with_change_or_first(classes)
    counting: Measure | None = None
    if main and (counts := count_situation(now)):
        classes, counting = _host_classes_and_next_count(now, classes, main, counts)
        main = _first_with_change_or_first(classes)
    if main:
        texts = [(part.name, text) for part in classes if part.analysis for text in part.analysis.belief.warnings]
        warnings = tuple(f"{name}: {text}" if name else text for name, text in texts)
        belief = replace(main.belief, ends=partial(_ratio_on_shown_host_class, classes), warnings=warnings)
    order, wanted = _order_and_wanted_builds(now, classes, main, belief)
    is_replaceable = isinstance(order, Measure) and order.purpose is not Purpose.CONFIRM
    if counting and is_replaceable and now.budget.allows(counting):
        order, wanted = now.budget.limit_runs(counting), ()
    step = order.step if isinstance(order, Found) else None
    if len(classes) > 1 and step:
        order = Found(replace(step, effects=_effects(classes, step)))
    elif len(classes) > 1 and isinstance(order, NotReproduced | Inconclusive):
        order = replace(order, ratio=belief.effect if main else order.ratio, effects=_effects(classes, step))
    return Decision(order, belief, evidence=_evidence_ratios(classes, step), needed_builds=wanted)


def _ratio_on_shown_host_class(classes: Sequence[_HostClass]) -> Interval:
    """The ratio of bad to good on the first host class with a clear difference, or else on the first host class."""
    ratios = [part.analysis.end_ratio if part.analysis else None for part in classes]
    return ratios[shown_host_class(ratios)] or UNKNOWN


def _host_classes_and_next_count(
    now: Situation, classes: list[_HostClass], main: Analysis, counts: Situation
) -> tuple[list[_HostClass], Measure | None]:
    """The host classes, and the work order for the next exact count. If the ``counts`` of instructions explain the
    change, the prior of the host classes is derived from the counts."""
    if of_ends := ends_to_count(counts, now, main):
        return classes, of_ends
    if not explains_time(count_rise(counts), main.ends, min_log_change(now.policy)):
        return classes, None
    rises = CountRises.of(counts)
    classes = _host_classes(now, rises.prior, SHARE)
    return classes, rises.next_order(counts, now, _first_with_change_or_first(classes) or main)


def _first_with_change_or_first(classes: Sequence[_HostClass]) -> Analysis | None:
    """The analysis that views show: of the first host class that shows a change, or of the first class if none does."""
    return next((c.analysis for c in sorted(classes, key=lambda c: not c.shows_change) if c.analysis), None)


def _host_classes(now: Situation, prior: NDArray[np.float64] | None = None, share: float = 0.0) -> list[_HostClass]:
    """The host classes with their analyses; ``prior`` has a probability of each culprit, from instruction counts."""
    groups = distinguishable_hypotheses(now.graph, now.record, prior, share)
    names = now.prior.host_class_names
    if len(names) == 1:
        return [_HostClass("", now.fleet.next_host, now, _host_class_analysis(now, now, groups))]
    hosts, parts = [], []
    for name in names:
        members = [host for host, host_class in enumerate(now.prior.host_classes) if host_class == name]
        usable = sorted(set(members).difference(now.fleet.gone), key=lambda host: (not now.fleet.is_free(host), host))
        hosts.append(usable[0] if usable else None)
        knowledge = now.prior if 0 in members else replace(now.prior, noise=None)
        parts.append(now.with_readings(lambda r, members=members: r.host in members, prior=knowledge))  # type: ignore[misc]
    analyses = with_common_culprit([_host_class_analysis(now, part, groups) for part in parts])
    return [_HostClass(*fields) for fields in zip(names, hosts, parts, analyses, strict=True)]


def _host_class_analysis(now: Situation, own: Situation, hypotheses: Hypotheses) -> Analysis | None:
    """The analysis of the readings of one host class; ``hypotheses`` are the culprits that the builds of all classes
    separate."""
    record = own.record
    if min(record.run_count(0), record.run_count(own.bad)) == 0:
        return None
    hypotheses = replace(hypotheses, slow=hypotheses.slow[[now.record.builds.index(build) for build in record.builds]])
    return analyse(
        own.graph, own.policy, record, hypotheses, own.prior.noise, model=own.model, is_subrange=own.subrange
    )


def _order_and_wanted_builds(
    now: Situation, classes: Sequence[_HostClass], main: Analysis | None, belief: Belief
) -> tuple[Order, tuple[int, ...]]:
    """The next work order or the verdict, and the candidates to build because a better work order needs them."""
    order = _best_order(now, classes, main, belief)
    if not isinstance(order, Measure) or not (missing := now.missing_builds(order)):
        return order, ()
    analysis, of_class = next((part.analysis, part.now) for part in classes if part.host == order.host)
    if analysis is None or order.purpose is Purpose.ENDS:
        return order, ()
    wanted = missing if order.purpose is Purpose.CONFIRM else ()  # other purposes: the probabilities decide
    other = measurement_while_waiting(analysis, of_class, order.host) if now.fleet.is_free(order.host) else None
    if other is None or not now.budget.allows(other):
        return order, wanted
    return now.budget.limit_runs(replace(other, host=order.host)), wanted


def _best_order(now: Situation, classes: Sequence[_HostClass], main: Analysis | None, belief: Belief) -> Order:
    """The best work order, even if it needs new builds, or the verdict; ``main`` is the result of
    ``_first_with_change_or_first``."""
    policy, budget = now.policy, now.budget
    usable = [part for part in classes if part.host is not None]
    showing = [part for part in classes if part.host is None and part.shows_change]  # but all their hosts are lost
    if not showing and all(part.analysis and part.analysis.should_give_up for part in usable):
        return main.not_reproduced if main else without_suspects(Reason.NO_HOST, policy)
    orders = [(next_order(part.analysis, part.now, part.host), part.host) for part in usable if part.host is not None]
    if named := next((order for order, _ in orders if isinstance(order, Found)), None):
        return named
    if spent := budget.reached_limit:
        return with_suspects(belief, policy, spent) if main else without_suspects(spent, policy)
    measures = [replace(order, host=host) for order, host in orders if isinstance(order, Measure)]
    if measures:
        return budget.limit_runs(min(measures, key=lambda order: (not now.fleet.is_free(order.host), order.host)))
    verdict = next((order for order, _ in orders if isinstance(order, Inconclusive)), None)
    if showing and not verdict:  # only classes without hosts show the change: this order fails
        return replace(first_end_runs(now.bad, now.model), host=now.prior.host_classes.index(showing[0].name))
    assert main
    return verdict or main.not_reproduced


def _effects(classes: Sequence[_HostClass], step: Step | None) -> tuple[ClassEffect, ...]:
    """The effect on each host class: the ratio of the culprit of ``step`` to its parent, if the host class compared
    both, otherwise the ratio of bad to good."""
    effects = []
    for part in classes:
        if (analysis := part.analysis) and step and (proof := part.proof(step)) and proof.contrast:
            effects.append(ClassEffect(part.name, analysis.speeds.ratio(step.candidate, proof.parent), ends=False))
        elif analysis:
            effects.append(ClassEffect(part.name, analysis.end_ratio, ends=True))
    return tuple(effects)


def _evidence_ratios(classes: Sequence[_HostClass], step: Step | None) -> tuple[Interval, ...]:
    """The ratio of each host class on which the decision rests (the field ``evidence`` of ``Decision``). A host class
    that did not compare ``step`` may get the ratio of another host class."""
    ratios: list[Interval | None] = []
    for part in classes:
        ratio = None
        if (analysis := part.analysis) and step and (proof := part.proof(step)) and proof.contrast:
            ratio = proof.contrast.ratio(analysis.record.sign)
        elif analysis:
            ends = analysis.ends.ratio(analysis.record.sign)
            ratio = None if step and ends.excludes_one else ends
        ratios.append(ratio)
    measured = [ratio for ratio in ratios if ratio]
    return tuple(ratio or strongest_ratio(measured) for ratio in ratios) if measured else ()


APART = 0.01  # prior probability that host classes differ in their largest change


def with_common_culprit(analyses: Sequence[Analysis | None]) -> list[Analysis | None]:
    """The analyses of the host classes, changed such that all host classes that show a change share the probability of
    each culprit. An analysis is None if good or bad has no reading on the host class."""
    showing = [analysis for analysis in analyses if analysis and analysis.shows_change]
    if len(showing) < 2:
        return list(analyses)
    prior = showing[0].hypotheses.prior
    total = np.log(prior) + sum(np.log(np.maximum(part.posterior.culprit / prior, NEVER)) for part in showing)
    top = float(total.max())
    share = np.exp(total - top)
    # log likelihood of one culprit of all host classes, relative to separate culprits
    agreement = top + float(np.log(share.sum()))
    shared = float(np.exp(-np.logaddexp(0.0, np.log(APART / (1 - APART)) - agreement)))
    # The odds of a change are the product of the odds in all classes, times the likelihood ratio that the classes have
    # the culprit in common.
    changes = np.clip([part.posterior.change for part in showing], 1e-12, 1 - 1e-12)
    change = float(np.exp(-np.logaddexp(0.0, (np.log1p(-changes) - np.log(changes)).sum() - agreement)))
    several = max(part.posterior.several for part in showing)

    def common(analysis: Analysis) -> Analysis:
        posterior = analysis.posterior
        culprit = shared * share / share.sum() + (1 - shared) * posterior.culprit
        mixed = shared * change + (1 - shared) * posterior.change
        return replace(analysis, posterior=replace(posterior, culprit=culprit, change=mixed, several=several))

    return [common(analysis) if analysis and analysis.shows_change else analysis for analysis in analyses]
