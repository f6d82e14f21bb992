"""Uses exact counts of instructions to shorten a search that measures time: chooses the next build to count, and
computes the prior probability of each candidate from the counts.

A count costs less than a build, is repeatable, and shows every change in the number of instructions. But a count does
not show the time of memory accesses and of waiting, so counts cannot replace the metric. If good and bad differ in
instructions about as much as in time, the commit that changes the instructions probably changes the time. Then the
search uses a prior that is a mixture: the share ``SHARE`` is proportional to the rise of the count between neighbouring
counted builds, and the rest is the usual prior. So counts alone neither exclude nor name a commit, and the time of the
culprit and of its parents is always measured.

If perf counts instructions during each timed run (``WITH_RUNS``), counts are noisy and have no cost, and the mean over
the runs of a visit is used as one count.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.orders import Measure, PlannedRuns, Purpose
from perfbisect.core.domain.settings import WITH_RUNS, ChangeDirection
from perfbisect.core.inference.analysis import PLAIN, Analysis, Contrast, min_log_change
from perfbisect.core.inference.ancestry import Hypotheses, distinguishable_hypotheses
from perfbisect.core.inference.instruction_counts import CLEAR, COUNTS, GUESS, RESOLVED
from perfbisect.core.inference.noise_model import EXACT
from perfbisect.core.inference.observations import Built, Count, Observation, Reading, Skipped
from perfbisect.core.inference.record import Record
from perfbisect.core.search.acquisition import expected_runs
from perfbisect.core.search.build_forecast import build_success_chances
from perfbisect.core.search.situation import Situation

Array = NDArray[np.float64]

SHARE = 0.5  # probability that time and instructions change at the same commit, if both differ alike between the ends
# A difference of instructions explains a difference of time if the ratio of the two differences (as logarithms) is
# between these limits.
LEAST, MOST = 0.25, 4.0
LIKELY = 0.2  # builds of a part of the range are counted if the time changes in the part with at least this probability
# If the time changes in a part of the range with at least this probability, the part's builds are counted, and are
# timed only if the proof of a culprit needs their times.
AGREED = 0.95
CHECK_RUNS = 4  # a counted build gets this number of timed runs before another build is counted
DOUBT = 2.0  # the true difference of time is at most DOUBT standard errors from the measured difference
SHORT = 30.0  # an end is counted for at most this number of seconds if the cost of a build is unknown
LARGE = 0.1  # if the log difference of the ends is larger, a few runs of a build show as much as a count


def count_situation(now: Situation) -> Situation | None:
    """The situation (graph, observations, rules) in which counts replace times; None if nothing is counted, or if good
    or bad cannot be counted.
    """
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
    # If a higher metric is better (sign > 0), more instructions are a lower ``Count.value``.
    direction = ChangeDirection.DROP if now.record.sign > 0 else ChangeDirection.RISE
    policy = replace(now.policy.for_exact_count(), layouts=False, all_steps=False, direction=direction)
    return replace(now, observations=counted, prior=prior, policy=policy, model=EXACT).charged_with(now)


def ends_to_count(counts: Situation, timed: Situation, analysis: Analysis) -> Measure | None:
    """The work order that counts the instructions of the ends; None if the ends are counted already, or if a count
    costs too much.

    The bad end is counted twice if the counts of the ends differ.
    """
    record, ends = counts.record, (timed.bad, 0)
    if any(end in record.skipped for end in ends) or timed.fleet.next_host != 0:
        return None
    differ = all(record.run_count(end) for end in ends) and MeanCounts.of(counts).rise(timed.bad, 0) > RESOLVED
    plan = tuple(PlannedRuns(end, 1) for end in ends if record.run_count(end) < 1 + (differ and end != 0))
    if not plan or not _counting_pays(counts, timed, analysis):
        return None
    return Measure(plan, Purpose.ENDS, counted=True)


def _counting_pays(counts: Situation, timed: Situation, analysis: Analysis) -> bool:
    """Whether a count costs less than building and timing a commit. For the first count, the result is also true if the
    count takes less than ``SHORT`` seconds.
    """
    fixed, times = timed.prior.count_cost or (math.inf, 0.0)
    run, ends = timed.record.median_run_seconds, analysis.ends
    if timed.prior.count_cost == WITH_RUNS or ends.drop > max(PLAIN * ends.noise, LARGE):
        return False
    candidates = max(len(timed.graph.candidates), 2)
    drop = float(np.clip(ends.drop, min_log_change(timed.policy), LARGE))
    runs = expected_runs(candidates, -math.expm1(-drop), ends.noise, timed.build_cost_in_runs) / math.log2(candidates)
    saved = (timed.build_cost_in_runs + runs) * run
    if not len(counts.record.value):
        return fixed + times * run < max(saved, SHORT)
    return counts.record.median_run_seconds < saved


@dataclass(frozen=True, slots=True)
class MeanCounts:
    """The mean of the logarithms of each build's counts over its visits, and the square of the standard error of the
    mean."""

    record: Record
    by_build: Mapping[int, tuple[float, float]]

    @classmethod
    def of(cls, counts: Situation) -> "MeanCounts":
        """The mean counts of all counted builds. The noise is estimated from the counts, combined with an assumed noise
        that has the weight of one count.
        """
        record, guess = counts.record, GUESS if counts.prior.count_cost == WITH_RUNS else EXACT.guessed_noise
        visits = {}
        for build in record.builds:
            rows = record.reading_positions(build)
            value, visit = record.value[rows], record.visit[rows]
            visits[build] = [float(np.mean(value[visit == v])) for v in np.unique(visit)]
        squares = guess**2 + sum(float(np.var(means)) * len(means) for means in visits.values())
        variance = squares / (1 + sum(len(means) - 1 for means in visits.values()))
        return cls(record, {build: (float(np.mean(means)), variance / len(means)) for build, means in visits.items()})

    def rise(self, slow: int, fast: int) -> float:
        """The logarithm of the count of ``slow`` divided by the count of ``fast``."""
        return self.by_build[self.record.build_id(fast)][0] - self.by_build[self.record.build_id(slow)][0]

    def clear_rise(self, slow: int, fast: int) -> float:
        """The logarithm of the count of ``slow`` divided by the count of ``fast``; 0 if the difference may be noise."""
        rise = self.rise(slow, fast)
        error = math.sqrt(sum(self.by_build[self.record.build_id(v)][1] for v in (slow, fast)))
        return rise if rise > max(RESOLVED, CLEAR * error) else 0.0


def count_rise(counts: Situation) -> float:
    """The logarithm of the count of bad divided by the count of good, with the sign positive in the hunted direction; 0
    if the difference may be noise, or if bad was not counted repeatedly.
    """
    record = counts.record
    visits = [np.unique(record.visit[record.reading_positions(end)]) for end in (0, counts.bad)]
    is_repeated = len(visits[0]) and len(visits[1]) >= COUNTS
    return MeanCounts.of(counts).clear_rise(counts.bad, 0) if is_repeated else 0.0


def explains_time(count_change: float, timed: Contrast, min_change: float) -> bool:
    """Whether the change from good to bad in instructions, ``count_change``, is about as large as the change in time,
    or as ``min_change``. All changes are differences of logarithms.
    """
    low, high = max(timed.drop - DOUBT * timed.error, min_change), timed.drop + DOUBT * timed.error
    return count_change > 0 and LEAST * low <= count_change <= MOST * high


@dataclass(frozen=True, slots=True, eq=False)
class CountRises:
    """The rise of the count in each part of the range that lies between counted builds."""

    groups: Hypotheses  # groups of candidates; no counted build is between candidates of one group
    rise: Array  # (C,) rise of the count in each group, in log units; 0 if the count does not rise
    neighbours: Mapping[int, tuple[int, int]]  # group → the nearest counted builds: (before the group, after it)

    @classmethod
    def of(cls, counts: Situation) -> "CountRises":
        """The rise of the count over each group of candidates, from the nearest counted build before the group to the
        nearest counted build after the group.
        """
        record, mean_counts = counts.record, MeanCounts.of(counts)
        groups = distinguishable_hypotheses(counts.graph, record)
        rise, neighbours = np.zeros(len(groups.prior)), dict[int, tuple[int, int]]()
        for group in range(len(rise)):
            sides = list(zip(record.builds, groups.slow[:, group].tolist(), strict=True))
            slow = min((build for build, is_slow in sides if is_slow), default=None)
            if slow is None:  # a change was reverted, and the bad end has the binary of an earlier build
                continue
            below = groups.ancestry.with_ancestors(slow)
            earlier = [build for build, is_slow in sides if below[build] and not is_slow] or [0]
            nearest = [
                build
                for build in earlier
                if not any(groups.ancestry.with_ancestors(later)[build] for later in earlier if later != build)
            ]
            # After a merge, several builds are nearest. A build on a merged branch lacks the changes of other branches,
            # so the smallest rise is used.
            fast = min(nearest, key=lambda build: mean_counts.rise(slow, build))
            rise[group], neighbours[group] = mean_counts.clear_rise(slow, fast), (fast, slow)
        return cls(groups, rise, neighbours)

    @property
    def prior(self) -> Array | None:
        """The prior probability of each node, proportional to the rise of the count; None if no count rises."""
        return self.groups.candidate_probabilities(self.rise / self.rise.sum()) if self.rise.any() else None

    def next_order(self, counts: Situation, timed: Situation, analysis: Analysis) -> Measure | None:
        """The next work order of the search by counts: to count a build, or to make the first timed runs of a counted
        build.

        The result is None if the measured times show that the time does not change where the count rises, or if no
        further count can narrow the search.
        """
        if timed.fleet.next_host != 0 or not _counting_pays(counts, timed, analysis):
            return None
        groups, culprit, record = self.groups, analysis.belief.culprit, timed.record
        excluded = [*record.skipped, *counts.record.skipped, *counts.record.builds, *counts.record.build_name]
        chance = build_success_chances(timed)
        chance[excluded] = 0.0
        if timed.fleet.has_build_host or not timed.budget.may_build:  # in this case only existing builds are counted
            chance = np.where(np.isin(np.arange(timed.graph.size), [*record.built_on_any_host]), chance, 0.0)
        possible = groups.class_of >= 0
        likely = np.bincount(groups.class_of[possible], culprit[possible], len(self.rise)) * (self.rise > 0)
        for group in np.argsort(-likely, kind="stable"):
            if likely[group] < LIKELY:
                return None
            for build in self.neighbours[int(group)]:
                if likely[group] < AGREED and not record.run_count(build) and build not in record.skipped:
                    reference_runs = CHECK_RUNS if analysis.model.paired else CHECK_RUNS // 2
                    plan = (PlannedRuns(build, CHECK_RUNS), PlannedRuns(0, reference_runs))
                    return analysis.model.measurement(plan, Purpose.SEARCH)
            inside = groups.class_of == group
            below = groups.ancestry.ancestor_sums(np.where(inside, culprit, 0.0))
            promise = np.nan_to_num(np.where(inside, below * (likely[group] - below) * chance, 0.0))
            if promise.max() > 0:
                return Measure((PlannedRuns(int(promise.argmax()), 1),), Purpose.SEARCH, counted=True)
        return None
