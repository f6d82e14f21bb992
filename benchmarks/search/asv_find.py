"""The rule of `asv find`: halve the range, go to the half with the greater slow-down, name the commit that is left.

It times both ends and the middle, each once (with so many repeats), and never asks whether a difference is real.
Differences are of times, relative to the sum of the three; an improvement counts as none. What cannot be measured is
replaced by its neighbour.
"""

import math
from functools import partial
from statistics import median

from credit import along_the_trunk

from perfbisect.core.domain.orders import Verdict
from perfbisect.core.domain.policy import Policy
from perfbisect.simulate.graphs import trunk
from perfbisect.simulate.strategies import Rule, blame, timed, undecided
from perfbisect.simulate.world import World


def asv_find(repeats: int) -> Rule:
    """The rule with the median of so many runs of each commit."""
    return along_the_trunk(partial(_search, repeats=repeats))


def _search(world: World, policy: Policy, repeats: int) -> Verdict:
    line = trunk(world.graph)
    times: dict[int, float | None] = {}

    def time(place: int) -> float | None:
        if place not in times:
            values = timed(world, line[place], repeats)
            times[place] = math.exp(-median(values)) if values else None
        return times[place]

    low, high = 0, len(line) - 1
    while high - low > 1:
        middle = (low + high) // 2
        while time(middle) is None:
            middle += 1
            if middle >= high:
                return undecided(line[low + 1 : high + 1])
        a, b, c = (time(place) or math.nan for place in (low, middle, high))
        early, late = max(0.0, b - a), max(0.0, c - b)
        low, high = (low, middle) if early >= late else (middle, high)
    return blame(line[high])
