"""What the user suspects, as weights of candidates before anything is measured.

A suspicion saves measurements when it is right and must not decide when it is wrong: so weights are bounded, and no
candidate begins with odds of more than BOUND to 1 against any other.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from perfbisect.core.domain.graph import Graph

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
