"""The commits that change the speed, besides the culprit: they can mislead a search."""

from collections.abc import Callable, Mapping

import numpy as np

from perfbisect.core.domain.graph import Graph

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
