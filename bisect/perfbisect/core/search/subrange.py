"""A part of a range as a range of its own: what is reachable from one candidate and not from another.

A branch inside may have begun before the subrange's good end: where it began is a branch point of the subrange, as in
any range. A candidate may lack changes that the good end has, or have others; where those are known, its readings are
corrected for them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.observations import Built, Observation, Reading, Skipped
from perfbisect.core.domain.orders import Interval, Measure
from perfbisect.core.domain.policy import PriorKnowledge
from perfbisect.core.inference.ancestry import ancestry_of
from perfbisect.core.search.situation import Situation

CENTRAL = 0.1  # of the subrange: the middle may be so much farther from where its halves are even


@dataclass(frozen=True, slots=True, eq=False)
class Subrange:
    """The range good..bad within ``whole``."""

    whole: Graph
    good: int
    bad: int
    graph: Graph
    nodes: NDArray[np.int64]  # (subrange's size,): the candidate of the whole for each node of the subrange
    place: NDArray[np.int64]  # (whole's size,): the node of each candidate, -1 outside

    def __contains__(self, candidate: int) -> bool:
        """Whether a candidate of the whole is one of the subrange."""
        return int(self.place[candidate]) in self.graph.candidates

    def situation(self, whole: Situation, changes: Mapping[int, Sequence[Interval]]) -> Situation:
        """The situation as seen in the subrange; ``changes`` are known: by candidate, on each host class."""
        places = {
            v: int(self.place[v]) for v in (*whole.fleet.candidates, *whole.fleet.in_flight) if self.place[v] >= 0
        }
        return replace(
            whole,
            graph=self.graph,
            observations=list(self.observations(whole.observations, changes, whole.prior)),
            fleet=whole.fleet.renumbered(places),
            subrange=True,
        )

    def observations(
        self, observations: Sequence[Observation], changes: Mapping[int, Sequence[Interval]], prior: PriorKnowledge
    ) -> Iterator[Observation]:
        """The observations of candidates of the subrange, corrected for ``changes``.

        Candidates with equal binaries are named by the first of them inside.
        """
        name: dict[int, int] = {}
        for seen in observations:
            if isinstance(seen, Built) and seen.same_as is not None:
                first = name.get(seen.same_as, seen.same_as)
                name[seen.candidate] = first
        inside: dict[int, int] = {}  # name of a binary → node of the subrange that represents it
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
                    yield replace(seen, candidate=at, value=seen.value + self._lacking(seen, changes, prior))

    def _lacking(self, seen: Reading, changes: Mapping[int, Sequence[Interval]], prior: PriorKnowledge) -> float:
        """The known changes that the good end has and a build has not, less those of which the reverse is true."""
        if not changes or seen.candidate == self.good:
            return 0.0
        reach, of_host = ancestry_of(self.whole), prior.class_of(seen.host)
        has, own = reach.ancestors(self.good), reach.ancestors(seen.candidate)
        known = {step: math.log(ratios[of_host].middle) for step, ratios in changes.items()}
        return sum(change * (int(has[step]) - int(own[step])) for step, change in known.items())

    def outer_order(self, order: Measure) -> Measure:
        """An order of the subrange in candidates of the whole."""
        return order.renumbered({node: int(self.nodes[node]) for node in (share.candidate for share in order.plan)})

    def outer(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """Nodes of the subrange as candidates of the whole."""
        return tuple(int(self.nodes[node]) for node in nodes)

    def middles(self, chance: NDArray[np.float64]) -> list[int]:
        """The candidates that halve the subrange about equally well, best first, without the ends.

        Empty where nothing between them can be measured.
        ``chance`` (whole's size,) is the probability that a candidate builds.
        """
        weight = self.graph.weight / self.graph.weight.sum()
        below = ancestry_of(self.graph).sums(weight)
        uneven = np.abs(np.where(np.isnan(below), 2.0, below) - 0.5)
        uneven += (1 - chance[self.nodes]) / 2
        uneven[[0, -1]] = np.inf
        order = np.argsort(uneven, kind="stable")
        return [int(self.nodes[v]) for v in order if uneven[v] < min(uneven[order[0]] + CENTRAL, 0.5)]


@lru_cache(maxsize=64)
def subrange(whole: Graph, good: int, bad: int) -> Subrange:
    """The subrange good..bad."""
    reach = ancestry_of(whole)
    inside = reach.ancestors(bad) & ~reach.ancestors(good)
    inside[0] = False
    candidates = [v for v in np.flatnonzero(inside).tolist() if v in whole.candidates]
    points = sorted({p for v in candidates for p in whole.parents_of(v) if not (inside[p] and p in whole.candidates)})
    points = [point for point in points if point != good]
    nodes = np.array([good, *points, *candidates])
    place = np.full(whole.size, -1)
    place[nodes] = np.arange(len(nodes))
    rows: list[tuple[int, ...]] = [()] * (1 + len(points))
    for candidate in candidates:
        rows.append(tuple(int(place[p]) for p in whole.parents_of(candidate)))
    return Subrange(whole, good, bad, Graph.of(rows, whole.weight[nodes].tolist(), len(points)), nodes, place)
