"""Where builds can be linked again with another layout: what code placement did is separated from what the source did.

A hunt begins with the builds as they are linked. Their layouts are drawn once for each build, and neighbours share much
of them, so a commit that only moves code can look like a change and pass every proof by more runs. So the commit that
this search names is compared with its parents once more, each run in a layout of its own: there the layout is part of
the noise of a run, and repeats average it away.

* The difference is shown there as well: the commit is the culprit. That takes ranks that chance does not give, since the
  layouts of one build may have any distribution, such as two modes. The probability that is required falls with the
  number of layouts, as each further comparison is one more chance to be misled: over all of them it is about 1 %.
* It is absent there: it was code placement. What was measured with the usual layout is no evidence then, and the search
  begins again with randomized layouts only. The builds exist already, so it costs runs and links.
* The search with the usual layout names nothing for a reason that layout can cause, such as a tie: the same.

A change that is larger than what layouts do is named as it is.

All of it follows from the observations: the first part of the hunt ends where the first reading in a randomized layout is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import (
    ALL_FREE,
    CodePlacement,
    Decision,
    Found,
    Inconclusive,
    Interval,
    Layouts,
    Measure,
    NotReproduced,
    Purpose,
    Reason,
    Several,
    Share,
    Step,
    Verdict,
    all_steps,
)
from perfbisect.core.domain.settings import Policy, PriorKnowledge
from perfbisect.core.inference.analysis import PROVEN, Contrast, contrast
from perfbisect.core.inference.instruction_counts import LAYOUT
from perfbisect.core.inference.noise_model import FRESH, NoiseModel, behaviour, without_modes
from perfbisect.core.inference.observations import Observation, Reading
from perfbisect.core.inference.record import arrange
from perfbisect.core.inference.state_space import fit, levels_of
from perfbisect.core.search.all_changes import changes
from perfbisect.core.search.situation import Situation, afforded, undecided
from perfbisect.core.stats.distributions import rank_sum_p_value, signed_rank_p_value

FEWEST = 5  # layouts of each side, at least
MOST = 60  # layouts of each side, after which it is left open whether the difference is there
STEP = 12  # further layouts of each side in one order, at most
TYPICAL = 8  # layouts of each side from which a rare one counts less: of fewer it may be as common as the others
CHANCE = 0.02  # divided by the layouts of each side: the probability of such ranks by chance below which it is shown
FEW = 3.0  # s.d. of the ratio of two builds by code placement, below which a difference is searched in randomized layouts at once
KEPT = 0.5  # share of the usual difference that randomized layouts have to show
TRUSTED = 0.5  # of a reading, whose mode of layout may be uncertain
GONE = 0.02  # probability of so large a difference below which it is absent
# Log difference from which on no layout explains it, a factor of 3: a program whose functions share one set of the instruction
# cache took 2.4 times as long as with these functions side by side (benchmarks/moved_code.py without further work).
TOO_LARGE = 1.1
BY_LAYOUT = (  # reasons that randomized layouts can remove
    Reason.UNBUILDABLE, Reason.LEFT_OUT, Reason.NOT_CONFIRMED, Reason.TOO_NOISY, Reason.BY_CHANCE, Reason.LAYOUT_TIE
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayoutComparison:
    """A named commit against one of its parents, in randomized layouts."""

    parent: int
    usual: float  # the difference with the usual layout, in log units
    fresh: Contrast | None  # the same in randomized layouts, positive in the same direction; None before there are any
    layouts: Layouts | None
    chance: float = 1.0  # probability of such ranks if layouts of both are drawn alike, however they are distributed

    @property
    def compared(self) -> int:
        """Layouts of the side that has fewer."""
        return self.layouts.compared if self.layouts else 0

    @property
    def shown(self) -> bool:
        """Whether the difference is there in randomized layouts, and about as large."""
        if not self.fresh or self.compared < FEWEST or self.chance * self.compared > CHANCE:
            return False
        return self.fresh.clear >= PROVEN and self.fresh.drop >= KEPT * self.usual

    @property
    def absent(self) -> bool:
        """Whether it is not: most of it can be excluded."""
        return self.fresh is not None and self.compared >= FEWEST and self.fresh.above(KEPT * self.usual) < GONE

    @property
    def wanted(self) -> int:
        """How many more layouts of each side to measure."""
        if self.shown or self.absent or self.compared >= MOST:
            return 0
        return max(FEWEST - self.compared, min(self.compared // 2, STEP))


def with_layouts(now: Situation) -> Decision:
    """The decision of the search; where layouts can be had, nothing is named by the usual layout alone."""
    if not now.policy.layouts or now.model.exact:
        return changes(now)
    begins = next((place for place, seen in enumerate(now.observations) if _is_fresh(seen)), None)
    if begins is None:
        usual = changes(now)
        if settled(usual.order) if not isinstance(usual.order, Measure) else not few_layouts(usual):
            return usual
    else:
        usual = _as_linked(now.graph, tuple(now.observations[:begins]), now.policy, now.prior, now.shared, now.model)
    model = FRESH.of_rounds if now.model.rounds else FRESH
    again = now.with_readings(_is_fresh, prior=replace(now.prior, noise=None), model=model)
    each = {step.candidate: compare(again, step) for step in all_steps(usual.order)}
    if each and all(one.shown for of in each.values() for one in of):
        return replace(usual, order=_with_layouts(usual.order, each))
    if each and not any(one.absent for of in each.values() for one in of) and (more := _further(each, now)):
        return afforded(replace(usual, order=more), now)
    return afforded(_ended(changes(again), usual.order, each, again), now)


def few_layouts(usual: Decision) -> bool:
    """Whether the search would begin for ends that differ by no more than builds do by chance, as they are linked usually."""
    order, effect = usual.order, usual.belief.effect
    begins = isinstance(order, Measure) and order.purpose is Purpose.SEARCH and not order.counted
    return begins and effect.known and abs(math.log(effect.middle)) < FEW * LAYOUT


@lru_cache(maxsize=4)
def _as_linked(
    graph: Graph,
    observations: tuple[Observation, ...],
    policy: Policy,
    prior: PriorKnowledge,
    shared: bool,
    model: NoiseModel,
) -> Decision:
    """How the first part of a hunt ended; kept, as every later decision depends on it."""
    return changes(Situation(graph, observations, policy, prior, ALL_FREE, shared=shared, model=model))


def compare(again: Situation, step: Step) -> tuple[LayoutComparison, ...]:
    """A named commit against each of its parents by the readings in randomized layouts, of these builds alone."""
    return tuple(_compare(again, step, parent) for parent in step.parents)


def _compare(again: Situation, step: Step, parent: int) -> LayoutComparison:
    usual = abs(math.log(step.ratio.middle))
    slow, fast = again.record.name(step.candidate), again.record.name(parent)
    pair = again.with_readings(lambda seen: again.record.name(seen.candidate) in (slow, fast))
    record = arrange(pair.observations, again.policy, slow)
    if not (record.runs(slow) and record.runs(fast)):
        return LayoutComparison(parent, usual, None, None)
    trust = np.ones(len(record.value))
    if again.model.modes:
        record, trust = without_modes(record, fast, slow)
    if min(record.runs(slow), record.runs(fast)) >= TYPICAL:
        trust = trust * behaviour(record, fast, slow, again.model).weight
    levels = levels_of(fit(record, trust, again.model))
    found = contrast(levels, record.builds.index(fast), record.builds.index(slow))
    ratio = found.ratio(record.sign)
    hunted = 1 if (step.ratio.middle < 1) is (record.sign > 0) else -1
    if again.model.rounds:
        _, above = record.rounds(fast, slow)
        differences, chance = hunted * above, signed_rank_p_value((hunted * above).tolist())
        measured = len(differences)
    else:
        kept = record.readings(slow), record.readings(fast)
        low, high = ((hunted * record.value[rows])[trust[rows] > TRUSTED] for rows in kept)
        chance = rank_sum_p_value(low.tolist(), high.tolist()) if len(low) and len(high) else 1.0
        both, measured = min(map(len, kept)), min(record.runs(slow), record.runs(fast))
        differences = hunted * (record.value[kept[1][:both]] - record.value[kept[0][:both]])
    layouts = Layouts(ratio, len(differences), int((differences > 0).sum()), measured)
    return LayoutComparison(parent, usual, replace(found, drop=hunted * found.drop), layouts, chance)


def _is_fresh(seen: Observation) -> bool:
    return isinstance(seen, Reading) and seen.layout > 0


def settled(verdict: Verdict) -> bool:
    """Whether other layouts, or rounds, can change nothing about a verdict that was reached with the usual one, or in turns."""
    match verdict:
        case Inconclusive(reason=reason):
            return reason not in BY_LAYOUT
        case NotReproduced(detectable=detectable):
            return detectable == 0.0  # nothing was measured: equal binaries
        case Found() | Several():
            outside = math.exp(-TOO_LARGE), math.exp(TOO_LARGE)
            return all(step.ratio.low >= outside[1] or step.ratio.high <= outside[0] for step in all_steps(verdict))
        case _:
            return False


def _further(each: Mapping[int, Sequence[LayoutComparison]], now: Situation) -> Measure | None:
    """More layouts of the first commit that needs them, and of those of its parents that do; None if none does."""
    for candidate, of in each.items():
        if wanted := {one.parent: one.wanted for one in of if one.wanted}:
            if rounds := now.model.rounds:  # with one parent after the other
                wanted = dict([next(iter(wanted.items()))])
            plan = (Share(candidate, max(wanted.values())), *(Share(parent, runs) for parent, runs in wanted.items()))
            host, known = now.fleet.free_host, _weakest(of).layouts
            return Measure(plan, Purpose.CONFIRM, host, True, known, together=rounds)
    return None


def _with_layouts(verdict: Verdict | Measure, each: Mapping[int, Sequence[LayoutComparison]]) -> Verdict:
    """The verdict, its steps with their comparisons in randomized layouts: of several parents the one that differs least."""

    def compared(step: Step) -> Step:
        return replace(step, layouts=_weakest(each[step.candidate]).layouts)

    if isinstance(verdict, Found):
        return Found(compared(verdict.step))
    assert isinstance(verdict, Several)
    steps, better = (tuple(map(compared, some)) for some in (verdict.steps, verdict.improvements))
    return replace(verdict, steps=steps, improvements=better)


def _weakest(of: Sequence[LayoutComparison]) -> LayoutComparison:
    return min(of, key=lambda one: one.fresh.drop if one.fresh else math.inf)


def _ended(
    decision: Decision, usual: Verdict | Measure, each: Mapping[int, Sequence[LayoutComparison]], again: Situation
) -> Decision:
    """The decision of the search in randomized layouts, with what they showed of the commits that were named before."""
    match decision.order:
        case Found() | Several() as verdict:
            found = {step.candidate: compare(again, step) for step in all_steps(verdict)}
            if all(one.shown for of in found.values() for one in of):
                return replace(decision, order=_with_layouts(verdict, found))
            unproven = undecided(decision.belief, again.policy, Reason.NOT_CONFIRMED)
            return replace(decision, order=_further(found, again) or unproven)
        case NotReproduced(ratio, detectable) if each:
            return replace(decision, order=_moved(usual, each, ratio, detectable))
        case Inconclusive(ratio=ratio, reason=Reason.TOO_NOISY) if each and ratio.low < 1 < ratio.high:
            drop = max(1 - ratio.low, ratio.high - 1)  # what is left is smaller, if there is anything
            return replace(decision, order=_moved(usual, each, ratio, drop))
        case _:
            return decision


def _moved(
    usual: Verdict | Measure, each: Mapping[int, Sequence[LayoutComparison]], ratio: Interval, detectable: float
) -> CodePlacement:
    """The verdict that the largest change of the usual layout is none in others."""
    moved = [step for step in all_steps(usual) if not all(one.shown for one in each[step.candidate])]
    step = max(moved, key=lambda step: abs(math.log(step.ratio.middle)))
    return CodePlacement(replace(step, layouts=_weakest(each[step.candidate]).layouts), ratio, detectable)
