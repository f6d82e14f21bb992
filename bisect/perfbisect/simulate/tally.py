"""Statistics of many simulated hunts: costs, shares of right verdicts, and the lines of a table of both.

A verdict is judged by a comparison with the true culprit of the simulated world (a history with known changes of
speed).
"""

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum

from perfbisect.core.domain.orders import (
    CodePlacement,
    Found,
    Inconclusive,
    NotReproduced,
    Several,
    UnsettledRange,
    Verdict,
)
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.ancestry import ancestry_of
from perfbisect.simulate.scenario import Scenario
from perfbisect.simulate.world import World

ROUNDING = 0.999  # a drop of at least this share of the smallest drop of interest counts as of interest


class Judgement(StrEnum):
    """The quality of a verdict."""

    RIGHT = "right"
    HONEST = "honest"  # no culprit, and no false statement
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class StepCounts:
    """How many steps (changes of speed) of a simulated world a hunt for all changes has named, left open, or missed."""

    right: int = 0  # named steps
    wrong: int = 0  # named candidates without a step
    missed: int = 0  # not named, although the verdict says that they would have been shown
    unsettled: int = 0  # not named, in a subrange that the verdict leaves unsettled
    unseen: int = 0  # not named, smaller than the smallest step that the verdict says would have been shown

    def __add__(self, other: "StepCounts") -> "StepCounts":
        return StepCounts(*map(operator.add, astuple(self), astuple(other)))


def count_steps(verdict: Verdict, world: World, min_effect: float) -> StepCounts:
    """How many steps (changes of speed) a verdict named, missed or left open. Only a step of at least ``min_effect``
    can count as missed; a named step counts as right if its size is at least half of ``min_effect``.
    """
    least, detectable, left_open = _log_drop(min_effect), 0.0, tuple[UnsettledRange, ...]()
    claims, named = 0, set[int]()
    match verdict:
        case Several(steps, improvements, left_open, detectable):
            claims = len(steps + improvements)
            for step in steps + improvements:
                true = world.steps.get(step.candidate, 0.0)
                if true * math.log(step.ratio.middle) > 0 and abs(true) >= least / 2:
                    named.add(step.candidate)
        case Found(step):
            claims, named = 1, {step.candidate} & set(world.steps)
        case NotReproduced(_, detectable) | CodePlacement(_, _, detectable):
            pass
        case Inconclusive():
            left_open = (UnsettledRange(0, world.graph.size - 1, verdict),)
    not_named = {v: abs(size) for v, size in world.steps.items() if abs(size) >= least and v not in named}
    unsettled = {v for v in not_named if any(_is_in_subrange(world, part, v) for part in left_open)}
    unseen = {v for v, size in not_named.items() if size < _log_drop(detectable)} - unsettled
    missed = len(not_named) - len(unsettled) - len(unseen)
    return StepCounts(len(named), claims - len(named), missed, len(unsettled), len(unseen))


def judge_verdict(verdict: Verdict, world: World, min_effect: float = Policy().min_effect) -> Judgement:
    """The quality of ``verdict`` in ``world``.

    Right verdicts are: the culprit, in a world with a culprit; "not reproduced", in a world without a culprit; and a
    set of suspects that contains the culprit and cannot be divided, because no commit that builds and runs divides the
    set. A set of suspects without the culprit is wrong, and so is a verdict that names another commit. The verdict "not
    reproduced" is wrong if the true drop is larger than the drop that the verdict states as detectable. The verdict of
    a hunt for all changes is also wrong if the verdict misses a detectable step of at least ``min_effect``.
    """
    answers, least = world.right_culprits, _log_drop(min_effect)
    match verdict:
        case Found(step):
            return Judgement.RIGHT if step.candidate in answers else Judgement.WRONG
        case Several(_, _, unsettled):
            of = count_steps(verdict, world, min_effect)
            true = [v for v, size in world.steps.items() if abs(size) >= least]
            parts = (
                (part.known.candidates, {v for v in true if _is_in_subrange(world, part, v)}) for part in unsettled
            )
            misled = any(suspects and steps and steps.isdisjoint(suspects) for suspects, steps in parts)
            if of.wrong or of.missed or misled:
                return Judgement.WRONG
            return Judgement.HONEST if unsettled or of.unseen else Judgement.RIGHT
        case NotReproduced() | CodePlacement():
            drop = -sum(world.steps.values())
            if drop < least * ROUNDING:
                return Judgement.RIGHT
            return Judgement.HONEST if verdict.detectable >= drop else Judgement.WRONG
        case Inconclusive(candidates):
            if candidates and answers and not answers & set(candidates):
                return Judgement.WRONG
            return Judgement.RIGHT if _is_smallest_testable_set(world, candidates) else Judgement.HONEST


def names_a_culprit(verdict: Verdict) -> bool:
    """Whether the verdict names a culprit."""
    return isinstance(verdict, Found) or (isinstance(verdict, Several) and bool(verdict.steps))


def most_probable_candidate(verdict: Verdict) -> tuple[int | None, float]:
    """The most probable candidate of a verdict, and its stated probability; (None, NaN) if there is no candidate."""
    match verdict:
        case Found(step):
            return step.candidate, step.probability
        case Several(steps) if steps:
            return steps[0].candidate, min(step.probability for step in steps)
        case Inconclusive(candidates, probabilities) if candidates and probabilities:
            return candidates[0], probabilities[0]
        case _:
            return None, math.nan


def suspect_set_and_probability(verdict: Verdict) -> tuple[tuple[int, ...], float | None]:
    """The suspects of an inconclusive hunt, and the stated probability that the suspects contain the culprit.

    The result is an empty set and None if the verdict is not inconclusive, or has no suspects.
    """
    if isinstance(verdict, Inconclusive) and verdict.candidates and verdict.probabilities:
        return verdict.candidates, sum(verdict.probabilities)
    return (), None


def _log_drop(fraction: float) -> float:
    """The change of the logarithm of a metric that drops by ``fraction``."""
    return -math.log1p(-fraction)


def _is_in_subrange(world: World, subrange: UnsettledRange, candidate: int) -> bool:
    reach = ancestry_of(world.graph)
    return bool(reach.with_ancestors(subrange.bad)[candidate] and not reach.with_ancestors(subrange.good)[candidate])


def _is_smallest_testable_set(world: World, candidates: tuple[int, ...]) -> bool:
    """Whether no measurement can divide the set ``candidates``, because each candidate that could divide the set does
    not build, or crashes.
    """
    broken = world.unbuildable | world.crashing
    if len(candidates) < 2 or not broken:
        return False
    usable = (v for v in range(world.graph.size) if v not in broken)
    below = (ancestry_of(world.graph).with_ancestors(v)[list(candidates)] for v in usable)
    return all(mask.all() or not mask.any() for mask in below)


Z = 1.96  # 95 % point, two-sided, of the normal distribution


def mean(values: Iterable[float]) -> float:
    """The arithmetic mean; NaN if there are no values."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else math.nan


@dataclass(frozen=True, slots=True)
class JudgedHunt:
    """The judgement and the costs of one hunt."""

    judgement: Judgement
    named: bool  # whether a culprit was named
    stated: float  # probability of the most probable candidate; NaN if none was stated
    favoured: bool  # whether the most probable candidate is a culprit
    builds: int
    runs: int
    minutes: float
    cost: float  # cost in runs, without builds of the two ends
    together: float | None = None  # stated probability of the suspects of an inconclusive hunt
    held: bool = False  # whether a culprit is among the suspects of an inconclusive hunt
    steps: StepCounts | None = None  # the steps of a hunt for all changes; None for other hunts
    unused: int = 0  # builds that were never measured
    cancelled: int = 0  # builds that were ended before they were finished; not in ``builds``


SearchRule = Callable[[World, Policy], Verdict]  # a way to search a world


def judged_hunt_of_seed(scenario: Scenario, seed: int, rule: SearchRule, policy: Policy) -> JudgedHunt:
    """Simulate a hunt that decides by ``rule`` in the world that ``seed`` generates, and judge its verdict."""
    world = scenario.world(seed)
    verdict = rule(world, policy)
    run = scenario.habits.run_seconds
    between = sum(seconds for v, seconds in world.build_seconds.items() if v not in (0, world.graph.size - 1))
    suspect, stated = most_probable_candidate(verdict)
    chosen, together = suspect_set_and_probability(verdict)
    return JudgedHunt(
        judgement=judge_verdict(verdict, world, policy.min_effect),
        named=names_a_culprit(verdict),
        stated=stated,
        favoured=suspect in world.right_culprits,
        builds=world.builds - world.cancelled,
        unused=world.unused_builds,
        cancelled=world.cancelled,
        runs=world.runs,
        minutes=world.now / 60,
        cost=world.runs + (between + world.links * scenario.habits.link_seconds) / run,
        together=together,
        held=not world.right_culprits.isdisjoint(chosen),
        steps=count_steps(verdict, world, policy.min_effect) if policy.all_steps else None,
    )


@dataclass(frozen=True, slots=True)
class ShareInterval:
    """The share of hunts with an outcome, and the 95 % interval of the share."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, successes: int, trials: int) -> "ShareInterval":
        """Wilson's interval for ``successes`` in ``trials``; the interval from 0 to 1 if there are no trials."""
        if not trials:
            return cls(0.0, math.nan, 1.0)
        share, z = successes / trials, Z * Z / trials
        middle = (share + z / 2) / (1 + z)
        half = math.sqrt(z * share * (1 - share) + z * z / 4) / (1 + z)
        return cls(min(max(0.0, middle - half), share), share, max(min(1.0, middle + half), share))


@dataclass(frozen=True, slots=True)
class HuntCost:
    """A cost in all hunts: the mean, the standard error of the mean, and the 90 % quantile (``most``)."""

    mean: float
    error: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "HuntCost":
        """The statistics of the values of all hunts; at least one value is needed."""
        middle = mean(values)
        variance = sum((v - middle) ** 2 for v in values) / max(len(values) - 1, 1)
        return cls(middle, math.sqrt(variance / len(values)), sorted(values)[math.ceil(0.9 * len(values)) - 1])


@dataclass(frozen=True, slots=True)
class Tally:
    """The statistics of hunts of one scenario by one rule."""

    hunts: int
    right: ShareInterval
    honest: ShareInterval
    wrong: ShareInterval
    named: ShareInterval  # share of hunts that named a culprit
    right_if_named: ShareInterval
    stated: float  # mean stated probability of named culprits; NaN if none was named
    builds: HuntCost
    runs: HuntCost
    hours: HuntCost
    cost: HuntCost
    steps: StepCounts | None  # the steps of hunts for all changes; None for other hunts
    unused: HuntCost  # builds that were never measured
    cancelled: HuntCost  # builds that were ended before they were finished; not in ``builds``

    @classmethod
    def of(cls, trials: Iterable[JudgedHunt]) -> "Tally":
        """The statistics of judged hunts. Raises ValueError without hunts."""
        hunts = list(trials)
        if not hunts:
            raise ValueError("no hunt to add up")

        def how_often(judgement: Judgement, among: Sequence[JudgedHunt]) -> ShareInterval:
            return ShareInterval.of(sum(hunt.judgement is judgement for hunt in among), len(among))

        named = [hunt for hunt in hunts if hunt.named]
        accounts = [hunt.steps for hunt in hunts if hunt.steps is not None]
        return cls(
            hunts=len(hunts),
            right=how_often(Judgement.RIGHT, hunts),
            honest=how_often(Judgement.HONEST, hunts),
            wrong=how_often(Judgement.WRONG, hunts),
            named=ShareInterval.of(len(named), len(hunts)),
            right_if_named=how_often(Judgement.RIGHT, named),
            stated=mean(hunt.stated for hunt in named if not math.isnan(hunt.stated)),
            builds=HuntCost.of([hunt.builds for hunt in hunts]),
            runs=HuntCost.of([hunt.runs for hunt in hunts]),
            hours=HuntCost.of([hunt.minutes / 60 for hunt in hunts]),
            cost=HuntCost.of([hunt.cost for hunt in hunts]),
            steps=sum(accounts, StepCounts()) if accounts else None,
            unused=HuntCost.of([hunt.unused for hunt in hunts]),
            cancelled=HuntCost.of([hunt.cancelled for hunt in hunts]),
        )


def summary_lines(tally: Tally, *, with_build_hosts: bool = False) -> Iterator[str]:
    """The lines of a table of costs and verdicts; if ``with_build_hosts`` is true, also the number of builds that were
    never measured.
    """
    in_vain = {"  not measured": tally.unused, "builds stopped early": tally.cancelled} if with_build_hosts else {}
    yield f"{'cost of a hunt':<22}{'mean':>10}{'9 of 10 hunts':>16}"
    for name, spent in {"builds": tally.builds, **in_vain, "runs": tally.runs, "hours": tally.hours}.items():
        most = f"{spent.most:.1f}" if name == "hours" else f"{spent.most:.0f}"
        yield f"{name:<22}{_number(spent.mean):>10}{'up to ' + most:>16}"
    yield ""
    yield f"{'verdict':<22}{'hunts':>10}{'95 % interval':>16}"
    for name, chance in {"right": tally.right, "inconclusive": tally.honest, "wrong": tally.wrong}.items():
        yield f"{name:<22}{_percent(chance.middle):>10}{f'{_percent(chance.low)} to {_percent(chance.high)}':>16}"
    yield ""
    named = tally.right_if_named
    if tally.steps is not None:
        yield from _found_and_missed_changes(tally.steps)
    elif tally.named.middle == 0:
        yield "No hunt named a commit."
    else:
        naming = round(tally.named.middle * tally.hunts)
        yield f"{naming:,} of {tally.hunts:,} hunts named a commit. In {round(named.middle * naming):,} of these, it was the right commit."
        if tally.stated == tally.stated:
            yield f"The mean probability that the hunts stated for the named commit is {_percent(tally.stated)}."


def _found_and_missed_changes(steps: StepCounts) -> Iterator[str]:
    """Sentences about the shares of changes that were named, left open, or missed."""
    if total := steps.right + steps.unsettled + steps.unseen + steps.missed:
        counts = (steps.right, steps.unsettled, steps.unseen, steps.missed)
        named, unsettled, unseen, missed = (_percent(count / total) for count in counts)
        yield (
            f"Of all changes of at least --min-effect, {named} are named, {unsettled} are in parts of the range without a"
            f" verdict, {unseen} are smaller than the change that the verdict calls detectable, and {missed} are missed."
        )
    if named_in_all := steps.right + steps.wrong:
        yield f"Of {named_in_all} named commit{'s' * (named_in_all > 1)}, {steps.wrong} changed the speed too little, or not at all."


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _percent(share: float) -> str:
    """A share as a percentage, without digits that a few hundred hunts cannot determine."""
    return f"{100 * share:.0f} %"
