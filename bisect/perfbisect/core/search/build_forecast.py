"""What the next builds will cost, how likely they are to work, and when those in flight will be there.

With a compiler cache a build is the cheaper, the nearer an existing build is. The cost is a power of the distance in
candidates, fitted to the builds so far and shrunk to the median. Builds that fail have a price of their own.

Failures come in stretches: a commit breaks the build, a later one fixes it. So descendants and ancestors of a failure,
with no success between, probably fail too. The probability decreases with the distance, in units of the extent of the
failures so far, or of the room up to the nearest success if that is smaller. Steps away from a failure therefore
double, the room up to a success is halved, and a stretch costs a logarithmic number of attempts. Between two failures
of a stretch the chance decreases with every further failure, so that the attempts end.

A failure on another branch may be due to a commit that was never merged here, so it is evidence only against the commit
where the branches diverged; the descendants of that commit share its doubt, less with distance.

A candidate that the user left out was not tried, so it is evidence of nothing.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.orders import Building
from perfbisect.core.inference.ancestry import Ancestry, ancestry_of
from perfbisect.core.inference.record import Record
from perfbisect.core.search.situation import Situation

Array = NDArray[np.float64]

BUILD_EXPONENT = 0.7  # of the cost of a build in scores: one step ahead, the full cost would repeat builds too often
PRIOR = 4.0  # weight of the power 0, in squares of the logarithm of the distance


def price(
    now: Situation, candidates: Sequence[int], chance: Array | float = 1.0, host: int = 0, build_host: int | None = None
) -> Array:
    """The expected cost in runs of an attempt on ``host``, or on a build host, to build each of ``candidates``.

    ``chance`` is the probability that each builds.
    """
    record = now.record
    made = record.made(host) - record.ahead if build_host is None else record.caches.get(build_host, frozenset())
    works = now.build_runs * _share(record, candidates, made)
    failed = [attempt.seconds for attempt in record.attempts if not attempt.works]
    if not failed:
        return works
    return works + (1 - chance) * (float(np.median(failed)) / record.run_seconds - works)


def _share(record: Record, candidates: Sequence[int], made: Collection[int]) -> Array:
    """The share of the usual cost of a build that works, by the distance to the nearest of those that were ``made``."""
    law = _law(record)
    if law is None or not made:
        return np.ones(len(candidates))
    power, middle = law
    distance = np.abs(np.array(candidates)[:, None] - np.array(list(made))).min(axis=1)
    share: Array = np.exp(power * (np.log(np.maximum(distance, 1)) - middle))
    return share


@lru_cache(maxsize=8)
def _law(record: Record) -> tuple[float, float] | None:
    """The power of the distance, and the logarithm of the distance of usual builds; None before there are any."""
    seen = record.builds_after(1)
    if not seen:
        return None
    usual = record.builds_after(2) or seen
    seconds = np.log([attempt.seconds for attempt in seen])
    seconds -= np.log(np.median([attempt.seconds for attempt in usual]))
    middle = float(np.median(np.log([max(attempt.distance, 1) for attempt in usual])))
    far = np.log([max(attempt.distance, 1) for attempt in seen]) - middle
    return float(np.clip(far @ seconds / (far @ far + PRIOR), 0.0, 1.0)), middle


OVERDUE = 0.1  # of the expected time: what is still expected of a build that has taken longer than that


def remaining(now: Situation) -> dict[int, float]:
    """For each candidate in flight, the runs that its build will still take."""
    return {one.candidate: left(now, one) for one in now.fleet.building if not one.cancelled}


def left(now: Situation, one: Building) -> float:
    """The runs that a build in flight will still take."""
    expected = float(price(now, [one.candidate], build_host=one.build_host)[0])
    return max(expected - one.seconds / now.record.run_seconds, OVERDUE * expected)


def waiting(now: Situation, candidates: list[int], chance: Array) -> Array:
    """The runs until the build of each of ``candidates``, none of which is there, can be: in flight, or begun now.

    ``chance`` is the probability that each builds.
    """
    fleet, soon = now.fleet, remaining(now)
    hosts = fleet.free_build_hosts or tuple(h for h in range(fleet.build_hosts) if h not in fleet.gone_build_hosts)
    cost = np.min([price(now, candidates, chance, build_host=host) for host in hosts], axis=0)
    result: Array = np.array([soon.get(v, full) for v, full in zip(candidates, cost.tolist(), strict=True)])
    return result


FADING = 0.6  # of the chance that a commit between two failures builds, for each further failure around it
PARTED = 0.88  # the same of the chance that a descendant of a diverging commit fixed the build: it is weaker evidence


class _Sides(NamedTuple):
    """The evidence against commits with the same tried relatives."""

    from_low: bool  # whether an ancestor fails
    from_high: bool  # whether a descendant fails
    low: float  # height of the nearest failing ancestor, or else of the nearest success
    high: float  # the same of descendants
    extent: float  # distance within which further failures are expected
    fading: float  # factor for the number of failures


class _Doubt(NamedTuple):
    """The chance of a commit where branches diverge, and so of its descendants."""

    chance: float  # to build
    height: int
    segment: int  # of which it is the last commit
    extent: float
    fading: float

    def at(self, height: NDArray[np.int64]) -> Array:
        """The chance of descendants: the commit builds, or one of them fixed it."""
        far = height - self.height
        return self.chance + (1 - self.chance) * self.fading * far / (far + self.extent)


NO_DOUBT = _Doubt(1.0, 0, 0, 1.0, 1.0)


def chances(now: Situation) -> Array:
    """That each candidate builds, (size,)."""
    record = now.record
    return chance_to_build(ancestry_of(now.graph), record.skipped, record.there, record.left_out)


def chance_to_build(
    reach: Ancestry, skipped: Iterable[int], built: Iterable[int], left_out: Collection[int] = ()
) -> Array:
    """Probability for each candidate, shape (size,): 0 if it was skipped, 1 without evidence against it.

    ``left_out`` are those of ``skipped`` that are no evidence against others.
    """
    chance, failed = np.ones(reach.size), set(skipped) - set(left_out)
    if failed:
        _lower(chance, reach, failed, built)
    chance[list(left_out)] = 0.0
    return chance


def _lower(chance: Array, reach: Ancestry, failed: set[int], built: Iterable[int]) -> None:
    """Lower the chance of all, 1, by what has failed."""
    tried = sorted(failed | set(built))
    segment, below = reach.cut(tried)
    before, after = _kin(segment[tried].tolist(), below)
    seen = _Tried.of(reach, tried, failed, [(before[i], after[i]) for i in segment[tried].tolist()])
    kin = list(zip(before, after, strict=True))
    known = {pair: seen.around(*pair) for pair in set(kin)}
    from_low, from_high, low, high, extent, fading = np.array([known[pair] for pair in kin])[segment].T
    to_low, to_high = reach.height - low, high - reach.height
    room = np.minimum(extent, np.where(from_low == from_high, np.inf, np.where(from_low, to_high, to_low)))
    np.divide(to_low, to_low + room, out=chance, where=from_low > 0)
    np.divide(chance * np.where(from_high, to_high, 1.0), to_high + room, out=chance, where=from_high > 0)
    chance *= fading
    chance[tried] = 1.0
    chance[list(failed)] = 0.0
    if reach.segments > 1:
        _inherit(chance, seen, reach, segment, below, kin)


def _kin(tried: list[int], below: list[list[int]]) -> tuple[list[int], list[int]]:
    """For each segment the tried ancestors, and the tried descendants, as bits in the order of ``tried``."""
    own = [0] * len(below)
    for i, segment in enumerate(tried):
        own[segment] = 1 << i
    before, after = [0] * len(below), [0] * len(below)
    for segment, lower in enumerate(below):
        for i in lower:
            before[segment] |= before[i] | own[i]
    for segment in range(len(below) - 1, -1, -1):
        for i in below[segment]:
            after[i] |= after[segment] | own[segment]
    return before, after


def _inherit(
    chance: Array, seen: "_Tried", reach: Ancestry, segment: NDArray[np.int64], below: list[list[int]],
    kin: list[tuple[int, int]],
) -> None:  # fmt: skip
    """Lower the chance of descendants of a commit where a failing branch diverged, unless a success between fixed it."""
    last = np.zeros(len(below), np.int64)
    last[segment] = np.arange(reach.size)  # the last of each segment, since later ones overwrite earlier ones
    height, likely = reach.height[last].tolist(), chance[last].tolist()
    tried = dict(zip(segment[seen.candidates].tolist(), range(len(seen.candidates)), strict=True))
    above, spread = {}, {}
    for pair in set(kin):
        under, over = seen.failing(*pair)
        above[pair], spread[pair] = over, seen.spread(under | over)
    doubts: list[_Doubt | None] = []
    for own, lower in enumerate(below):
        if own in tried:
            doubts.append(None)
            continue
        before, after = kin[own]
        found = [doubt for i in lower if (doubt := doubts[i])]
        for i in lower:
            if i not in tried and above[kin[i]] & ~after:
                found.append(_Doubt(likely[i], height[i], i, *spread[kin[i]]))
        fixed = before & ~seen.failed
        doubt = min((doubt for doubt in found if not kin[doubt.segment][1] & fixed), default=None)
        if doubt:
            likely[own] = min(likely[own], float(doubt.at(np.array(height[own]))))
        doubts.append(doubt)
    rows = np.array([doubt or NO_DOUBT for doubt in doubts])[segment].T
    np.minimum(chance, _Doubt(*rows).at(reach.height), out=chance)


@dataclass(frozen=True, slots=True)
class _Tried:
    """The candidates that were tried; sets of them are bits."""

    candidates: list[int]
    height: list[int]
    failed: int
    before: list[int]  # the ancestors of each
    after: list[int]  # the descendants of each

    @classmethod
    def of(cls, reach: Ancestry, tried: list[int], failed: set[int], kin: list[tuple[int, int]]) -> "_Tried":
        """``kin`` are the ancestors and descendants of each."""
        bits = sum(1 << i for i, v in enumerate(tried) if v in failed)
        return cls(tried, reach.height[tried].tolist(), bits, [b for b, _ in kin], [a for _, a in kin])

    def failing(self, before: int, after: int) -> tuple[int, int]:
        """The failed ones of these ancestors and descendants with no success between."""
        low, high = before & ~self.failed, after & ~self.failed
        return (
            sum(1 << i for i in _members(before & self.failed) if not self.after[i] & low),
            sum(1 << i for i in _members(after & self.failed) if not self.before[i] & high),
        )

    def spread(self, failures: int) -> tuple[float, float]:
        """How far from a commit with these relatives others fail, and the factor for their number."""
        heights = [self.height[i] for i in _members(failures)] or [0]
        return 1 + (max(heights) - min(heights)) / 2, PARTED ** max(len(heights) - 2, 0)

    def around(self, before: int, after: int) -> _Sides:
        """The evidence against candidates with these ancestors and descendants."""
        failing = self.failing(before, after)
        under, over = ([self.height[i] for i in _members(side)] for side in failing)
        built_before, built_after = before & ~self.failed, after & ~self.failed
        fine_low = max((self.height[i] for i in _members(built_before)), default=-np.inf)
        fine_high = min((self.height[i] for i in _members(built_after)), default=np.inf)
        if over and min(over) > fine_high:
            over = []
        low, high = max(under, default=fine_low), min(over, default=fine_high)
        if under and over:
            return _Sides(True, True, low, high, 1 + (high - low) / 2, FADING ** max(len(under) + len(over) - 2, 0))
        seen = under or over or [0]
        return _Sides(bool(under), bool(over), low, high, 1 + (max(seen) - min(seen)) / 2, 1.0)


def _members(bits: int) -> list[int]:
    return [i for i in range(bits.bit_length()) if bits >> i & 1]
