"""`git bisect run` with a script that times each commit and calls it slow below a threshold.

Written from git's documentation and behaviour: the next commit splits the remaining ones as evenly as the graph allows; a
commit that cannot be tested is skipped, and replaced by another one, more probably by one near the best split. The
threshold is midway between the ends, which are timed once, at the beginning.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from statistics import median

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.orders import Found, Inconclusive, Interval, Reason, Step, Verdict
from perfbisect.core.domain.policy import Policy
from perfbisect.core.inference.ancestry import Ancestry, ancestry_of
from perfbisect.simulate.random_streams import Purpose, generator
from perfbisect.simulate.strategies import Rule
from perfbisect.simulate.world import World

END_RUNS = 3  # of each end, at least
UNKNOWN = Interval(float("nan"), float("nan"), float("nan"))


def git_bisect(repeats: int) -> Rule:
    """The rule that times each commit ``repeats`` times and takes the median."""
    return partial(_search, repeats=repeats)


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
    reach, rng = ancestry_of(world.graph), generator(world.seed, Purpose.RULE)
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
            left &= reach.ancestors(tested) if slow else ~reach.ancestors(tested)
    return blame(int(np.flatnonzero(left)[0]))


def _search(world: World, policy: Policy, repeats: int) -> Verdict:
    limit = threshold(world, max(repeats, END_RUNS))

    def is_slow(candidate: int) -> bool | None:
        values = timed(world, candidate, repeats)
        return median(values) < limit if values else None

    return halve(world, is_slow)


def _next(reach: Ancestry, left: NDArray[np.bool_], skipped: set[int], rng: np.random.Generator) -> int | None:
    """The commit to test; None if none of the remaining ones can be tested."""
    top = int(np.flatnonzero(left)[-1])  # known to be slow: it is the bad end, or was tested
    below = np.nan_to_num(reach.sums(left.astype(np.float64)))
    even = np.where(left, np.minimum(below, left.sum() - below), -1.0)
    even[top] = -1.0
    if not skipped:
        return int(even.argmax())
    order = np.argsort(-even, kind="stable")
    best_first: list[int] = [v for v in order[even[order] >= 0].tolist() if v not in skipped]
    if not best_first:
        return None
    return best_first[0] if order[0] not in skipped else best_first[int(len(best_first) * rng.random() ** 1.5)]
