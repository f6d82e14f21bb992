"""Exact counts of instructions beside timed runs: which build is counted next, and how far counts tell where time changed.

A count costs less than a build, repeats, and shows every change of the instructions. It says nothing of memory and of waiting. So
counts are evidence, and no metric: where the ends differ in instructions about as much as in time, the commit that changes
the instructions probably changes the time. Where the count rises, in proportion to how much, is the prior of the search by
time, with ``SHARE``; the rest of the prior knows nothing of counts. So no commit is excluded by counts, and none is named by
them: the time of the culprit and of its parents is measured, as always.

Where perf counts during each timed run (``WITH_RUNS``), counts are noisy and cost nothing: all runs of a visit are one count.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.orders import Measure, Purpose, Share
from perfbisect.core.domain.settings import WITH_RUNS, Direction
from perfbisect.core.inference.analysis import PLAIN, Analysis, Contrast, least
from perfbisect.core.inference.ancestry import Hypotheses, hypotheses
from perfbisect.core.inference.instruction_counts import CLEAR, COUNTS, GUESS, RESOLVED
from perfbisect.core.inference.noise_model import EXACT
from perfbisect.core.inference.observations import Built, Count, Observation, Reading, Skipped
from perfbisect.core.inference.record import Record
from perfbisect.core.search.acquisition import runs_of_one
from perfbisect.core.search.build_forecast import chances
from perfbisect.core.search.situation import Situation

Array = NDArray[np.float64]

SHARE = 0.5  # probability that time changes where the instructions do, where the ends differ alike in both
LEAST, MOST = 0.25, 4.0  # log differences of the instructions that explain one of time, as multiples of it
LIKELY = 0.2  # probability that time changes in a part of the range, from which builds of that part are counted
AGREED = 0.95  # the same, from which builds of that part are not timed before they are compared as the culprit and its parents
CHECKED = 4  # runs of each build that is counted, before the next one is
DOUBT = 2.0  # standard errors by which the difference of time may be larger or smaller
SHORT = 30.0  # seconds that a count of an end may take in any case: what it costs is known then
LARGE = 0.1  # log difference of the ends from which few runs of a build tell as much as its count


def by_counts(now: Situation) -> Situation | None:
    """The search of the same range by counts alone; None where nothing is counted, or an end cannot be."""
    if now.prior.count_cost is None or now.model.exact:
        return None
    seen: list[Observation] = []
    with_runs = now.prior.count_cost == WITH_RUNS
    for each in now.observations:
        if isinstance(each, Count) and math.isnan(each.value):
            if each.candidate in (0, now.bad):
                return None
            seen.append(Skipped(each.candidate, "not counted"))
        elif isinstance(each, Count):
            seen.append(Reading(each.candidate, each.value, each.at, len(seen), each.host, each.seconds))
        elif isinstance(each, Built | Skipped):
            seen.append(each)
        elif with_runs and each.count is not None and not (each.host or each.bound):
            seen.append(replace(each, value=each.count))
    prior = replace(now.prior, exact=True, noise=None, host_classes=())
    direction = Direction.DROP if now.record.sign > 0 else Direction.RISE  # as in ``Count.value``
    policy = replace(now.policy.of_counts(), layouts=False, all_steps=False, direction=direction)
    return replace(now, observations=seen, prior=prior, policy=policy, model=EXACT).charged(now)


def counts_of_ends(counts: Situation, timed: Situation, known: Analysis) -> Measure | None:
    """The order that counts the ends, where counting pays; bad twice where they differ. None where nothing is lacking."""
    record, ends = counts.record, (timed.bad, 0)
    if any(end in record.skipped for end in ends) or timed.fleet.free_host != 0:
        return None
    apart = all(record.runs(end) for end in ends) and Executed.of(counts).more(timed.bad, 0) > RESOLVED
    lacking = tuple(Share(end, 1) for end in ends if record.runs(end) < 1 + (apart and end != 0))
    if not lacking or not _pays(counts, timed, known):
        return None
    return Measure(lacking, Purpose.ENDS, counted=True)


def _pays(counts: Situation, timed: Situation, known: Analysis) -> bool:
    """Whether a count costs less than to build and time a commit; the ends are counted if that takes no longer than ``SHORT``."""
    (fixed, times), run, ends = timed.prior.count_cost or (math.inf, 0.0), timed.record.run_seconds, known.ends
    if timed.prior.count_cost == WITH_RUNS or ends.drop > max(PLAIN * ends.noise, LARGE):
        return False
    candidates = max(len(timed.graph.candidates), 2)
    drop = float(np.clip(ends.drop, least(timed.policy), LARGE))
    runs = runs_of_one(candidates, -math.expm1(-drop), ends.noise, timed.build_runs) / math.log2(candidates)
    spare = (timed.build_runs + runs) * run
    if not len(counts.record.value):
        return fixed + times * run < max(spare, SHORT)
    return counts.record.run_seconds < spare


@dataclass(frozen=True, slots=True)
class Executed:
    """What the builds of a search by counts execute: the mean of the visits of each, log units, and the square of its standard error."""

    record: Record
    known: Mapping[int, tuple[float, float]]

    @classmethod
    def of(cls, counts: Situation) -> "Executed":
        """Those of all builds that were counted; a first guess of the s.d. of a count is worth one count."""
        record, guess = counts.record, GUESS if counts.prior.count_cost == WITH_RUNS else EXACT.noise
        visits = {}
        for build in record.builds:
            at = record.readings(build)
            visits[build] = [
                float(np.mean(record.value[at][record.visit[at] == v])) for v in np.unique(record.visit[at])
            ]
        squares = guess**2 + sum(float(np.var(each)) * len(each) for each in visits.values())
        square = squares / (1 + sum(len(each) - 1 for each in visits.values()))
        return cls(record, {build: (float(np.mean(each)), square / len(each)) for build, each in visits.items()})

    def more(self, slow: int, fast: int) -> float:
        """What one build executes more than another one."""
        return self.known[self.record.name(fast)][0] - self.known[self.record.name(slow)][0]

    def clear(self, slow: int, fast: int) -> float:
        """The same; 0 if that may be noise."""
        found, error = self.more(slow, fast), math.sqrt(sum(self.known[self.record.name(v)][1] for v in (slow, fast)))
        return found if found > max(RESOLVED, CLEAR * error) else 0.0


def difference(counts: Situation) -> float:
    """What bad executes more than good, in log units in the direction that is hunted; 0 unless counts repeat and show it."""
    record = counts.record
    visits = [np.unique(record.visit[record.readings(end)]) for end in (0, counts.bad)]
    known = len(visits[0]) and len(visits[1]) >= COUNTS
    return Executed.of(counts).clear(counts.bad, 0) if known else 0.0


def explained(counted: float, timed: Contrast, smallest: float) -> bool:
    """Whether a difference of ``counted`` between the ends is about as large as that of their time."""
    low, high = max(timed.drop - DOUBT * timed.error, smallest), timed.drop + DOUBT * timed.error
    return counted > 0 and LEAST * low <= counted <= MOST * high


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Where the count rises: between which builds that are counted, and by how much."""

    groups: Hypotheses  # the candidates that no count tells apart
    rise: Array  # (C,) in each group, log units; 0 where the count does not rise
    beside: Mapping[int, tuple[int, int]]  # group → the nearest builds that are counted, on both sides of it

    @classmethod
    def of(cls, counts: Situation) -> "Steps":
        """Those of all builds that were counted, between the nearest ones of each group on both sides."""
        record, by_build = counts.record, Executed.of(counts)
        groups = hypotheses(counts.graph, record)
        rise, beside = np.zeros(len(groups.prior)), dict[int, tuple[int, int]]()
        for group in range(len(rise)):
            sides = list(zip(record.builds, groups.slow[:, group].tolist(), strict=True))
            slow = min((build for build, after in sides if after), default=None)
            if slow is None:  # changes were made and taken back: the bad end has the binary of an earlier build
                continue
            below = groups.reach.ancestors(slow)
            before = [build for build, after in sides if below[build] and not after] or [0]
            nearest = [one for one in before if not any(groups.reach.ancestors(b)[one] for b in before if b != one)]
            # of merged branches each lacks what the others have
            fast = min(nearest, key=lambda build: by_build.more(slow, build))
            rise[group], beside[group] = by_build.clear(slow, fast), (fast, slow)
        return cls(groups, rise, beside)

    @property
    def prior(self) -> Array | None:
        """The prior of each candidate by counts, (size,): in proportion to the rise; None where nothing rises."""
        return self.groups.spread(self.rise / self.rise.sum()) if self.rise.any() else None

    def next(self, counts: Situation, timed: Situation, known: Analysis) -> Measure | None:
        """What the search by counts measures next: a count, or the first runs of a build that was counted.

        None where time shows that the change is elsewhere, or where only time tells candidates apart.
        """
        if timed.fleet.free_host != 0 or not _pays(counts, timed, known):
            return None
        groups, culprit, record = self.groups, known.belief.culprit, timed.record
        gone = [*record.skipped, *counts.record.skipped, *counts.record.builds, *counts.record.same]
        chance = chances(timed)
        chance[gone] = 0.0
        if timed.fleet.builds_ahead or not timed.budget.may_build:  # then only what is built is counted
            chance = np.where(np.isin(np.arange(timed.graph.size), [*record.there]), chance, 0.0)
        likely = np.bincount(groups.of[groups.of >= 0], culprit[groups.of >= 0], len(self.rise)) * (self.rise > 0)
        for group in np.argsort(-likely, kind="stable"):
            if likely[group] < LIKELY:
                return None
            for each in self.beside[int(group)]:
                if likely[group] < AGREED and not record.runs(each) and each not in record.skipped:
                    plan = Share(each, CHECKED), Share(0, CHECKED if known.model.rounds else CHECKED // 2)
                    return known.model.order(plan, Purpose.SEARCH)
            inside = groups.of == group
            below = groups.reach.sums(np.where(inside, culprit, 0.0))
            promise = np.nan_to_num(np.where(inside, below * (likely[group] - below) * chance, 0.0))
            if promise.max() > 0:
                return Measure((Share(int(promise.argmax()), 1),), Purpose.SEARCH, counted=True)
        return None
