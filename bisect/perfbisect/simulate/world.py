"""A simulated lab: a history with a hidden culprit, on hosts with hidden properties.

The log of the metric of one run is level(build) + layout + speed of the host(time) + visit + noise (sometimes an
outlier, or a second speed).

Each build has a usual layout. If a build is linked again, a new layout is drawn at random. Equal seeds give equal
worlds. The n-th run of a build has the same noise at any time, and the n-th visit to a build has the same effect at any
time.
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


def build_host_number(build_host: int) -> int:
    """The number of a build host among all hosts of a world, -1 for build host 0; the function is its own inverse."""
    return ~build_host


@dataclass(slots=True, eq=False)
class World:
    """A simulated lab over ``graph``; ``steps`` are the changes of the log metric by candidate.

    Each host makes its builds with a separate compiler cache. Each build host builds for all hosts, and has the number
    ``build_host_number`` among the hosts. The clocks of hosts count simulated time.
    """

    graph: Graph
    steps: Mapping[int, float]
    habits: HostModel = field(default_factory=HostModel)
    unbuildable: frozenset[int] = frozenset()
    crashing: frozenset[int] = frozenset()  # candidates that build, but crash in every run
    spoiled: frozenset[int] = frozenset()  # builds whose first two runs are outliers
    older_branch_changes: Mapping[int, float] = field(default_factory=dict)  # branch point → log difference from good
    binaries: Mapping[int, int] = field(default_factory=dict)  # candidate → an earlier candidate with the same binary
    layouts: Mapping[int, float] = field(default_factory=dict)  # usual layout effects by candidate, not random
    mode_gap: float = 0.0  # log gap between two modes of layout
    slow_modes: frozenset[int] = frozenset()  # candidates whose usual layout is in the slow mode
    culprits: frozenset[int] | None = None  # the right culprits; None: the candidates with the largest drops
    counts: Mapping[int, float] = field(default_factory=dict)  # changes of the log of instructions by candidate
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
    # Candidates whose present build was made in the tree of another build; and stale candidates → the build with their
    # speed.
    _incremental: set[int] = field(default_factory=set)
    _stale: dict[int, int] = field(default_factory=dict)

    @property
    def now(self) -> float:
        """Seconds since the hunt began, by the latest clock of a measuring host."""
        return max((at for host, at in self._clocks.items() if host >= 0), default=0.0)

    @property
    def right_culprits(self) -> frozenset[int]:
        """The candidates that a verdict may name: the culprit, or each of several drops of equal size."""
        largest = min(self.steps.values(), default=0.0)
        drops = frozenset(v for v, size in self.steps.items() if largest < 0 and size <= SAME_SIZE * largest)
        return drops if self.culprits is None else self.culprits

    @property
    def unused_builds(self) -> int:
        """The number of build hosts' builds that were never run, and have no equal binary that was run."""
        tried = {self.binaries.get(v, v) for v in self._measured}
        return sum(self.binaries.get(v, v) not in tried for v in self._builds_of_build_hosts)

    def measure(self, order: Measure) -> list[Observation]:
        """Carry out ``order``, and return the observations, up to the first candidate that fails."""
        observations: list[Observation] = []
        for share in order.plan:
            outcome = self.build(share.candidate, order.host, incremental=order.incremental)
            observations += [outcome] if outcome else []
            if isinstance(outcome, Skipped):
                return observations
        if order.counted:
            return observations + [
                self._exact_count(share.candidate, order.host) for share in order.plan for _ in range(share.runs)
            ]
        seconds = self.habits.run_seconds
        if order.together:
            return observations + self._paired_readings(order)
        for candidate, neighbours in groupby(interleave(order.plan)):
            for again, _ in enumerate(neighbours):
                if order.fresh or not again:
                    visit, effect = self.runs + 1, self._draw_visit_effect(candidate)
                layout = self.link(candidate, order.host) if order.fresh else 0
                value = self.run(candidate, order.host, effect, layout)
                if value is None:
                    return [*observations, Skipped(candidate, "crashes", seconds)]
                middle = (self.clock(order.host) - seconds / 2) / 60
                number = visit if self.habits.visits else self.runs  # without visit effects, each run is a visit
                cost = seconds + (self.habits.link_seconds if layout else 0.0)
                count = self._count_result(candidate, self.habits.counts) if self.habits.counts else None
                reading = Reading(candidate, value, middle, number, order.host, cost, layout=layout, count=count)
                observations.append(self._with_cpu_time(reading))
        return observations

    def _exact_count(self, candidate: int, host: int) -> Count:
        """Count the instructions of a build exactly; returns the observation, and moves the host's clock forward."""
        seconds = self.habits.count_seconds
        self.wait(host, self.clock(host) + seconds)
        return Count(candidate, self._count_result(candidate, COUNTED), self.clock(host) / 60, seconds, host)

    def _count_result(self, candidate: int, noise: float) -> float:
        """The log of a build's instruction count, with random ``noise``; code placement has no effect on counts."""
        binary = self.binaries.get(candidate, candidate)
        below = ancestry_of(self.graph).ancestors(self._stale.get(binary, binary))
        change = sum(size for step, size in self.counts.items() if below[step])
        return -change - noise * float(self._generator(RandomDraw.COUNTS, candidate).normal())

    def _paired_readings(self, order: Measure) -> list[Observation]:
        """The readings of the paired runs of the two builds in ``order``."""
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
            noise = (
                self.habits.own_noise * float(rng.normal() - rng.normal())
                + self._draw_visit_effect(first)
                - self._draw_visit_effect(second)
            )
            starved, size = float(rng.random()), float(rng.normal())
            share, most = self.habits.starved
            unfair = most * size * (starved < share)
            layout, beside = (self.link(candidate, order.host) if order.fresh else 0 for candidate in (first, second))
            value = self.habits.kept * (self.level(first, layout) - self.level(second, beside)) + noise
            middle = (self.clock(order.host) - seconds / 2) / 60
            cpu = value + self.habits.kept * (self._stall_effect(first) - self._stall_effect(second))
            visit = first, value + unfair, middle, self.runs, order.host, seconds
            observations.append(
                Reading(*visit, layout=layout, partner=second, cpu_value=cpu if self.habits.waits else None)
            )
        return observations

    def _with_cpu_time(self, reading: Reading) -> Reading:
        """The reading of an interleaved run, with added waiting for other processes, and with known CPU time."""
        if not self.habits.waits:
            return reading
        for_others = self.habits.waits * float(self._generator(RandomDraw.WAITS, reading.candidate).exponential())
        stalled = self._stall_effect(reading.candidate)
        return replace(
            reading, value=reading.value - for_others, cpu_value=reading.value + stalled, log_wait=for_others + stalled
        )

    def _stall_effect(self, candidate: int) -> float:
        """The additional waiting that a build's source causes, as a change of the log metric."""
        return -self.habits.stalls * self._source_effect(self.binaries.get(candidate, candidate))

    def build(self, candidate: int, host: int = 0, *, incremental: bool = False) -> Built | Skipped | None:
        """Make a build; None if the host already has it. A clean build replaces an incremental one."""
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
        if self.habits.flaky and candidate not in (0, self.graph.size - 1) and not fails:  # each attempt is drawn anew
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
            return Built(candidate, seconds, same_as, build_host=build_host_number(host), incremental=in_tree)
        return Built(candidate, seconds, same_as, host, incremental=in_tree)

    def add_existing_build(self, candidate: int, host: int = 0) -> None:
        """Record that a host has a build that was made in another world (for another workload over the same commits)."""
        if candidate not in (built := self._builds_of_host.setdefault(host, [])):
            built.append(candidate)

    def share(self, candidate: int) -> None:
        """Record that a build host has finished a build, so that all hosts have the build from now on."""
        self._builds_of_build_hosts.append(candidate)

    def cancel(self, candidate: int, build_host: int, unspent: float) -> None:
        """Cancel a build on a build host, ``unspent`` seconds before it would have ended."""
        self.cancelled += 1
        self.build_seconds[candidate] -= unspent
        if candidate in self._builds_of_host[build_host_number(build_host)]:
            self._builds_of_host[build_host_number(build_host)].remove(candidate)
        self._clocks[build_host_number(build_host)] -= unspent

    def link(self, candidate: int, host: int = 0) -> int:
        """Link a build again; returns the number of the new layout, from 1."""
        self.links += 1
        self._links_of_build[candidate] += 1
        self.wait(host, self.clock(host) + self.habits.link_seconds)
        return self._links_of_build[candidate]

    def run(self, candidate: int, host: int = 0, visit: float | None = None, layout: int = 0) -> float | None:
        """The log metric of one run; None if the run or the build fails. A build that does not exist is made first.

        ``visit`` is the effect that all runs of a visit share; with None, a new visit begins. ``layout`` 0 is the usual
        layout.
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
        course = self._host_speeds[host].at(self.clock(host) - habits.run_seconds / 2)
        effect = self._draw_visit_effect(candidate) if visit is None else visit
        return self.level(candidate, layout) + course + effect + self._draw_run_noise(candidate, host)

    def level(self, candidate: int, layout: int = 0) -> float:
        """The true log metric of a build in one layout."""
        binary = self.binaries.get(candidate, candidate)
        return self._source_effect(self._stale.get(binary, binary)) + self._layout_effect(binary, layout)

    def _layout_effect(self, binary: int, layout: int) -> float:
        """The effect that a build's code layout has on the log metric; layout 0 is the usual layout."""
        if layout:
            rng = np.random.default_rng([self.seed, int(RandomDraw.LINKS), binary, layout])
            return float(rng.normal()) * self.habits.layout - self.mode_gap * float(rng.random() < 0.5)
        if binary in self.layouts:
            return self.layouts[binary]
        usual = float(random_generator(self.seed, RandomDraw.LAYOUT, binary).normal()) * self.habits.layout
        return usual - self.mode_gap * (binary in self.slow_modes)

    def _source_effect(self, binary: int) -> float:
        """The effect of a build's source on the log metric."""
        if binary not in self._source_effects:
            below = ancestry_of(self.graph).ancestors(binary)
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
        """Move the clock of a host forward to the time ``until``; a clock that is later stays unchanged."""
        self._clocks[host] = max(self.clock(host), until)

    def _generator(self, purpose: RandomDraw, candidate: int) -> np.random.Generator:
        """The random generator for one purpose of a build, which continues after earlier draws."""
        key = purpose, candidate
        if key not in self._generators:
            self._generators[key] = random_generator(self.seed, *key)
        return self._generators[key]

    def _draw_visit_effect(self, candidate: int) -> float:
        """Draw the effect of the next visit to a build; the effect is the same for all runs of the visit."""
        if not self.habits.visits:
            return 0.0
        return self.habits.visits * float(self._generator(RandomDraw.VISITS, candidate).normal())

    def _build_duration(self, candidate: int, built: Collection[int]) -> float:
        """The seconds of a build; if a similar build is in the compiler cache, the build is shorter."""
        habits, distance = self.habits, min((abs(candidate - v) for v in built), default=math.inf)
        return habits.build_seconds * min(1.0, habits.cached_share + distance / habits.cache_reach)

    def _draw_run_noise(self, candidate: int, host: int) -> float:
        """Draw the noise of the next run of a build, in log units of the metric."""
        habits = self.habits
        rng = self._generator(RandomDraw.NOISE, candidate)
        draw, outlier, second = float(rng.normal()), float(rng.random()), float(rng.random())
        self._runs_of_build[candidate] += 1
        noise = habits.noise * draw * (habits.bad_host if host == 1 else 1.0)
        if habits.slow_noise != 1 and any(ancestry_of(self.graph).ancestors(candidate)[v] for v in self.right_culprits):
            noise *= habits.slow_noise
        if outlier < habits.outliers or (candidate in self.spoiled and self._runs_of_build[candidate] <= 2):
            noise = abs(10 * noise) * (1 if outlier < habits.outliers * habits.lucky else -1)
        return noise + (habits.second_speed[1] if second < habits.second_speed[0] else 0.0)
