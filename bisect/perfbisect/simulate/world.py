"""A history with a hidden culprit and a host with hidden habits, which carry out orders.

The log of the metric of one run is
    level(build) + layout(build) + drift(time) + noise (now and then an outlier, or the host's second speed).
The same seed gives the same world and, for the same orders, the same readings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from perfbisect.core.graph import Graph
from perfbisect.core.observation import Built, Observation, Reading, Skipped
from perfbisect.core.order import Measure
from perfbisect.core.reach import reach_of
from perfbisect.core.schedule import interleave


@dataclass(frozen=True, slots=True)
class Habits:
    """Of the simulated host and workload; fractions are s.d. of the log metric, times are seconds."""

    noise: float = 0.01
    layout: float = 0.005
    drift: float = 0.0  # s.d. of a stationary drift
    drift_memory: float = 7200.0
    outliers: float = 0.02  # share of runs that are slowed down, typically by ten times the noise
    second_speed: tuple[float, float] = (0.0, 0.0)  # share of runs, change of the log metric
    phases: tuple[float, float, float] = (0.0, 0.0, 1.0)  # the same in phases: share of time, change, seconds of one
    jumps: tuple[float, float] = (0.0, 0.0)  # abrupt lasting changes: rate per second, s.d.
    run_seconds: float = 60.0
    build_seconds: float = 600.0


@dataclass(slots=True)
class World:
    """A lab over ``graph``: ``steps`` are the changes of the log metric by candidate."""

    graph: Graph
    steps: Mapping[int, float]
    habits: Habits = field(default_factory=Habits)
    unbuildable: frozenset[int] = frozenset()
    binaries: Mapping[int, int] = field(default_factory=dict)  # candidate → earlier candidate with the same binary
    seed: int = 0
    now: float = 0.0  # seconds
    runs: int = 0
    builds: int = 0
    visits: int = 0
    _built: set[int] = field(default_factory=set)
    _drift: float = 0.0
    _jumped: float = 0.0
    _slowed: bool = False
    _rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._drift = self._rng.normal() * self.habits.drift

    def measure(self, order: Measure) -> list[Observation]:
        """Build and run what ``order`` asks for; stops at the first candidate that does not build."""
        seen: list[Observation] = []
        for share in order.plan:
            if share.candidate in self._built:
                continue
            self._pass(self.habits.build_seconds)
            self.builds += 1
            if share.candidate in self.unbuildable:
                return [*seen, Skipped(share.candidate, "does not build", self.habits.build_seconds)]
            self._built.add(share.candidate)
            seen.append(Built(share.candidate, self.habits.build_seconds, self.binaries.get(share.candidate)))
        return seen + [self._run(candidate, order.host) for candidate in interleave(order.plan)]

    def level(self, candidate: int) -> float:
        """The true log metric of a build, layout included."""
        binary = self.binaries.get(candidate, candidate)
        below = reach_of(self.graph).ancestors(binary)
        layout = np.random.default_rng([self.seed, binary]).normal() * self.habits.layout
        return sum(size for step, size in self.steps.items() if below[step]) + float(layout)

    def _run(self, candidate: int, host: int) -> Reading:
        habits = self.habits
        self._pass(habits.run_seconds)
        self.runs += 1
        self.visits += 1
        noise = self._rng.normal() * habits.noise
        if self._rng.random() < habits.outliers:
            noise = -abs(10 * noise)
        if self._rng.random() < habits.second_speed[0]:
            noise += habits.second_speed[1]
        value = self.level(candidate) + self._drift + self._jumped + noise + self._slowed * habits.phases[1]
        middle = (self.now - habits.run_seconds / 2) / 60
        return Reading(candidate, value, middle, self.visits, host, habits.run_seconds)

    def _pass(self, seconds: float) -> None:
        habits = self.habits
        self.now += seconds
        kept = np.exp(-seconds / habits.drift_memory)
        self._drift = self._drift * kept + habits.drift * np.sqrt(1 - kept * kept) * self._rng.normal()
        if self._rng.random() < 1 - np.exp(-habits.jumps[0] * seconds):
            self._jumped += self._rng.normal() * habits.jumps[1]
        share, _, length = habits.phases
        if share and self._rng.random() < 1 - np.exp(-seconds / length):
            self._slowed = bool(self._rng.random() < share)
