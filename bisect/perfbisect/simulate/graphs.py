"""Histories to search, with usual merges; the odd shapes that git allows are in benchmarks/shapes.py."""

from functools import lru_cache

import numpy as np

from perfbisect.core.domain.graph import Graph
from perfbisect.simulate.random_streams import Purpose, generator

Rows = list[tuple[int, ...]]  # the parents of each candidate, oldest first


@lru_cache(maxsize=8)
def merging(
    commits: int, seed: int = 0, branching: float = 0.1, length: float = 6.0, back: int = 25, returning: float = 0.05
) -> Graph:
    """A trunk with side branches.

    At each commit of the trunk a branch is merged with probability ``branching``; it left the trunk up to ``back``
    commits earlier, has about ``length`` commits, and merges the trunk into itself with probability ``returning``.
    """
    rng = generator(seed, Purpose.GRAPH)
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
