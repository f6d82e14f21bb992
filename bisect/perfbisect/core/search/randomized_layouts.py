"""Decides with runs in randomized layouts, if builds can be linked again, whether code placement or the source causes a
difference.

A hunt begins with runs in the usual layout (the layout of a build whose functions are not in random order). In the
usual layout, a commit that only moves code can look like a change of speed, and more runs confirm this wrong result.
Therefore the commit that the search names is compared with its parents again, in randomized layouts: each run uses
another layout. The effect of a layout is then a part of the noise of a run, and is averaged out by repetitions.

* If randomized layouts also show the difference, the commit is the culprit. A rank test compares the readings, because
  the speeds of a build in its layouts may have any distribution, for example with two modes. The test is repeated after
  each further set of layouts, so the required p-value decreases with the number of layouts. The probability that any of
  these tests shows a difference by chance is about 1 %.
* If randomized layouts do not show the difference, code placement caused the difference. The readings in the usual
  layout are then not used, and the search begins again with runs in randomized layouts only. The builds exist already,
  so the new search only needs runs, and links builds again.
* If the search in the usual layout names no commit, for a reason that code placement can cause (for example a tie), the
  search also begins again with runs in randomized layouts.

A change that is larger than any effect of layouts is named without a comparison in randomized layouts. The first part
of a hunt consists of the observations before the first reading in a randomized layout. When a later decision needs the
last decision of the first part, that decision is computed again from these observations.
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
from perfbisect.core.inference.noise_model import RANDOMIZED_LAYOUTS, NoiseModel, correct_to_fast_mode, weigh_readings
from perfbisect.core.inference.observations import Observation, Reading
from perfbisect.core.inference.record import arrange_observations
from perfbisect.core.inference.state_space import fit_levels, levels_for_search
from perfbisect.core.search.all_changes import decide_all_or_largest
from perfbisect.core.search.situation import Situation, with_suspects, within_budget
from perfbisect.core.stats.distributions import rank_sum_p_value, signed_rank_p_value

FEWEST = 5  # fewest randomized layouts of each build that are compared
MOST = 60  # most layouts of each build; if these show neither a difference nor its absence, the hunt names no commit
STEP = 12  # most randomized layouts of each build that one order adds
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
BY_LAYOUT = (  # reasons of an inconclusive verdict that runs in randomized layouts can remove
    Reason.UNBUILDABLE, Reason.LEFT_OUT, Reason.NOT_CONFIRMED, Reason.TOO_NOISY, Reason.BY_CHANCE, Reason.LAYOUT_TIE
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayoutComparison:
    """The comparison of a named commit with one of its parents in randomized layouts."""

    parent: int
    usual: float  # the difference with the usual layout, in log units
    randomized: Contrast | None  # the difference in randomized layouts, with the same sign; None before runs were made
    layouts: LayoutRatios | None
    p_value: float = 1.0  # p-value of a rank test of the hypothesis that both builds have the same distribution

    @property
    def compared_layout_count(self) -> int:
        """The number of compared layouts of each build; if the numbers of the two builds differ, the smaller number."""
        return self.layouts.compared if self.layouts else 0

    @property
    def shows_difference(self) -> bool:
        """Whether runs in randomized layouts show a difference that is at least the share SHOWN_SHARE of the difference
        in the usual layout.
        """
        layout_count = self.compared_layout_count
        if not self.randomized or layout_count < FEWEST or self.p_value * layout_count > CHANCE:
            return False
        return self.randomized.normal_score >= PROVEN and self.randomized.drop >= SHOWN_SHARE * self.usual

    @property
    def excludes_difference(self) -> bool:
        """Whether runs in randomized layouts show that the difference is smaller than the share SHOWN_SHARE of the
        difference in the usual layout.
        """
        if self.randomized is None or self.compared_layout_count < FEWEST:
            return False
        return self.randomized.probability_above(SHOWN_SHARE * self.usual) < ABSENT

    @property
    def layouts_left(self) -> int:
        """The number of further layouts of each build that have to be measured."""
        if self.shows_difference or self.excludes_difference or self.compared_layout_count >= MOST:
            return 0
        return max(FEWEST - self.compared_layout_count, min(self.compared_layout_count // 2, STEP))


def decide_with_randomized_layouts(now: Situation) -> Decision:
    """The decision of the search. If builds can be linked again, the search names a commit only after runs in
    randomized layouts, except if the change is larger than code placement can cause.
    """
    if not now.policy.layouts or now.model.exact:
        return decide_all_or_largest(now)
    first = next((i for i, item in enumerate(now.observations) if _is_randomized(item)), None)
    if first is None:
        usual = decide_all_or_largest(now)
        order = usual.order
        if not _placement_explains_ends(usual) if isinstance(order, Measure) else is_independent_of_layout(order):
            return usual
    else:
        usual_part = tuple(now.observations[:first])
        usual = _usual_decision(now.graph, usual_part, now.policy, now.prior, now.shares_builds, now.model)
    model = RANDOMIZED_LAYOUTS.for_paired_runs if now.model.paired else RANDOMIZED_LAYOUTS
    randomized = now.with_readings(_is_randomized, prior=replace(now.prior, noise=None), model=model)
    comparisons = {step.candidate: compare_with_parents(randomized, step) for step in all_steps(usual.order)}
    results = [comparison for of_step in comparisons.values() for comparison in of_step]
    if comparisons and all(result.shows_difference for result in results):
        return replace(usual, order=_with_layout_comparisons(usual.order, comparisons))
    is_open = comparisons and not any(result.excludes_difference for result in results)
    if is_open and (further := _further_layouts(comparisons, now)):
        return within_budget(replace(usual, order=further), now)
    decision = decide_all_or_largest(randomized)
    return within_budget(_combined_with_comparisons(decision, usual.order, comparisons, randomized), now)


def _placement_explains_ends(usual: Decision) -> bool:
    """Whether the ends are measured, the search for a commit begins, and the difference of the ends in the usual layout
    is so small that code placement can cause it.
    """
    order, effect = usual.order, usual.belief.effect
    begins = isinstance(order, Measure) and order.purpose is Purpose.SEARCH and not order.counted
    return begins and effect.has_known_bound and abs(math.log(effect.middle)) < FEW * LAYOUT


@lru_cache(maxsize=4)
def _usual_decision(
    graph: Graph,
    observations: tuple[Observation, ...],
    policy: Policy,
    prior: PriorKnowledge,
    shares_builds: bool,
    model: NoiseModel,
) -> Decision:
    """The last decision of a hunt that used only runs in the usual layout. The result is cached, because every later
    decision needs the result.
    """
    situation = Situation(graph, observations, policy, prior, ALL_FREE, shares_builds=shares_builds, model=model)
    return decide_all_or_largest(situation)


def compare_with_parents(randomized: Situation, step: Step) -> tuple[LayoutComparison, ...]:
    """The comparisons of a named commit with each of its parents, in randomized layouts."""
    return tuple(_compare_with_parent(randomized, step, parent) for parent in step.parents)


def _compare_with_parent(randomized: Situation, step: Step, parent: int) -> LayoutComparison:
    """The comparison of a named commit with ``parent`` in randomized layouts, from the readings of these two builds
    only."""
    usual = abs(math.log(step.ratio.middle))
    slow, fast = randomized.record.build_id(step.candidate), randomized.record.build_id(parent)
    pair = randomized.with_readings(lambda reading: randomized.record.build_id(reading.candidate) in (slow, fast))
    record = arrange_observations(pair.observations, randomized.policy, slow)
    if not (record.run_count(slow) and record.run_count(fast)):
        return LayoutComparison(parent, usual, None, None)
    weight = np.ones(len(record.value))
    if randomized.model.modes:
        record, weight = correct_to_fast_mode(record, fast, slow)
    if min(record.run_count(slow), record.run_count(fast)) >= TYPICAL:
        weight = weight * weigh_readings(record, fast, slow, randomized.model).weight
    levels = levels_for_search(fit_levels(record, weight, randomized.model))
    difference = contrast_of_builds(levels, record.builds.index(fast), record.builds.index(slow))
    ratio = difference.ratio(record.sign)
    sign = 1 if (step.ratio.middle < 1) is (record.sign > 0) else -1
    if randomized.model.paired:
        _, above = record.paired_differences(fast, slow)
        differences, p_value = sign * above, signed_rank_p_value((sign * above).tolist())
        measured = len(differences)
    else:
        rows = record.reading_positions(slow), record.reading_positions(fast)
        low, high = ((sign * record.value[trusted_rows])[weight[trusted_rows] > TRUSTED] for trusted_rows in rows)
        p_value = rank_sum_p_value(low.tolist(), high.tolist()) if len(low) and len(high) else 1.0
        pairs, measured = min(map(len, rows)), min(record.run_count(slow), record.run_count(fast))
        differences = sign * (record.value[rows[1][:pairs]] - record.value[rows[0][:pairs]])
    layouts = LayoutRatios(ratio, len(differences), int((differences > 0).sum()), measured)
    return LayoutComparison(parent, usual, replace(difference, drop=sign * difference.drop), layouts, p_value)


def _is_randomized(observation: Observation) -> bool:
    """Whether the observation is a run in a randomized layout."""
    return isinstance(observation, Reading) and observation.layout > 0


def is_independent_of_layout(verdict: Verdict) -> bool:
    """Whether a verdict from interleaved runs in the usual layout is final, because runs in randomized layouts or
    paired runs could not change the verdict.
    """
    match verdict:
        case Inconclusive(reason=reason):
            return reason not in BY_LAYOUT
        case NotReproduced(detectable=detectable):
            return detectable == 0.0  # 0.0 means that the binaries are equal, and that nothing was measured
        case Found() | Several():
            limits = math.exp(-TOO_LARGE), math.exp(TOO_LARGE)
            return all(step.ratio.low >= limits[1] or step.ratio.high <= limits[0] for step in all_steps(verdict))
        case _:
            return False


Comparisons = Mapping[int, Sequence[LayoutComparison]]  # named commit → its comparison with each of its parents


def _further_layouts(comparisons: Comparisons, now: Situation) -> Measure | None:
    """The work order to measure a commit and its parents in more layouts, for the first commit that needs more layouts;
    None if no commit needs more layouts.
    """
    for candidate, of_commit in comparisons.items():
        if missing := {parent.parent: parent.layouts_left for parent in of_commit if parent.layouts_left}:
            if rounds := now.model.paired:  # paired runs compare the commit with one parent after the other
                missing = dict([next(iter(missing.items()))])
            of_parents = (PlannedRuns(parent, runs) for parent, runs in missing.items())
            plan = (PlannedRuns(candidate, max(missing.values())), *of_parents)
            host, results = now.fleet.next_host, _smallest_difference(of_commit).layouts
            return Measure(plan, Purpose.CONFIRM, host, True, results, together=rounds)
    return None


def _with_layout_comparisons(verdict: Verdict | Measure, comparisons: Comparisons) -> Verdict:
    """The verdict, to which the comparison in randomized layouts is added for each named commit. For a merge, this is
    the comparison with the parent that differs least from the commit."""

    def with_comparison(step: Step) -> Step:
        return replace(step, layouts=_smallest_difference(comparisons[step.candidate]).layouts)

    if isinstance(verdict, Found):
        return Found(with_comparison(verdict.step))
    assert isinstance(verdict, Several)
    worse, better = (tuple(map(with_comparison, steps)) for steps in (verdict.steps, verdict.improvements))
    return replace(verdict, steps=worse, improvements=better)


def _smallest_difference(comparisons: Sequence[LayoutComparison]) -> LayoutComparison:
    """The comparison that shows the smallest difference, among the comparisons of a commit with its parents."""
    return min(comparisons, key=lambda comparison: comparison.randomized.drop if comparison.randomized else math.inf)


def _combined_with_comparisons(
    decision: Decision, usual: Verdict | Measure, comparisons: Comparisons, randomized: Situation
) -> Decision:
    """The decision of the search that uses only runs in randomized layouts, combined with the comparisons of the
    commits that the search in the usual layout named."""
    match decision.order:
        case Found() | Several() as verdict:
            of_verdict = {step.candidate: compare_with_parents(randomized, step) for step in all_steps(verdict)}
            if all(comparison.shows_difference for of_step in of_verdict.values() for comparison in of_step):
                return replace(decision, order=_with_layout_comparisons(verdict, of_verdict))
            unproven = with_suspects(decision.belief, randomized.policy, Reason.NOT_CONFIRMED)
            return replace(decision, order=_further_layouts(of_verdict, randomized) or unproven)
        case NotReproduced(ratio, detectable) if comparisons:
            return replace(decision, order=_code_placement(usual, comparisons, ratio, detectable))
        case Inconclusive(ratio=ratio, reason=Reason.TOO_NOISY) if comparisons and ratio.low < 1 < ratio.high:
            drop = max(1 - ratio.low, ratio.high - 1)  # an upper limit of any remaining change
            return replace(decision, order=_code_placement(usual, comparisons, ratio, drop))
        case _:
            return decision


def _code_placement(
    usual: Verdict | Measure, comparisons: Comparisons, ratio: Interval, detectable: float
) -> CodePlacement:
    """The verdict that code placement caused a change: the largest change that runs in the usual layout show and runs
    in randomized layouts do not show.
    """
    moved = [
        step for step in all_steps(usual) if not all(result.shows_difference for result in comparisons[step.candidate])
    ]
    step = max(moved, key=lambda step: abs(math.log(step.ratio.middle)))
    layouts = _smallest_difference(comparisons[step.candidate]).layouts
    return CodePlacement(replace(step, layouts=layouts), ratio, detectable)
