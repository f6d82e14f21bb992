"""The expected cost of the next builds, the probability that they succeed, and the remaining time of builds in
progress.

With a compiler cache, a build costs less if an existing build is near in the history. The cost of a build is a power
of the distance to the nearest build, in candidates. The exponent is fitted to the builds made so far and shrunk
towards the median exponent. The cost of builds that fail is estimated separately.

Failures come in stretches: a commit breaks the build, and a later commit fixes it. So descendants and ancestors of a
failed commit probably fail, too, if no successful build is between them. The probability of a failure decreases with
the distance from a failed commit. The unit of distance is the extent of the failures so far, or the distance from the
failure to the nearest success, whichever is smaller. So the search moves away from a failure in steps that double,
then halves the distance to a success; the number of attempts is logarithmic in the length of a stretch of failures.
Between two failures of a stretch, the probability that a candidate builds decreases with every further failure, so
that the search stops trying the commits between them.

A failure on another branch may be caused by a commit that was never merged into this branch. So a failure on another
branch is evidence only against the commit where the branches diverged. The descendants of the diverging commit get a
part of its doubt, which decreases with the distance.

A candidate that the user excluded was not tried, so it is no evidence.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.orders import BuildInProgress
from perfbisect.core.inference.ancestry import Ancestry, ancestry_of
from perfbisect.core.inference.record import Record
from perfbisect.core.search.situation import Situation

Array = NDArray[np.float64]

BUILD_EXPONENT = 0.7  # of the cost of a build in scores; with the full cost, a one-step rule repeats builds too often
PRIOR = 4.0  # prior weight of the power 0, in squares of the logarithm of the distance


def build_cost(
    now: Situation, candidates: Sequence[int], chance: Array | float = 1.0, host: int = 0, build_host: int | None = None
) -> Array:
    """The expected cost of trying to build each of ``candidates``, in runs, on ``build_host``, or on ``host`` if
    ``build_host`` is None.

    ``chance`` is the probability that each candidate builds.
    """
    record = now.record
    built = (
        record.builds_on(host) - record.built_ahead
        if build_host is None
        else record.caches.get(build_host, frozenset())
    )
    success = now.build_runs * _cost_share(record, candidates, built)
    failed = [attempt.seconds for attempt in record.attempts if not attempt.works]
    if not failed:
        return success
    return success + (1 - chance) * (float(np.median(failed)) / record.median_run_seconds - success)


def _cost_share(record: Record, candidates: Sequence[int], built: Collection[int]) -> Array:
    """The cost of a successful build divided by the usual cost, as a function of the distance to the nearest
    ``built`` candidate.
    """
    power_law = _power_law(record)
    if power_law is None or not built:
        return np.ones(len(candidates))
    power, middle = power_law
    distance = np.abs(np.array(candidates)[:, None] - np.array(list(built))).min(axis=1)
    share: Array = np.exp(power * (np.log(np.maximum(distance, 1)) - middle))
    return share


@lru_cache(maxsize=8)
def _power_law(record: Record) -> tuple[float, float] | None:
    """The exponent of the distance in a build's cost, and the median logarithm of the distance; None without builds."""
    builds = record.builds_with_warm_cache(1)
    if not builds:
        return None
    usual = record.builds_with_warm_cache(2) or builds
    seconds = np.log([attempt.seconds for attempt in builds])
    seconds -= np.log(np.median([attempt.seconds for attempt in usual]))
    middle = float(np.median(np.log([max(attempt.distance, 1) for attempt in usual])))
    distance = np.log([max(attempt.distance, 1) for attempt in builds]) - middle
    return float(np.clip(distance @ seconds / (distance @ distance + PRIOR), 0.0, 1.0)), middle


OVERDUE = 0.1  # remaining time of an overdue build, as a share of its expected time


def remaining_runs(now: Situation) -> dict[int, float]:
    """The remaining time of each build in progress, in runs, by candidate."""
    return {building.candidate: runs_left(now, building) for building in now.fleet.building if not building.cancelled}


def runs_left(now: Situation, building: BuildInProgress) -> float:
    """The remaining time of a build in progress, in runs."""
    expected = float(build_cost(now, [building.candidate], build_host=building.build_host)[0])
    return max(expected - building.seconds / now.record.median_run_seconds, OVERDUE * expected)


def wait_runs(now: Situation, candidates: list[int], chance: Array) -> Array:
    """The time until the build of each candidate can be finished, in runs, whether the build is already in progress
    or begins now.

    ``chance`` is the probability that each candidate builds.
    """
    fleet, in_flight = now.fleet, remaining_runs(now)
    hosts = fleet.free_build_hosts or tuple(h for h in range(fleet.build_hosts) if h not in fleet.gone_build_hosts)
    costs = np.min([build_cost(now, candidates, chance, build_host=host) for host in hosts], axis=0)
    result: Array = np.array([in_flight.get(v, cost) for v, cost in zip(candidates, costs.tolist(), strict=True)])
    return result


FADING = 0.6  # factor for each further failure around a commit between two failures, for its chance to build
# factor for each further failure, for the chance that a descendant of a diverging commit fixed the build; weaker
# evidence
DIVERGED_FADING = 0.88


class _Failures(NamedTuple):
    """The evidence from failed builds against commits that have the same tried ancestors and descendants."""

    from_low: bool  # whether an ancestor fails
    from_high: bool  # whether a descendant fails
    low: float  # height of the nearest failing ancestor, or else of the nearest ancestor that builds
    high: float  # height of the nearest failing descendant, or else of the nearest descendant that builds
    extent: float  # distance within which further failures are expected
    fading: float  # factor for the number of failures


class _DivergenceDoubt(NamedTuple):
    """The probability that a commit where branches diverge can be built; a low probability lowers the probabilities
    of its descendants.
    """

    chance: float  # to build
    height: int
    segment: int  # segment whose last commit is the diverging commit
    extent: float
    fading: float

    def chance_at(self, height: NDArray[np.int64]) -> Array:
        """The probability that descendants with these heights can be built: the diverging commit builds, or a
        descendant fixed it.
        """
        distance = height - self.height
        return self.chance + (1 - self.chance) * self.fading * distance / (distance + self.extent)


NO_DOUBT = _DivergenceDoubt(1.0, 0, 0, 1.0, 1.0)


def build_chances(now: Situation) -> Array:
    """The probability that each candidate builds, (size,)."""
    record = now.record
    return chance_to_build(ancestry_of(now.graph), record.skipped, record.built_on_any_host, record.left_out)


def chance_to_build(
    reach: Ancestry, skipped: Iterable[int], built: Iterable[int], left_out: Collection[int] = ()
) -> Array:
    """The probability that each candidate can be built, (size,): 0 for a skipped candidate, 1 if there is no evidence
    of failure.

    ``left_out`` are skipped candidates that give no evidence against other candidates.
    """
    chance, failed = np.ones(reach.size), set(skipped) - set(left_out)
    if failed:
        _lower_by_failures(chance, reach, failed, built)
    chance[list(left_out)] = 0.0
    return chance


def _lower_by_failures(chance: Array, reach: Ancestry, failed: set[int], built: Iterable[int]) -> None:
    """Lower ``chance`` (size,), which is 1 for all candidates at first, according to the failed builds."""
    tried = sorted(failed | set(built))
    segment, below = reach.cut_into_pieces(tried)
    ancestors, descendants = _tried_relatives(segment[tried].tolist(), below)
    builds = _Attempts.of(reach, tried, failed, [(ancestors[i], descendants[i]) for i in segment[tried].tolist()])
    relatives = list(zip(ancestors, descendants, strict=True))
    evidence = {pair: builds.evidence(*pair) for pair in set(relatives)}
    from_low, from_high, low, high, extent, fading = np.array([evidence[pair] for pair in relatives])[segment].T
    to_low, to_high = reach.height - low, high - reach.height
    room = np.minimum(extent, np.where(from_low == from_high, np.inf, np.where(from_low, to_high, to_low)))
    np.divide(to_low, to_low + room, out=chance, where=from_low > 0)
    np.divide(chance * np.where(from_high, to_high, 1.0), to_high + room, out=chance, where=from_high > 0)
    chance *= fading
    chance[tried] = 1.0
    chance[list(failed)] = 0.0
    if reach.segments > 1:
        _lower_after_divergence(chance, builds, reach, segment, below, relatives)


def _tried_relatives(tried: list[int], below: list[list[int]]) -> tuple[list[int], list[int]]:
    """The tried ancestors and the tried descendants of each segment, as bits in the order of ``tried`` segments.

    ``below`` lists, for each segment, the segments directly below it; lower segments come first.
    """
    bits = [0] * len(below)
    for i, segment in enumerate(tried):
        bits[segment] = 1 << i
    ancestors, descendants = [0] * len(below), [0] * len(below)
    for segment, lower in enumerate(below):
        for i in lower:
            ancestors[segment] |= ancestors[i] | bits[i]
    for segment in range(len(below) - 1, -1, -1):
        for i in below[segment]:
            descendants[i] |= descendants[segment] | bits[segment]
    return ancestors, descendants


def _lower_after_divergence(
    chance: Array, builds: "_Attempts", reach: Ancestry, segment: NDArray[np.int64], below: list[list[int]],
    relatives: list[tuple[int, int]],
) -> None:  # fmt: skip
    """Lower ``chance`` for descendants of a commit where a failing branch diverged, unless a build between them
    succeeded.
    """
    last = np.zeros(len(below), np.int64)
    last[segment] = np.arange(reach.size)  # a later candidate of a segment overwrites an earlier candidate
    height, likely = reach.height[last].tolist(), chance[last].tolist()
    tried = dict(zip(segment[builds.candidates].tolist(), range(len(builds.candidates)), strict=True))
    failing_above, spread = {}, {}
    for pair in set(relatives):
        under, over = builds.failing(*pair)
        failing_above[pair], spread[pair] = over, builds.spread(under | over)
    doubts: list[_DivergenceDoubt | None] = []
    for piece, lower in enumerate(below):
        if piece in tried:
            doubts.append(None)
            continue
        ancestors, descendants = relatives[piece]
        of_piece = [doubt for i in lower if (doubt := doubts[i])]
        for i in lower:
            if i not in tried and failing_above[relatives[i]] & ~descendants:
                of_piece.append(_DivergenceDoubt(likely[i], height[i], i, *spread[relatives[i]]))
        successes = ancestors & ~builds.failed
        doubt = min((doubt for doubt in of_piece if not relatives[doubt.segment][1] & successes), default=None)
        if doubt:
            likely[piece] = min(likely[piece], float(doubt.chance_at(np.array(height[piece]))))
        doubts.append(doubt)
    rows = np.array([doubt or NO_DOUBT for doubt in doubts])[segment].T
    np.minimum(chance, _DivergenceDoubt(*rows).chance_at(reach.height), out=chance)


@dataclass(frozen=True, slots=True)
class _Attempts:
    """The candidates whose builds were tried; a set of candidates is an integer whose bits are in the order of
    ``candidates``.
    """

    candidates: list[int]
    height: list[int]
    failed: int
    ancestors: list[int]  # the tried ancestors of each candidate
    descendants: list[int]  # the tried descendants of each candidate

    @classmethod
    def of(cls, reach: Ancestry, tried: list[int], failed: set[int], relatives: list[tuple[int, int]]) -> "_Attempts":
        """The attempts, from the tried candidates; ``relatives`` are the tried ancestors and the tried descendants of
        each candidate.
        """
        bits = sum(1 << i for i, v in enumerate(tried) if v in failed)
        return cls(tried, reach.height[tried].tolist(), bits, [a for a, _ in relatives], [d for _, d in relatives])

    def failing(self, ancestors: int, descendants: int) -> tuple[int, int]:
        """The failed candidates among ``ancestors`` and among ``descendants`` that no successful build separates from
        the candidate with these relatives.
        """
        low, high = ancestors & ~self.failed, descendants & ~self.failed
        return (
            sum(1 << i for i in _positions(ancestors & self.failed) if not self.descendants[i] & low),
            sum(1 << i for i in _positions(descendants & self.failed) if not self.ancestors[i] & high),
        )

    def spread(self, failures: int) -> tuple[float, float]:
        """The distance within which further failures are expected, and the factor that the number of ``failures``
        determines.
        """
        heights = [self.height[i] for i in _positions(failures)] or [0]
        return 1 + (max(heights) - min(heights)) / 2, DIVERGED_FADING ** max(len(heights) - 2, 0)

    def evidence(self, ancestors: int, descendants: int) -> _Failures:
        """The evidence from failed builds against candidates with these tried ``ancestors`` and ``descendants``."""
        failing = self.failing(ancestors, descendants)
        under, over = ([self.height[i] for i in _positions(side)] for side in failing)
        built_below, built_above = ancestors & ~self.failed, descendants & ~self.failed
        nearest_below = max((self.height[i] for i in _positions(built_below)), default=-np.inf)
        nearest_above = min((self.height[i] for i in _positions(built_above)), default=np.inf)
        if over and min(over) > nearest_above:
            over = []
        low, high = max(under, default=nearest_below), min(over, default=nearest_above)
        if under and over:
            return _Failures(True, True, low, high, 1 + (high - low) / 2, FADING ** max(len(under) + len(over) - 2, 0))
        heights = under or over or [0]
        return _Failures(bool(under), bool(over), low, high, 1 + (max(heights) - min(heights)) / 2, 1.0)


def _positions(bits: int) -> list[int]:
    """The positions of the set bits of an integer."""
    return [i for i in range(bits.bit_length()) if bits >> i & 1]
