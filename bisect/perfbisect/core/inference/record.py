"""The observations of a hunt, arranged for the model.

Readings are oriented once, here: whatever the direction hunted, *slow* means a smaller value. Candidates
with equal binaries share one build, named by its smallest candidate, and so share their readings.

A run that was stopped because it took too long gives a bound of the metric, not a value. Such a reading enters the
model at its bound. On which side of a change its build is follows from that with less certainty than the likelihood of
the bound would give: with normal noise, to be at least z standard deviations off has about 1/(2.5 z) of the density of
exactly z on a build that is fast, and a higher one on a build that is slow. Two more things follow from a bound.
Readings at one bound do not vary, so what they seem to show of the noise is left out: the stopped runs of a build count
as one reading, with the weight of all. And how far beyond the bound the builds are is unknown, which matters where a
build half way exists: either step may be the largest. So the posterior is the mean over several distances.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.settings import Direction, Policy
from perfbisect.core.inference.observations import Built, Count, Observation, Reading, Skipped, count_runs


@dataclass(frozen=True, slots=True)
class TriedBuild:
    """To build a candidate."""

    seconds: float
    works: bool
    distance: int  # in candidates, to the nearest that was built before; 0 for the first
    before: int = 0  # builds that the compiler cache had seen before, where build hosts have one each


@dataclass(frozen=True, eq=False)
class Record:
    """What has been seen; arrays hold one entry a reading, in the order in which they happened."""

    builds: tuple[int, ...]  # candidates with readings (one name for equal binaries), oldest first
    build: NDArray[np.int64]  # index into ``builds``
    partner: NDArray[np.int64]  # the same of the other build of a round; -1 where a build ran alone
    value: NDArray[np.float64]  # log metric, oriented: less is slower
    at: NDArray[np.float64]  # minutes
    visit: NDArray[np.int64]
    host: NDArray[np.int64]
    seconds: NDArray[np.float64]
    bound: NDArray[np.int64]  # as in the readings, not oriented
    sign: float  # +1, or -1 where the metric was turned over
    same: dict[int, int]  # candidate → the name of its build, where the two differ
    built: frozenset[int]
    on: Mapping[int, frozenset[int]]  # candidate → the hosts that have its build; without an entry all have it
    caches: Mapping[int, frozenset[int]]  # build host → the candidates that it has built; empty without build hosts
    skipped: frozenset[int]
    left_out: frozenset[int]  # those of ``skipped`` that the user left out; whether they fail is not known
    attempted: frozenset[int]  # built, or skipped in this hunt: what failed in an earlier one took no time in this
    attempts: tuple[TriedBuild, ...]  # to build, in time order; on every host, what was there already left out
    minutes: float  # since the hunt began, as far as the observations show
    spent: int  # runs that were made, two in each round, and counts; without those of other hunts

    def name(self, candidate: int) -> int:
        """The candidate under whose name this build's readings are kept."""
        return self.same.get(candidate, candidate)

    def made(self, host: int) -> frozenset[int]:
        """The builds that are there on a host."""
        return frozenset(v for v in (*self.builds, *self.built) if v not in self.on or host in self.on[v])

    def runs(self, candidate: int) -> int:
        """How often this build was timed."""
        return len(self.readings(candidate))

    def readings(self, candidate: int) -> NDArray[np.int64]:
        """Positions of this build's readings, in time order; rounds in which it was the partner are among them."""
        name = self.name(candidate)
        if name not in self.builds:
            return np.empty(0, np.int64)
        row = self.builds.index(name)
        return np.flatnonzero((self.build == row) | (self.partner == row))

    def rounds(self, one: int, other: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Positions of the rounds of these two builds, in time order, and what ``one`` is above ``other`` in each."""
        rows = [self.builds.index(self.name(v)) if self.name(v) in self.builds else -2 for v in (one, other)]
        ahead = (self.build == rows[0]) & (self.partner == rows[1])
        found = np.flatnonzero(ahead | (self.build == rows[1]) & (self.partner == rows[0]))
        return found, np.where(ahead[found], 1.0, -1.0) * self.value[found]

    @cached_property
    def turn(self) -> NDArray[np.int64]:
        """The place of each reading among those of its host, (readings,)."""
        turn = np.empty(len(self.host), np.int64)
        for host in np.unique(self.host):
            turn[self.host == host] = np.arange(int((self.host == host).sum()))
        return turn

    def near(self, these: NDArray[np.int64], others: NDArray[np.int64], turns: int) -> NDArray[np.bool_]:
        """Which of ``these`` readings have one of ``others`` within so many turns of their host."""
        apart = np.abs(self.turn[these][:, None] - self.turn[others][None])
        there = self.host[these][:, None] == self.host[others][None]
        near: NDArray[np.bool_] = ((apart <= turns) & there).any(axis=1)
        return near

    @cached_property
    def run_seconds(self) -> float:
        """What a run costs here."""
        return max(float(np.median(self.seconds)), 1e-3) if len(self.seconds) else 1.0

    @cached_property
    def builders(self) -> int:
        """How many hosts build for themselves; the first build of each is made with an empty compiler cache."""
        return len(frozenset[int]().union(*self.on.values())) or 1

    @cached_property
    def ahead(self) -> frozenset[int]:
        """The candidates that build hosts have built."""
        return frozenset().union(*self.caches.values())

    @cached_property
    def there(self) -> frozenset[int]:
        """The candidates that have a build somewhere."""
        return frozenset((*self.builds, *self.built, *self.same))

    def builds_after(self, first: int) -> list[TriedBuild]:
        """The builds that worked, without so many first ones of each compiler cache."""
        works = [attempt for attempt in self.attempts if attempt.works]
        if self.caches:
            return [attempt for attempt in works if attempt.before >= first]
        return works[first * self.builders :]

    def build_runs(self, before: float) -> float:
        """The usual cost of one more build that works, in runs; ``before`` is what was known of it before this hunt."""
        seen = self.builds_after(2) or self.builds_after(1) or (self.builds_after(0) if self.caches else [])
        if not seen or not len(self.seconds):
            return before
        return float(np.median([attempt.seconds for attempt in seen])) / self.run_seconds


COLUMNS = {"at": np.float64, "visit": np.int64, "host": np.int64, "seconds": np.float64, "bound": np.int64}


def arrange(observations: Sequence[Observation], policy: Policy, bad: int) -> Record:
    """The record of ``observations``; ``bad`` is the candidate at the bad end."""
    same: dict[int, int] = {}
    built: set[int] = set()
    skipped: set[int] = set()
    failed: set[int] = set()
    attempted: set[int] = set()
    attempts: list[TriedBuild] = []
    on: dict[int, frozenset[int]] = {}
    caches: dict[int | None, set[int]] = {None: set()}  # build host, or None for the hosts themselves → what it built
    readings: list[Reading] = []
    minutes = 0.0
    for seen in observations:
        match seen:
            case Reading():
                readings.append(seen)
                minutes = max(minutes, seen.at + seen.seconds / 120)
            case Count():
                minutes = max(minutes, seen.at)
            case Built():
                own = caches.setdefault(seen.build_host, set())
                near = [v for v in own if seen.host is None or v not in on or seen.host in on[v]]
                if seen.candidate not in near and seen.seconds > 0:
                    attempts.append(replace(_attempt(seen, near), before=len(own)))
                built.add(seen.candidate)
                own.add(seen.candidate)
                if seen.host is not None:
                    on[seen.candidate] = on.get(seen.candidate, frozenset()) | {seen.host}
                if seen.same_as is not None:
                    _join(same, seen.candidate, seen.same_as)
            case Skipped():
                skipped.add(seen.candidate)
                if not seen.left_out:
                    failed.add(seen.candidate)
                if seen.seconds > 0:
                    attempted.add(seen.candidate)
                    if seen.candidate not in built:  # otherwise it was a run that failed
                        attempts.append(_attempt(seen, built))
    readings = [r for r in readings if _partner(r, same) != same.get(r.candidate, r.candidate)]
    names = np.array([(same.get(r.candidate, r.candidate), _partner(r, same)) for r in readings], np.int64).reshape(
        -1, 2
    )
    builds = np.unique(names[names >= 0])
    value = np.array([r.value for r in readings], np.float64)
    sign = _sign(policy.direction, value, names, same.get(bad, bad))
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
        same=same,
        built=frozenset(built),
        on=on,
        caches={host: frozenset(own) for host, own in caches.items() if host is not None},
        skipped=frozenset(skipped),
        left_out=frozenset(skipped - failed),
        attempted=frozenset(built | attempted),
        attempts=tuple(attempts),
        minutes=minutes,
        spent=count_runs(observations),
    )


def _attempt(seen: Built | Skipped, built: Collection[int]) -> TriedBuild:
    distance = min((abs(seen.candidate - v) for v in built), default=0)
    return TriedBuild(seen.seconds, isinstance(seen, Built), distance)


def _join(same: dict[int, int], one: int, other: int) -> None:
    """Record that two candidates have one binary; the smallest candidate of a group gives it its name."""
    names = {same.get(one, one), same.get(other, other)}
    least = min(names)
    for candidate in (*names, *(c for c, name in same.items() if name in names)):
        if candidate != least:
            same[candidate] = least


def _partner(reading: Reading, same: Mapping[int, int]) -> int:
    return -1 if reading.partner is None else same.get(reading.partner, reading.partner)


def _sign(direction: Direction, value: NDArray[np.float64], names: NDArray[np.int64], bad: int) -> float:
    match direction:
        case Direction.DROP:
            return 1.0
        case Direction.RISE:
            return -1.0
        case Direction.ANY:
            good, slow = (value[(names == (end, -1)).all(axis=1)] for end in (0, bad))
            above = [value[(names == (bad, 0)).all(axis=1)], -value[(names == (0, bad)).all(axis=1)]]
            if len(rounds := np.concatenate(above)):
                return -1.0 if np.median(rounds) > 0 else 1.0
            return -1.0 if len(good) and len(slow) and np.median(slow) > np.median(good) else 1.0


Array = NDArray[np.float64]

BEYOND = (1.0, 3.0)  # distances beyond the bound besides 0, in log units: 2.7 and 20 times as slow


def united(record: Record, weight: Array) -> tuple[Record, Array, float]:
    """The readings and their weights with the stopped runs of each build on each host as one, and the weight of the rest.

    That rest is what these readings count for more than one; it shows nothing of the noise.
    """
    if not record.bound.any():
        return record, weight, 0.0
    kept, total = np.ones(len(weight), bool), weight.copy()
    value, repeated = record.value.copy(), 0.0
    stopped = record.bound != 0
    for build, host in np.unique(np.column_stack((record.build, record.host))[stopped], axis=0).tolist():
        members = np.flatnonzero(stopped & (record.build == build) & (record.host == host))
        first = members[0]
        total[first] = weight[members].sum()
        value[first] = weight[members] @ record.value[members] / total[first]
        kept[members[1:]] = False
        repeated += max(float(total[first]) - 1.0, 0.0)
    rows = {name: getattr(record, name)[kept] for name in ("build", "partner", *COLUMNS)}
    return replace(record, value=value[kept], **rows), total[kept], repeated


def beyond(record: Record, distance: float) -> Record:
    """The record if each stopped run had gone on to a metric that is ``distance`` log units worse than its bound."""
    return replace(record, value=record.value + record.sign * record.bound * distance)


def direction(record: Record, build: int) -> int:
    """Where the level of a build lies of which at least half of the runs were stopped: -1 below, +1 above; else 0."""
    found = record.bound[record.readings(build)]
    return int(np.sign(found.sum())) if 2 * np.count_nonzero(found) >= len(found) > 0 else 0
