"""Simulates builds and measurements, to test searches without real hosts: a history with a known culprit, measured on
hosts with known properties, which the search does not know.

The logarithm of the metric of a run is the sum of the build's level, the effect of the layout, the speed of the host at
that time, the effect of the visit, and noise. The noise is sometimes an outlier, or has a second mean, as on a host
with two speeds.

Each build has a usual layout. If a build is linked again, a new layout is drawn at random. Two worlds with equal seeds
and equal parameters behave in the same way. The noise of the n-th run of a build, and the effect of the build's n-th
visit, are the same whenever the run or the visit takes place.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Measure, interleave
from perfbisect.core.inference.ancestry import ancestry_of
from perfbisect.core.inference.observations import Built, Count, Observation, Reading, Skipped
from perfbisect.core.search.older_branches import branch_point_of
from perfbisect.simulate.host_model import HostModel, HostSpeed, RandomDraw, random_generator

COUNTED = 3e-6  # s.d. of an exact count
SAME_SIZE = 0.999  # a drop of at least this share of the largest drop counts as equally large
NO_BUILD = "does not build"  # reason of a candidate that is skipped because its build fails


def world_host_number(build_host: int) -> int:
    """The number by which a world stores build host ``build_host``: -1 for build host 0, -2 for build host 1, and so
    on. The function is its own inverse."""
    return ~build_host


@dataclass(slots=True, eq=False)
class World:
    """A simulated history, and simulated hosts that make and measure builds. ``steps`` maps each candidate that changes
    the speed to its change of the logarithm of the metric.

    Each host has its own compiler cache. A build of a build host can be measured on all hosts. The clock of a host
    shows the seconds that its simulated work has taken.
    """

    graph: Graph
    steps: Mapping[int, float]
    habits: HostModel = field(default_factory=HostModel)
    unbuildable: frozenset[int] = frozenset()
    crashing: frozenset[int] = frozenset()  # candidates that build, but crash in every run
    spoiled: frozenset[int] = frozenset()  # builds whose first two runs are outliers
    older_branch_changes: Mapping[int, float] = field(default_factory=dict)  # branch point → log difference from good
    binaries: Mapping[int, int] = field(default_factory=dict)  # candidate → an earlier candidate with the same binary
    layouts: Mapping[int, float] = field(default_factory=dict)  # candidate → effect of its usual layout; others: random
    mode_gap: float = 0.0  # log gap between two modes of layout
    slow_modes: frozenset[int] = frozenset()  # candidates whose usual layout is in the slow mode
    culprits: frozenset[int] | None = None  # the right culprits; None: the candidates with the largest drops
    counts: Mapping[int, float] = field(default_factory=dict)  # candidate → change of the log of instructions
    seed: int = 0
    runs: int = 0
    builds: int = 0  # number of builds on all hosts and build hosts
    cancelled: int = 0  # builds that were ended before they were finished
    links: int = 0  # builds that were linked again
    build_seconds: dict[int, float] = field(default_factory=dict)  # seconds by candidate, with failed attempts
    _clocks: dict[int, float] = field(default_factory=dict)
    _host_speeds: dict[int, HostSpeed] = field(default_factory=dict)
    _generators: dict[tuple[RandomDraw, int], np.random.Generator] = field(default_factory=dict)
    _runs_of_build: Counter[int] = field(default_factory=Counter)
    _measured: set[int] = field(default_factory=set)  # candidates that were run
    _source_effects: dict[int, float] = field(default_factory=dict)  # without layouts
    _links_of_build: Counter[int] = field(default_factory=Counter)
    _builds_of_host: dict[int, list[int]] = field(default_factory=dict)  # host → candidates that it has built, in order
    _builds_of_build_hosts: list[int] = field(default_factory=list)  # candidates that build hosts have built
    # Candidates whose present build is incremental. Candidate with a stale build → the candidate whose speed this build
    # has.
    _incremental: set[int] = field(default_factory=set)
    _stale: dict[int, int] = field(default_factory=dict)

    @property
    def now(self) -> float:
        """The seconds since the hunt began, by the clock that is furthest ahead among the hosts that measure."""
        return max((at for host, at in self._clocks.items() if host >= 0), default=0.0)

    @property
    def right_culprits(self) -> frozenset[int]:
        """The candidates that are correct as a culprit: the culprit, or, if several largest drops are equal, each of
        these."""
        largest = min(self.steps.values(), default=0.0)
        drops = frozenset(v for v, size in self.steps.items() if largest < 0 and size <= SAME_SIZE * largest)
        return drops if self.culprits is None else self.culprits

    @property
    def unused_builds(self) -> int:
        """The number of builds of build hosts whose binaries were never run."""
        tried = {self.binaries.get(v, v) for v in self._measured}
        return sum(self.binaries.get(v, v) not in tried for v in self._builds_of_build_hosts)

    def measure(self, order: Measure) -> list[Observation]:
        """Carry out the work order ``order`` up to the first candidate that fails, and return the observations."""
        observations: list[Observation] = []
        for share in order.plan:
            outcome = self.build(share.candidate, order.host, incremental=order.incremental)
            observations += [outcome] if outcome else []
            if isinstance(outcome, Skipped):
                return observations
        if order.counted:
            candidates = [share.candidate for share in order.plan for _ in range(share.runs)]
            return observations + [self._make_exact_count(candidate, order.host) for candidate in candidates]
        seconds = self.habits.run_seconds
        if order.together:
            return observations + self._paired_readings(order)
        for candidate, neighbours in groupby(interleave(order.plan)):
            for again, _ in enumerate(neighbours):
                if order.fresh or not again:
                    visit, effect = self.runs + 1, self._draw_visit_effect(candidate)
                layout = self.relink(candidate, order.host) if order.fresh else 0
                value = self.run(candidate, order.host, effect, layout)
                if value is None:
                    return [*observations, Skipped(candidate, "crashes", seconds)]
                middle = (self.clock(order.host) - seconds / 2) / 60
                number = visit if self.habits.visits else self.runs  # without visit effects, each run is a visit
                cost = seconds + (self.habits.link_seconds if layout else 0.0)
                count = self._noisy_log_count(candidate, self.habits.counts) if self.habits.counts else None
                reading = Reading(candidate, value, middle, number, order.host, cost, layout=layout, count=count)
                observations.append(self._with_cpu_time(reading))
        return observations

    def _make_exact_count(self, candidate: int, host: int) -> Count:
        """Simulate an exact count of the instructions of a build, and move the host's clock forward."""
        seconds = self.habits.count_seconds
        self.wait(host, self.clock(host) + seconds)
        return Count(candidate, self._noisy_log_count(candidate, COUNTED), self.clock(host) / 60, seconds, host)

    def _noisy_log_count(self, candidate: int, noise: float) -> float:
        """The logarithm of a build's number of instructions, with random noise of the size ``noise``. Code placement
        has no effect on this number."""
        binary = self.binaries.get(candidate, candidate)
        below = ancestry_of(self.graph).with_ancestors(self._stale.get(binary, binary))
        change = sum(size for step, size in self.counts.items() if below[step])
        return -change - noise * float(self._generator(RandomDraw.COUNTS, candidate).normal())

    def _paired_readings(self, order: Measure) -> list[Observation]:
        """The readings of the paired runs that the work order ``order`` asks for."""
        first, second = (share.candidate for share in order.plan)
        observations: list[Observation] = []
        seconds = self.habits.run_seconds * self.habits.round_runs
        for _ in range(order.plan[0].runs):
            self.runs += 2
            self._measured |= {first, second}
            self.wait(order.host, self.clock(order.host) + seconds)
            if failed := {first, second} & self.crashing:
                return [*observations, Skipped(min(failed), "crashes", seconds)]
            rng = self._generator(RandomDraw.ROUNDS, first * self.graph.size + second)
            own_noise = self.habits.own_noise * float(rng.normal() - rng.normal())
            noise = own_noise + self._draw_visit_effect(first) - self._draw_visit_effect(second)
            starved, size = float(rng.random()), float(rng.normal())
            share, most = self.habits.starved
            unfair = most * size * (starved < share)
            layout, beside = (self.relink(candidate, order.host) if order.fresh else 0 for candidate in (first, second))
            value = self.habits.kept * (self.level(first, layout) - self.level(second, beside)) + noise
            middle = (self.clock(order.host) - seconds / 2) / 60
            cpu = value + self.habits.kept * (self._stall_effect(first) - self._stall_effect(second))
            visit = first, value + unfair, middle, self.runs, order.host, seconds
            cpu_value = cpu if self.habits.waits else None
            observations.append(Reading(*visit, layout=layout, partner=second, cpu_value=cpu_value))
        return observations

    def _with_cpu_time(self, reading: Reading) -> Reading:
        """The reading of an interleaved run, to which CPU time, and the effect of waiting for other processes, are
        added."""
        if not self.habits.waits:
            return reading
        wait = self.habits.waits * float(self._generator(RandomDraw.WAITS, reading.candidate).exponential())
        stalled = self._stall_effect(reading.candidate)
        return replace(reading, value=reading.value - wait, cpu_value=reading.value + stalled, log_wait=wait + stalled)

    def _stall_effect(self, candidate: int) -> float:
        """The effect of the waiting that a build's source causes, on the logarithm of the metric."""
        return -self.habits.stalls * self._source_effect(self.binaries.get(candidate, candidate))

    def build(self, candidate: int, host: int = 0, *, incremental: bool = False) -> Built | Skipped | None:
        """Make a build; return None if the host already has the build. A clean build replaces an incremental build."""
        built = self._builds_of_host.setdefault(host, [])
        if candidate in built or (host >= 0 and candidate in self._builds_of_build_hosts):
            if incremental or candidate not in self._incremental:
                return None
            self._incremental.discard(candidate)
            self._stale.pop(candidate, None)
            built[:] = [kept_candidate for kept_candidate in built if kept_candidate != candidate]
        seconds = self._build_duration(candidate, built)
        self.builds += 1
        self.build_seconds[candidate] = self.build_seconds.get(candidate, 0.0) + seconds
        self.wait(host, self.clock(host) + seconds)
        fails = candidate in self.unbuildable
        if self.habits.flaky and candidate not in (0, self.graph.size - 1) and not fails:  # each attempt is random
            fails = bool(self._generator(RandomDraw.FLAKES, candidate).random() < self.habits.flaky)
        if fails:
            return Skipped(candidate, NO_BUILD, seconds)
        binary = self.binaries.get(candidate, candidate)
        near = [*built, *self._builds_of_build_hosts]
        same_as = next((v for v in near if v != candidate and self.binaries.get(v, v) == binary), None)
        if incremental and built:
            self._incremental.add(candidate)
            rng = self._generator(RandomDraw.STALE, candidate)
            if rng.random() < self.habits.stale:
                self._stale[candidate] = self._stale.get(built[-1], built[-1])
                same_as = built[-1] if rng.random() < 0.5 else None
        built.append(candidate)
        in_tree = candidate in self._incremental
        if host < 0:
            return Built(candidate, seconds, same_as, build_host=world_host_number(host), incremental=in_tree)
        return Built(candidate, seconds, same_as, host, incremental=in_tree)

    def add_existing_build(self, candidate: int, host: int = 0) -> None:
        """Record that a host already has a build, because another workload of the session has made the same build."""
        if candidate not in (built := self._builds_of_host.setdefault(host, [])):
            built.append(candidate)

    def add_build_for_all_hosts(self, candidate: int) -> None:
        """Record that a build host has finished a build, which all hosts can then measure."""
        self._builds_of_build_hosts.append(candidate)

    def cancel(self, candidate: int, build_host: int, unspent_seconds: float) -> None:
        """Cancel a build on a build host, ``unspent_seconds`` seconds before the end of the build."""
        self.cancelled += 1
        self.build_seconds[candidate] -= unspent_seconds
        if candidate in self._builds_of_host[world_host_number(build_host)]:
            self._builds_of_host[world_host_number(build_host)].remove(candidate)
        self._clocks[world_host_number(build_host)] -= unspent_seconds

    def relink(self, candidate: int, host: int = 0) -> int:
        """Link a build again, which gives it a new random layout; return the number of the layout (the first is 1)."""
        self.links += 1
        self._links_of_build[candidate] += 1
        self.wait(host, self.clock(host) + self.habits.link_seconds)
        return self._links_of_build[candidate]

    def run(self, candidate: int, host: int = 0, visit: float | None = None, layout: int = 0) -> float | None:
        """The logarithm of the metric of one run; None if the run or the build fails. A missing build is made first.

        ``visit`` is the effect of the visit, which is the same for all its runs; if None, the run begins a new visit.
        ``layout`` 0 is the usual layout.
        """
        if isinstance(self.build(candidate, host, incremental=True), Skipped):
            return None
        habits = self.habits
        self.wait(host, self.clock(host) + habits.run_seconds)
        self.runs += 1
        self._measured.add(candidate)
        if candidate in self.crashing:
            return None
        if host not in self._host_speeds:
            self._host_speeds[host] = HostSpeed(habits, self.seed, host)
        course = self._host_speeds[host].value_at(self.clock(host) - habits.run_seconds / 2)
        effect = self._draw_visit_effect(candidate) if visit is None else visit
        return self.level(candidate, layout) + course + effect + self._draw_run_noise(candidate, host)

    def level(self, candidate: int, layout: int = 0) -> float:
        """The true logarithm of the metric of a build in one layout."""
        binary = self.binaries.get(candidate, candidate)
        return self._source_effect(self._stale.get(binary, binary)) + self._layout_effect(binary, layout)

    def _layout_effect(self, binary: int, layout: int) -> float:
        """The effect of a build's layout on the logarithm of the metric; layout 0 is the usual layout."""
        if layout:
            rng = np.random.default_rng([self.seed, int(RandomDraw.LINKS), binary, layout])
            return float(rng.normal()) * self.habits.layout - self.mode_gap * float(rng.random() < 0.5)
        if binary in self.layouts:
            return self.layouts[binary]
        usual = float(random_generator(self.seed, RandomDraw.LAYOUT, binary).normal()) * self.habits.layout
        return usual - self.mode_gap * (binary in self.slow_modes)

    def _source_effect(self, binary: int) -> float:
        """The effect of a build's source on the logarithm of the metric."""
        if binary not in self._source_effects:
            below = ancestry_of(self.graph).with_ancestors(binary)
            change = sum(size for step, size in self.steps.items() if below[step])
            if self.older_branch_changes:
                change += self.older_branch_changes.get(int(branch_point_of(self.graph)[binary]), 0.0)
            if random_generator(self.seed, RandomDraw.BUILD, binary).random() < self.habits.second_build[0]:
                change += self.habits.second_build[1]
            self._source_effects[binary] = change
        return self._source_effects[binary]

    def clock(self, host: int = 0) -> float:
        """The seconds since the hunt began, by the clock of the given host."""
        return self._clocks.get(host, 0.0)

    def wait(self, host: int, until: float) -> None:
        """Move the clock of a host forward to the time ``until``; if the clock is already later, do nothing."""
        self._clocks[host] = max(self.clock(host), until)

    def _generator(self, purpose: RandomDraw, candidate: int) -> np.random.Generator:
        """The random generator for one ``purpose`` of a candidate. All calls return the same generator object, so that
        its random numbers are not repeated."""
        key = purpose, candidate
        if key not in self._generators:
            self._generators[key] = random_generator(self.seed, *key)
        return self._generators[key]

    def _draw_visit_effect(self, candidate: int) -> float:
        """Draw the effect of the next visit of a build, which is the same for all runs of the visit."""
        if not self.habits.visits:
            return 0.0
        return self.habits.visits * float(self._generator(RandomDraw.VISITS, candidate).normal())

    def _build_duration(self, candidate: int, built: Collection[int]) -> float:
        """The duration of a build in seconds. The build is faster if one of ``built`` is close to it in the range,
        because of the compiler cache."""
        habits, distance = self.habits, min((abs(candidate - v) for v in built), default=math.inf)
        return habits.build_seconds * min(1.0, habits.cached_share + distance / habits.cache_reach)

    def _draw_run_noise(self, candidate: int, host: int) -> float:
        """Draw the noise of the next run of a build, which is added to the logarithm of the metric."""
        habits = self.habits
        rng = self._generator(RandomDraw.NOISE, candidate)
        draw, outlier, second = float(rng.normal()), float(rng.random()), float(rng.random())
        self._runs_of_build[candidate] += 1
        noise = habits.noise * draw * (habits.bad_host if host == 1 else 1.0)
        if habits.slow_noise != 1:
            below = ancestry_of(self.graph).with_ancestors(candidate)
            noise *= habits.slow_noise if any(below[v] for v in self.right_culprits) else 1.0
        if outlier < habits.outliers or (candidate in self.spoiled and self._runs_of_build[candidate] <= 2):
            noise = abs(10 * noise) * (1 if outlier < habits.outliers * habits.lucky else -1)
        return noise + (habits.second_speed[1] if second < habits.second_speed[0] else 0.0)
