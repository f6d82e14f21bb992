"""How likely a candidate is to build, given the candidates that did not.

Failures come in stretches: a commit breaks the build, a later one mends it. So what descends from a failure
or leads up to one, with no success between the two, is believed to fail too, less with distance, where the
distance that matters is the extent of the failures seen so far and the room that is left up to the nearest
success. Steps away from a failure therefore double, edges are halved, and a stretch costs a logarithmic number
of attempts. Between two failures of one stretch the belief fades with every further failure, so that the
attempts end. A failure on another branch says nothing: what broke that one may never have been merged here.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.reach import Reach

FADING = 0.6  # of the belief that something between two failures builds, with each further failure around it


def chance_to_build(reach: Reach, skipped: Iterable[int], built: Iterable[int]) -> NDArray[np.float64]:
    """Probability for each candidate, shape (size,): 0 for skipped ones, 1 where nothing speaks against it."""
    failed = set(skipped)
    if not failed:
        return np.ones(reach.size)
    tried = sorted(failed | set(built))
    pairs, whose = reach.relatives(tried)
    known = _Tried.of(reach, tried, failed, [pairs[i] for i in whose[tried].tolist()])
    below, above, low, high, extent, fading = np.array([known.around(*pair) for pair in pairs])[whose].T
    to_low, to_high = reach.height - low, high - reach.height
    room = np.minimum(extent, np.where(below == above, np.inf, np.where(below, to_high, to_low)))
    chance = np.ones(reach.size)
    np.divide(to_low, to_low + room, out=chance, where=below > 0)
    np.divide(chance * np.where(above, to_high, 1.0), to_high + room, out=chance, where=above > 0)
    chance *= fading
    chance[tried] = 1.0
    chance[list(failed)] = 0.0
    return chance


@dataclass(frozen=True, slots=True)
class _Tried:
    """The candidates that were tried; sets of them are bits."""

    height: list[int]
    failed: int
    before: list[int]  # the ancestors of each
    after: list[int]  # the descendants of each

    @classmethod
    def of(cls, reach: Reach, tried: list[int], failed: set[int], kin: list[tuple[int, int]]) -> "_Tried":
        """``kin`` are the ancestors and descendants of each."""
        bits = sum(1 << i for i, v in enumerate(tried) if v in failed)
        return cls(reach.height[tried].tolist(), bits, [b for b, _ in kin], [a for _, a in kin])

    def around(self, before: int, after: int) -> tuple[bool, bool, float, float, float, float]:
        """What is believed of candidates with these ancestors and descendants.

        Whether failures reach up to them from below, and down from above; the height of the nearest failure there,
        otherwise of the nearest success; how far from the failures others are expected; and the factor for their number.
        """
        built_before, built_after = before & ~self.failed, after & ~self.failed
        under = [self.height[i] for i in _members(before & self.failed) if not self.after[i] & built_before]
        over = [self.height[i] for i in _members(after & self.failed) if not self.before[i] & built_after]
        fine_under = max((self.height[i] for i in _members(built_before)), default=-np.inf)
        fine_over = min((self.height[i] for i in _members(built_after)), default=np.inf)
        if over and min(over) > fine_over:  # this one does not lead there alone
            over = []
        low, high = max(under, default=fine_under), min(over, default=fine_over)
        if under and over:
            return True, True, low, high, 1 + (high - low) / 2, FADING ** max(len(under) + len(over) - 2, 0)
        seen = under or over or [0]
        return bool(under), bool(over), low, high, 1 + (max(seen) - min(seen)) / 2, 1.0


def _members(bits: int) -> list[int]:
    return [i for i in range(bits.bit_length()) if bits >> i & 1]
