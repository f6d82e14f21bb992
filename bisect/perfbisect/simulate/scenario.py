"""A scenario has the properties of a simulated history and a simulated host. A scenario and a random seed determine a
world (``simulate.world``): one simulated history and host.

``draw_steps`` chooses random commits that, in addition to the culprit, change the speed, because such commits can
mislead a search.

The git histories of scenarios have as many merges as usual projects have; benchmarks/shapes.py makes git histories with
unusual shapes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from perfbisect.core.domain.graph import Graph
from perfbisect.simulate.host_model import HostModel, RandomDraw, random_generator
from perfbisect.simulate.world import World

Rows = list[tuple[int, ...]]  # the parents of each candidate, oldest first


@lru_cache(maxsize=8)
def random_merging_graph(
    commits: int,
    seed: int = 0,
    merge_chance: float = 0.1,
    branch_length: float = 6.0,
    max_branch_age: int = 25,
    back_merge_chance: float = 0.05,
) -> Graph:
    """A random graph: a trunk with side branches.

    Each commit of the trunk merges a branch with probability ``merge_chance``. A merged branch begins at a trunk commit
    up to ``max_branch_age`` commits before the merge, and has about ``branch_length`` commits. Each commit of a branch
    merges the trunk with probability ``back_merge_chance``, at most once in a branch.
    """
    rng = random_generator(seed, RandomDraw.GRAPH)
    rows: Rows = [()]
    trunk = [0]
    while len(rows) < commits:
        room = commits - len(rows)  # number of commits that remain for a branch, its merge and the bad end
        if room > 3 and rng.random() < merge_chance:
            start = trunk[-int(rng.integers(1, min(max_branch_age, len(trunk)) + 1))]
            length = min(int(rng.geometric(1 / branch_length)), room - 2)
            top = _add_branch(rows, start, length, trunk[-1], back_merge_chance, rng)
            rows.append((trunk[-1], top))
        else:
            rows.append((trunk[-1],))
        trunk.append(len(rows) - 1)
    rows.append((trunk[-1],))
    return Graph.from_parents(rows)


def _add_branch(
    rows: Rows, start: int, length: int, trunk_tip: int, back_merge_chance: float, rng: np.random.Generator
) -> int:
    """Add a side branch to ``rows``, and return the last commit of the branch."""
    top, behind = start, trunk_tip != start
    for _ in range(length):
        merges = behind and rng.random() < back_merge_chance
        rows.append((top, trunk_tip) if merges else (top,))
        top, behind = len(rows) - 1, behind and not merges
    return top


@lru_cache(maxsize=8)
def first_parent_line(graph: Graph) -> tuple[int, ...]:
    """The commits that are reached from the bad end by following first parents, oldest first."""
    line = [graph.size - 1]
    while parents := graph.parents_of(line[-1]):
        line.append(parents[0])
    return tuple(line[::-1])


Steps = dict[int, float]  # change of the log metric by candidate
TINY = 50  # number of steps of a slope
# Value of `bisect simulate --steps` → the changes besides the culprit, as multiples of its drop.
EXTRA_STEPS: Mapping[str, tuple[float, ...]] = {
    "smaller": (-0.35, 0.3, -0.2),  # anywhere in the range, about a third of the drop or less
    "large": (-0.7,),
    "cancelling": (-1.0, 1.0),  # a second drop of the same size, and later a rise that cancels it; either drop is right
    "before-and-after": (-0.5, -0.5),  # one change before the culprit and one change after the culprit
    "adjacent": (-0.5,),  # a change at the commit after the culprit
    # in place of the culprit: a change, its revert, and the change again; either drop may be named
    "reverted": (-1.0, 1.0, -1.0),
    "culprit-on-slope": (-0.5,),  # a slope of many tiny steps around the culprit
    "slope": (-1.0,),  # the same slope without a culprit, so that each commit that a hunt names is wrong
}
ALONE = ("nothing", "reverted", "slope")  # values of --steps without a culprit


def draw_steps(pattern: str, graph: Graph, culprit: int, drop: float, rng: np.random.Generator) -> Steps:
    """Maps each commit that changes the speed to the change of the log metric: ``drop`` for the culprit, random values
    for other commits.

    ``pattern`` is a value of the option `bisect simulate --steps`.
    """
    start, end, candidates = graph.candidates.start, graph.size, graph.candidates
    sizes = [multiple * drop for multiple in EXTRA_STEPS.get(pattern, ())]
    match pattern:
        case "cancelling":
            places = np.sort(rng.choice(candidates, 2, replace=len(candidates) < 2)).tolist()
        case "reverted":
            places = np.sort(rng.choice(candidates, min(3, len(candidates)), replace=False)).tolist()
        case "before-and-after":
            places = [int(rng.integers(start, culprit)) if culprit > start else start]
            places += [int(rng.integers(culprit + 1, end)) if culprit < end - 1 else culprit]
        case "adjacent":
            places = [min(culprit + 1, end - 1)]
        case _:
            sizes = [size / TINY for size in sizes] * TINY if pattern in ("culprit-on-slope", "slope") else sizes
            places = rng.integers(start, end, len(sizes)).tolist()
    # In an improvement the bad end is faster.
    total: Steps = {} if pattern in ALONE else {culprit: drop if pattern == "improvement" else -drop}
    for candidate, size in zip(places, sizes, strict=False):
        total[candidate] = total.get(candidate, 0.0) + size
    return total


STRETCH = 5  # commits of a typical stretch that does not build
MODE_LENGTH = (20.0, 200.0)  # commits between two switches of the layout mode: from, to


@dataclass(frozen=True, slots=True, eq=False)
class Scenario:
    """The properties of a simulated history and host that are equal for all random seeds."""

    graph: Graph
    effect: float = 0.05  # the drop, as a fraction
    changes: str = "one"  # value of `bisect simulate --steps`
    habits: HostModel = field(default_factory=HostModel)
    failing: float = 0.0  # share of candidates that do not build, in stretches

    @property
    def log_drop(self) -> float:
        """The size of the drop at the culprit, in units of the natural logarithm of the metric."""
        return -math.log1p(-self.effect)

    def world(self, seed: int) -> World:
        """The world that the scenario and the seed determine."""
        graph, (gap, slow) = self.graph, self._draw_layout_modes(seed)
        rng = random_generator(seed, RandomDraw.DECOYS)
        steps = draw_steps(self.changes, graph, self.culprit(seed), self.log_drop, rng)
        starts = random_generator(seed, RandomDraw.FAILURES).random(graph.size) < self.failing / STRETCH
        failing = {int(v) + i for v in np.flatnonzero(starts) for i in range(STRETCH) if 0 < v + i < graph.size - 1}
        culprits: frozenset[int] | None = frozenset() if self.changes in ("slope", "nothing") else None
        return World(
            graph, steps, self.habits, frozenset(failing), mode_gap=gap, slow_modes=slow, culprits=culprits, seed=seed
        )

    def culprit(self, seed: int) -> int:
        """The culprit in the world of ``seed``: the candidate at which the metric drops."""
        return int(random_generator(seed, RandomDraw.CULPRIT).choice(np.array(self.graph.candidates)))

    def _draw_layout_modes(self, seed: int) -> tuple[float, frozenset[int]]:
        """Two values: the difference in speed (in units of the natural logarithm) between the fast and the slow mode of
        layouts, and the candidates whose usual layout is in the slow mode."""
        if not self.habits.modes[1]:
            return 0.0, frozenset()
        rng = random_generator(seed, RandomDraw.MODES)
        gap, length = (float(rng.uniform(*limits)) for limits in (self.habits.modes, MODE_LENGTH))
        switches = rng.random(self.graph.size) < 1 / length
        switches[0] = rng.random() < 0.5
        return gap, frozenset(np.flatnonzero(np.cumsum(switches) % 2).tolist())
