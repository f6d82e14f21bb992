"""Arranges the observations of a hunt in arrays, from which the levels of builds are estimated.

The sign of the readings is chosen so that a *slow* build has smaller values, whether the hunt searches for a drop or
for a rise of the metric. Candidates with equal binaries share one build and its readings. The number of a build is the
smallest number of a candidate with this binary.

**Stopped runs.** A run that was stopped because it took too long gives only a bound of the metric, not the value of the
metric. The model treats a stopped run as if the value of its metric were the bound. This approximation is cautious:
with the exact likelihood of a value worse than the bound, a stopped run would be stronger evidence that the build is
slow. All stopped runs of a build have the same value, so this value does not show how noisy runs are. So the stopped
runs count as one reading, whose weight is the sum of their weights. The true level of the build is worse than the
bound, at an unknown distance from the bound. If a third build has a level between good and the bound, this distance
determines which step is larger: from good to the third build, or from the third build to the stopped build. So the
posterior probabilities are averaged over several assumed distances.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.settings import ChangeDirection, Policy
from perfbisect.core.inference.observations import Built, Count, Observation, Reading, Skipped, count_own_runs


@dataclass(frozen=True, slots=True)
class TriedBuild:
    """An attempt to build one candidate, successful or not."""

    seconds: float
    works: bool
    distance: int  # number of candidates to the nearest candidate that was built before; 0 for the first build
    builds_in_cache: int = 0  # number of earlier builds in the same compiler cache, if each build host has a cache


@dataclass(frozen=True, eq=False)
class Record:
    """All observations of a hunt. Each array has one entry for each reading, sorted by time."""

    builds: tuple[int, ...]  # candidates with readings, one candidate for equal binaries, oldest first
    build: NDArray[np.int64]  # index into ``builds``
    partner: NDArray[np.int64]  # index in ``builds`` of the other build of paired runs; -1 for unpaired runs
    value: NDArray[np.float64]  # log metric, negated if a lower metric is better, so that less is slower
    at: NDArray[np.float64]  # minutes
    visit: NDArray[np.int64]
    host: NDArray[np.int64]
    seconds: NDArray[np.float64]
    bound: NDArray[np.int64]  # like ``Reading.bound``, not negated with the metric
    sign: float  # -1 if the metric was negated, so that less is slower; otherwise +1
    build_name: dict[int, int]  # candidate → another candidate with the same binary, which has its readings
    built: frozenset[int]
    hosts_with_build: Mapping[int, frozenset[int]]  # candidate → hosts that have its build; without an entry, all hosts
    caches: Mapping[int, frozenset[int]]  # build host → candidates that it built; empty without build hosts
    skipped: frozenset[int]
    left_out: frozenset[int]  # candidates of ``skipped`` that the user left out; whether their builds fail is unknown
    attempted: frozenset[int]  # built, or skipped in this hunt; failures in earlier hunts took no time in this hunt
    # attempts to build, in time order, on all hosts; without builds that existed already
    attempts: tuple[TriedBuild, ...]
    minutes: float  # since the hunt began, up to the last observation
    spent_runs: int  # number of runs (two for each round) and counts, without runs that other hunts ordered

    def build_id(self, candidate: int) -> int:
        """The smallest number of a candidate with the same binary as ``candidate``. This number identifies the build
        and its readings.
        """
        return self.build_name.get(candidate, candidate)

    def builds_on(self, host: int) -> frozenset[int]:
        """The candidates whose builds are on the host with the number ``host``."""
        return frozenset(
            v for v in (*self.builds, *self.built) if v not in self.hosts_with_build or host in self.hosts_with_build[v]
        )

    def run_count(self, candidate: int) -> int:
        """The number of timed runs of a candidate's build."""
        return len(self.reading_positions(candidate))

    def reading_positions(self, candidate: int) -> NDArray[np.int64]:
        """The indexes of a candidate's readings, sorted by time, including readings of pairs that are stored under the
        other build of the pair.
        """
        name = self.build_id(candidate)
        if name not in self.builds:
            return np.empty(0, np.int64)
        row = self.builds.index(name)
        return np.flatnonzero((self.build == row) | (self.partner == row))

    def paired_differences(self, first: int, second: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Two arrays: the indexes of the paired runs of two builds, sorted by time; and for each pair, the reading of
        ``first`` minus the reading of ``second``.
        """
        rows = [self.builds.index(self.build_id(v)) if self.build_id(v) in self.builds else -2 for v in (first, second)]
        ahead = (self.build == rows[0]) & (self.partner == rows[1])
        positions = np.flatnonzero(ahead | (self.build == rows[1]) & (self.partner == rows[0]))
        return positions, np.where(ahead[positions], 1.0, -1.0) * self.value[positions]

    @cached_property
    def position_on_host(self) -> NDArray[np.int64]:
        """For each reading, its index among the readings of the same host."""
        turn = np.empty(len(self.host), np.int64)
        for host in np.unique(self.host):
            turn[self.host == host] = np.arange(int((self.host == host).sum()))
        return turn

    def are_near(self, readings: NDArray[np.int64], neighbours: NDArray[np.int64], reach: int) -> NDArray[np.bool_]:
        """For each of ``readings``, whether at least one of the readings ``neighbours`` is on the same host and at most
        ``reach`` readings earlier or later.
        """
        apart = np.abs(self.position_on_host[readings][:, None] - self.position_on_host[neighbours][None])
        one_host = self.host[readings][:, None] == self.host[neighbours][None]
        near: NDArray[np.bool_] = ((apart <= reach) & one_host).any(axis=1)
        return near

    @cached_property
    def median_run_seconds(self) -> float:
        """The median cost of a run, in seconds."""
        return max(float(np.median(self.seconds)), 1e-3) if len(self.seconds) else 1.0

    @cached_property
    def building_host_count(self) -> int:
        """The number of hosts that make builds; each host's first build has an empty compiler cache."""
        return len(frozenset[int]().union(*self.hosts_with_build.values())) or 1

    @cached_property
    def built_on_build_hosts(self) -> frozenset[int]:
        """The candidates that build hosts have built."""
        return frozenset().union(*self.caches.values())

    @cached_property
    def built_on_any_host(self) -> frozenset[int]:
        """The candidates that at least one host has built."""
        return frozenset((*self.builds, *self.built, *self.build_name))

    def builds_with_warm_cache(self, cold_builds: int) -> list[TriedBuild]:
        """The successful builds, except the first ``cold_builds`` builds with each compiler cache, during which the
        cache was nearly empty.
        """
        works = [attempt for attempt in self.attempts if attempt.works]
        if self.caches:
            return [attempt for attempt in works if attempt.builds_in_cache >= cold_builds]
        return works[cold_builds * self.building_host_count :]

    def build_cost_in_runs(self, default: float) -> float:
        """The median duration of a successful build, divided by the median duration of a run; ``default`` if this hunt
        has no successful build yet."""
        builds = (
            self.builds_with_warm_cache(2)
            or self.builds_with_warm_cache(1)
            or (self.builds_with_warm_cache(0) if self.caches else [])
        )
        if not builds or not len(self.seconds):
            return default
        return float(np.median([attempt.seconds for attempt in builds])) / self.median_run_seconds


COLUMNS = {"at": np.float64, "visit": np.int64, "host": np.int64, "seconds": np.float64, "bound": np.int64}


def arrange_observations(observations: Sequence[Observation], policy: Policy, bad: int) -> Record:
    """The record that contains ``observations``; ``bad`` is the number of the candidate at the bad end."""
    same: dict[int, int] = {}
    built: set[int] = set()
    skipped: set[int] = set()
    failed: set[int] = set()
    attempted: set[int] = set()
    attempts: list[TriedBuild] = []
    on: dict[int, frozenset[int]] = {}
    # build host → candidates that it built; None → candidates that measuring hosts built
    caches: dict[int | None, set[int]] = {None: set()}
    readings: list[Reading] = []
    minutes = 0.0
    for item in observations:
        match item:
            case Reading():
                readings.append(item)
                minutes = max(minutes, item.at + item.seconds / 120)
            case Count():
                minutes = max(minutes, item.at)
            case Built():
                cached = caches.setdefault(item.build_host, set())
                near = [v for v in cached if item.host is None or v not in on or item.host in on[v]]
                if item.candidate not in near and item.seconds > 0:
                    attempts.append(replace(_tried_build(item, near), builds_in_cache=len(cached)))
                built.add(item.candidate)
                cached.add(item.candidate)
                if item.host is not None:
                    on[item.candidate] = on.get(item.candidate, frozenset()) | {item.host}
                if item.same_as is not None:
                    _note_equal_binaries(same, item.candidate, item.same_as)
            case Skipped():
                skipped.add(item.candidate)
                if not item.left_out:
                    failed.add(item.candidate)
                if item.seconds > 0:
                    attempted.add(item.candidate)
                    if item.candidate not in built:  # if the candidate was built, a run failed, not the build
                        attempts.append(_tried_build(item, built))
    readings = [r for r in readings if _partner_name(r, same) != same.get(r.candidate, r.candidate)]
    pairs = [(same.get(r.candidate, r.candidate), _partner_name(r, same)) for r in readings]
    names = np.array(pairs, np.int64).reshape(-1, 2)
    builds = np.unique(names[names >= 0])
    value = np.array([r.value for r in readings], np.float64)
    sign = _orientation(policy.direction, value, names, same.get(bad, bad))
    columns: dict[str, Any] = {
        name: np.array([getattr(r, name) for r in readings], kind) for name, kind in COLUMNS.items()
    }
    return Record(
        builds=tuple(int(b) for b in builds),
        build=np.searchsorted(builds, names[:, 0]),
        partner=np.where(names[:, 1] < 0, -1, np.searchsorted(builds, names[:, 1])),
        value=sign * value,
        **columns,
        sign=sign,
        build_name=same,
        built=frozenset(built),
        hosts_with_build=on,
        caches={host: frozenset(cached) for host, cached in caches.items() if host is not None},
        skipped=frozenset(skipped),
        left_out=frozenset(skipped - failed),
        attempted=frozenset(built | attempted),
        attempts=tuple(attempts),
        minutes=minutes,
        spent_runs=count_own_runs(observations),
    )


def _tried_build(item: Built | Skipped, built: Collection[int]) -> TriedBuild:
    distance = min((abs(item.candidate - v) for v in built), default=0)
    return TriedBuild(item.seconds, isinstance(item, Built), distance)


def _note_equal_binaries(same: dict[int, int], first: int, second: int) -> None:
    """Note in ``same`` that two candidates have the same binary. The smallest candidate number with this binary
    identifies the binary."""
    names = {same.get(first, first), same.get(second, second)}
    least = min(names)
    for candidate in (*names, *(c for c, name in same.items() if name in names)):
        if candidate != least:
            same[candidate] = least


def _partner_name(reading: Reading, same: Mapping[int, int]) -> int:
    return -1 if reading.partner is None else same.get(reading.partner, reading.partner)


def _orientation(direction: ChangeDirection, value: NDArray[np.float64], names: NDArray[np.int64], bad: int) -> float:
    match direction:
        case ChangeDirection.DROP:
            return 1.0
        case ChangeDirection.RISE:
            return -1.0
        case ChangeDirection.ANY:
            good, slow = (value[(names == (end, -1)).all(axis=1)] for end in (0, bad))
            above = [value[(names == (bad, 0)).all(axis=1)], -value[(names == (0, bad)).all(axis=1)]]
            if len(rounds := np.concatenate(above)):
                return -1.0 if np.median(rounds) > 0 else 1.0
            return -1.0 if len(good) and len(slow) and np.median(slow) > np.median(good) else 1.0


Array = NDArray[np.float64]

BEYOND = (1.0, 3.0)  # assumed distances of stopped runs beyond their bounds, in addition to 0: 2.7 and 20 times as slow


def unite_stopped_runs(record: Record, weight: Array) -> tuple[Record, Array, float]:
    """Three values: the record in which one reading replaces all stopped runs of a build on a host; the weights of the
    readings; and the sum of (weight - 1) over the readings that replace stopped runs and have a weight above 1.

    The third value is called the excess weight. The estimate of the noise must not count the excess weight as readings,
    because all stopped runs have the same value.
    """
    if not record.bound.any():
        return record, weight, 0.0
    retained, total = np.ones(len(weight), bool), weight.copy()
    value, excess_weight = record.value.copy(), 0.0
    stopped = record.bound != 0
    for build, host in np.unique(np.column_stack((record.build, record.host))[stopped], axis=0).tolist():
        members = np.flatnonzero(stopped & (record.build == build) & (record.host == host))
        first = members[0]
        total[first] = weight[members].sum()
        value[first] = weight[members] @ record.value[members] / total[first]
        retained[members[1:]] = False
        excess_weight += max(float(total[first]) - 1.0, 0.0)
    rows = {name: getattr(record, name)[retained] for name in ("build", "partner", *COLUMNS)}
    return replace(record, value=value[retained], **rows), total[retained], excess_weight


def move_stopped_runs(record: Record, distance: float) -> Record:
    """The record in which the log metric of each stopped run is worse than its bound by ``distance``."""
    return replace(record, value=record.value + record.sign * record.bound * distance)


def censoring_direction(record: Record, build: int) -> int:
    """If at least half of the runs of a build were stopped, the side on which its true level is: -1 below its readings,
    +1 above its readings. If fewer runs were stopped, the result is 0.
    """
    bounds = record.bound[record.reading_positions(build)]
    return int(np.sign(bounds.sum())) if 2 * np.count_nonzero(bounds) >= len(bounds) > 0 else 0
