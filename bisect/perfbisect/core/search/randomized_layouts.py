"""Randomized layouts separate the effect of code placement from the effect of the source, if builds can be linked
again.

A hunt begins with the usual layout of each build. The usual layout of each build is drawn once, at random, and
neighbouring builds share much of the layout. So a commit that only moves code can look like a change of speed, and more
runs confirm this wrong result. Therefore the named commit is compared with its parents once more, each run in a
randomized layout. The effect of a randomized layout is a part of the noise of a run, and repetitions average this
effect out.

* If randomized layouts also show the difference, the commit is the culprit. The ranks of the readings must be
  improbable by chance. Ranks are used because the layouts of a build may have any distribution, for example two modes.
  The required probability is lower for more layouts, because each further comparison may mislead by chance. Over all
  comparisons, the probability of a chance result is about 1 %. * If randomized layouts do not show the difference, the
  difference was caused by code placement. Because of code placement, the readings in the usual layout are no evidence,
  and the search begins again with randomized layouts only. The builds exist already, so the new search costs only runs
  and links. * If the search in the usual layout names no commit, for a reason that layout can cause (for example a
  tie), the search also begins again with randomized layouts.

A change that is larger than any effect of layouts is named without a comparison in randomized layouts. The first part
of a hunt (in the usual layout) ends before the first reading in a randomized layout, so that all decisions follow from
the observations.
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
    LayoutRatios,
    Measure,
    NotReproduced,
    PlannedRuns,
    Purpose,
    Reason,
    Several,
    Step,
    Verdict,
    all_steps,
)
from perfbisect.core.domain.settings import Policy, PriorKnowledge
from perfbisect.core.inference.analysis import PROVEN, Contrast, contrast_of_builds
from perfbisect.core.inference.instruction_counts import LAYOUT
from perfbisect.core.inference.noise_model import RANDOMIZED_LAYOUTS, NoiseModel, remove_modes, weigh_readings
from perfbisect.core.inference.observations import Observation, Reading
from perfbisect.core.inference.record import arrange_observations
from perfbisect.core.inference.state_space import fit_levels, levels_for_search
from perfbisect.core.search.all_changes import decide_changes
from perfbisect.core.search.situation import Situation, undecided, within_budget
from perfbisect.core.stats.distributions import rank_sum_p_value, signed_rank_p_value

FEWEST = 5  # fewest layouts of each build
MOST = 60  # most layouts of each build; if these show neither a difference nor its absence, the hunt names no commit
STEP = 12  # most further layouts of each build in one order
TYPICAL = 8  # layouts of each build from which on outliers count less: an outlier among fewer layouts may be common
CHANCE = 0.02  # divided by the layouts of each build: the highest p value of the ranks that shows a difference
# In s.d. of the ratio of two builds by code placement: for a smaller difference of the ends, the search uses randomized
# layouts from the begin.
FEW = 3.0
SHOWN_SHARE = 0.5  # share of the usual difference that randomized layouts have to show
TRUSTED = 0.5  # least weight of a reading that counts, because the mode of its layout may be uncertain
ABSENT = 0.02  # a difference is absent if a difference of the required size is less probable than ABSENT
# Log difference that no layout explains, a factor of 3: a program whose functions share one set of the
# instruction cache took 2.4 times as long as with these functions side by side (benchmarks/moved_code.py without
# further work).
TOO_LARGE = 1.1
BY_LAYOUT = (  # reasons that randomized layouts can remove
    Reason.UNBUILDABLE, Reason.LEFT_OUT, Reason.NOT_CONFIRMED, Reason.TOO_NOISY, Reason.BY_CHANCE, Reason.LAYOUT_TIE
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayoutComparison:
    """The comparison of a named commit with one of its parents in randomized layouts."""

    parent: int
    usual: float  # the difference with the usual layout, in log units
    randomized: Contrast | None  # the difference in randomized layouts, with the same sign; None before runs were made
    layouts: LayoutRatios | None
    chance: float = 1.0  # p value of the ranks, if the layouts of both builds have the same distribution

    @property
    def compared(self) -> int:
        """The number of compared layouts of each build; if the builds have different numbers, the smaller number."""
        return self.layouts.compared if self.layouts else 0

    @property
    def shown(self) -> bool:
        """Whether runs in randomized layouts show the difference, and the difference has about the same size as in the
        usual layout."""
        if not self.randomized or self.compared < FEWEST or self.chance * self.compared > CHANCE:
            return False
        return self.randomized.normal_score >= PROVEN and self.randomized.drop >= SHOWN_SHARE * self.usual

    @property
    def absent(self) -> bool:
        """Whether randomized layouts exclude most of the usual difference."""
        required = SHOWN_SHARE * self.usual
        return (
            self.randomized is not None
            and self.compared >= FEWEST
            and self.randomized.probability_above(required) < ABSENT
        )

    @property
    def missing(self) -> int:
        """The number of layouts of each build that are still to be measured."""
        if self.shown or self.absent or self.compared >= MOST:
            return 0
        return max(FEWEST - self.compared, min(self.compared // 2, STEP))


def decide_with_layouts(now: Situation) -> Decision:
    """The decision of the search; if builds can be linked again, no commit is named by the usual layout alone."""
    if not now.policy.layouts or now.model.exact:
        return decide_changes(now)
    first = next((i for i, item in enumerate(now.observations) if _is_randomized(item)), None)
    if first is None:
        usual = decide_changes(now)
        order = usual.order
        if not _placement_explains_ends(usual) if isinstance(order, Measure) else is_independent_of_layout(order):
            return usual
    else:
        usual_part = tuple(now.observations[:first])
        usual = _usual_decision(now.graph, usual_part, now.policy, now.prior, now.shared, now.model)
    model = RANDOMIZED_LAYOUTS.for_paired_runs if now.model.paired else RANDOMIZED_LAYOUTS
    randomized = now.with_readings(_is_randomized, prior=replace(now.prior, noise=None), model=model)
    comparisons = {step.candidate: compare_with_parents(randomized, step) for step in all_steps(usual.order)}
    results = [comparison for of_step in comparisons.values() for comparison in of_step]
    if comparisons and all(result.shown for result in results):
        return replace(usual, order=_with_comparisons(usual.order, comparisons))
    if comparisons and not any(result.absent for result in results) and (further := _further_layouts(comparisons, now)):
        return within_budget(replace(usual, order=further), now)
    return within_budget(_randomized_decision(decide_changes(randomized), usual.order, comparisons, randomized), now)


def _placement_explains_ends(usual: Decision) -> bool:
    """Whether the search begins although the difference of the ends in the usual layout is so small that code placement
    explains it."""
    order, effect = usual.order, usual.belief.effect
    begins = isinstance(order, Measure) and order.purpose is Purpose.SEARCH and not order.counted
    return begins and effect.has_bound and abs(math.log(effect.middle)) < FEW * LAYOUT


@lru_cache(maxsize=4)
def _usual_decision(
    graph: Graph,
    observations: tuple[Observation, ...],
    policy: Policy,
    prior: PriorKnowledge,
    shared: bool,
    model: NoiseModel,
) -> Decision:
    """The decision at the end of the first part of a hunt, in the usual layout. It is cached, because every later
    decision needs it."""
    return decide_changes(Situation(graph, observations, policy, prior, ALL_FREE, shared=shared, model=model))


def compare_with_parents(randomized: Situation, step: Step) -> tuple[LayoutComparison, ...]:
    """The comparisons of a named commit with each of its parents, in randomized layouts."""
    return tuple(_compare_with_parent(randomized, step, parent) for parent in step.parents)


def _compare_with_parent(randomized: Situation, step: Step, parent: int) -> LayoutComparison:
    """The comparison of a named commit with ``parent`` in randomized layouts, from the readings of these two builds
    only."""
    usual = abs(math.log(step.ratio.middle))
    slow, fast = randomized.record.name_of_build(step.candidate), randomized.record.name_of_build(parent)
    pair = randomized.with_readings(lambda reading: randomized.record.name_of_build(reading.candidate) in (slow, fast))
    record = arrange_observations(pair.observations, randomized.policy, slow)
    if not (record.run_count(slow) and record.run_count(fast)):
        return LayoutComparison(parent, usual, None, None)
    weight = np.ones(len(record.value))
    if randomized.model.modes:
        record, weight = remove_modes(record, fast, slow)
    if min(record.run_count(slow), record.run_count(fast)) >= TYPICAL:
        weight = weight * weigh_readings(record, fast, slow, randomized.model).weight
    levels = levels_for_search(fit_levels(record, weight, randomized.model))
    difference = contrast_of_builds(levels, record.builds.index(fast), record.builds.index(slow))
    ratio = difference.ratio(record.sign)
    sign = 1 if (step.ratio.middle < 1) is (record.sign > 0) else -1
    if randomized.model.paired:
        _, above = record.paired_differences(fast, slow)
        differences, chance = sign * above, signed_rank_p_value((sign * above).tolist())
        measured = len(differences)
    else:
        rows = record.reading_positions(slow), record.reading_positions(fast)
        low, high = ((sign * record.value[trusted_rows])[weight[trusted_rows] > TRUSTED] for trusted_rows in rows)
        chance = rank_sum_p_value(low.tolist(), high.tolist()) if len(low) and len(high) else 1.0
        pairs, measured = min(map(len, rows)), min(record.run_count(slow), record.run_count(fast))
        differences = sign * (record.value[rows[1][:pairs]] - record.value[rows[0][:pairs]])
    layouts = LayoutRatios(ratio, len(differences), int((differences > 0).sum()), measured)
    return LayoutComparison(parent, usual, replace(difference, drop=sign * difference.drop), layouts, chance)


def _is_randomized(observation: Observation) -> bool:
    """Whether the observation is a run in a randomized layout."""
    return isinstance(observation, Reading) and observation.layout > 0


def is_independent_of_layout(verdict: Verdict) -> bool:
    """Whether a verdict from interleaved runs in the usual layout is final, because neither randomized layouts nor
    paired runs can change it.
    """
    match verdict:
        case Inconclusive(reason=reason):
            return reason not in BY_LAYOUT
        case NotReproduced(detectable=detectable):
            return detectable == 0.0  # equal binaries, without a measurement
        case Found() | Several():
            limits = math.exp(-TOO_LARGE), math.exp(TOO_LARGE)
            return all(step.ratio.low >= limits[1] or step.ratio.high <= limits[0] for step in all_steps(verdict))
        case _:
            return False


Comparisons = Mapping[int, Sequence[LayoutComparison]]  # named commit → its comparison with each of its parents


def _further_layouts(comparisons: Comparisons, now: Situation) -> Measure | None:
    """The order to measure more layouts of a commit and its parents: of the first commit that needs more layouts. None
    if no commit needs more."""
    for candidate, of_commit in comparisons.items():
        if missing := {comparison.parent: comparison.missing for comparison in of_commit if comparison.missing}:
            if rounds := now.model.paired:  # paired runs compare the parents one after the other
                missing = dict([next(iter(missing.items()))])
            plan = (
                PlannedRuns(candidate, max(missing.values())),
                *(PlannedRuns(parent, runs) for parent, runs in missing.items()),
            )
            host, results = now.fleet.free_host, _weakest(of_commit).layouts
            return Measure(plan, Purpose.CONFIRM, host, True, results, together=rounds)
    return None


def _with_comparisons(verdict: Verdict | Measure, comparisons: Comparisons) -> Verdict:
    """The verdict, in which each step has its comparison in randomized layouts: the comparison with the parent that
    differs least from the step's commit."""

    def with_comparison(step: Step) -> Step:
        return replace(step, layouts=_weakest(comparisons[step.candidate]).layouts)

    if isinstance(verdict, Found):
        return Found(with_comparison(verdict.step))
    assert isinstance(verdict, Several)
    worse, better = (tuple(map(with_comparison, steps)) for steps in (verdict.steps, verdict.improvements))
    return replace(verdict, steps=worse, improvements=better)


def _weakest(comparisons: Sequence[LayoutComparison]) -> LayoutComparison:
    """The comparison with a parent that shows the smallest difference."""
    return min(comparisons, key=lambda comparison: comparison.randomized.drop if comparison.randomized else math.inf)


def _randomized_decision(
    decision: Decision, usual: Verdict | Measure, comparisons: Comparisons, randomized: Situation
) -> Decision:
    """The decision by runs in randomized layouts, and the comparisons of the commits that were named in the usual
    layout."""
    match decision.order:
        case Found() | Several() as verdict:
            of_verdict = {step.candidate: compare_with_parents(randomized, step) for step in all_steps(verdict)}
            if all(comparison.shown for of_step in of_verdict.values() for comparison in of_step):
                return replace(decision, order=_with_comparisons(verdict, of_verdict))
            unproven = undecided(decision.belief, randomized.policy, Reason.NOT_CONFIRMED)
            return replace(decision, order=_further_layouts(of_verdict, randomized) or unproven)
        case NotReproduced(ratio, detectable) if comparisons:
            return replace(decision, order=_code_placement(usual, comparisons, ratio, detectable))
        case Inconclusive(ratio=ratio, reason=Reason.TOO_NOISY) if comparisons and ratio.low < 1 < ratio.high:
            drop = max(1 - ratio.low, ratio.high - 1)  # any remaining change is smaller
            return replace(decision, order=_code_placement(usual, comparisons, ratio, drop))
        case _:
            return decision


def _code_placement(
    usual: Verdict | Measure, comparisons: Comparisons, ratio: Interval, detectable: float
) -> CodePlacement:
    """The verdict that the largest change in the usual layout does not exist in randomized layouts."""
    moved = [step for step in all_steps(usual) if not all(result.shown for result in comparisons[step.candidate])]
    step = max(moved, key=lambda step: abs(math.log(step.ratio.middle)))
    return CodePlacement(replace(step, layouts=_weakest(comparisons[step.candidate]).layouts), ratio, detectable)
