"""Every change of a range: the largest first, then those on either side of it, down to the smallest of interest.

Once a change is named, what lies before it and what lies after it are ranges of their own, whose ends have been
measured. Where the two ends of a range are alike, or no single change explains their difference, the range is
halved, so that changes which take each other back are found too; but only so often, as each half costs a build.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from perfbisect.core import budget
from perfbisect.core.ends import least
from perfbisect.core.graph import Graph
from perfbisect.core.largest import largest
from perfbisect.core.no_culprit import UNBUILDABLE
from perfbisect.core.observation import Observation
from perfbisect.core.order import Belief, Decision, Found, Inconclusive, Measure, NotReproduced, Several, Step
from perfbisect.core.part import Part, part_of
from perfbisect.core.policy import Direction, Policy
from perfbisect.core.record import arrange

LOOKED_AT = 8  # parts of the whole range that are looked at: no smaller one is halved


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of the range that is still to be looked at."""

    good: int
    bad: int


@dataclass(slots=True)
class _Known:
    """What the hunt knows when it has looked at some pieces."""

    steps: list[Step] = field(default_factory=list)
    changes: dict[int, float] = field(default_factory=dict)  # of the log metric, by candidate


def every(
    graph: Graph, observations: Sequence[Observation], policy: Policy, in_flight: Sequence[Measure] = ()
) -> Decision:
    """The next order of a hunt for every change."""
    whole = largest(graph, observations, policy, in_flight)
    if isinstance(whole.order, Measure) or _final(whole):
        return whole
    record = arrange(observations, policy, graph.size - 1)
    spent = bool(budget.spent(record, policy, in_flight))
    inner = replace(policy, direction=Direction.ANY, all_steps=False, max_builds=0, max_runs=0, max_minutes=0.0)
    known = _Known()
    waiting = [_Piece(0, graph.size - 1)]
    first = True
    looked_at: set[_Piece] = set()
    while waiting:
        piece = waiting.pop()
        if piece in looked_at:
            continue
        looked_at.add(piece)
        part = part_of(graph, piece.good, piece.bad)
        decision = (
            whole
            if first and isinstance(whole.order, Found)
            else _look(part, observations, known.changes, inner, in_flight)
        )
        order = decision.order
        if isinstance(order, Measure):
            order = order if first and decision is whole else part.outer(order)
            if not spent and budget.builds_allowed(order, record, policy, in_flight):
                order = budget.within(order, record, policy, in_flight)
                return Decision(order, _seen_from_outside(part, decision.belief, whole))
        elif isinstance(order, Found):
            step = order.step if decision is whole else _outer_step(part, order.step)
            waiting += _note(graph, known, step, piece, policy)
        elif not (isinstance(order, Inconclusive) and order.reason == UNBUILDABLE):
            waiting += _halves(part, piece)
        first = False
    return Decision(_verdict(known, whole, policy), whole.belief)


def _final(whole: Decision) -> bool:
    """Whether there is nothing in the range that could be looked at more closely."""
    order = whole.order
    if isinstance(order, NotReproduced):
        return order.detectable == 0.0  # equal binaries, or nothing between the ends
    return isinstance(order, Inconclusive) and ("budget" in order.reason or "cannot be measured" in order.reason)


def _look(
    part: Part, observations: Sequence[Observation], changes: Mapping[int, float], policy: Policy,
    in_flight: Sequence[Measure],
) -> Decision:  # fmt: skip
    return largest(part.graph, list(part.told(observations, changes)), policy, [part.inner(o) for o in in_flight])


def _note(graph: Graph, known: _Known, step: Step, piece: _Piece, policy: Policy) -> list[_Piece]:
    """Remember a step if it is large enough; the pieces around it."""
    if step.candidate in known.changes:
        return []
    change = math.log(step.ratio.middle)
    if abs(change) >= least(policy) and not step.ratio.low <= 1 <= step.ratio.high:
        known.steps.append(replace(step, stand_ins=_stand_ins(graph, step)))
    known.changes[step.candidate] = change
    pieces, good = [], piece.good
    if step.candidate != piece.bad:
        pieces.append(_Piece(step.candidate, piece.bad))
    for parent in step.parents:
        if parent not in (good, 0):
            pieces.append(_Piece(good, parent))
    return [p for p in pieces if p.good != p.bad]


def _stand_ins(graph: Graph, step: Step) -> tuple[int, ...]:
    return tuple(parent for parent in step.parents if parent not in graph.parents_of(step.candidate))


def _halves(part: Part, piece: _Piece) -> list[_Piece]:
    middle = part.middle() if (part.graph.size - 1) * LOOKED_AT > part.whole.size - 1 else None
    if middle is None:
        return []
    return [_Piece(middle, piece.bad), _Piece(piece.good, middle)]


def _outer_step(part: Part, step: Step) -> Step:
    """A step of the part in candidates of the whole."""
    return replace(
        step, candidate=int(part.nodes[step.candidate]), parents=tuple(int(part.nodes[p]) for p in step.parents)
    )


def _seen_from_outside(part: Part, belief: Belief, whole: Decision) -> Belief:
    """Who is suspected at present; all else is told of the whole range."""
    culprit = whole.belief.culprit * 0
    culprit[part.nodes[1:]] = belief.culprit[1:]
    return replace(whole.belief, culprit=culprit)


def _verdict(known: _Known, whole: Decision, policy: Policy) -> Several | NotReproduced | Inconclusive:
    """Every step that was found; or what is known of the whole range, if there was none."""
    if not known.steps:
        assert not isinstance(whole.order, Measure | Found | Several)
        return whole.order
    steps = sorted(known.steps, key=lambda step: step.candidate)
    if policy.direction is Direction.ANY:
        return Several(tuple(steps))
    worse = -1.0 if policy.direction is Direction.DROP else 1.0
    hunted = tuple(step for step in steps if worse * math.log(step.ratio.middle) > 0)
    return Several(hunted, tuple(step for step in steps if step not in hunted))
