"""The model of a simulated host: how the host and its workload disturb readings, and how long builds and runs take.

The speed of a simulated host changes with time, independently of the measurements (``HostSpeed``).

A simulation has a separate random generator for each purpose, such as drift, so that an additional random number for
one purpose does not change the random numbers for other purposes. If two versions of the search are simulated with the
same seed, both have the same culprit, the same layouts, the same drift at the same time, and the same noise in the n-th
run of a build.
"""

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

# The purposes of draws, in a fixed order, because their numbers are part of the seeds.
RandomDraw = IntEnum(
    "RandomDraw",
    "CULPRIT DECOYS FAILURES BINARIES LAYOUT BUILD NOISE DRIFT JUMPS PHASES DAY RAMP HOST RULE GRAPH FLAKES VISITS NEUTRAL"
    " MODES LINKS ROUNDS WAITS STALE COUNTS",
    start=0,
)


def random_generator(seed: int, purpose: RandomDraw, number: int = 0) -> np.random.Generator:
    """The random generator for one purpose, such as the drift of a host; ``number`` is the number of the host or the
    build."""
    return np.random.default_rng([seed, int(purpose), number])


@dataclass(frozen=True, slots=True)
class HostModel:
    """The properties of a simulated host.

    Changes and standard deviations refer to the logarithm of the metric; times are in seconds. A disturbance whose size
    or share is 0 is not simulated.
    """

    noise: float = 0.01  # s.d. of a run
    slow_noise: float = 1.0  # noise of builds with the culprit, as a multiple of ``noise``
    layout: float = 0.005  # s.d. of a build's layout, which does not average out over its runs
    # Layouts have two modes, whose distance is between these two numbers. Neighbouring commits share a mode until a
    # commit switches the mode.
    modes: tuple[float, float] = (0.0, 0.0)
    visits: float = 0.0  # s.d. of a visit, shared by all runs of one start of the server
    outliers: float = 0.02  # share of runs that are slower, typically by ten times the noise
    lucky: float = 0.0  # share of the outliers that are faster, not slower
    second_speed: tuple[float, float] = (0.0, 0.0)  # (share of runs, their change)
    second_build: tuple[float, float] = (0.0, 0.0)  # share of builds of which all runs have a change, and this change
    drift: float = 0.0  # s.d. of a stationary drift
    drift_memory: float = 7200.0
    ramp: float = 0.0  # change per hour, up or down
    daily: float = 0.0  # amplitude of a 24-hour cycle
    jumps: tuple[float, float] = (0.0, 0.0)  # abrupt lasting changes: rate per second, s.d.
    phases: tuple[float, float, float] = (0.0, 0.0, 1.0)  # a second speed for some time: share of time, change, length
    host_spread: float = 0.0  # s.d. of the levels of hosts
    bad_host: float = 1.0  # noise of host 1, as a multiple
    own_noise: float = 0.005  # s.d. of each build in paired runs
    kept: float = 1.0  # share of a difference that paired runs show
    # Of paired runs: (share of rounds in which one build gets less of the cores, s.d. of this effect).
    starved: tuple[float, float] = (0.02, 0.3)
    round_runs: float = 2.0  # duration of a round of paired runs, in runs
    waits: float = 0.0  # mean effect of waiting for others, which CPU time does not show; 0: CPU time is unknown
    stalls: float = 0.0  # share of a change that consists of waiting
    run_seconds: float = 60.0
    build_seconds: float = 600.0  # time of a build with an empty compiler cache
    cached_share: float = 1.0  # share of ``build_seconds`` if a neighbour was built; it grows with the distance
    cache_reach: float = 180.0  # distance in candidates from which on the compiler cache does not help
    count_seconds: float = 60.0  # time of an exact count of instructions
    counts: float = 0.0  # s.d. of the instructions that perf counts during a run; 0: none are counted
    link_seconds: float = 0.0  # time to link a build again in a randomized layout
    flaky: float = 0.0  # share of attempts to build that fail by chance; never of the ends
    stale: float = 0.0  # share of incremental builds with the speed of the previous build; half have its binary, too


GRID = 128  # points of a simulated drift in ``drift_memory``, connected by straight lines
DAY = 86400.0


class HostSpeed:
    """The effect of one host on the logarithm of the metric, as a function of time. Random values are drawn when a time
    is requested.
    """

    def __init__(self, habits: HostModel, seed: int, host: int) -> None:
        self._habits = habits
        self._drift = Drift(random_generator(seed, RandomDraw.DRIFT, host), habits.drift_memory)
        jumps, phases = random_generator(seed, RandomDraw.JUMPS, host), random_generator(seed, RandomDraw.PHASES, host)
        (rate, size), (share, _, length) = habits.jumps, habits.phases
        apart = 1 / rate if rate else math.inf
        self._jumps = JumpProcess(jumps, apart, lambda last: last + size * float(jumps.normal()))
        self._phases = JumpProcess(phases, length, lambda _: float(phases.random() < share))
        self._slope = habits.ramp / 3600 * (1 if random_generator(seed, RandomDraw.RAMP, host).random() < 0.5 else -1)
        self._sunrise = float(random_generator(seed, RandomDraw.DAY, host).random())
        self._level = habits.host_spread * float(random_generator(seed, RandomDraw.HOST, host).normal())

    def value_at(self, seconds: float) -> float:
        """The effect of the host on the logarithm of the metric, ``seconds`` after the begin of the hunt."""
        habits = self._habits
        change = self._level + self._slope * seconds
        if habits.drift:
            change += habits.drift * self._drift.value_at(seconds)
        if habits.daily:
            change += habits.daily * math.sin(2 * math.pi * (seconds / DAY + self._sunrise))
        if habits.jumps[0]:
            change += self._jumps.value_at(seconds)
        if habits.phases[0]:
            change += habits.phases[1] * self._phases.value_at(seconds)
        return change


class Drift:
    """A stationary Ornstein–Uhlenbeck process with a standard deviation of 1."""

    def __init__(self, rng: np.random.Generator, memory: float) -> None:
        self._rng, self._step = rng, memory / GRID
        self._kept = math.exp(-1 / GRID)
        self._points = [float(rng.normal())]

    def value_at(self, seconds: float) -> float:
        """The value of the process at a time in seconds."""
        index, fraction = divmod(seconds / self._step, 1)
        while len(self._points) < index + 2:
            for push in (self._rng.normal(size=256) * math.sqrt(1 - self._kept**2)).tolist():
                self._points.append(self._points[-1] * self._kept + push)
        lower, upper = self._points[int(index)], self._points[int(index) + 1]
        return lower + fraction * (upper - lower)


class JumpProcess:
    """A value that is 0 at the beginning and changes at random times; ``draw`` returns the next value for the present
    value."""

    def __init__(self, rng: np.random.Generator, length: float, draw: Callable[[float], float]) -> None:
        self._rng, self._length, self._draw = rng, length, draw
        self._times, self._values = [0.0], [0.0]

    def value_at(self, seconds: float) -> float:
        """The value of the process at a time."""
        while self._times[-1] <= seconds:
            self._times.append(self._times[-1] + float(self._rng.exponential(self._length)))
            self._values.append(self._draw(self._values[-1]))
        return self._values[bisect.bisect_right(self._times, seconds) - 1]
