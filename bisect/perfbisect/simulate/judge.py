"""Was a verdict right? Only who made the world can tell."""

import math
from dataclasses import dataclass
from enum import StrEnum

from perfbisect.core.domain.orders import Found, Inconclusive, NotReproduced, Several, Unsettled, Verdict
from perfbisect.core.domain.policy import Policy
from perfbisect.core.inference.ancestry import reach_of
from perfbisect.simulate.world import World


class Judgement(StrEnum):
    """What a verdict is worth."""

    RIGHT = "right"
    HONEST = "honest"  # nothing is named, and nothing false is said
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the steps of a world in a hunt for every change, by count."""

    right: int = 0  # named
    wrong: int = 0  # named, and no step
    missed: int = 0  # not named, although the verdict says that they would have been seen
    unsettled: int = 0  # not named, in a piece that the verdict leaves open
    unseen: int = 0  # not named, smaller than what the verdict says would have been seen

    def __add__(self, other: "Account") -> "Account":
        return Account(
            self.right + other.right, self.wrong + other.wrong, self.missed + other.missed,
            self.unsettled + other.unsettled, self.unseen + other.unseen,
        )  # fmt: skip


def account(verdict: Verdict, world: World, min_effect: float) -> Account:
    """What became of the steps of at least ``min_effect``; half as large a one is right to name, too."""
    least, seen = -math.log1p(-min_effect), 0.0
    named: set[int] = set()
    wrong = 0
    left_open: tuple[Unsettled, ...] = ()
    match verdict:
        case Several(steps, improvements, left_open, detectable):
            seen = -math.log1p(-detectable)
            for step in steps + improvements:
                true = world.steps.get(step.candidate, 0.0)
                if true * math.log(step.ratio.middle) > 0 and abs(true) >= least / 2:
                    named.add(step.candidate)
                else:
                    wrong += 1
        case Found(step):
            named = {step.candidate} & set(world.steps)
            wrong = 1 - len(named)
        case NotReproduced(_, detectable):
            seen = -math.log1p(-detectable)
        case Inconclusive():
            left_open = (Unsettled(0, world.graph.size - 1, verdict),)
    missed = unsettled = unseen = 0
    for candidate, size in world.steps.items():
        if abs(size) < least or candidate in named:
            continue
        if any(_inside(world, one, candidate) for one in left_open):
            unsettled += 1
        elif abs(size) < seen:
            unseen += 1
        else:
            missed += 1
    return Account(len(named), wrong, missed, unsettled, unseen)


def judge(verdict: Verdict, world: World, min_effect: float = Policy().min_effect) -> Judgement:
    """The worth of ``verdict`` in ``world``.

    Right: a culprit where there is one, "not reproduced" where there is none, and a range that cannot be narrowed
    because the rest of it does not build. A set without the culprit is as wrong as a wrong name; so is "not
    reproduced" when the drop was large enough to be seen by its own account. Where every change was hunted, each
    step of at least ``min_effect`` counts, named, left open, or missed.
    """
    answers = world.answers
    match verdict:
        case Found(step):
            return Judgement.RIGHT if step.candidate in answers else Judgement.WRONG
        case Several(_, _, unsettled):
            of = account(verdict, world, min_effect)
            if of.wrong or of.missed or any(_without_its_step(world, one, min_effect) for one in unsettled):
                return Judgement.WRONG
            return Judgement.HONEST if unsettled or of.unseen else Judgement.RIGHT
        case NotReproduced():
            drop = -_change(world)
            if drop <= 0:
                return Judgement.RIGHT
            return Judgement.HONEST if verdict.detectable >= drop else Judgement.WRONG
        case Inconclusive(candidates):
            if candidates and answers and not answers & set(candidates):
                return Judgement.WRONG
            return Judgement.RIGHT if _as_small_as_can_be(world, candidates) else Judgement.HONEST


def is_named(verdict: Verdict) -> bool:
    """Whether somebody is accused."""
    return isinstance(verdict, Found) or (isinstance(verdict, Several) and bool(verdict.steps))


def favourite(verdict: Verdict) -> tuple[int | None, float]:
    """The candidate most suspected, named or not, and its stated probability; None and NaN where there is neither."""
    match verdict:
        case Found(step):
            return step.candidate, step.probability
        case Several(steps) if steps:
            return steps[0].candidate, min(step.probability for step in steps)
        case Inconclusive(candidates, probabilities) if candidates and probabilities:
            return candidates[0], probabilities[0]
        case Several() | NotReproduced() | Inconclusive():
            return None, float("nan")


def suspects(verdict: Verdict) -> tuple[tuple[int, ...], float | None]:
    """The set that an undecided hunt ends with, and the probability that the culprit is in it; None where none is told."""
    match verdict:
        case Inconclusive(candidates, probabilities) if candidates and probabilities:
            return candidates, sum(probabilities)
        case _:
            return (), None


def _change(world: World) -> float:
    """Of the log metric between the ends."""
    return sum(world.steps.values())


def _inside(world: World, piece: Unsettled, candidate: int) -> bool:
    reach = reach_of(world.graph)
    return bool(reach.ancestors(piece.bad)[candidate] and not reach.ancestors(piece.good)[candidate])


def _without_its_step(world: World, piece: Unsettled, min_effect: float) -> bool:
    """Whether the suspects of a piece are others than those who changed something in it."""
    least = -math.log1p(-min_effect)
    true = {v for v, size in world.steps.items() if abs(size) >= least and _inside(world, piece, v)}
    return bool(true and piece.known.candidates) and true.isdisjoint(piece.known.candidates)


def _as_small_as_can_be(world: World, candidates: tuple[int, ...]) -> bool:
    """Whether nothing that builds and runs lies between these candidates."""
    broken = world.unbuildable | world.crashing
    if len(candidates) < 2 or not broken:
        return False
    reach, chosen = reach_of(world.graph), list(candidates)
    usable = (v for v in range(world.graph.size) if v not in broken)
    below = (reach.ancestors(v)[chosen] for v in usable)
    return all(mask.all() or not mask.any() for mask in below)
