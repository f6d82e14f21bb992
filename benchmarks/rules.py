"""The rule of `git bisect run`, with one host and with several that build, for comparisons with ours.

``git_bisect`` is `git bisect run` with a script that times each commit and calls it slow below a threshold. It is written
from git's documentation and behaviour: the next commit splits the remaining ones as evenly as the graph allows; a commit
that cannot be tested is skipped, and replaced by another one, more probably by one near the best split. The threshold is
midway between the ends, which are timed once, at the beginning.

``parallel_bisect`` is the same with several build hosts: k of them cut what is left into k + 1 equal parts, round after
round. A round begins when all builds of the one before are done and tested; of these only the ones that still cut what is
left are tested, the most even cut first.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from statistics import median

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.orders import Found, Inconclusive, Interval, Reason, Step, Verdict
from perfbisect.core.domain.settings import NOTHING_KNOWN, Policy, PriorKnowledge
from perfbisect.core.inference.ancestry import Ancestry, ancestry_of
from perfbisect.core.inference.observations import Skipped
from perfbisect.core.search.build_orders import PartsBetweenBuilds
from perfbisect.simulate.host_model import RandomDraw, random_generator
from perfbisect.simulate.hunt import simulate_hunt
from perfbisect.simulate.tally import SearchRule
from perfbisect.simulate.world import World, world_host_number


def ours(
    world: World,
    policy: Policy,
    hosts: int = 1,
    prior: PriorKnowledge = NOTHING_KNOWN,
    build_hosts: int = 0,
    builds_between: bool = False,
) -> Verdict:
    """The search of `bisect run`."""
    return simulate_hunt(
        world, policy, prior, hosts=hosts, build_hosts=build_hosts, builds_between=builds_between
    ).verdict


END_RUNS = 3  # of each end, at least
UNKNOWN = Interval(float("nan"), float("nan"), float("nan"))


def git_bisect(repeats: int) -> SearchRule:
    """The rule that times each commit ``repeats`` times and takes the median."""
    return partial(_one_at_a_time, repeats=repeats)


def threshold(world: World, runs: int) -> float:
    """Midway between the medians of the two ends, timed in turns."""
    ends = 0, world.graph.size - 1
    timed = [[world.run(end) for end in ends] for _ in range(runs)]
    return sum(median(value or 0.0 for value in column) for column in zip(*timed, strict=True)) / 2


def blame(candidate: int) -> Found:
    """A verdict without a probability."""
    return Found(Step(candidate, float("nan"), UNKNOWN, ()))


def undecided(candidates: Sequence[int]) -> Inconclusive:
    """A set that could not be made smaller."""
    return Inconclusive(tuple(candidates), (), UNKNOWN, Reason.UNBUILDABLE)


def timed(world: World, candidate: int, runs: int) -> list[float]:
    """The values of so many runs; up to the first failure, as such a commit is not tried again."""
    values = (world.run(candidate) for _ in range(runs))
    return list(takewhile(lambda value: value is not None, values))  # type: ignore[arg-type]


def halve(world: World, is_slow: Callable[[int], bool | None]) -> Verdict:
    """Test and halve until one commit is left; ``is_slow`` tests a commit, and returns None if it cannot be tested."""
    reach, rng = ancestry_of(world.graph), random_generator(world.seed, RandomDraw.RULE)
    left = np.ones(world.graph.size, bool)  # what may still be the first slow commit
    left[: world.graph.candidates.start] = False
    skipped: set[int] = set()
    while left.sum() > 1:
        tested = _next(reach, left, skipped, rng)
        if tested is None:
            return undecided(np.flatnonzero(left).tolist())
        slow = is_slow(tested)
        if slow is None:
            skipped.add(tested)
        else:
            left &= reach.with_ancestors(tested) if slow else ~reach.with_ancestors(tested)
    return blame(int(np.flatnonzero(left)[0]))


def _one_at_a_time(world: World, policy: Policy, repeats: int) -> Verdict:
    limit = threshold(world, max(repeats, END_RUNS))

    def is_slow(candidate: int) -> bool | None:
        values = timed(world, candidate, repeats)
        return median(values) < limit if values else None

    return halve(world, is_slow)


def _next(reach: Ancestry, left: NDArray[np.bool_], skipped: set[int], rng: np.random.Generator) -> int | None:
    """The commit to test; None if none of the remaining ones can be tested."""
    top = int(np.flatnonzero(left)[-1])  # known to be slow: it is the bad end, or was tested
    below = np.nan_to_num(reach.ancestor_sums(left.astype(np.float64)))
    even = np.where(left, np.minimum(below, left.sum() - below), -1.0)
    even[top] = -1.0
    if not skipped:
        return int(even.argmax())
    order = np.argsort(-even, kind="stable")
    best_first: list[int] = [v for v in order[even[order] >= 0].tolist() if v not in skipped]
    if not best_first:
        return None
    return best_first[0] if order[0] not in skipped else best_first[int(len(best_first) * rng.random() ** 1.5)]


def parallel_bisect(repeats: int, build_hosts: int) -> SearchRule:
    """The rule that times each commit ``repeats`` times and takes the median."""
    return partial(_in_rounds, repeats=repeats, build_hosts=build_hosts)


def _in_rounds(world: World, policy: Policy, repeats: int, build_hosts: int) -> Verdict:
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
                below = reach.with_ancestors(tested)
                left &= below if median(values) < limit else ~below
    return blame(int(np.flatnonzero(left)[0]))


def _cuts(reach: Ancestry, left: NDArray[np.bool_], usable: NDArray[np.float64], count: int) -> list[int]:
    """At most ``count`` candidates that cut what is left into equal parts."""
    parts = PartsBetweenBuilds(reach, left / left.sum(), ())
    return [cut.candidate for cut in parts.cut(count, usable, lambda some: np.ones(len(some)), 0.0)]


def _build(world: World, candidates: list[int], build_hosts: int) -> list[int]:
    """Build all, taking turns, and wait for the last; returns those that build."""
    began, good = world.now, []
    for place, candidate in enumerate(candidates):
        host = world_host_number(place % build_hosts)
        world.wait(host, began)
        if not isinstance(world.build(candidate, host), Skipped):
            world.add_build_for_all_hosts(candidate)
            good.append(candidate)
    world.wait(0, max(world.clock(world_host_number(host)) for host in range(build_hosts)))
    return good


def _most_even(reach: Ancestry, left: NDArray[np.bool_], among: list[int]) -> int | None:
    """The one that halves best what is left; None if none cuts it."""
    below = {v: int((left & reach.with_ancestors(v)).sum()) for v in among}
    size = int(left.sum())
    cutting = [v for v in among if 0 < below[v] < size]
    return max(cutting, key=lambda v: min(below[v], size - below[v]), default=None)
