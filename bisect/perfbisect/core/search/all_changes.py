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
    UNKNOWN,
    CodePlacement,
    Decision,
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
from perfbisect.core.inference.ancestry import ancestry_of, nearest_tested
from perfbisect.core.inference.relative_speed import strongest
from perfbisect.core.search.build_forecast import chance_to_build
from perfbisect.core.search.older_branches import branch_point_of, with_older_branches
from perfbisect.core.search.single_change import single_change
from perfbisect.core.search.situation import Situation, Subrange, no_suspect, subrange, undecided

SMALLEST = 8  # a subrange of fewer candidates than the range has by this factor is not halved
STUCK = (Reason.UNBUILDABLE, Reason.LEFT_OUT, Reason.BRANCH_POINT_UNKNOWN)  # reasons that no measurement can remove
LIKELY = 0.5  # probability of a change from which the verdict lists the commits that may have made it


@dataclass(frozen=True, slots=True)
class _Span:
    """The ends of a subrange."""

    good: int
    bad: int


@dataclass(slots=True)
class _Results:
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

    @property
    def by_age(self) -> list[Step]:
        """The named steps, oldest first."""
        return sorted(self.steps, key=lambda step: step.candidate)

    def subrange(self, span: _Span) -> Subrange:
        """The subrange with these ends."""
        return subrange(self.now.graph, span.good, span.bad)


def changes(now: Situation) -> Decision:
    """The hunt for the largest change or for all, in a range whose branches may have begun with another speed than good."""
    return with_older_branches(all_changes if now.policy.all_steps else single_change, now)


def all_changes(now: Situation) -> Decision:
    """The next order, or the verdict."""
    results, budget = _Results(now), now.budget
    whole = _whole(now)
    if isinstance(whole.order, NotReproduced):  # equal binaries, or nothing between the ends
        final = whole.order.detectable == 0.0
    else:
        final = budget.ended(whole.order) or not now.record.skipped.isdisjoint((0, now.bad))
    if isinstance(whole.order, Measure) or final:
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
        part = results.subrange(span)
        if not searched and isinstance(whole.order, Found):
            waiting += _note(results, part, whole.order.step, whole.evidence, named=True)
        elif _too_small(own := part.situation(inner, results.changes)):
            results.left = policy.min_effect
            results.quiet.add(span)
        else:
            decision = with_older_branches(single_change, own)
            if isinstance(decision.order, Measure):
                order = decision.order.renumbered(dict(enumerate(part.nodes.tolist())))
                if budget.allows(order):
                    culprit = (
                        whole.belief.culprit * 0
                    )  # the suspects are those of the subrange; all else is of the whole
                    culprit[part.nodes[1:]] = decision.belief.culprit[1:]
                    belief = replace(whole.belief, culprit=culprit)
                    found = _hunted(results)
                    return Decision(budget.within(order), belief, wanted=part.outer(decision.wanted), found=found)
                results.doubts[span] = _broken_off(results, part, decision)
            else:
                waiting += _settle(results, part, span, decision.order, decision.evidence)
        searched.add(span)
    return Decision(_verdict(results, whole), whole.belief)


def _whole(now: Situation) -> Decision:
    """The hunt for the largest change, and its verdict although the budget was spent afterwards."""
    whole = single_change(now)
    if now.budget.ended(whole.order):
        before = single_change(replace(now, policy=now.policy.unlimited()))
        return whole if isinstance(before.order, Measure) else before
    return whole


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
    results: _Results, part: Subrange, span: _Span, verdict: Verdict, evidence: tuple[Interval, ...]
) -> list[_Span]:
    """Note the verdict on a subrange; returns the smaller subranges that are to be searched."""
    match verdict:
        case Found(step):
            effects = tuple(effect for effect in step.effects if not effect.ends)  # not those of the subrange's ends
            outer, parents = int(part.nodes[step.candidate]), part.outer(step.parents)
            return _note(results, part, replace(step, candidate=outer, parents=parents, effects=effects), evidence)
        case Inconclusive(reason=reason) if reason not in STUCK and (held := _known_step(results, part)):
            return _sides(results, part, held)
        case Inconclusive():
            results.doubts[span] = replace(verdict, candidates=part.outer(verdict.candidates))
            if verdict.reason in STUCK:
                spans = _around(results, part, verdict.candidates)
                if not spans and evidence:
                    results.changes.setdefault(span.bad, evidence)
            else:
                spans = _halves(results, part) or []
            results.divided.update([span] if spans else [])
            return spans
        case NotReproduced(ratio, detectable):
            halves = _halves(results, part)
            if halves is None:
                results.doubts[span] = no_suspect(results.stopped, results.now.policy, ratio)
            elif not halves:
                results.detectable = max(results.detectable, detectable)
                if held := _known_step(results, part):  # another change must cancel it
                    return _sides(results, part, held)
                results.quiet.add(span)
            return halves or []
        case Several() | CodePlacement():
            raise AssertionError("the hunt for the largest change names one")


def _halves(results: _Results, part: Subrange) -> list[_Span] | None:
    """The halves of a subrange: none if it is small already, None if the budget does not allow to measure its middle."""
    if len(part.graph.candidates) * SMALLEST <= len(part.whole.candidates):
        return []
    if results.now.model.exact and results.steps:
        return []  # what is left beside a change that was named is below the smallest of interest
    now, record = results.now, results.now.record
    built = {*record.built, *record.builds}
    central = part.middles(chance_to_build(ancestry_of(now.graph), record.skipped, built, record.left_out))
    if not central:
        return []
    # the one that was measured first: the chances to build change with every attempt, but the halves must stay the same
    middle = min((v for v in central if record.runs(v)), key=lambda v: int(record.readings(v)[0]), default=central[0])
    if not record.runs(middle) and not now.budget.allows(Measure((Share(middle, 1),), Purpose.SEARCH)):
        return None
    return [_Span(middle, part.bad), _before(results, part, middle)]


def _around(results: _Results, part: Subrange, candidates: Sequence[int]) -> list[_Span]:
    """The subranges after the builds that enclose commits which cannot be built, before these builds, and between them.

    The commits are those around the first of ``candidates``, which are nodes of the subrange, most probable first.
    Empty if the builds are the subrange's ends.
    """
    now, record, reach = results.now, results.now.record, ancestry_of(part.graph)
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
    first = [] if before == since else [_before(results, part, int(part.nodes[before]))]
    before, after = part.outer((before, after))
    rest = [_Span(after, part.bad), *first, _Span(nearest_tested(now.graph, record, before), after)]
    return [each for each in rest if each.good != each.bad]


def _broken_off(results: _Results, part: Subrange, decision: Decision) -> Inconclusive:
    """What is known of a subrange whose next order the budget does not allow."""
    policy, belief = results.now.policy, decision.belief
    if not decision.evidence or belief.change < LIKELY:
        return no_suspect(results.stopped, policy, belief.effect if decision.evidence else UNKNOWN)
    verdict = undecided(belief, policy, results.stopped)
    return replace(verdict, candidates=part.outer(verdict.candidates))


def _note(
    results: _Results, part: Subrange, step: Step, evidence: tuple[Interval, ...], *, named: bool = False
) -> list[_Span]:
    """Note a step, if it is large enough or was ``named`` as the largest change; returns the subranges around it.

    In a history with branches other subranges may contain the step, too. Those in doubt are divided at it, and so are
    those whose ends are alike, as another change must cancel it there.
    """
    if step.candidate not in results.noted:
        proven = strongest(evidence)
        large = abs(math.log(proven.middle)) >= least(results.now.policy)
        if named or (large and proven.excludes_one):
            parents = results.now.graph.parents_of(step.candidate)
            results.steps.append(replace(step, stand_ins=tuple(p for p in step.parents if p not in parents)))
        results.noted[step.candidate], results.changes[step.candidate] = step, evidence
    spans = _sides(results, part, step)
    doubts, divided = results.doubts, results.divided
    in_doubt = [one for one, doubt in doubts.items() if doubt.reason not in STUCK and one not in divided]
    for span in [*in_doubt, *sorted(results.quiet, key=lambda one: (one.bad, one.good))]:
        other = results.subrange(span)
        if step.candidate in other:
            doubts.pop(span, None)
            results.quiet.discard(span)
            spans += _sides(results, other, step)
    return spans


def _known_step(results: _Results, part: Subrange) -> Step | None:
    """A step of the subrange that was found in another one."""
    return next((step for step in results.noted.values() if step.candidate in part), None)


def _sides(results: _Results, part: Subrange, step: Step) -> list[_Span]:
    """The subranges after a step, and before each of its parents."""
    after = [_Span(step.candidate, part.bad)] if step.candidate != part.bad else []
    return after + [_before(results, part, parent) for parent in step.parents if parent in part]


def _before(results: _Results, part: Subrange, node: int) -> _Span:
    """The subrange up to ``node``, from the good end or from the branch point of a branch that lacks the good end.

    Where that one cannot be measured, from its nearest tested ancestor.
    """
    start = int(part.nodes[branch_point_of(part.graph)[part.place[node]]])
    return _Span(nearest_tested(results.now.graph, results.now.record, start), node)


def _verdict(results: _Results, whole: Decision) -> Verdict:
    """Every step that was found and every unsettled subrange; the verdict on the whole range if there is neither."""
    now = results.now
    unsettled = _unsettled(results)
    all_of_it = [(0, now.bad)]
    alone = isinstance(whole.order, Inconclusive) and [(one.good, one.bad) for one in unsettled] == all_of_it
    if not results.steps and (alone or not unsettled):
        assert not isinstance(whole.order, Measure | Found | Several)
        return whole.order
    hunted = _hunted(results)
    others = tuple(step for step in results.by_age if step not in hunted)
    return Several(hunted, others, unsettled, results.detectable, results.left)


def _hunted(results: _Results) -> tuple[Step, ...]:
    """The named steps of the direction that is hunted, oldest first."""
    hunts = results.now.policy.hunts
    return tuple(step for step in results.by_age if hunts(strongest(results.changes[step.candidate]).middle))


def _unsettled(results: _Results) -> tuple[Unsettled, ...]:
    """The subranges in doubt, without those that were divided and contain a named step or a smaller one in doubt."""
    parts = {span: results.subrange(span) for span in results.doubts}

    def explained(span: _Span) -> bool:
        part = parts[span]
        # in a history with branches, of two subranges each can contain the ends of the other
        smaller = (one for one in results.doubts if len(parts[one].graph.candidates) < len(part.graph.candidates))
        return any(step.candidate in part for step in results.steps) or any(
            one.bad in part and part.place[one.good] >= 0 for one in smaller
        )

    left = [span for span in results.doubts if span not in results.divided or not explained(span)]
    return tuple(Unsettled(p.good, p.bad, results.doubts[p]) for p in sorted(left, key=lambda p: (p.bad, p.good)))
