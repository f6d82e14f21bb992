"""How likely a candidate is to build, given the candidates that did not.

Failures come in stretches: a commit breaks the build, a later one mends it. So the neighbours of a
failure are believed to fail too, less with distance, where the distance that matters is the width of
the stretch seen so far and the room that is left up to the nearest success. Steps away from a failure
therefore double, edges are halved, and a stretch costs a logarithmic number of attempts. Between two
failures of one stretch the belief fades with every further failure, so that the attempts end.
"""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


def chance_to_build(size: int, skipped: Iterable[int], built: Iterable[int]) -> NDArray[np.float64]:
    """Probability for each candidate, shape (size,): 0 for skipped ones, 1 where nothing speaks against it."""
    failed = set(skipped)
    chance = np.ones(size)
    if not failed:
        return chance
    tried = sorted(failed | set(built))
    stretches = _stretches(tried, failed)
    for left, right in pairwise(tried):
        inside = np.arange(left + 1, right)
        if not len(inside) or not (left in failed or right in failed):
            continue
        room = right - left
        p = np.ones(len(inside))
        for end, distance, rest in ((left, inside - left, right - inside), (right, right - inside, inside - left)):
            if end in failed:
                low, high, _ = stretches[end]
                scale = 1 + (high - low) / 2
                other_failed = left in failed and right in failed
                p *= distance / (distance + (scale if other_failed else np.minimum(scale, rest)))
        if left in failed and right in failed:
            count = stretches[left][2]
            p *= 0.5 ** max(count - 2, 0) * min(1.0, room)
        chance[inside] = p
    chance[list(failed)] = 0.0
    return chance


def _stretches(tried: list[int], failed: set[int]) -> dict[int, tuple[int, int, int]]:
    """For each failure the first and last failure of its stretch (no success in between), and their number."""
    found: dict[int, tuple[int, int, int]] = {}
    run: list[int] = []
    for candidate in [*tried, -1]:
        if candidate in failed:
            run.append(candidate)
            continue
        for member in run:
            found[member] = (run[0], run[-1], len(run))
        run = []
    return found
