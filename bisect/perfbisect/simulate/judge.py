"""Whether a verdict is right, by the known truth of a simulated world."""

import math
import operator
from dataclasses import astuple, dataclass
from enum import StrEnum

from perfbisect.core.domain.orders import CodePlacement, Found, Inconclusive, NotReproduced, Several, Unsettled, Verdict
from perfbisect.core.domain.policy import Policy
from perfbisect.core.inference.ancestry import ancestry_of
from perfbisect.simulate.world import World

SAME = 0.999  # drops from this share of the smallest of interest on count as of interest


class Judgement(StrEnum):
    """The quality of a verdict."""

    RIGHT = "right"
    HONEST = "honest"  # no culprit, and nothing false
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Account:
    """How many steps of a world a hunt for every change named, left open or missed."""

    right: int = 0  # named
    wrong: int = 0  # named, although no step
    missed: int = 0  # not named, although the verdict says that they would have been seen
    unsettled: int = 0  # not named, in a subrange that the verdict leaves unsettled
    unseen: int = 0  # not named, smaller than what the verdict says would have been seen

    def __add__(self, other: "Account") -> "Account":
        return Account(*map(operator.add, astuple(self), astuple(other)))


def account(verdict: Verdict, world: World, min_effect: float) -> Account:
    """The account of the steps of at least ``min_effect``; to name one that is half as large is right, too."""
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
        case NotReproduced(_, detectable) | CodePlacement(_, _, detectable):
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
    """The quality of ``verdict`` in ``world``.

    Right: a culprit where there is one, "not reproduced" where there is none, and a range that cannot be narrowed
    because the rest of it does not build. A set without the culprit is as wrong as a wrong name; so is "not
    reproduced" if the drop was larger than it says would have been seen. In a hunt for every change each step of at
    least ``min_effect`` counts.
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
        case NotReproduced() | CodePlacement():
            drop = -sum(world.steps.values())
            if drop < -math.log1p(-min_effect) * SAME:
                return Judgement.RIGHT
            return Judgement.HONEST if verdict.detectable >= drop else Judgement.WRONG
        case Inconclusive(candidates):
            if candidates and answers and not answers & set(candidates):
                return Judgement.WRONG
            return Judgement.RIGHT if _as_small_as_can_be(world, candidates) else Judgement.HONEST


def is_named(verdict: Verdict) -> bool:
    """Whether a culprit is named."""
    return isinstance(verdict, Found) or (isinstance(verdict, Several) and bool(verdict.steps))


def favourite(verdict: Verdict) -> tuple[int | None, float]:
    """The most probable candidate, named or not, and its stated probability; None and NaN without one."""
    match verdict:
        case Found(step):
            return step.candidate, step.probability
        case Several(steps) if steps:
            return steps[0].candidate, min(step.probability for step in steps)
        case Inconclusive(candidates, probabilities) if candidates and probabilities:
            return candidates[0], probabilities[0]
        case Several() | NotReproduced() | CodePlacement() | Inconclusive():
            return None, float("nan")


def suspects(verdict: Verdict) -> tuple[tuple[int, ...], float | None]:
    """The set of an inconclusive hunt, and the stated probability that it contains the culprit; None without one."""
    match verdict:
        case Inconclusive(candidates, probabilities) if candidates and probabilities:
            return candidates, sum(probabilities)
        case _:
            return (), None


def _inside(world: World, part: Unsettled, candidate: int) -> bool:
    reach = ancestry_of(world.graph)
    return bool(reach.ancestors(part.bad)[candidate] and not reach.ancestors(part.good)[candidate])


def _without_its_step(world: World, part: Unsettled, min_effect: float) -> bool:
    """Whether a subrange has suspects and contains a step, but no suspect is a step."""
    least = -math.log1p(-min_effect)
    true = {v for v, size in world.steps.items() if abs(size) >= least and _inside(world, part, v)}
    return bool(true and part.known.candidates) and true.isdisjoint(part.known.candidates)


def _as_small_as_can_be(world: World, candidates: tuple[int, ...]) -> bool:
    """Whether no candidate that builds and runs lies between these."""
    broken = world.unbuildable | world.crashing
    if len(candidates) < 2 or not broken:
        return False
    reach, chosen = ancestry_of(world.graph), list(candidates)
    usable = (v for v in range(world.graph.size) if v not in broken)
    below = (reach.ancestors(v)[chosen] for v in usable)
    return all(mask.all() or not mask.any() for mask in below)
