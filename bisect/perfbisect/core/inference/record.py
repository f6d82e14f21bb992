"""The observations of a hunt, arranged for the model.

Readings are oriented once, here: whatever the direction hunted, *slow* means a smaller value. Candidates
with equal binaries share one build, named by its smallest candidate, and so share their readings.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.observations import Built, Observation, Reading, Skipped
from perfbisect.core.domain.policy import Direction, Policy


@dataclass(frozen=True, slots=True)
class Attempt:
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
    attempts: tuple[Attempt, ...]  # to build, in time order; on every host, what was there already left out
    minutes: float  # since the hunt began, as far as the observations show

    def name(self, candidate: int) -> int:
        """The candidate under whose name this build's readings are kept."""
        return self.same.get(candidate, candidate)

    def made(self, host: int) -> frozenset[int]:
        """The builds that are there on a host."""
        return frozenset(v for v in (*self.builds, *self.built) if v not in self.on or host in self.on[v])

    def runs(self, candidate: int) -> int:
        """How often this build was timed."""
        name = self.name(candidate)
        return int((self.build == self.builds.index(name)).sum()) if name in self.builds else 0

    def readings(self, candidate: int) -> NDArray[np.int64]:
        """Positions of this build's readings, in time order."""
        name = self.name(candidate)
        return np.flatnonzero(self.build == self.builds.index(name)) if name in self.builds else np.empty(0, np.int64)

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

    def builds_after(self, first: int) -> list[Attempt]:
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


def arrange(observations: Sequence[Observation], policy: Policy, bad: int) -> Record:
    """The record of ``observations``; ``bad`` is the candidate at the bad end."""
    same: dict[int, int] = {}
    built: set[int] = set()
    skipped: set[int] = set()
    failed: set[int] = set()
    attempted: set[int] = set()
    attempts: list[Attempt] = []
    on: dict[int, frozenset[int]] = {}
    caches: dict[int | None, set[int]] = {None: set()}  # build host, or None for the hosts themselves → what it built
    readings: list[Reading] = []
    minutes = 0.0
    for seen in observations:
        match seen:
            case Reading():
                readings.append(seen)
                minutes = max(minutes, seen.at + seen.seconds / 120)
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
    candidates = np.array([same.get(r.candidate, r.candidate) for r in readings], np.int64)
    builds, build = np.unique(candidates, return_inverse=True)
    value = np.array([r.value for r in readings], np.float64)
    sign = _sign(policy.direction, value, candidates, same.get(bad, bad))
    return Record(
        builds=tuple(int(b) for b in builds),
        build=build.astype(np.int64),
        value=sign * value,
        at=np.array([r.at for r in readings], np.float64),
        visit=np.array([r.visit for r in readings], np.int64),
        host=np.array([r.host for r in readings], np.int64),
        seconds=np.array([r.seconds for r in readings], np.float64),
        bound=np.array([r.bound for r in readings], np.int64),
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
    )


def _attempt(seen: Built | Skipped, built: Collection[int]) -> Attempt:
    distance = min((abs(seen.candidate - v) for v in built), default=0)
    return Attempt(seen.seconds, isinstance(seen, Built), distance)


def _join(same: dict[int, int], one: int, other: int) -> None:
    """Record that two candidates have one binary; the smallest candidate of a group gives it its name."""
    names = {same.get(one, one), same.get(other, other)}
    least = min(names)
    for candidate in (*names, *(c for c, name in same.items() if name in names)):
        if candidate != least:
            same[candidate] = least


def _sign(direction: Direction, value: NDArray[np.float64], candidate: NDArray[np.int64], bad: int) -> float:
    match direction:
        case Direction.DROP:
            return 1.0
        case Direction.RISE:
            return -1.0
        case Direction.ANY:
            good, slow = value[candidate == 0], value[candidate == bad]
            return -1.0 if len(good) and len(slow) and np.median(slow) > np.median(good) else 1.0
