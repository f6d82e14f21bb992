"""Searches for every change of a range that is at least the smallest change of interest: first for the largest change,
then for changes in the subranges before and after each change.

If a change is named, the commits before the change and the commits after the change are subranges. Usually both ends of
these subranges are already measured. A subrange is halved if its ends do not differ, or if no single change explains
the difference. By halving subranges, the search also finds changes that cancel each other. A subrange is not halved if
it is smaller than an eighth of the range, because halving needs a build of the commit in the middle. If the search
named a change by exact counts of instructions, no subrange is halved, because the counts show that any remaining change
is smaller than the smallest change of interest. If commits cannot be built, the commits before and the commits after
these commits are also subranges. The verdict lists the subranges whose search was inconclusive.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from perfbisect.core.domain.orders import (
    UNKNOWN,
    CodePlacement,
    Decision,
    Found,
    Inconclusive,
    Interval,
    Measure,
    NotReproduced,
    PlannedRuns,
    Purpose,
    Reason,
    Several,
    Step,
    UnsettledRange,
    Verdict,
)
from perfbisect.core.domain.settings import ChangeDirection
from perfbisect.core.inference.analysis import min_log_change
from perfbisect.core.inference.ancestry import ancestry_of, nearest_tested
from perfbisect.core.inference.relative_speed import strongest_ratio
from perfbisect.core.search.build_forecast import chance_to_build
from perfbisect.core.search.older_branches import branch_point_of, decide_with_older_branches
from perfbisect.core.search.single_change import decide_single_change
from perfbisect.core.search.situation import Situation, Subrange, subrange, with_suspects, without_suspects

SMALLEST = 8  # a subrange is halved if it has more than 1/SMALLEST of the range's candidates
STUCK = (Reason.UNBUILDABLE, Reason.LEFT_OUT, Reason.BRANCH_POINT_UNKNOWN)  # reasons that no measurement can remove
LIKELY = 0.5  # the verdict lists the possible commits of a change if the change has at least this probability


@dataclass(frozen=True, slots=True)
class _Span:
    """The ends of a subrange."""

    good: int
    bad: int


@dataclass(slots=True)
class _Results:
    """The results of the subranges that were searched so far."""

    now: Situation
    steps: list[Step] = field(default_factory=list)
    noted: dict[int, Step] = field(default_factory=dict)  # by candidate, with steps that are too small to be named
    # Candidate → the ratios of its change, one for each host class. The ratio of a step in ``noted`` is from its proof
    # alone. If the change is in commits of a subrange that do not build, the candidate is the subrange's bad end.
    changes: dict[int, tuple[Interval, ...]] = field(default_factory=dict)
    doubts: dict[_Span, Inconclusive] = field(default_factory=dict)  # subrange → its inconclusive verdict
    quiet: set[_Span] = field(default_factory=set)  # subranges whose ends are equally fast, and that are not halved
    divided: set[_Span] = field(default_factory=set)  # subranges that are searched in smaller subranges
    detectable: float = 0.0  # the size that a change in any quiet subrange must have to be detected
    # The smallest change of interest, if a subrange whose ends were only counted may contain a smaller change; else 0.
    remaining: float = 0.0

    @property
    def spent_budget(self) -> Reason:
        """The limit of the budget that was reached; if none was reached, ``BUILDS_SPENT``, because a work order that
        needs a build was refused.
        """
        return self.now.budget.reached_limit or Reason.BUILDS_SPENT

    @property
    def by_age(self) -> list[Step]:
        """The named steps, oldest first."""
        return sorted(self.steps, key=lambda step: step.candidate)

    def subrange(self, span: _Span) -> Subrange:
        """The subrange with these ends."""
        return subrange(self.now.graph, span.good, span.bad)


def decide_all_or_largest(now: Situation) -> Decision:
    """The decision of a hunt for all changes if ``policy.all_steps`` is true, otherwise for the largest change.
    Readings of branches that began before good are corrected: see ``decide_with_older_branches``.
    """
    return decide_with_older_branches(decide_all_changes if now.policy.all_steps else decide_single_change, now)


def decide_all_changes(now: Situation) -> Decision:
    """The decision of a hunt for all changes: the next work order (the description of the next measurement), or the
    verdict.
    """
    results, budget = _Results(now), now.budget
    largest = _largest_change(now)
    if isinstance(largest.order, NotReproduced):  # final if the binaries are equal, or without a commit between
        is_final = largest.order.detectable == 0.0
    else:
        is_final = budget.is_spent_verdict(largest.order) or not now.record.skipped.isdisjoint((0, now.bad))
    if isinstance(largest.order, Measure) or is_final:
        return largest
    policy = replace(now.policy.unlimited(), direction=ChangeDirection.ANY)
    is_one_class = len(now.prior.host_class_names) == 1
    prior = replace(now.prior, noise=largest.belief.noise) if is_one_class else now.prior
    of_subranges = replace(now, policy=policy, prior=prior)
    pending = [_Span(0, now.bad)]
    searched: set[_Span] = set()
    while pending:
        span = pending.pop()
        if span in searched:
            continue
        part = results.subrange(span)
        if not searched and isinstance(largest.order, Found):
            pending += _note_step(results, part, largest.order.step, largest.evidence, is_named=True)
        elif _remaining_change_is_small(own_situation := part.situation(of_subranges, results.changes)):
            results.remaining = policy.min_effect
            results.quiet.add(span)
        else:
            decision = decide_with_older_branches(decide_single_change, own_situation)
            if isinstance(decision.order, Measure):
                order = decision.order.renumbered(dict(enumerate(part.nodes.tolist())))
                if budget.allows(order):
                    # The probabilities of culprits are from the subrange; all other parts of the belief are from the
                    # range.
                    culprit = largest.belief.culprit * 0
                    culprit[part.nodes[1:]] = decision.belief.culprit[1:]
                    belief = replace(largest.belief, culprit=culprit)
                    hunted = _steps_in_hunted_direction(results)
                    return Decision(
                        budget.limit_runs(order),
                        belief,
                        needed_builds=part.candidates_of(decision.needed_builds),
                        found=hunted,
                    )
                results.doubts[span] = _budget_spent_verdict(results, part, decision)
            else:
                pending += _settle_subrange(results, part, span, decision.order, decision.evidence)
        searched.add(span)
    return Decision(_verdict(results, largest), largest.belief)


def _largest_change(now: Situation) -> Decision:
    """The decision of the search for the largest change. If the budget is spent, but the readings are enough for a
    verdict, the decision is this verdict."""
    decision = decide_single_change(now)
    if now.budget.is_spent_verdict(decision.order):
        unlimited = decide_single_change(replace(now, policy=now.policy.unlimited()))
        return decision if isinstance(unlimited.order, Measure) else unlimited
    return decision


def _remaining_change_is_small(part: Situation) -> bool:
    """Whether exact counts of the ends of a subrange show that any remaining change is below the smallest change of
    interest.

    More counts of the ends would not change the result, because each count of a build gives the same number.
    """
    record = part.record
    has_both_ends = record.run_count(0) and record.run_count(part.bad)
    if not part.model.exact or len(part.prior.host_class_names) > 1 or not has_both_ends:
        return False
    good, bad = (record.value[record.reading_positions(end)] for end in (0, part.bad))
    spread = max(float(np.ptp(good)), float(np.ptp(bad)))
    return abs(float(good.mean() - bad.mean())) + spread < min_log_change(part.policy)


def _settle_subrange(
    results: _Results, part: Subrange, span: _Span, verdict: Verdict, evidence: tuple[Interval, ...]
) -> list[_Span]:
    """Store the verdict on a subrange in ``results``; returns the smaller subranges to search next."""
    match verdict:
        case Found(step):
            effects = tuple(effect for effect in step.effects if not effect.ends)  # without effects of the step's ends
            candidate, parents = int(part.nodes[step.candidate]), part.candidates_of(step.parents)
            in_range = replace(step, candidate=candidate, parents=parents, effects=effects)
            return _note_step(results, part, in_range, evidence)
        case Inconclusive(reason=reason) if reason not in STUCK and (noted := _step_found_elsewhere(results, part)):
            return _spans_around_step(results, part, noted)
        case Inconclusive():
            results.doubts[span] = replace(verdict, candidates=part.candidates_of(verdict.candidates))
            if verdict.reason in STUCK:
                spans = _spans_around_failures(results, part, verdict.candidates)
                if not spans and evidence:
                    results.changes.setdefault(span.bad, evidence)
            else:
                spans = _half_spans(results, part) or []
            results.divided.update([span] if spans else [])
            return spans
        case NotReproduced(ratio, detectable):
            halves = _half_spans(results, part)
            if halves is None:
                results.doubts[span] = without_suspects(results.spent_budget, results.now.policy, ratio)
            elif not halves:
                results.detectable = max(results.detectable, detectable)
                # The ends are equal, so another change cancels the noted step.
                if noted := _step_found_elsewhere(results, part):
                    return _spans_around_step(results, part, noted)
                results.quiet.add(span)
            return halves or []
        case Several() | CodePlacement():
            raise AssertionError("the hunt for the largest change names one")


def _half_spans(results: _Results, part: Subrange) -> list[_Span] | None:
    """The two halves of a subrange; an empty list if the subrange is too small to be halved, and None if the budget
    does not allow a measurement of the commit in the middle.
    """
    if len(part.graph.candidates) * SMALLEST <= len(part.whole.candidates):
        return []
    if results.now.model.exact and results.steps:
        return []  # counts show that all remaining changes are too small to be of interest
    now, record = results.now, results.now.record
    built = {*record.built, *record.builds}
    central = part.halving_candidates(chance_to_build(ancestry_of(now.graph), record.skipped, built, record.left_out))
    if not central:
        return []
    # The middle is the candidate that was measured first, so that the halves stay the same. (The chances to build
    # change with each attempt.)
    measured = (v for v in central if record.run_count(v))
    middle = min(measured, key=lambda v: int(record.reading_positions(v)[0]), default=central[0])
    if not record.run_count(middle) and not now.budget.allows(Measure((PlannedRuns(middle, 1),), Purpose.SEARCH)):
        return None
    return [_Span(middle, part.bad), _span_ending_at(results, part, middle)]


def _spans_around_failures(results: _Results, part: Subrange, candidates: Sequence[int]) -> list[_Span]:
    """The subranges around a group of failed commits: after the nearest newer build that was measured, before the
    nearest older build that was measured, and between these two builds.

    ``candidates`` are nodes of the subrange, most probable first. The group of failed commits consists of the most
    probable candidate and of all candidates that no measured build distinguishes from this candidate. The list is empty
    if the two nearest measured builds are the ends of the subrange.
    """
    now, record, reach = results.now, results.now.record, ancestry_of(part.graph)
    last = part.graph.size - 1
    built = [b for b in record.builds if b not in record.skipped and b in part]
    below = {node: reach.with_ancestors(node) for node in {0, last, *part.node_of[built].tolist()}}
    suspected = [c for c in candidates if all(mask[c] == mask[candidates[0]] for mask in below.values())]
    newer = min((n for n in below if below[n][suspected].all()), key=lambda n: int(below[n].sum()))
    branch_point = int(branch_point_of(part.graph)[newer])  # 0 if it is the good end
    candidates_below = [n for n in below if n and below[newer][n] and not below[n][suspected].any()]
    older = max(candidates_below, key=lambda n: int(below[n].sum()), default=branch_point)
    if (older, newer) == (branch_point, last):
        return []
    first = [] if older == branch_point else [_span_ending_at(results, part, int(part.nodes[older]))]
    older, newer = part.candidates_of((older, newer))
    spans = [_Span(newer, part.bad), *first, _Span(nearest_tested(now.graph, record, older), newer)]
    return [span for span in spans if span.good != span.bad]


def _budget_spent_verdict(results: _Results, part: Subrange, decision: Decision) -> Inconclusive:
    """The verdict on a subrange if the budget does not allow the next work order of the subrange's search."""
    policy, belief = results.now.policy, decision.belief
    if not decision.evidence or belief.change < LIKELY:
        return without_suspects(results.spent_budget, policy, belief.effect if decision.evidence else UNKNOWN)
    verdict = with_suspects(belief, policy, results.spent_budget)
    return replace(verdict, candidates=part.candidates_of(verdict.candidates))


def _note_step(
    results: _Results, part: Subrange, step: Step, evidence: tuple[Interval, ...], *, is_named: bool = False
) -> list[_Span]:
    """Store a step in ``results``. The verdict names the step if it is large enough, or if ``is_named`` is true.

    Returns the subranges before and after the step. In a history with branches, subranges other than ``part`` may also
    contain the step. Another subrange that contains the step is divided at the step if the search of this subrange was
    inconclusive, or if its ends are equally fast. If its ends are equally fast, another change in this subrange must
    cancel the step.
    """
    if step.candidate not in results.noted:
        proven = strongest_ratio(evidence)
        large = abs(math.log(proven.middle)) >= min_log_change(results.now.policy)
        if is_named or (large and proven.excludes_one):
            parents = results.now.graph.parents_of(step.candidate)
            results.steps.append(replace(step, stand_ins=tuple(p for p in step.parents if p not in parents)))
        results.noted[step.candidate], results.changes[step.candidate] = step, evidence
    spans = _spans_around_step(results, part, step)
    doubts, divided = results.doubts, results.divided
    in_doubt = [span for span, doubt in doubts.items() if doubt.reason not in STUCK and span not in divided]
    for span in [*in_doubt, *sorted(results.quiet, key=lambda span: (span.bad, span.good))]:
        containing = results.subrange(span)
        if step.candidate in containing:
            doubts.pop(span, None)
            results.quiet.discard(span)
            spans += _spans_around_step(results, containing, step)
    return spans


def _step_found_elsewhere(results: _Results, part: Subrange) -> Step | None:
    """A step in the subrange ``part`` that was found in the search of another subrange; None if there is no such
    step."""
    return next((step for step in results.noted.values() if step.candidate in part), None)


def _spans_around_step(results: _Results, part: Subrange, step: Step) -> list[_Span]:
    """The subrange after a step, and for each parent of the step the subrange up to this parent."""
    after = [_Span(step.candidate, part.bad)] if step.candidate != part.bad else []
    return after + [_span_ending_at(results, part, parent) for parent in step.parents if parent in part]


def _span_ending_at(results: _Results, part: Subrange, node: int) -> _Span:
    """The subrange that ends with the candidate ``node``. The subrange begins with good or, if ``node`` is in a branch
    that does not contain good, with the branch point of this branch.

    If good or the branch point cannot be measured, the subrange begins at the nearest tested ancestor of good or of the
    branch point.
    """
    start = int(part.nodes[branch_point_of(part.graph)[part.node_of[node]]])
    return _Span(nearest_tested(results.now.graph, results.now.record, start), node)


def _verdict(results: _Results, largest: Decision) -> Verdict:
    """The verdict with all named steps and all inconclusive subranges; if there are no named steps and no inconclusive
    subranges, the verdict on the largest change.
    """
    now = results.now
    unsettled = _unsettled_subranges(results)
    full_range = [(0, now.bad)]
    is_full = isinstance(largest.order, Inconclusive) and [(span.good, span.bad) for span in unsettled] == full_range
    if not results.steps and (is_full or not unsettled):
        assert not isinstance(largest.order, Measure | Found | Several)
        return largest.order
    hunted = _steps_in_hunted_direction(results)
    opposite = tuple(step for step in results.by_age if step not in hunted)
    return Several(hunted, opposite, unsettled, results.detectable, results.remaining)


def _steps_in_hunted_direction(results: _Results) -> tuple[Step, ...]:
    """The named steps in the direction that the hunt searches for, oldest first."""
    hunts = results.now.policy.is_hunted
    return tuple(step for step in results.by_age if hunts(strongest_ratio(results.changes[step.candidate]).middle))


def _unsettled_subranges(results: _Results) -> tuple[UnsettledRange, ...]:
    """The inconclusive subranges, without subranges that were divided and contain a named step or a smaller
    inconclusive subrange.
    """
    parts = {span: results.subrange(span) for span in results.doubts}

    def is_explained(span: _Span) -> bool:
        part = parts[span]
        # In a history with branches, two subranges can each contain the ends of the other, so only smaller ones count.
        smaller = (doubt for doubt in results.doubts if len(parts[doubt].graph.candidates) < len(part.graph.candidates))
        return any(step.candidate in part for step in results.steps) or any(
            doubt.bad in part and part.node_of[doubt.good] >= 0 for doubt in smaller
        )

    spans = [span for span in results.doubts if span not in results.divided or not is_explained(span)]
    return tuple(UnsettledRange(s.good, s.bad, results.doubts[s]) for s in sorted(spans, key=lambda s: (s.bad, s.good)))
