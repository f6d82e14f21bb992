"""Where a host's speed jumped, for ratios alone: decisions do not depend on it.

When other load begins or ends, a host is at half of its speed from one run to the next, and stays there. A drift that may
reach so far in one step makes every interval wide; and the runs after the jump, which are fewer than those of the same build
before it, look like outliers of their build, so that a build that was run on one side alone seems to be twice as fast.

So the runs on either side of a jump are taken for those of two hosts, which differ by a constant that is fitted. A jump is
where one shift, common to all builds that ran on both sides, takes most from the sum of absolute deviations from the medians
of the builds: the estimator of a shift by least absolute deviations (Bai, Econometric Theory 11, 1995), by the nearest runs
alone, since the host may drift besides. Further jumps are looked for on both sides (binary segmentation, Vostrikova, 1981).
Noise is judged by the differences of a build's successive runs, of which jumps spoil few. Runs of one visit, which share what
disturbs it, count as one.

A place that explains the runs nearly as well may be the jump, too, so what lies between such places belongs to neither side.
Where a host is known to jump, runs show nothing of each other unless some build ran on both sides of every place between
them; and a single run of a build, which load may have disturbed, does not tie two parts together.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.inference.noise_model import FREEDOM, NoiseModel
from perfbisect.core.inference.record import Record

NEAREST = 4  # runs of a build on either side of a place by which that is judged,
NEAR = 20  # and within so many of all runs
ENOUGH = 4  # runs on either side, of builds that have some on both
LEAST = 6.0  # size of a jump in s.d. of a run
GAIN = 20.0  # what a jump takes from the sum of absolute deviations, in the same; noise and drift rarely take so much
NEARLY = 5.0  # places that take so much less may be the jump, too
TINY = 2e-3  # s.d. of a run that is assumed at least
ROUNDS = 10  # of reweighted least squares


def between_jumps(record: Record, model: NoiseModel) -> Record:
    """The record with the runs between two jumps as those of a host of their own, all at about one speed; itself without jumps."""
    if model.exact or model.rounds or record.bound.any():
        return record
    part, hosts = np.zeros(len(record.host), np.int64), np.unique(record.host)
    for host in hosts:
        rows = np.flatnonzero(record.host == host)
        rows = rows[np.argsort(record.at[rows], kind="stable")]
        visit = np.cumsum(np.diff(record.visit[rows], prepend=record.visit[rows[0]]) != 0)
        first = np.searchsorted(visit, np.arange(visit[-1] + 1))
        value = np.bincount(visit, record.value[rows]) / np.bincount(visit)
        found = _jumps(record.build[rows[first]].tolist(), value.tolist())
        part[rows] = part.max() + 1 + np.searchsorted(found, visit, side="right")
    if len(np.unique(part)) == len(hosts):
        return record
    cell = record.build * (part.max() + 1) + part
    alone = np.flatnonzero((np.bincount(cell)[cell] == 1) & (np.bincount(record.build)[record.build] > 1))
    part[alone] = part.max() + 1 + np.arange(len(alone))
    part = np.unique(part, return_inverse=True)[1]
    return replace(record, host=part, value=record.value - _speeds(record, part)[part])


def _jumps(build: Sequence[int], value: Sequence[float]) -> list[int]:
    """The places, in the order of time, at which a part begins that belongs to no other; none if the host did not jump."""
    order = np.argsort(build, kind="stable")
    steps = np.abs(np.diff(np.array(value)[order])[np.diff(np.array(build)[order]) == 0])
    noise = max(1.05 * float(np.median(steps)), TINY) if len(steps) else 0.0  # s.d. of normal readings by differences
    if len(steps) < ENOUGH or steps.max() < LEAST * noise:
        return []
    found, parts = set[int](), [(0, len(value))]
    while parts:
        start, end = parts.pop()
        gains = [_gain(build, value, start, at, end) for at in range(start, end)]
        if gains and max(gains) >= GAIN * noise:
            places = [at for at, gain in enumerate(gains, start) if gain > max(gains) - NEARLY * noise]
            found.update(places)
            parts += [(start, places[0]), (places[-1], end)]
    for start, end in pairwise(sorted({0, len(value), *found}) if found else ()):
        found.update(at for at in range(start + 1, end) if not {*build[start:at]} & {*build[at:end]})
    return sorted(found)


def _gain(build: Sequence[int], value: Sequence[float], start: int, at: int, end: int) -> float:
    """What a jump before the run ``at``, of those from ``start`` to ``end``, takes from the sum of absolute deviations."""
    before = _nearest(build, value, range(at - 1, max(start, at - NEAR) - 1, -1))
    after = _nearest(build, value, range(at, min(end, at + NEAR)))
    both = [(before[row][:NEAREST], after[row][:NEAREST]) for row in before.keys() & after.keys()]
    shifts = [median(late) - median(early) for early, late in both for _ in range(min(len(early), len(late)))]
    if len(shifts) < ENOUGH:
        return 0.0
    shift = median(shifts)
    return sum(_deviation(early + late) - _deviation([*early, *(x - shift for x in late)]) for early, late in both)


def _nearest(build: Sequence[int], value: Sequence[float], places: range) -> dict[int, list[float]]:
    found: dict[int, list[float]] = defaultdict(list)
    for at in places:
        found[build[at]].append(value[at])
    return found


def _deviation(values: Sequence[float]) -> float:
    middle = median(values)
    return sum(abs(each - middle) for each in values)


def _speeds(record: Record, part: NDArray[np.int64]) -> NDArray[np.float64]:
    """The speed of each part, by least squares that are reweighted for Student's distribution."""
    builds = len(record.builds)
    columns, weight = np.hstack((np.eye(builds)[record.build], np.eye(part.max() + 1)[part])), np.ones(len(part))
    for _ in range(ROUNDS):
        root = np.sqrt(weight)
        fitted = np.linalg.lstsq(columns * root[:, None], record.value * root, rcond=None)[0]
        left = np.abs(record.value - columns @ fitted)
        weight = (FREEDOM + 2) / (FREEDOM + (left / max(1.48 * float(np.median(left)), TINY)) ** 2)
    return np.asarray(fitted[builds:], np.float64)
