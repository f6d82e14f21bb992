"""Plain bisection with several build hosts: k of them cut what is left into k + 1 equal parts, round after round.

A round begins when all builds of the one before are done and tested; of these only the ones that still cut what is left
are tested, the most even cut first. Otherwise as ``git_bisect``.
"""

from functools import partial
from statistics import median

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.observations import Skipped
from perfbisect.core.domain.orders import Verdict
from perfbisect.core.domain.policy import Policy
from perfbisect.core.inference.ancestry import Ancestry, ancestry_of
from perfbisect.core.search.range_parts import Parts
from perfbisect.simulate.git_bisect import END_RUNS, blame, threshold, timed, undecided
from perfbisect.simulate.strategies import Rule
from perfbisect.simulate.world import World, maker


def parallel_bisect(repeats: int, build_hosts: int) -> Rule:
    """The rule that times each commit ``repeats`` times and takes the median."""
    return partial(_search, repeats=repeats, build_hosts=build_hosts)


def _search(world: World, policy: Policy, repeats: int, build_hosts: int) -> Verdict:
    graph, reach = world.graph, ancestry_of(world.graph)
    _build(world, [0, graph.size - 1], build_hosts)
    limit = threshold(world, max(repeats, END_RUNS))
    left = np.ones(graph.size, bool)  # what may still be the first slow commit
    left[: graph.candidates.start] = False
    usable = np.ones(graph.size)
    while left.sum() > 1:
        cuts = _cuts(reach, left, usable, build_hosts)
        if not cuts:
            return undecided(np.flatnonzero(left).tolist())
        usable[cuts] = 0.0
        waiting = _build(world, cuts, build_hosts)
        while (tested := _most_even(reach, left, waiting)) is not None:
            waiting.remove(tested)
            if values := timed(world, tested, repeats):
                below = reach.ancestors(tested)
                left &= below if median(values) < limit else ~below
    return blame(int(np.flatnonzero(left)[0]))


def _cuts(reach: Ancestry, left: NDArray[np.bool_], usable: NDArray[np.float64], count: int) -> list[int]:
    """At most ``count`` candidates that cut what is left into equal parts."""
    parts = Parts(reach, left / left.sum(), ())
    return [cut.candidate for cut in parts.cut(count, usable, lambda some: np.ones(len(some)), 0.0)]


def _build(world: World, candidates: list[int], build_hosts: int) -> list[int]:
    """Build all, taking turns, and wait for the last; returns those that build."""
    began, good = world.now, []
    for place, candidate in enumerate(candidates):
        host = maker(place % build_hosts)
        world.wait(host, began)
        if not isinstance(world.build(candidate, host), Skipped):
            world.share(candidate)
            good.append(candidate)
    world.wait(0, max(world.clock(maker(host)) for host in range(build_hosts)))
    return good


def _most_even(reach: Ancestry, left: NDArray[np.bool_], among: list[int]) -> int | None:
    """The one that halves best what is left; None if none cuts it."""
    below = {v: int((left & reach.ancestors(v)).sum()) for v in among}
    size = int(left.sum())
    cutting = [v for v in among if 0 < below[v] < size]
    return max(cutting, key=lambda v: min(below[v], size - below[v]), default=None)
