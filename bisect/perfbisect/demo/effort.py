"""How much work the planted commit adds to a change of the index, so that update-index drops by a given fraction.

Each of the features in ``changes/index.toml`` has two knobs: EFFORT_EVERY, how many changes of the index lie between
two checks, and EFFORT_SIZE, how much one check reads. Their cost was measured in one thread on a server of 2021, as a
multiple of the time of one update-index; other machines differ by a few hundredths.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

# feature → (size, extra time with a check at every change), both ascending
COST: Mapping[str, tuple[tuple[int, float], ...]] = {
    "order": ((4, 0.42), (24, 0.60), (100, 1.00), (170, 1.30), (250, 1.50)),
    "repeats": ((32, 0.13), (108, 0.36), (150, 0.54), (256, 1.05), (384, 1.70)),
    "trail": ((64, 0.20), (360, 0.44), (560, 0.66), (1280, 1.55)),
}
GRAIN = 8  # sizes above the smallest are multiples of it; a checksum needs whole words
LARGEST = 0.6


@dataclass(frozen=True, slots=True)
class Effort:
    """The two knobs."""

    every: int
    size: int

    @property
    def words(self) -> dict[str, int]:
        """The placeholders of the changes and their values."""
        return {"EFFORT_EVERY": self.every, "EFFORT_SIZE": self.size}


RARE = Effort(every=512, size=128)  # under a hundredth of an update


def effort_for(feature: str, drop: float) -> Effort:
    """The effort after which update-index has ``drop`` (a fraction) less throughput. Raises ValueError beyond 0.6."""
    if not 0 < drop <= LARGEST:
        raise ValueError(f"a planted drop of {drop} is not possible: it must be between 0 and {LARGEST}")
    extra = drop / (1 - drop)
    points = COST[feature]
    every = ceil(points[0][1] / extra)  # where the smallest size costs too much, checks are rarer
    return Effort(every, _size(points, extra * every))


def _size(points: tuple[tuple[int, float], ...], extra: float) -> int:
    """The size that costs ``extra``, by linear interpolation, and extrapolation beyond the last point."""
    if extra <= points[0][1]:
        return points[0][0]
    for (left, low), (right, high) in pairwise(points):
        if extra <= high or right == points[-1][0]:
            size = left + (right - left) * (extra - low) / (high - low)
            return round(size / GRAIN) * GRAIN
    raise AssertionError("the last pair always returns")
