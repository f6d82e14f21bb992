"""Every change of a range: the largest first, then those on either side of it, down to the smallest of interest.

Once a change is named, what lies before it and what lies after it are subranges, most of whose ends have been measured.
Where the two ends of a subrange are alike, or no single change explains their difference, it is halved, so that changes
which cancel each other are found too; but only down to eighths of the range, as each half costs a build, and not beside a
change that exact counts have named: what counts show to be too small to be of interest ends their hunt. What lies before
and after commits that cannot be built are subranges as well. The verdict names the subranges that could not be settled.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from perfbisect.core.domain.orders import (
    Belief,
    CodePlacement,
    Found,
    Inconclusive,
    Interval,
    Measure,
    NotReproduced,
    Purpose,
    Reason,
    Several,
    Share,
    Step,
    Unsettled,
    Verdict,
)
from perfbisect.core.domain.settings import Direction
from perfbisect.core.inference.analysis import least
from perfbisect.core.inference.ancestry import ancestry_of
from perfbisect.core.inference.relative_speed import strongest
from perfbisect.core.search.build_forecast import chance_to_build
from perfbisect.core.search.older_branches import branch_point_of, with_older_branches
from perfbisect.core.search.single_change import single_change
from perfbisect.core.search.situation import Proposal, Situation, Subrange, subrange
from perfbisect.core.search.verdicts import no_suspect, tested, undecided

SMALLEST = 8  # a subrange of fewer candidates than the range has by this factor is not halved
STUCK = (Reason.UNBUILDABLE, Reason.LEFT_OUT, Reason.BRANCH_POINT_UNKNOWN)  # reasons that no measurement can remove
LIKELY = 0.5  # probability of a change from which the verdict lists the commits that may have made it


@dataclass(frozen=True, slots=True)
class _Span:
    """The ends of a subrange."""

    good: int
    bad: int


@dataclass(slots=True)
class _Progress:
    """The results of the subranges that were searched."""

    now: Situation
    steps: list[Step] = field(default_factory=list)
    noted: dict[int, Step] = field(default_factory=dict)  # by candidate, also those that are too small to be named
    # all known changes, on each host class: of the noted steps their ratios by their proofs alone; and those of stretches
    # that do not build, by the first build after them
    changes: dict[int, tuple[Interval, ...]] = field(default_factory=dict)
    doubts: dict[_Span, Inconclusive] = field(default_factory=dict)
    quiet: set[_Span] = field(default_factory=set)  # those that are not halved and whose ends are alike
    divided: set[_Span] = field(default_factory=set)  # those of which smaller ones are searched
    detectable: float = 0.0  # the smallest change that would have been seen in all those without one
    left: float = 0.0  # the smallest change of interest, where less is left in a subrange whose ends alone were counted

    @property
    def stopped(self) -> Reason:
        """The budget that is used up; that of builds where only orders without a build are allowed."""
        return self.now.budget.spent or Reason.BUILDS_SPENT

    def subrange(self, span: _Span) -> Subrange:
        """The subrange with these ends."""
        return subrange(self.now.graph, span.good, span.bad)


def all_changes(now: Situation) -> Proposal:
    """The next order, or the verdict."""
    progress, budget = _Progress(now), now.budget
    whole = _whole(now)
    if isinstance(whole.order, Measure) or _final(now, whole):
        return whole
    policy = replace(now.policy.unlimited(), direction=Direction.ANY)
    alike = len(now.prior.classes) == 1
    inner = replace(now, policy=policy, prior=replace(now.prior, noise=whole.belief.noise) if alike else now.prior)
    waiting = [_Span(0, now.bad)]
    searched: set[_Span] = set()
    while waiting:
        span = waiting.pop()
        if span in searched:
            continue
        part = progress.subrange(span)
        if not searched and isinstance(whole.order, Found):
            waiting += _note(progress, part, whole.order.step, whole.evidence, named=True)
        elif _too_small(own := part.situation(inner, progress.changes)):
            progress.left = policy.min_effect
            progress.quiet.add(span)
        else:
            decision = with_older_branches(single_change, own)
            if isinstance(decision.order, Measure):
                order = part.outer_order(decision.order)
                if budget.allows(order):
                    belief = _outer_belief(part, decision.belief, whole)
                    found = _hunted(progress)
                    return Proposal(budget.within(order), belief, wanted=part.outer(decision.wanted), found=found)
                progress.doubts[span] = _broken_off(progress, part, decision)
            else:
                waiting += _settle(progress, part, span, decision.order, decision.evidence)
        searched.add(span)
    return Proposal(_verdict(progress, whole), whole.belief)


def _whole(now: Situation) -> Proposal:
    """The hunt for the largest change, and its verdict although the budget was spent afterwards."""
    whole = single_change(now)
    if now.budget.ended(whole.order):
        before = single_change(replace(now, policy=now.policy.unlimited()))
        return whole if isinstance(before.order, Measure) else before
    return whole


def _final(now: Situation, whole: Proposal) -> bool:
    """Whether the range holds nothing more to search."""
    if isinstance(whole.order, NotReproduced):
        return whole.order.detectable == 0.0  # equal binaries, or nothing between the ends
    return now.budget.ended(whole.order) or not now.record.skipped.isdisjoint((0, now.bad))


def _too_small(own: Situation) -> bool:
    """Whether counts of the ends of a subrange show that what is left in it is below the smallest change of interest.

    They repeat: to count the ends again would decide nothing.
    """
    record = own.record
    if not own.model.exact or len(own.prior.classes) > 1 or not (record.runs(0) and record.runs(own.bad)):
        return False
    good, bad = (record.value[record.readings(end)] for end in (0, own.bad))
    spread = max(float(np.ptp(good)), float(np.ptp(bad)))
    return abs(float(good.mean() - bad.mean())) + spread < least(own.policy)


def _settle(
    progress: _Progress, part: Subrange, span: _Span, verdict: Verdict, evidence: tuple[Interval, ...]
) -> list[_Span]:
    """Note the verdict on a subrange; returns the smaller subranges that are to be searched."""
    match verdict:
        case Found(step):
            return _note(progress, part, _outer_step(part, step), evidence)
        case Inconclusive(reason=reason) if reason not in STUCK and (held := _known_step(progress, part)):
            return _sides(progress, part, held)
        case Inconclusive():
            progress.doubts[span] = replace(verdict, candidates=part.outer(verdict.candidates))
            if verdict.reason in STUCK:
                spans = _around(progress, part, verdict.candidates)
                if not spans and evidence:
                    progress.changes.setdefault(span.bad, evidence)
            else:
                spans = _halves(progress, part) or []
            progress.divided.update([span] if spans else [])
            return spans
        case NotReproduced(ratio, detectable):
            halves = _halves(progress, part)
            if halves is None:
                progress.doubts[span] = no_suspect(progress.stopped, progress.now.policy, ratio)
            elif not halves:
                progress.detectable = max(progress.detectable, detectable)
                if held := _known_step(progress, part):  # another change must cancel it
                    return _sides(progress, part, held)
                progress.quiet.add(span)
            return halves or []
        case Several() | CodePlacement():
            raise AssertionError("the hunt for the largest change names one")


def _halves(progress: _Progress, part: Subrange) -> list[_Span] | None:
    """The halves of a subrange: none if it is small already, None if the budget does not allow to measure its middle."""
    if len(part.graph.candidates) * SMALLEST <= len(part.whole.candidates):
        return []
    if progress.now.model.exact and progress.steps:
        return []  # what is left beside a change that was named is below the smallest of interest
    now, record = progress.now, progress.now.record
    built = {*record.built, *record.builds}
    central = part.middles(chance_to_build(ancestry_of(now.graph), record.skipped, built, record.left_out))
    if not central:
        return []
    # the one that was measured first: the chances to build change with every attempt, but the halves must stay the same
    middle = min((v for v in central if record.runs(v)), key=lambda v: int(record.readings(v)[0]), default=central[0])
    if not record.runs(middle) and not now.budget.allows(Measure((Share(middle, 1),), Purpose.SEARCH)):
        return None
    return [_Span(middle, part.bad), _before(progress, part, middle)]


def _around(progress: _Progress, part: Subrange, candidates: Sequence[int]) -> list[_Span]:
    """The subranges after the builds that enclose commits which cannot be built, before these builds, and between them.

    The commits are those around the first of ``candidates``, which are nodes of the subrange, most probable first.
    Empty if the builds are the subrange's ends.
    """
    now, record, reach = progress.now, progress.now.record, ancestry_of(part.graph)
    last = part.graph.size - 1
    built = [b for b in record.builds if b not in record.skipped and b in part]
    below = {node: reach.ancestors(node) for node in {0, last, *part.place[built].tolist()}}
    suspected = [c for c in candidates if all(mask[c] == mask[candidates[0]] for mask in below.values())]
    after = min((n for n in below if below[n][suspected].all()), key=lambda n: int(below[n].sum()))
    since = int(branch_point_of(part.graph)[after])  # its branch point, if its branch lacks the good end
    within = [n for n in below if n and below[after][n] and not below[n][suspected].any()]
    before = max(within, key=lambda n: int(below[n].sum()), default=since)
    if (before, after) == (since, last):
        return []
    first = [] if before == since else [_before(progress, part, int(part.nodes[before]))]
    before, after = part.outer((before, after))
    rest = [_Span(after, part.bad), *first, _Span(tested(now.graph, record, before), after)]
    return [each for each in rest if each.good != each.bad]


def _broken_off(progress: _Progress, part: Subrange, decision: Proposal) -> Inconclusive:
    """What is known of a subrange whose next order the budget does not allow."""
    policy, belief = progress.now.policy, decision.belief
    if not decision.evidence:
        return no_suspect(progress.stopped, policy)
    if belief.change < LIKELY:
        return no_suspect(progress.stopped, policy, belief.effect)
    verdict = undecided(belief, policy, progress.stopped)
    return replace(verdict, candidates=part.outer(verdict.candidates))


def _note(
    progress: _Progress, part: Subrange, step: Step, evidence: tuple[Interval, ...], *, named: bool = False
) -> list[_Span]:
    """Note a step, if it is large enough or was ``named`` as the largest change; returns the subranges around it.

    In a history with branches other subranges may contain the step, too. Those in doubt are divided at it, and so are
    those whose ends are alike, as another change must cancel it there.
    """
    if step.candidate not in progress.noted:
        proven = strongest(evidence)
        large = abs(math.log(proven.middle)) >= least(progress.now.policy)
        if named or (large and proven.excludes_one):
            parents = progress.now.graph.parents_of(step.candidate)
            progress.steps.append(replace(step, stand_ins=tuple(p for p in step.parents if p not in parents)))
        progress.noted[step.candidate], progress.changes[step.candidate] = step, evidence
    spans = _sides(progress, part, step)
    doubts, divided = progress.doubts, progress.divided
    in_doubt = [one for one, doubt in doubts.items() if doubt.reason not in STUCK and one not in divided]
    for span in [*in_doubt, *sorted(progress.quiet, key=lambda one: (one.bad, one.good))]:
        other = progress.subrange(span)
        if step.candidate in other:
            doubts.pop(span, None)
            progress.quiet.discard(span)
            spans += _sides(progress, other, step)
    return spans


def _known_step(progress: _Progress, part: Subrange) -> Step | None:
    """A step of the subrange that was found in another one."""
    return next((step for step in progress.noted.values() if step.candidate in part), None)


def _sides(progress: _Progress, part: Subrange, step: Step) -> list[_Span]:
    """The subranges after a step, and before each of its parents."""
    after = [_Span(step.candidate, part.bad)] if step.candidate != part.bad else []
    return after + [_before(progress, part, parent) for parent in step.parents if parent in part]


def _before(progress: _Progress, part: Subrange, node: int) -> _Span:
    """The subrange up to ``node``, from the good end or from the branch point of a branch that lacks the good end.

    Where that one cannot be measured, from its nearest tested ancestor.
    """
    start = int(part.nodes[branch_point_of(part.graph)[part.place[node]]])
    return _Span(tested(progress.now.graph, progress.now.record, start), node)


def _outer_step(part: Subrange, step: Step) -> Step:
    """A step of the subrange in candidates of the whole; its effects are without those of the subrange's ends."""
    effects = tuple(effect for effect in step.effects if not effect.ends)
    return replace(step, candidate=int(part.nodes[step.candidate]), parents=part.outer(step.parents), effects=effects)


def _outer_belief(part: Subrange, belief: Belief, whole: Proposal) -> Belief:
    """The suspects of the subrange that is searched; all else is of the whole range."""
    culprit = whole.belief.culprit * 0
    culprit[part.nodes[1:]] = belief.culprit[1:]
    return replace(whole.belief, culprit=culprit)


def _verdict(progress: _Progress, whole: Proposal) -> Verdict:
    """Every step that was found and every unsettled subrange; the verdict on the whole range if there is neither."""
    now = progress.now
    unsettled = _unsettled(progress)
    all_of_it = [(0, now.bad)]
    alone = isinstance(whole.order, Inconclusive) and [(one.good, one.bad) for one in unsettled] == all_of_it
    if not progress.steps and (alone or not unsettled):
        assert not isinstance(whole.order, Measure | Found | Several)
        return whole.order
    hunted = _hunted(progress)
    others = tuple(step for step in _by_age(progress) if step not in hunted)
    return Several(hunted, others, unsettled, progress.detectable, progress.left)


def _by_age(progress: _Progress) -> list[Step]:
    return sorted(progress.steps, key=lambda step: step.candidate)


def _hunted(progress: _Progress) -> tuple[Step, ...]:
    """The named steps of the direction that is hunted, oldest first."""
    hunts = progress.now.policy.hunts
    return tuple(step for step in _by_age(progress) if hunts(strongest(progress.changes[step.candidate]).middle))


def _unsettled(progress: _Progress) -> tuple[Unsettled, ...]:
    """The subranges in doubt, without those that were divided and contain a named step or a smaller one in doubt."""
    parts = {span: progress.subrange(span) for span in progress.doubts}

    def explained(span: _Span) -> bool:
        part = parts[span]
        # in a history with branches, of two subranges each can contain the ends of the other
        smaller = (one for one in progress.doubts if len(parts[one].graph.candidates) < len(part.graph.candidates))
        return any(step.candidate in part for step in progress.steps) or any(
            one.bad in part and part.place[one.good] >= 0 for one in smaller
        )

    left = [span for span in progress.doubts if span not in progress.divided or not explained(span)]
    return tuple(Unsettled(p.good, p.bad, progress.doubts[p]) for p in sorted(left, key=lambda p: (p.bad, p.good)))
