"""A part of a range, as a range of its own: what is reachable from one candidate and not from another.

A branch inside may have begun before the part's good end: where it began is a base of the part, as in any range.
A candidate there may lack changes that the good end has, or have others; where those are known, its readings are
corrected for them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.observations import Built, Observation, Reading, Skipped
from perfbisect.core.domain.orders import Measure, Share
from perfbisect.core.inference.ancestry import reach_of

CENTRAL = 0.1  # of the part: the middle may be so much farther from where its halves are even


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The range good..bad within ``whole``."""

    whole: Graph
    good: int
    bad: int
    graph: Graph
    nodes: NDArray[np.int64]  # (part's size,): the candidate of the whole for each node of the part
    place: NDArray[np.int64]  # (whole's size,): the node of each candidate, -1 outside

    def told(self, observations: Sequence[Observation], changes: Mapping[int, float]) -> Iterator[Observation]:
        """What the observations say of the part; ``changes`` of the log metric are known, by candidate.

        Candidates with equal binaries go by the name of the first of them inside.
        """
        name: dict[int, int] = {}
        for seen in observations:
            if isinstance(seen, Built) and seen.same_as is not None:
                first = name.get(seen.same_as, seen.same_as)
                name[seen.candidate] = first
        inside: dict[int, int] = {}  # name of a binary → node of the part that stands for it
        for candidate in sorted({*name, *name.values()}, key=lambda c: (self.place[c] < 0, c)):
            inside.setdefault(name.get(candidate, candidate), int(self.place[candidate]))
        for seen in observations:
            binary = name.get(seen.candidate, seen.candidate)
            node = int(self.place[seen.candidate])
            match seen:
                case Built() if node >= 0:
                    same = inside.get(binary, node)
                    yield replace(seen, candidate=node, same_as=None if same == node else same)
                case Skipped() if node >= 0:
                    yield replace(seen, candidate=node)
                case Reading() if (at := inside.get(binary, node)) >= 0:
                    yield replace(seen, candidate=at, value=seen.value + self._beside(seen.candidate, changes))

    def _beside(self, candidate: int, changes: Mapping[int, float]) -> float:
        """The known changes that the good end has and ``candidate`` has not, less those of which the reverse is true."""
        if not changes or candidate == self.good:
            return 0.0
        reach = reach_of(self.whole)
        has, own = reach.ancestors(self.good), reach.ancestors(candidate)
        return sum(change * (int(has[step]) - int(own[step])) for step, change in changes.items())

    def holds(self, node: int) -> bool:
        """Whether a node of the whole is a candidate of the part."""
        return int(self.place[node]) in self.graph.candidates

    def inner(self, order: Measure) -> Measure:
        """An order of the whole, as far as it concerns the part."""
        plan = (Share(int(self.place[s.candidate]), s.runs) for s in order.plan if self.place[s.candidate] >= 0)
        return replace(order, plan=tuple(plan))

    def outer(self, order: Measure) -> Measure:
        """An order of the part in candidates of the whole."""
        return replace(order, plan=tuple(Share(int(self.nodes[s.candidate]), s.runs) for s in order.plan))

    def middles(self, chance: NDArray[np.float64]) -> list[int]:
        """The candidates that halve the part about equally well, best first, the ends left out.

        Empty where nothing between them can be measured.
        ``chance`` (whole's size,) is the probability that a candidate builds.
        """
        weight = self.graph.weight / self.graph.weight.sum()
        below = reach_of(self.graph).sums(weight)
        uneven = np.abs(np.where(np.isnan(below), 2.0, below) - 0.5)
        uneven += (1 - chance[self.nodes]) / 2
        uneven[[0, -1]] = np.inf
        order = np.argsort(uneven, kind="stable")
        return [int(self.nodes[v]) for v in order if uneven[v] < min(uneven[order[0]] + CENTRAL, 0.5)]


@lru_cache(maxsize=64)
def part_of(whole: Graph, good: int, bad: int) -> Part:
    """The part good..bad."""
    reach = reach_of(whole)
    inside = reach.ancestors(bad) & ~reach.ancestors(good)
    inside[0] = False
    candidates = [v for v in np.flatnonzero(inside).tolist() if v in whole.candidates]
    bases = sorted({p for v in candidates for p in whole.parents_of(v) if not (inside[p] and p in whole.candidates)})
    bases = [base for base in bases if base != good]
    nodes = np.array([good, *bases, *candidates])
    place = np.full(whole.size, -1)
    place[nodes] = np.arange(len(nodes))
    rows: list[tuple[int, ...]] = [()] * (1 + len(bases))
    for candidate in candidates:
        rows.append(tuple(int(place[p]) for p in whole.parents_of(candidate)))
    return Part(whole, good, bad, Graph.of(rows, whole.weight[nodes].tolist(), len(bases)), nodes, place)
