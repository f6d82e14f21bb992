"""How a simulated host and its workload disturb readings, and how long builds and runs take.

The speed of a host changes with time, independently of what is measured: its ``HostSpeed``.

Randomness of a simulated world: one generator for each purpose, so that no draw disturbs another.

Two rules that search the same world in different ways then find the same culprit, the same layouts, the same drift at
the same hour, and the same noise in the n-th run of a build.
"""

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

# What is drawn, in an order that stays: its numbers are part of the seeds.
RandomDraw = IntEnum(
    "RandomDraw",
    "CULPRIT DECOYS FAILURES BINARIES LAYOUT BUILD NOISE DRIFT JUMPS PHASES DAY RAMP HOST RULE GRAPH FLAKES VISITS NEUTRAL"
    " MODES LINKS ROUNDS WAITS STALE COUNTS",
    start=0,
)


def generator(seed: int, purpose: RandomDraw, which: int = 0) -> np.random.Generator:
    """The generator of one purpose; ``which`` is the number of a host or a build."""
    return np.random.default_rng([seed, int(purpose), which])


@dataclass(frozen=True, slots=True)
class Habits:
    """Fractions are changes or s.d. of the log metric, times are seconds; 0 disables a habit."""

    noise: float = 0.01  # s.d. of a run
    slow_noise: float = 1.0  # the same of builds with the culprit in them, as a multiple
    layout: float = 0.005  # s.d. of a build: repeating its runs does not average it away
    # layouts have two modes besides, this far apart: from, to. Neighbours share theirs, until a commit switches it
    modes: tuple[float, float] = (0.0, 0.0)
    visits: float = 0.0  # s.d. of a visit: all runs of one start of the server share it
    outliers: float = 0.02  # share of runs that are slowed down, typically by ten times the noise
    lucky: float = 0.0  # share of the outliers that are sped up instead
    second_speed: tuple[float, float] = (0.0, 0.0)  # share of runs, change
    second_build: tuple[float, float] = (0.0, 0.0)  # share of builds, all of whose runs have a change
    drift: float = 0.0  # s.d. of a stationary drift
    drift_memory: float = 7200.0
    ramp: float = 0.0  # change an hour, up or down
    daily: float = 0.0  # amplitude of a cycle of 24 hours
    jumps: tuple[float, float] = (0.0, 0.0)  # abrupt lasting changes: rate per second, s.d.
    phases: tuple[float, float, float] = (0.0, 0.0, 1.0)  # a second speed for a while: share of time, change, length
    host_spread: float = 0.0  # s.d. between hosts
    bad_host: float = 1.0  # noise of host 1, as a multiple
    # of rounds: s.d. of each build, what is left of a difference, share in which one build gets less of the cores, and by
    # how much (s.d.), time in runs
    own_noise: float = 0.005
    kept: float = 1.0
    starved: tuple[float, float] = (0.02, 0.3)
    round_runs: float = 2.0
    waits: float = 0.0  # mean of what a run waits for others, which CPU time does not show; 0: CPU time is not known
    stalls: float = 0.0  # share of a change that is waiting, too
    run_seconds: float = 60.0
    build_seconds: float = 600.0  # of a build with an empty compiler cache
    cached_share: float = 1.0  # of that, for a build next to an existing one; the rest grows with distance
    cache_reach: float = 180.0  # distance in candidates from which the compiler cache is of no use
    count_seconds: float = 60.0  # of an exact count of the instructions
    counts: float = 0.0  # s.d. of the instructions that perf counts during a run; 0: it counts none
    link_seconds: float = 0.0  # to link a build again, with a layout of its own
    flaky: float = 0.0  # share of attempts to build that fail by chance; never of the ends
    stale: float = 0.0  # share of incremental builds that have the speed of the build before, half of them its binary


GRID = 128  # points of a drift within its memory; it is straight between them
DAY = 86400.0


class HostSpeed:
    """The change of the log metric of one host at any time; drawn as far as it is needed."""

    def __init__(self, habits: Habits, seed: int, host: int) -> None:
        self._habits = habits
        self._drift = Drift(generator(seed, RandomDraw.DRIFT, host), habits.drift_memory)
        jumps, phases = generator(seed, RandomDraw.JUMPS, host), generator(seed, RandomDraw.PHASES, host)
        (rate, size), (share, _, length) = habits.jumps, habits.phases
        apart = 1 / rate if rate else math.inf
        self._jumps = JumpProcess(jumps, apart, lambda last: last + size * float(jumps.normal()))
        self._phases = JumpProcess(phases, length, lambda _: float(phases.random() < share))
        self._slope = habits.ramp / 3600 * (1 if generator(seed, RandomDraw.RAMP, host).random() < 0.5 else -1)
        self._sunrise = float(generator(seed, RandomDraw.DAY, host).random())
        self._level = habits.host_spread * float(generator(seed, RandomDraw.HOST, host).normal())

    def at(self, seconds: float) -> float:
        """The change at a time since the hunt began."""
        habits = self._habits
        change = self._level + self._slope * seconds
        if habits.drift:
            change += habits.drift * self._drift.at(seconds)
        if habits.daily:
            change += habits.daily * math.sin(2 * math.pi * (seconds / DAY + self._sunrise))
        if habits.jumps[0]:
            change += self._jumps.at(seconds)
        if habits.phases[0]:
            change += habits.phases[1] * self._phases.at(seconds)
        return change


class Drift:
    """A stationary Ornstein–Uhlenbeck process with s.d. 1."""

    def __init__(self, rng: np.random.Generator, memory: float) -> None:
        self._rng, self._step = rng, memory / GRID
        self._kept = math.exp(-1 / GRID)
        self._points = [float(rng.normal())]

    def at(self, seconds: float) -> float:
        """Its value at a time."""
        place, rest = divmod(seconds / self._step, 1)
        while len(self._points) < place + 2:
            pushes = self._rng.normal(size=256) * math.sqrt(1 - self._kept**2)
            for push in pushes.tolist():
                self._points.append(self._points[-1] * self._kept + push)
        before, after = self._points[int(place)], self._points[int(place) + 1]
        return before + rest * (after - before)


class JumpProcess:
    """A value that changes at random times: it is 0, then what ``draw`` makes of the one before."""

    def __init__(self, rng: np.random.Generator, length: float, draw: Callable[[float], float]) -> None:
        self._rng, self._length, self._draw = rng, length, draw
        self._times, self._values = [0.0], [0.0]

    def at(self, seconds: float) -> float:
        """The value at a time."""
        while self._times[-1] <= seconds:
            self._times.append(self._times[-1] + float(self._rng.exponential(self._length)))
            self._values.append(self._draw(self._values[-1]))
        return self._values[bisect.bisect_right(self._times, seconds) - 1]
