"""How likely a candidate is to build, given the candidates that did not.

Failures come in stretches: a commit breaks the build, a later one mends it. So the neighbours of a
failure are believed to fail too, less with distance, where the distance that matters is the width of
the stretch seen so far and the room that is left up to the nearest success. Steps away from a failure
therefore double, edges are halved, and a stretch costs a logarithmic number of attempts. Between two
failures of one stretch the belief fades with every further failure, so that the attempts end.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

FADING = 0.6  # of the belief that something between two failures builds, with each further failure around it


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Failures with no success between them."""

    reach: float  # how far beyond its ends it is expected to go on
    count: int


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
        to_left, to_right = inside - left, right - inside
        if left in failed and right in failed:
            room = 1 + (right - left) / 2
            between = to_left / (to_left + room) * to_right / (to_right + room)
            chance[inside] = between * FADING ** max(stretches[left].count - 2, 0)
        elif left in failed:
            chance[inside] = to_left / (to_left + np.minimum(stretches[left].reach, to_right))
        elif right in failed:
            chance[inside] = to_right / (to_right + np.minimum(stretches[right].reach, to_left))
    chance[list(failed)] = 0.0
    return chance


def _stretches(tried: Iterable[int], failed: set[int]) -> dict[int, _Stretch]:
    """The stretch of each failure."""
    found: dict[int, _Stretch] = {}
    for fails, group in groupby(tried, key=failed.__contains__):
        if fails:
            members = list(group)
            stretch = _Stretch(1 + (members[-1] - members[0]) / 2, len(members))
            found.update(dict.fromkeys(members, stretch))
    return found
