"""Every change of a range: the largest first, then those on either side of it, down to the smallest of interest.

Once a change is named, what lies before it and what lies after it are ranges of their own, most of whose ends
have been measured. Where the two ends of a range are alike, or no single change explains their difference, the range is
halved, so that changes which take each other back are found too; but only so often, as each half costs a build.
What lies before a stretch that cannot be built, and what lies after it, are such ranges as well. A piece that could not
be searched to its end is part of the verdict.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.observations import Observation
from perfbisect.core.domain.orders import (
    UNKNOWN,
    Belief,
    Decision,
    Found,
    Inconclusive,
    Measure,
    NotReproduced,
    Purpose,
    Several,
    Share,
    Step,
    Unsettled,
    Verdict,
)
from perfbisect.core.domain.policy import Direction, Policy
from perfbisect.core.inference.ancestry import reach_of
from perfbisect.core.inference.dataset import Record, arrange
from perfbisect.core.inference.endpoints import least
from perfbisect.core.search import budget
from perfbisect.core.search.build_failures import chance_to_build
from perfbisect.core.search.confirmation import tested
from perfbisect.core.search.older_branches import BASE_UNKNOWN, base_of, beyond
from perfbisect.core.search.single_change import largest
from perfbisect.core.search.stopping import UNBUILDABLE, undecided
from perfbisect.core.search.subrange import Part, part_of

LOOKED_AT = 8  # parts of the whole range that are looked at: no smaller one is halved
STUCK = (UNBUILDABLE, BASE_UNKNOWN)  # reasons why no measurement tells commits apart
LIKELY = 0.5  # probability of a change from which the commits are told that may have made it


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of the range that is still to be looked at."""

    good: int
    bad: int


@dataclass(slots=True)
class _Known:
    """What the hunt knows when it has looked at some pieces."""

    graph: Graph
    policy: Policy
    record: Record
    in_flight: Sequence[Measure]
    steps: list[Step] = field(default_factory=list)
    noted: dict[int, Step] = field(default_factory=dict)  # by candidate, those that are too small to be named as well
    stretches: dict[int, float] = field(default_factory=dict)  # changes by the first build after what does not build
    doubts: dict[_Piece, Inconclusive] = field(default_factory=dict)
    quiet: set[_Piece] = field(default_factory=set)  # small pieces whose ends are alike
    divided: set[_Piece] = field(default_factory=set)  # the pieces whose own pieces are looked at
    detectable: float = 0.0  # the smallest change that would have been seen in all pieces without one

    @property
    def stopped(self) -> str:
        """Why no more may be measured; at least not what needs a build."""
        return budget.spent(self.record, self.policy, self.in_flight) or budget.NO_BUILDS

    @property
    def changes(self) -> dict[int, float]:
        """All that is known of the log metric, by candidate."""
        return self.stretches | {candidate: math.log(step.ratio.middle) for candidate, step in self.noted.items()}

    def ended(self, decision: Decision) -> bool:
        """Whether it is the budget that ended a search."""
        return budget.ended(decision.order, self.record, self.policy, self.in_flight)

    def allows(self, order: Measure) -> bool:
        """Whether the budget has room for an order."""
        return budget.allows(order, self.record, self.policy, self.in_flight)


def every(
    graph: Graph, observations: Sequence[Observation], policy: Policy, in_flight: Sequence[Measure] = ()
) -> Decision:
    """The next order of a hunt for every change."""
    known = _Known(graph, policy, arrange(observations, policy, graph.size - 1), in_flight)
    whole = _whole(known, observations)
    if isinstance(whole.order, Measure) or _final(known, whole):
        return whole
    inner = replace(policy.unlimited(), direction=Direction.ANY, noise=whole.belief.noise)
    waiting = [_Piece(0, graph.size - 1)]
    looked_at: set[_Piece] = set()
    while waiting:
        piece = waiting.pop()
        if piece in looked_at:
            continue
        part = part_of(graph, piece.good, piece.bad)
        if not looked_at and isinstance(whole.order, Found):
            waiting += _note(known, part, whole.order.step, named=True)
        else:
            decision = _look(part, observations, known.changes, inner, in_flight)
            if isinstance(decision.order, Measure):
                order = part.outer(decision.order)
                if known.allows(order):
                    belief = _seen_from_outside(part, decision.belief, whole)
                    return Decision(budget.within(order, known.record, policy, in_flight), belief)
                known.doubts[piece] = _broken_off(known, part, decision.belief)
            else:
                waiting += _settle(known, part, piece, decision.order)
        looked_at.add(piece)
    return Decision(_verdict(known, whole), whole.belief)


def _whole(known: _Known, observations: Sequence[Observation]) -> Decision:
    """The hunt for the largest change; what it had come to before the budget was spent stands."""
    whole = largest(known.graph, observations, known.policy, known.in_flight)
    if known.ended(whole):
        before = largest(known.graph, observations, known.policy.unlimited(), known.in_flight)
        return whole if isinstance(before.order, Measure) else before
    return whole


def _final(known: _Known, whole: Decision) -> bool:
    """Whether there is nothing in the range that could be looked at more closely."""
    if isinstance(whole.order, NotReproduced):
        return whole.order.detectable == 0.0  # equal binaries, or nothing between the ends
    return known.ended(whole) or not known.record.skipped.isdisjoint((0, known.graph.size - 1))


def _settle(known: _Known, part: Part, piece: _Piece, verdict: Verdict) -> list[_Piece]:
    """Take note of what was found in a piece; the pieces of it that are to be looked at."""
    match verdict:
        case Found(step):
            return _note(known, part, _outer_step(part, step))
        case Inconclusive(reason=reason) if reason not in STUCK and (held := _held(known, part)):
            return _sides(known, part, held)
        case Inconclusive():
            known.doubts[piece] = replace(verdict, candidates=_outer(part, verdict.candidates))
            if verdict.reason in STUCK:
                pieces = _around(known, part, verdict.candidates)
                if not pieces:
                    known.stretches[piece.bad] = math.log(verdict.ratio.middle)
            else:
                pieces = _halves(known, part) or []
            known.divided.update([piece] if pieces else [])
            return pieces
        case NotReproduced(ratio, detectable):
            halves = _halves(known, part)
            if halves is None:
                known.doubts[piece] = Inconclusive((), (), ratio, known.stopped)
            elif not halves:
                known.detectable = max(known.detectable, detectable)
                if held := _held(known, part):  # there must be another change that takes it back
                    return _sides(known, part, held)
                known.quiet.add(piece)
            return halves or []
        case Several():
            raise AssertionError("the hunt for the largest change names one")


def _halves(known: _Known, part: Part) -> list[_Piece] | None:
    """The halves of a piece: none if it is a small one already; None if the budget keeps them from being measured."""
    if len(part.graph.candidates) * LOOKED_AT <= len(part.whole.candidates):
        return []
    record = known.record
    central = part.middles(chance_to_build(reach_of(known.graph), record.skipped, {*record.built, *record.builds}))
    if not central:
        return []
    # the first that was measured: what builds changes with every attempt nearby, but the halves are to stay the same
    middle = min((v for v in central if record.runs(v)), key=lambda v: int(record.readings(v)[0]), default=central[0])
    if not record.runs(middle) and not known.allows(Measure((Share(middle, 1),), Purpose.SEARCH)):
        return None
    return [_Piece(middle, part.bad), _before(known, part, middle)]


def _around(known: _Known, part: Part, candidates: Sequence[int]) -> list[_Piece]:
    """What lies after the builds that enclose the stretch of the first of ``candidates``, before them, and between them.

    The candidates, most probable first, are nodes of the part. Nothing if these builds are its ends.
    """
    reach = reach_of(part.graph)
    last = part.graph.size - 1
    built = [b for b in known.record.builds if b not in known.record.skipped and part.holds(b)]
    below = {node: reach.ancestors(node) for node in {0, last, *part.place[built].tolist()}}
    suspected = [c for c in candidates if all(mask[c] == mask[candidates[0]] for mask in below.values())]
    after = min((n for n in below if below[n][suspected].all()), key=lambda n: int(below[n].sum()))
    since = int(base_of(part.graph)[after])  # where its branch began, if that does not hold the good end
    within = [n for n in below if n and below[after][n] and not below[n][suspected].any()]
    before = max(within, key=lambda n: int(below[n].sum()), default=since)
    if (before, after) == (since, last):
        return []
    first = [] if before == since else [_before(known, part, int(part.nodes[before]))]
    before, after = _outer(part, (before, after))
    rest = [_Piece(after, part.bad), *first, _Piece(tested(known.graph, known.record, before), after)]
    return [each for each in rest if each.good != each.bad]


def _broken_off(known: _Known, part: Part, belief: Belief) -> Inconclusive:
    """What is known of a part that needs more than the budget has left."""
    if not known.record.runs(part.good) or not known.record.runs(part.bad):
        return Inconclusive((), (), UNKNOWN, known.stopped)
    if belief.change < LIKELY:
        return Inconclusive((), (), belief.effect, known.stopped)
    verdict = undecided(belief, known.policy, known.stopped)
    return replace(verdict, candidates=_outer(part, verdict.candidates))


def _look(
    part: Part, observations: Sequence[Observation], changes: Mapping[int, float], policy: Policy,
    in_flight: Sequence[Measure],
) -> Decision:  # fmt: skip
    told = list(part.told(observations, changes))
    busy = [part.inner(order) for order in in_flight]
    return beyond(partial(largest, piece=True), part.graph, told, policy, busy, piece=True)


def _note(known: _Known, part: Part, step: Step, *, named: bool = False) -> list[_Piece]:
    """Remember a step if it is large enough, or the hunt for the largest change has ``named`` it; the pieces around it.

    In a history with branches the same step may lie in other pieces, too. Those that were left in doubt give way, and so
    do those whose ends are alike: there must be another change in them.
    """
    if step.candidate not in known.noted:
        large = abs(math.log(step.ratio.middle)) >= least(known.policy) and not step.ratio.low <= 1 <= step.ratio.high
        if named or large:
            known.steps.append(replace(step, stand_ins=_stand_ins(known.graph, step)))
        known.noted[step.candidate] = step
    pieces = _sides(known, part, step)
    in_doubt = [one for one, doubt in known.doubts.items() if doubt.reason not in STUCK and one not in known.divided]
    for piece in [*in_doubt, *sorted(known.quiet, key=lambda one: (one.bad, one.good))]:
        other = part_of(known.graph, piece.good, piece.bad)
        if other.holds(step.candidate):
            known.doubts.pop(piece, None)
            known.quiet.discard(piece)
            pieces += _sides(known, other, step)
    return pieces


def _held(known: _Known, part: Part) -> Step | None:
    """A step of the part that was found in another piece."""
    return next((step for step in known.noted.values() if part.holds(step.candidate)), None)


def _sides(known: _Known, part: Part, step: Step) -> list[_Piece]:
    """What lies after a step of the part, and what lies before it."""
    after = [_Piece(step.candidate, part.bad)] if step.candidate != part.bad else []
    return after + [_before(known, part, parent) for parent in step.parents if part.holds(parent)]


def _before(known: _Known, part: Part, node: int) -> _Piece:
    """What lies before a node of the part: since its good end, or since a branch began that does not hold that.

    Where that commit cannot be measured, since the nearest before it that was.
    """
    base = base_of(part.graph)[part.place[node]]
    return _Piece(tested(known.graph, known.record, int(part.nodes[base])), node)


def _stand_ins(graph: Graph, step: Step) -> tuple[int, ...]:
    return tuple(parent for parent in step.parents if parent not in graph.parents_of(step.candidate))


def _outer(part: Part, nodes: Sequence[int]) -> tuple[int, ...]:
    """Nodes of the part in candidates of the whole."""
    return tuple(int(part.nodes[node]) for node in nodes)


def _outer_step(part: Part, step: Step) -> Step:
    """A step of the part in candidates of the whole."""
    return replace(step, candidate=int(part.nodes[step.candidate]), parents=_outer(part, step.parents))


def _seen_from_outside(part: Part, belief: Belief, whole: Decision) -> Belief:
    """Who is suspected at present; all else is told of the whole range."""
    culprit = whole.belief.culprit * 0
    culprit[part.nodes[1:]] = belief.culprit[1:]
    return replace(whole.belief, culprit=culprit)


def _verdict(known: _Known, whole: Decision) -> Verdict:
    """Every step that was found and every piece left open; or what is known of the whole range, if there is neither."""
    unsettled = _unsettled(known)
    all_of_it = [(0, known.graph.size - 1)]
    alone = isinstance(whole.order, Inconclusive) and [(one.good, one.bad) for one in unsettled] == all_of_it
    if not known.steps and (alone or not unsettled):
        assert not isinstance(whole.order, Measure | Found | Several)
        return whole.order
    steps = sorted(known.steps, key=lambda step: step.candidate)
    if known.policy.direction is Direction.ANY:
        return Several(tuple(steps), (), unsettled, known.detectable)
    worse = -1.0 if known.policy.direction is Direction.DROP else 1.0
    hunted = tuple(step for step in steps if worse * math.log(step.ratio.middle) > 0)
    others = tuple(step for step in steps if step not in hunted)
    return Several(hunted, others, unsettled, known.detectable)


def _unsettled(known: _Known) -> tuple[Unsettled, ...]:
    """The pieces in doubt, without those that were divided and have a step, or a smaller piece in doubt, to show for it."""

    parts = {piece: part_of(known.graph, piece.good, piece.bad) for piece in known.doubts}

    def explained(piece: _Piece) -> bool:
        part = parts[piece]
        # with branches the ends of two pieces can lie in each other
        smaller = (one for one in known.doubts if len(parts[one].graph.candidates) < len(part.graph.candidates))
        return any(part.holds(step.candidate) for step in known.steps) or any(
            part.holds(one.bad) and part.place[one.good] >= 0 for one in smaller
        )

    left = [piece for piece in known.doubts if piece not in known.divided or not explained(piece)]
    return tuple(Unsettled(p.good, p.bad, known.doubts[p]) for p in sorted(left, key=lambda p: (p.bad, p.good)))
