"""Was a verdict right? Only who made the world can tell."""

from enum import StrEnum

from perfbisect.core.order import Found, Inconclusive, NotReproduced, Several, Verdict
from perfbisect.core.reach import reach_of
from perfbisect.simulate.world import World


class Judgement(StrEnum):
    """What a verdict is worth."""

    RIGHT = "right"
    HONEST = "honest"  # nothing is named, and nothing false is said
    WRONG = "wrong"


def judge(verdict: Verdict, world: World) -> Judgement:
    """The worth of ``verdict`` in ``world``.

    Right: a culprit where there is one, "not reproduced" where there is none, and a range that cannot be narrowed
    because the rest of it does not build. A set without the culprit is as wrong as a wrong name; so is "not
    reproduced" when the drop was large enough to be seen by its own account.
    """
    answers = world.answers
    match verdict:
        case Found(step):
            return Judgement.RIGHT if step.candidate in answers else Judgement.WRONG
        case Several(steps):
            named = {step.candidate for step in steps}
            right = named & answers and named <= set(world.steps)
            return Judgement.RIGHT if right else Judgement.WRONG
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
    return isinstance(verdict, Found | Several)


def favourite(verdict: Verdict) -> tuple[int | None, float]:
    """The candidate most suspected, named or not, and its stated probability; None and NaN where there is neither."""
    match verdict:
        case Found(step):
            return step.candidate, step.probability
        case Several(steps):
            return steps[0].candidate, min(step.probability for step in steps)
        case Inconclusive(candidates, probabilities) if candidates and probabilities:
            return candidates[0], probabilities[0]
        case NotReproduced() | Inconclusive():
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


def _as_small_as_can_be(world: World, candidates: tuple[int, ...]) -> bool:
    """Whether nothing that builds and runs lies between these candidates."""
    broken = world.unbuildable | world.crashing
    if len(candidates) < 2 or not broken:
        return False
    reach, chosen = reach_of(world.graph), list(candidates)
    usable = (v for v in range(world.graph.size) if v not in broken)
    below = (reach.ancestors(v)[chosen] for v in usable)
    return all(mask.all() or not mask.any() for mask in below)
