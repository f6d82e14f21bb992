"""Scenarios of the benchmarks: hunts that are made harder, each in another way."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from perfbisect.core.inference.ancestry import ancestry_of
from perfbisect.simulate.host_model import RandomDraw, random_generator
from perfbisect.simulate.scenario import Scenario, first_parent_line
from perfbisect.simulate.world import World


class Place(StrEnum):
    """The position of the culprit."""

    ANYWHERE = "anywhere"
    FIRST = "first"  # right after good
    LAST = "last"  # the bad end itself
    BRANCH = "branch"  # on a side branch
    MERGE = "merge"  # a merge that is slow although its parents are not


class Odd(StrEnum):
    """The build whose layout puts it half way between slow and fast."""

    GOOD = "good"  # the good end
    BEFORE = "before"  # the one before the culprit
    CULPRIT = "culprit"
    BAD = "bad"  # the bad end


@dataclass(frozen=True, slots=True, eq=False)
class Planted(Scenario):
    """Worlds in which more is planted than a drop."""

    # of commits that change the metric a little, as most of them change counts: share of all, s.d. of each
    neutral: tuple[float, float] = (0.0, 0.0)
    place: Place = Place.ANYWHERE
    block: int = 0  # candidates around the culprit that do not build
    broken: int = 0  # candidates of the trunk from the commit that breaks the build to the one that fixes it
    crashing: float = 0.0  # share of candidates that build and crash
    older: float = 0.0  # what branches that began before good are slower by, as long as they do not hold it
    identical: float = 0.0  # share of candidates with the binary of their parent
    odd: Odd | None = None  # the build whose layout is planted
    spoiled: bool = False  # both first runs of the culprit's parent are outliers

    def world(self, seed: int) -> World:
        """The world of this seed."""
        graph, culprit, world = self.graph, self.culprit(seed), Scenario.world(self, seed)
        steps = dict(world.steps) | {v: size for v, size in self._neutral(seed).items() if v not in world.steps}
        ends = {0, graph.size - 1}
        tossed = random_generator(seed, RandomDraw.FAILURES, 1).random(graph.size) < self.crashing
        return replace(
            world,
            steps=steps,
            unbuildable=world.unbuildable | ((self._block(culprit) | self._broken(culprit)) - ends),
            crashing=frozenset(np.flatnonzero(tossed).tolist()) - ends,
            spoiled=frozenset(graph.parents_of(culprit)) if self.spoiled else frozenset(),
            older_branch_changes=dict.fromkeys(range(1, graph.branch_points + 1), math.log1p(-self.older)),
            binaries=self._binaries(seed, frozenset(steps)),
            layouts=self._layouts(culprit),
        )

    def culprit(self, seed: int) -> int:
        """The commit with the drop, at its place."""
        everywhere = np.array(self.graph.candidates)
        match self.place:
            case Place.ANYWHERE:
                possible = everywhere
            case Place.FIRST:
                possible = everywhere[:1]
            case Place.LAST:
                possible = everywhere[-1:]
            case Place.BRANCH:
                possible = np.setdiff1d(everywhere, first_parent_line(self.graph))
            case Place.MERGE:
                possible = np.flatnonzero(np.diff(self.graph.parent_offsets) > 1)
        if not len(possible):
            raise ValueError(f"no {self.place} in a history without merges")
        return int(random_generator(seed, RandomDraw.CULPRIT).choice(possible))

    def _neutral(self, seed: int) -> dict[int, float]:
        share, size = self.neutral
        draw = random_generator(seed, RandomDraw.NEUTRAL)
        tossed, sizes = draw.random(self.graph.size) < share, draw.normal(scale=size, size=self.graph.size)
        return {v: float(sizes[v]) for v in self.graph.candidates if tossed[v]}

    def _block(self, culprit: int) -> set[int]:
        first = max(1, culprit - self.block // 2)
        return set(range(first, min(first + self.block, self.graph.size)))

    def _broken(self, culprit: int) -> set[int]:
        """Descendants of the commit that breaks the build, without those of the commit that fixes it."""
        if not self.broken:
            return set()
        line, below = first_parent_line(self.graph)[1:], ancestry_of(self.graph).with_ancestors(culprit)
        breaks = max((v for v in line if below[v] and v <= culprit - self.broken // 2), default=line[0])
        fixed_by = next((v for v in line if v >= breaks + self.broken and not below[v]), self.graph.size - 1)
        return self._from(breaks) - self._from(fixed_by)

    def _from(self, candidate: int) -> set[int]:
        found = {candidate}
        for v in range(candidate + 1, self.graph.size):
            if not found.isdisjoint(self.graph.parents_of(v)):
                found.add(v)
        return found

    def _binaries(self, seed: int, steps: frozenset[int]) -> dict[int, int]:
        """The candidate with the same binary, for a random choice of those with one parent and without a step."""
        same: dict[int, int] = {}
        if not self.identical:
            return same
        tossed = random_generator(seed, RandomDraw.BINARIES).random(self.graph.size) < self.identical
        for v in np.flatnonzero(tossed).tolist():
            parents = self.graph.parents_of(v)
            if len(parents) == 1 and v not in steps:
                same[v] = same.get(parents[0], parents[0])
        return same

    def _layouts(self, culprit: int) -> dict[int, float]:
        if self.odd is None:
            return {}
        places = {Odd.GOOD: 0, Odd.BEFORE: culprit - 1, Odd.CULPRIT: culprit, Odd.BAD: self.graph.size - 1}
        half = self.log_drop / 2
        return {places[self.odd]: -half if self.odd in (Odd.GOOD, Odd.BEFORE) else half}
