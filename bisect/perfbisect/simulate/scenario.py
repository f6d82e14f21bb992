"""Scenarios: the properties of a history and a host, and the worlds that are drawn from them by a seed.

``CHANGES`` are the commits that change the speed besides the culprit, which can mislead a search.

Histories to search, with usual merges; the odd shapes that git allows are in benchmarks/shapes.py.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from perfbisect.core.domain.graph import Graph
from perfbisect.simulate.host_model import Habits, RandomDraw, generator
from perfbisect.simulate.world import World

Rows = list[tuple[int, ...]]  # the parents of each candidate, oldest first


@lru_cache(maxsize=8)
def merging(
    commits: int, seed: int = 0, branching: float = 0.1, length: float = 6.0, back: int = 25, returning: float = 0.05
) -> Graph:
    """A trunk with side branches.

    At each commit of the trunk a branch is merged with probability ``branching``; it left the trunk up to ``back``
    commits earlier, has about ``length`` commits, and merges the trunk into itself with probability ``returning``.
    """
    rng = generator(seed, RandomDraw.GRAPH)
    rows: Rows = [()]
    trunk = [0]
    while len(rows) < commits:
        room = commits - len(rows)  # what is left for a branch, its merge and the bad end
        if room > 3 and rng.random() < branching:
            start = trunk[-int(rng.integers(1, min(back, len(trunk)) + 1))]
            top = _branch(rows, start, min(int(rng.geometric(1 / length)), room - 2), trunk[-1], returning, rng)
            rows.append((trunk[-1], top))
        else:
            rows.append((trunk[-1],))
        trunk.append(len(rows) - 1)
    rows.append((trunk[-1],))
    return Graph.of(rows)


def _branch(rows: Rows, start: int, length: int, tip: int, returning: float, rng: np.random.Generator) -> int:
    """Add a side branch; returns its last commit."""
    top, behind = start, tip != start
    for _ in range(length):
        merges = behind and rng.random() < returning
        rows.append((top, tip) if merges else (top,))
        top, behind = len(rows) - 1, behind and not merges
    return top


@lru_cache(maxsize=8)
def trunk(graph: Graph) -> tuple[int, ...]:
    """The first-parent line to the bad end, oldest first."""
    line = [graph.size - 1]
    while parents := graph.parents_of(line[-1]):
        line.append(parents[0])
    return tuple(line[::-1])


Steps = dict[int, float]  # change of the log metric by candidate
Rng = np.random.Generator
TINY = 50  # steps of a slope


def one(graph: Graph, culprit: int, drop: float, rng: Rng) -> Steps:
    """Nothing but the culprit."""
    return {culprit: -drop}


def nothing(graph: Graph, culprit: int, drop: float, rng: Rng) -> Steps:
    """No commit changes anything."""
    return {}


def improvement(graph: Graph, culprit: int, drop: float, rng: Rng) -> Steps:
    """The bad end is the faster one."""
    return {culprit: drop}


def smaller(graph: Graph, culprit: int, drop: float, rng: Rng) -> Steps:
    """Two smaller drops and a rise anywhere, a third of the drop or less."""
    return _and(graph, culprit, drop, rng, (-0.35, 0.3, -0.2))


def large(graph: Graph, culprit: int, drop: float, rng: Rng) -> Steps:
    """A second drop of 70 %."""
    return _and(graph, culprit, drop, rng, (-0.7,))


def cancelling(graph: Graph, culprit: int, drop: float, rng: Rng) -> Steps:
    """Another drop of the same size, and later a rise that cancels it. To name either drop is right."""
    first, second = np.sort(rng.choice(graph.candidates, 2, replace=len(graph.candidates) < 2)).tolist()
    return _sum((culprit, -drop), (first, -drop), (second, drop))


def before_and_after(graph: Graph, culprit: int, drop: float, rng: Rng) -> Steps:
    """A drop of half the size on either side."""
    first = graph.candidates.start
    older = int(rng.integers(first, culprit)) if culprit > first else first
    newer = int(rng.integers(culprit + 1, graph.size)) if culprit < graph.size - 1 else culprit
    return _sum((culprit, -drop), (older, -0.5 * drop), (newer, -0.5 * drop))


def adjacent(graph: Graph, culprit: int, drop: float, rng: Rng) -> Steps:
    """The next commit drops by half as much again."""
    return _sum((culprit, -drop), (min(culprit + 1, graph.size - 1), -0.5 * drop))


def reverted(graph: Graph, culprit: int, drop: float, rng: Rng) -> Steps:
    """Good, bad, good, bad: the change was reverted, and applied again. To name either commit is right."""
    places = np.sort(rng.choice(graph.candidates, min(3, len(graph.candidates)), replace=False)).tolist()
    return dict(zip(places, (-drop, drop, -drop), strict=False))


def sloping(graph: Graph, culprit: int, drop: float, rng: Rng) -> Steps:
    """Many tiny drops, half of the size together."""
    return _sum((culprit, -drop), *((v, -drop / 2 / TINY) for v in _scattered(graph, rng)))


def slope(graph: Graph, culprit: int, drop: float, rng: Rng) -> Steps:
    """Many tiny drops and no culprit: no name is right."""
    return _sum(*((v, -drop / TINY) for v in _scattered(graph, rng)))


_ALL = (
    one, nothing, improvement, smaller, large, cancelling, before_and_after, adjacent, reverted, sloping, slope
)  # fmt: skip
CHANGES: Mapping[str, Callable[[Graph, int, float, Rng], Steps]] = {
    change.__name__.replace("_", "-"): change for change in _ALL
}


def _and(graph: Graph, culprit: int, drop: float, rng: Rng, shares: tuple[float, ...]) -> Steps:
    places = rng.integers(graph.candidates.start, graph.size, len(shares)).tolist()
    return _sum((culprit, -drop), *((v, share * drop) for v, share in zip(places, shares, strict=True)))


def _sum(*steps: tuple[int, float]) -> Steps:
    """The steps, where those of the same candidate are added."""
    total: Steps = {}
    for candidate, size in steps:
        total[candidate] = total.get(candidate, 0.0) + size
    return total


def _scattered(graph: Graph, rng: Rng) -> list[int]:
    places: list[int] = rng.integers(graph.candidates.start, graph.size, TINY).tolist()
    return places


STRETCH = 5  # commits of a typical stretch that does not build
MODE_LENGTH = (20.0, 200.0)  # commits from one switch between the modes of layout to the next: from, to


@dataclass(frozen=True, slots=True, eq=False)
class Scenario:
    """Worlds that differ only by chance."""

    graph: Graph
    effect: float = 0.05  # the drop, as a fraction
    changes: str = "one"  # a key of CHANGES
    habits: Habits = field(default_factory=Habits)
    failing: float = 0.0  # share of candidates that do not build, in stretches

    @property
    def drop(self) -> float:
        """The drop of the log metric."""
        return -math.log1p(-self.effect)

    def world(self, seed: int) -> World:
        """The world of this seed."""
        graph, culprit = self.graph, self.culprit(seed)
        gap, slow_modes = self._modes(seed)
        return World(
            graph,
            CHANGES[self.changes](graph, culprit, self.drop, generator(seed, RandomDraw.DECOYS)),
            self.habits,
            unbuildable=frozenset(self._failing(seed) - {0, graph.size - 1}),
            mode_gap=gap,
            slow_modes=slow_modes,
            culprits=frozenset() if self.changes in ("slope", "nothing") else None,
            seed=seed,
        )

    def culprit(self, seed: int) -> int:
        """The commit with the drop."""
        return int(generator(seed, RandomDraw.CULPRIT).choice(np.array(self.graph.candidates)))

    def _failing(self, seed: int) -> set[int]:
        starts = generator(seed, RandomDraw.FAILURES).random(self.graph.size) < self.failing / STRETCH
        return {int(v) + i for v in np.flatnonzero(starts) for i in range(STRETCH) if v + i < self.graph.size}

    def _modes(self, seed: int) -> tuple[float, frozenset[int]]:
        """The gap between two modes of layout, and the candidates in the slow one as they are linked."""
        if not self.habits.modes[1]:
            return 0.0, frozenset()
        rng = generator(seed, RandomDraw.MODES)
        gap, length = (float(rng.uniform(*limits)) for limits in (self.habits.modes, MODE_LENGTH))
        switches = rng.random(self.graph.size) < 1 / length
        switches[0] = rng.random() < 0.5
        return gap, frozenset(np.flatnonzero(np.cumsum(switches) % 2).tolist())
