"""Culprits that no reading so far can separate.

A build is slow when the culprit is it or one of its ancestors, so a culprit is known to the readings
only by its pattern: which of the measured builds it makes slow. Culprits with the same pattern form a
class with one common likelihood. There are about as many classes as builds, whatever the range's size.

Before anything is measured candidates have the weights that the user's suspicions give them. A suspicion saves
measurements when it is right and must not decide when it is wrong: so weights are bounded, and no candidate begins with
odds of more than BOUND to 1 against any other.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.graph import Graph
from perfbisect.core.inference.ancestry import Ancestry, ancestry_of
from perfbisect.core.inference.record import Record

BOUND = 16.0


def suspected(
    graph: Graph, commits: Sequence[str], touched: Mapping[str, Collection[str]], weights: Mapping[str, float]
) -> Graph:
    """The graph with the weights of the commits that touch suspected paths.

    ``commits`` are those of the nodes, ``touched`` holds the commits that touch each path of ``weights``. A commit that
    touches several paths gets the largest of their weights.
    """
    factor: dict[str, float] = {}
    for path, weight in weights.items():
        for commit in touched.get(path, ()):
            factor[commit] = max(weight, factor.get(commit, 0.0))
    return replace(graph, weight=graph.weight * np.array([bounded(factor.get(commit, 1.0)) for commit in commits]))


def bounded(weight: float) -> float:
    """A weight that keeps the odds of any two candidates within BOUND to 1."""
    return float(np.clip(weight, BOUND**-0.5, BOUND**0.5))


BITS = 40  # of a pattern collected before the patterns are numbered anew


@dataclass(frozen=True, eq=False)
class Hypotheses:
    """The classes of culprits over M measured builds."""

    reach: Ancestry
    weight: NDArray[np.float64]  # (size,) prior of each candidate, 0 where it cannot be the culprit; sums to one
    of: NDArray[np.int64]  # (size,) class of each candidate, -1 where it cannot be the culprit
    slow: NDArray[np.bool_]  # (M, C) whether the build is slow if the culprit is of the class
    prior: NDArray[np.float64]  # (C,)

    @cached_property
    def members(self) -> NDArray[np.int64]:
        """How many candidates each class holds, (C,)."""
        return np.bincount(self.of[self.of >= 0], minlength=len(self.prior))

    def of_class(self, index: int) -> NDArray[np.int64]:
        """The candidates of one class, oldest first."""
        return np.flatnonzero(self.of == index)

    def spread(self, posterior: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probability of each candidate, (size,), from that of the classes, (C,)."""
        share = np.zeros(len(self.of))
        possible = self.of >= 0
        index = self.of[possible]
        share[possible] = self.weight[possible] * (posterior / self.prior)[index]
        return share

    def share(self, candidate: int) -> NDArray[np.float64]:
        """For each class the part of its prior that would make ``candidate`` slow, (C,): between 0 and 1 it splits."""
        inside = self.reach.ancestors(candidate) & (self.of >= 0)
        part = np.bincount(self.of[inside], self.weight[inside], len(self.prior)) / self.prior
        part[part > 1 - 1e-9] = 1.0
        return part


def hypotheses(graph: Graph, record: Record) -> Hypotheses:
    """The classes that the builds of ``record`` separate.

    Two candidates with one binary are equally fast, so a culprit below only one of them is ruled out, unless
    that rules out everything: then changes were made and taken back, and nothing follows.
    """
    reach = ancestry_of(graph)
    prior = graph.weight.copy()
    prior[0] = 0.0
    weight = prior.copy()
    for candidate, name in record.same.items():
        weight[reach.ancestors(candidate) != reach.ancestors(name)] = 0.0
    if not (weight > 0).any():
        weight = prior
    possible = np.flatnonzero(weight > 0)
    weight /= weight.sum()
    pattern, used = np.zeros(len(possible), np.int64), 0
    for build in record.builds:
        if used == BITS:
            pattern, used = np.unique(pattern, return_inverse=True)[1].astype(np.int64), 22
        pattern = (pattern << 1) | reach.ancestors(build)[possible]
        used += 1
    _, first, index = np.unique(pattern, return_index=True, return_inverse=True)
    of = np.full(graph.size, -1)
    of[possible] = index
    slow = np.array([reach.ancestors(build)[possible[first]] for build in record.builds])
    return Hypotheses(reach, weight, of, slow, np.bincount(index, weight[possible]).astype(np.float64))
