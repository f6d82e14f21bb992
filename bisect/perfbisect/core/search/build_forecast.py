"""Forecasts builds: the expected cost of a build, the probability that a build succeeds, and the remaining time of
builds in progress. All costs and times of this module are multiples of the median duration of a run.

If the compiler cache is used, a build costs less if a commit nearby in the git history is already built. The cost of a
build is modelled as d^k, where d is the distance, in candidates, to the nearest existing build. The exponent k is
fitted to the builds of the hunt so far, is shrunk towards 0, and is between 0 and 1. The cost of failing builds is
estimated separately from the cost of successful builds.

Usually a commit breaks the build, a later commit fixes the build, and all commits between these two commits fail. So
descendants and ancestors of a failed commit probably fail, too, if no successful build is between them. The probability
that a commit builds is d / (d + u). Here d is the distance from the commit to the nearest failed commit. u is the
smaller of two numbers: 1 plus half the distance between the first and the last failure nearby, and the distance from
the commit to the nearest successful build. So the search doubles the distance to a failed commit with each attempt,
and, after a success, halves the distance between failure and success. The number of attempts is logarithmic in the
number of consecutive commits that fail. If builds of earlier and of later commits fail, each further failure lowers the
probability that a commit between them builds. So the search soon stops trying to build commits that are between failed
commits.

A failure on another branch may be caused by a commit that was never merged into this branch. So a failure on another
branch is evidence only against the commit where the branches diverged. If the commit where the branches diverged
probably does not build, its descendants have a lower probability to build, too; the effect decreases with the distance
from this commit.

A candidate that the user excluded was never built, so the exclusion is no evidence about other candidates.
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

BUILD_EXPONENT = 0.7  # power of a build's cost in scores; with power 1, a one-step rule measures old builds too often
PRIOR = 4.0  # weight of the prior that the power is 0, as a sum of squared logarithms of distances


def build_cost(
    now: Situation, candidates: Sequence[int], chance: Array | float = 1.0, host: int = 0, build_host: int | None = None
) -> Array:
    """For each of ``candidates``, the expected cost of an attempt to build the candidate, as a multiple of the duration
    of a run. The build is on ``build_host``, or on ``host`` if ``build_host`` is None.

    ``chance`` is the probability that each candidate builds.
    """
    record = now.record
    built = (
        record.builds_on(host) - record.built_on_build_hosts
        if build_host is None
        else record.caches.get(build_host, frozenset())
    )
    success = now.build_cost_in_runs * _relative_build_costs(record, candidates, built)
    failed = [attempt.seconds for attempt in record.attempts if not attempt.works]
    if not failed:
        return success
    return success + (1 - chance) * (float(np.median(failed)) / record.median_run_seconds - success)


def _relative_build_costs(record: Record, candidates: Sequence[int], built: Collection[int]) -> Array:
    """For each candidate, the expected cost of a successful build divided by the usual cost; the expected cost grows
    with the distance to the nearest ``built`` candidate.
    """
    power_law = _build_cost_power_law(record)
    if power_law is None or not built:
        return np.ones(len(candidates))
    power, middle = power_law
    distance = np.abs(np.array(candidates)[:, None] - np.array(list(built))).min(axis=1)
    share: Array = np.exp(power * (np.log(np.maximum(distance, 1)) - middle))
    return share


@lru_cache(maxsize=8)
def _build_cost_power_law(record: Record) -> tuple[float, float] | None:
    """Two numbers: the exponent k in d^k, the modelled cost of a build at the distance d to the nearest existing build;
    and the median of the logarithm of d. None if no build has used a filled compiler cache.
    """
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


def wait_in_runs(now: Situation) -> dict[int, float]:
    """Maps each candidate whose build is in progress to the remaining time of the build, as a multiple of the duration
    of a run."""
    in_progress = (building for building in now.fleet.building if not building.cancelled)
    return {building.candidate: time_left_in_runs(now, building) for building in in_progress}


def time_left_in_runs(now: Situation, building: BuildInProgress) -> float:
    """The remaining time of a build in progress, as a multiple of the duration of a run."""
    expected = float(build_cost(now, [building.candidate], build_host=building.build_host)[0])
    return max(expected - building.seconds / now.record.median_run_seconds, OVERDUE * expected)


def build_waits(now: Situation, candidates: list[int], build_success_chance: Array) -> Array:
    """For each candidate, the expected time from now until its build is finished, as a multiple of the duration of a
    run, if each build that is not in progress begins now.

    ``build_success_chance`` is the probability that each candidate builds.
    """
    fleet, in_flight = now.fleet, wait_in_runs(now)
    hosts = fleet.free_build_hosts or tuple(h for h in range(fleet.build_hosts) if h not in fleet.gone_build_hosts)
    costs = np.min([build_cost(now, candidates, build_success_chance, build_host=host) for host in hosts], axis=0)
    result: Array = np.array([in_flight.get(v, cost) for v, cost in zip(candidates, costs.tolist(), strict=True)])
    return result


# Factor of the chance that a commit between two failures builds, for each further failure around the commit.
FADING = 0.6
# Factor, for each further failure, of the chance that a descendant of a diverging commit fixed the build. The factor is
# nearer to 1 than FADING, because these failures are weaker evidence.
DIVERGED_FADING = 0.88


class _NearbyFailures(NamedTuple):
    """The failed builds near a commit, as evidence that the commit fails to build, too. The values are equal for
    commits that have the same tried ancestors and the same tried descendants.
    """

    from_low: bool  # whether a tried ancestor does not build
    from_high: bool  # whether a tried descendant does not build
    low: float  # height of the nearest failing ancestor, or else of the nearest ancestor that builds
    high: float  # height of the nearest failing descendant, or else of the nearest descendant that builds
    extent: float  # distance within which further failures are expected
    fading: float  # factor of the chance to build, for the number of failures


class _DivergingCommit(NamedTuple):
    """A commit from which branches diverge, and the probability that the commit builds. If this probability is low, the
    descendants of the commit probably do not build, either.
    """

    build_success_chance: float  # probability that the commit builds
    height: int
    segment: int  # segment whose last commit is the diverging commit
    extent: float
    fading: float

    def descendant_build_chances(self, height: NDArray[np.int64]) -> Array:
        """For descendants at these heights, the probability that the descendant builds, because the commit where the
        branches diverge builds, or because a commit between this commit and the descendant fixes the build.
        """
        chance, distance = self.build_success_chance, height - self.height
        return chance + (1 - chance) * self.fading * distance / (distance + self.extent)


NO_DOUBT = _DivergingCommit(1.0, 0, 0, 1.0, 1.0)


def build_success_chances(now: Situation) -> Array:
    """For each candidate, the probability that its build succeeds; shape (candidates,)."""
    record = now.record
    return chance_to_build(ancestry_of(now.graph), record.skipped, record.built_on_any_host, record.left_out)


def chance_to_build(
    reach: Ancestry, skipped: Iterable[int], built: Iterable[int], left_out: Collection[int] = ()
) -> Array:
    """For each candidate, the probability that the candidate can be built: 0 for a skipped candidate, 1 if no failed
    build is evidence against the candidate; shape (candidates,).

    ``left_out`` are skipped candidates that were not tried, and so are no evidence against other candidates.
    """
    build_success_chance, failed = np.ones(reach.size), set(skipped) - set(left_out)
    if failed:
        _lower_by_failures(build_success_chance, reach, failed, built)
    build_success_chance[list(left_out)] = 0.0
    return build_success_chance


def _lower_by_failures(build_success_chance: Array, reach: Ancestry, failed: set[int], built: Iterable[int]) -> None:
    """Lower the probabilities ``build_success_chance`` of candidates near failed builds; the caller passes 1 for all
    candidates."""
    tried = sorted(failed | set(built))
    segment, below = reach.pieces_with_parents(tried)
    ancestors, descendants = _tried_relatives(segment[tried].tolist(), below)
    relatives = list(zip(ancestors, descendants, strict=True))
    builds = _TriedCandidates.of(reach, tried, failed, [relatives[i] for i in segment[tried].tolist()])
    evidence = {pair: builds.failure_evidence(*pair) for pair in set(relatives)}
    from_low, from_high, low, high, extent, fading = np.array([evidence[pair] for pair in relatives])[segment].T
    to_low, to_high = reach.height - low, high - reach.height
    room = np.minimum(extent, np.where(from_low == from_high, np.inf, np.where(from_low, to_high, to_low)))
    np.divide(to_low, to_low + room, out=build_success_chance, where=from_low > 0)
    product = build_success_chance * np.where(from_high, to_high, 1.0)
    np.divide(product, to_high + room, out=build_success_chance, where=from_high > 0)
    build_success_chance *= fading
    build_success_chance[tried] = 1.0
    build_success_chance[list(failed)] = 0.0
    if reach.segments > 1:
        _lower_after_divergence(build_success_chance, builds, reach, segment, below, relatives)


def _tried_relatives(tried: list[int], below: list[list[int]]) -> tuple[list[int], list[int]]:
    """For each segment of the graph (a chain of commits without branches, cut at tried commits), two sets: the segments
    in ``tried`` among its ancestors, and the segments in ``tried`` among its descendants. A set is stored as an integer
    with one bit for each entry of ``tried``.

    ``below`` lists, for each segment, its parent segments. A parent segment has a lower number than its children.
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
    build_success_chance: Array,
    builds: "_TriedCandidates",
    reach: Ancestry,
    segment: NDArray[np.int64],
    below: list[list[int]],
    relatives: list[tuple[int, int]],
) -> None:
    """Lower the probabilities ``build_success_chance`` of the descendants of each commit from which a branch with
    failed builds diverged. A descendant is left out if a build between this commit and the descendant succeeded.
    """
    last = np.zeros(len(below), np.int64)
    last[segment] = np.arange(reach.size)  # a later candidate of a segment overwrites an earlier candidate
    height, likely = reach.height[last].tolist(), build_success_chance[last].tolist()
    tried = dict(zip(segment[builds.candidates].tolist(), range(len(builds.candidates)), strict=True))
    failing_above, spread = {}, {}
    for pair in set(relatives):
        under, over = builds.unseparated_failures(*pair)
        failing_above[pair], spread[pair] = over, builds.reach_and_fading(under | over)
    doubts: list[_DivergingCommit | None] = []
    for piece, lower in enumerate(below):
        if piece in tried:
            doubts.append(None)
            continue
        ancestors, descendants = relatives[piece]
        of_piece = [doubt for i in lower if (doubt := doubts[i])]
        for i in lower:
            if i not in tried and failing_above[relatives[i]] & ~descendants:
                of_piece.append(_DivergingCommit(likely[i], height[i], i, *spread[relatives[i]]))
        successes = ancestors & ~builds.failed
        doubt = min((doubt for doubt in of_piece if not relatives[doubt.segment][1] & successes), default=None)
        if doubt:
            likely[piece] = min(likely[piece], float(doubt.descendant_build_chances(np.array(height[piece]))))
        doubts.append(doubt)
    rows = np.array([doubt or NO_DOUBT for doubt in doubts])[segment].T
    chances = _DivergingCommit(*rows).descendant_build_chances(reach.height)
    np.minimum(build_success_chance, chances, out=build_success_chance)


@dataclass(frozen=True, slots=True)
class _TriedCandidates:
    """The candidates whose builds succeeded or failed. Each field with a set of candidates is an integer, whose bit i
    is set if the set contains ``candidates[i]``.
    """

    candidates: list[int]
    height: list[int]
    failed: int
    ancestors: list[int]  # the tried ancestors of each candidate
    descendants: list[int]  # the tried descendants of each candidate

    @classmethod
    def of(
        cls, reach: Ancestry, tried: list[int], failed: set[int], relatives: list[tuple[int, int]]
    ) -> "_TriedCandidates":
        """The candidates ``tried``. ``relatives`` has, for each of these candidates, the set of its tried ancestors and
        the set of its tried descendants.
        """
        bits = sum(1 << i for i, v in enumerate(tried) if v in failed)
        return cls(tried, reach.height[tried].tolist(), bits, [a for a, _ in relatives], [d for _, d in relatives])

    def unseparated_failures(self, ancestors: int, descendants: int) -> tuple[int, int]:
        """Two sets: the failed candidates among the ``ancestors`` of a candidate, and the failed candidates among its
        ``descendants``. A failed candidate is left out if a successful build is between it and this candidate.
        """
        low, high = ancestors & ~self.failed, descendants & ~self.failed
        return (
            sum(1 << i for i in _positions(ancestors & self.failed) if not self.descendants[i] & low),
            sum(1 << i for i in _positions(descendants & self.failed) if not self.ancestors[i] & high),
        )

    def reach_and_fading(self, failures: int) -> tuple[float, float]:
        """The distance from a failure within which other commits are expected to fail (1 plus half the extent of
        ``failures``), and a factor that decreases with the number of ``failures``.
        """
        heights = [self.height[i] for i in _positions(failures)] or [0]
        return 1 + (max(heights) - min(heights)) / 2, DIVERGED_FADING ** max(len(heights) - 2, 0)

    def failure_evidence(self, ancestors: int, descendants: int) -> _NearbyFailures:
        """The failed builds near a candidate that has these tried ``ancestors`` and ``descendants``."""
        failing = self.unseparated_failures(ancestors, descendants)
        under, over = ([self.height[i] for i in _positions(side)] for side in failing)
        built_below, built_above = ancestors & ~self.failed, descendants & ~self.failed
        nearest_below = max((self.height[i] for i in _positions(built_below)), default=-np.inf)
        nearest_above = min((self.height[i] for i in _positions(built_above)), default=np.inf)
        if over and min(over) > nearest_above:
            over = []
        low, high = max(under, default=nearest_below), min(over, default=nearest_above)
        if under and over:
            fading = FADING ** max(len(under) + len(over) - 2, 0)
            return _NearbyFailures(True, True, low, high, 1 + (high - low) / 2, fading)
        heights = under or over or [0]
        return _NearbyFailures(bool(under), bool(over), low, high, 1 + (max(heights) - min(heights)) / 2, 1.0)


def _positions(bits: int) -> list[int]:
    """The positions of the bits that are 1 in an integer."""
    return [i for i in range(bits.bit_length()) if bits >> i & 1]
