"""Exact counts of instructions beside timed runs: the next build to count, and the prior of the culprit by counts.

A count costs less than a build, is repeatable, and shows every change of the instructions. A count shows nothing of
memory access and of waiting. So counts are evidence for the search by time, and not a metric. If the ends differ in
instructions about as much as in time, the commit that changes the instructions probably changes the time. If the ends
differ alike in both, the prior of the search by time is a mixture. The share ``SHARE`` of this prior is proportional to
the rise of the count between neighbouring builds, and the rest is the prior without counts. So counts alone exclude no
commit and name no commit, and the time of the culprit and of its parents is always measured.

If perf counts during each timed run (``WITH_RUNS``), counts are noisy and cost nothing, and the runs of a visit
together are one count.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.orders import Measure, PlannedRuns, Purpose
from perfbisect.core.domain.settings import WITH_RUNS, Direction
from perfbisect.core.inference.analysis import PLAIN, Analysis, Contrast, min_log_change
from perfbisect.core.inference.ancestry import Hypotheses, separate_hypotheses
from perfbisect.core.inference.instruction_counts import CLEAR, COUNTS, GUESS, RESOLVED
from perfbisect.core.inference.noise_model import EXACT
from perfbisect.core.inference.observations import Built, Count, Observation, Reading, Skipped
from perfbisect.core.inference.record import Record
from perfbisect.core.search.acquisition import expected_runs
from perfbisect.core.search.build_forecast import build_chances
from perfbisect.core.search.situation import Situation

Array = NDArray[np.float64]

SHARE = 0.5  # probability that time and instructions change at the same commit, if the ends differ alike in both
# A log difference of the instructions explains a log difference of the time if their ratio is between
# these limits.
LEAST, MOST = 0.25, 4.0
LIKELY = 0.2  # builds of a part of the range are counted if the time changes in the part with at least this probability
# From this probability on, builds of a part of the range are not timed until the proof of a culprit needs their times.
AGREED = 0.95
CHECK_RUNS = 4  # timed runs of each counted build, before another build is counted
DOUBT = 2.0  # standard errors by which the difference of time may be larger or smaller
SHORT = 30.0  # longest time of a count of an end, in seconds, if the cost of a count relative to a build is unknown
LARGE = 0.1  # log difference of the ends; for larger differences few runs of a build show as much as a count


def count_situation(now: Situation) -> Situation | None:
    """The situation of a search by counts alone; None if nothing is counted, or if an end cannot be counted."""
    if now.prior.count_cost is None or now.model.exact:
        return None
    counted: list[Observation] = []
    with_runs = now.prior.count_cost == WITH_RUNS
    for item in now.observations:
        if isinstance(item, Count) and math.isnan(item.value):
            if item.candidate in (0, now.bad):
                return None
            counted.append(Skipped(item.candidate, "not counted"))
        elif isinstance(item, Count):
            counted.append(Reading(item.candidate, item.value, item.at, len(counted), item.host, item.seconds))
        elif isinstance(item, Built | Skipped):
            counted.append(item)
        elif with_runs and item.count is not None and not (item.host or item.bound):
            counted.append(replace(item, value=item.count))
    prior = replace(now.prior, exact=True, noise=None, host_classes=())
    direction = Direction.DROP if now.record.sign > 0 else Direction.RISE  # as in ``Count.value``
    policy = replace(now.policy.for_counts(), layouts=False, all_steps=False, direction=direction)
    return replace(now, observations=counted, prior=prior, policy=policy, model=EXACT).charged_for(now)


def ends_to_count(counts: Situation, timed: Situation, analysis: Analysis) -> Measure | None:
    """The order that counts the ends; None if the ends are counted already, or if a count costs too much.

    The bad end is counted twice if the counts of the ends differ.
    """
    record, ends = counts.record, (timed.bad, 0)
    if any(end in record.skipped for end in ends) or timed.fleet.free_host != 0:
        return None
    differ = all(record.run_count(end) for end in ends) and MeanCounts.of(counts).rise(timed.bad, 0) > RESOLVED
    plan = tuple(PlannedRuns(end, 1) for end in ends if record.run_count(end) < 1 + (differ and end != 0))
    if not plan or not _counting_pays(counts, timed, analysis):
        return None
    return Measure(plan, Purpose.ENDS, counted=True)


def _counting_pays(counts: Situation, timed: Situation, analysis: Analysis) -> bool:
    """Whether a count costs less than building and timing a commit; the first count may take up to ``SHORT`` seconds."""
    (fixed, times), run, ends = (
        timed.prior.count_cost or (math.inf, 0.0),
        timed.record.median_run_seconds,
        analysis.ends,
    )
    if timed.prior.count_cost == WITH_RUNS or ends.drop > max(PLAIN * ends.noise, LARGE):
        return False
    candidates = max(len(timed.graph.candidates), 2)
    drop = float(np.clip(ends.drop, min_log_change(timed.policy), LARGE))
    runs = expected_runs(candidates, -math.expm1(-drop), ends.noise, timed.build_runs) / math.log2(candidates)
    saved = (timed.build_runs + runs) * run
    if not len(counts.record.value):
        return fixed + times * run < max(saved, SHORT)
    return counts.record.median_run_seconds < saved


@dataclass(frozen=True, slots=True)
class MeanCounts:
    """The mean count of each build in log units, over its visits, and the square of the standard error of the mean."""

    record: Record
    by_build: Mapping[int, tuple[float, float]]

    @classmethod
    def of(cls, counts: Situation) -> "MeanCounts":
        """The mean counts of all counted builds; a guess of the noise of a count has the weight of one count."""
        record, guess = counts.record, GUESS if counts.prior.count_cost == WITH_RUNS else EXACT.guessed_noise
        visits = {}
        for build in record.builds:
            rows = record.reading_positions(build)
            visits[build] = [
                float(np.mean(record.value[rows][record.visit[rows] == v])) for v in np.unique(record.visit[rows])
            ]
        squares = guess**2 + sum(float(np.var(means)) * len(means) for means in visits.values())
        variance = squares / (1 + sum(len(means) - 1 for means in visits.values()))
        return cls(record, {build: (float(np.mean(means)), variance / len(means)) for build, means in visits.items()})

    def rise(self, slow: int, fast: int) -> float:
        """The logarithm of the quotient of the counts of ``slow`` and ``fast``."""
        return self.by_build[self.record.name_of_build(fast)][0] - self.by_build[self.record.name_of_build(slow)][0]

    def clear_rise(self, slow: int, fast: int) -> float:
        """The logarithm of the quotient of the counts of ``slow`` and ``fast``; 0 if the difference may be noise."""
        rise, error = (
            self.rise(slow, fast),
            math.sqrt(sum(self.by_build[self.record.name_of_build(v)][1] for v in (slow, fast))),
        )
        return rise if rise > max(RESOLVED, CLEAR * error) else 0.0


def count_rise(counts: Situation) -> float:
    """The log difference of the counts of bad and good in the hunted direction; 0 unless repeated counts show it."""
    record = counts.record
    visits = [np.unique(record.visit[record.reading_positions(end)]) for end in (0, counts.bad)]
    is_repeated = len(visits[0]) and len(visits[1]) >= COUNTS
    return MeanCounts.of(counts).clear_rise(counts.bad, 0) if is_repeated else 0.0


def explains_time(counted: float, timed: Contrast, smallest: float) -> bool:
    """Whether the ends differ in instructions (``counted``, log units) about as much as in time, or as ``smallest``."""
    low, high = max(timed.drop - DOUBT * timed.error, smallest), timed.drop + DOUBT * timed.error
    return counted > 0 and LEAST * low <= counted <= MOST * high


@dataclass(frozen=True, slots=True, eq=False)
class CountRises:
    """The rise of the count in each part of the range between counted builds."""

    groups: Hypotheses  # a group: candidates that no count separates
    rise: Array  # (C,) of the count in each group, log units; 0 if the count does not rise
    neighbours: Mapping[int, tuple[int, int]]  # group → the nearest counted builds before and after the group

    @classmethod
    def of(cls, counts: Situation) -> "CountRises":
        """The rises between the nearest counted builds on both sides of each group."""
        record, mean_counts = counts.record, MeanCounts.of(counts)
        groups = separate_hypotheses(counts.graph, record)
        rise, neighbours = np.zeros(len(groups.prior)), dict[int, tuple[int, int]]()
        for group in range(len(rise)):
            sides = list(zip(record.builds, groups.slow[:, group].tolist(), strict=True))
            slow = min((build for build, is_slow in sides if is_slow), default=None)
            if slow is None:  # a change was reverted: the bad end has the binary of an earlier build
                continue
            below = groups.ancestry.ancestors(slow)
            earlier = [build for build, is_slow in sides if below[build] and not is_slow] or [0]
            nearest = [
                b for b in earlier if not any(groups.ancestry.ancestors(later)[b] for later in earlier if later != b)
            ]
            # a merged branch lacks the changes of the other branches
            fast = min(nearest, key=lambda build: mean_counts.rise(slow, build))
            rise[group], neighbours[group] = mean_counts.clear_rise(slow, fast), (fast, slow)
        return cls(groups, rise, neighbours)

    @property
    def prior(self) -> Array | None:
        """The prior of each candidate by counts, (size,), proportional to the rise; None if no count rises."""
        return self.groups.candidate_probabilities(self.rise / self.rise.sum()) if self.rise.any() else None

    def next_order(self, counts: Situation, timed: Situation, analysis: Analysis) -> Measure | None:
        """The next order of the search by counts: the count of a build, or the first runs of a counted build.

        The result is None if time shows that the change is at other commits, or if only time separates the candidates.
        """
        if timed.fleet.free_host != 0 or not _counting_pays(counts, timed, analysis):
            return None
        groups, culprit, record = self.groups, analysis.belief.culprit, timed.record
        excluded = [*record.skipped, *counts.record.skipped, *counts.record.builds, *counts.record.build_name]
        chance = build_chances(timed)
        chance[excluded] = 0.0
        if timed.fleet.has_build_host or not timed.budget.may_build:  # in this case only existing builds are counted
            chance = np.where(np.isin(np.arange(timed.graph.size), [*record.built_on_any_host]), chance, 0.0)
        likely = np.bincount(groups.class_of[groups.class_of >= 0], culprit[groups.class_of >= 0], len(self.rise)) * (
            self.rise > 0
        )
        for group in np.argsort(-likely, kind="stable"):
            if likely[group] < LIKELY:
                return None
            for build in self.neighbours[int(group)]:
                if likely[group] < AGREED and not record.run_count(build) and build not in record.skipped:
                    plan = (
                        PlannedRuns(build, CHECK_RUNS),
                        PlannedRuns(0, CHECK_RUNS if analysis.model.paired else CHECK_RUNS // 2),
                    )
                    return analysis.model.measurement(plan, Purpose.SEARCH)
            inside = groups.class_of == group
            below = groups.ancestry.ancestor_sums(np.where(inside, culprit, 0.0))
            promise = np.nan_to_num(np.where(inside, below * (likely[group] - below) * chance, 0.0))
            if promise.max() > 0:
                return Measure((PlannedRuns(int(promise.argmax()), 1),), Purpose.SEARCH, counted=True)
        return None
