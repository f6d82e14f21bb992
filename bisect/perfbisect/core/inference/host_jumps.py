"""Splits the runs of a host at the times at which the host's speed jumps, and treats the runs before and after a jump
as runs of two hosts. The ratios that users see are computed from the split runs; the search uses the unsplit runs.

When another load begins on a host, the speed of the host may fall by half from one run to the next, until the load
ends. A model of drift that allows jumps of this size would make the confidence intervals of all ratios wide. A model
without drift would take the few runs of a build on one side of a jump for outliers; and a build that ran only before
the jump would seem to be twice as fast as a build that ran only after the jump.

So the runs before and after a jump are treated as runs of two hosts whose speeds differ by a constant, which is fitted.
The position of a jump is estimated by the method of least absolute deviations (Bai, Econometric Theory 11, 1995): at
this position, one shift of the readings of all builds most reduces the sum of absolute deviations from the builds'
medians. Only the runs nearest to a jump are used, because the host may also drift. Further jumps are then searched for
before and after the jump (binary segmentation, Vostrikova, 1981). The noise is estimated from the differences between
successive runs of a build, because few of these differences contain a jump. Runs of one visit (one start of the server)
share their disturbances, so they are treated as one run.

If several positions explain a jump nearly equally well, the runs between these positions are treated as runs of further
hosts. Two builds that ran on different sides of a jump are compared only if some build has several runs before and
several runs after the jump. A single run is not enough, because load may have disturbed the run.
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

# A possible jump is judged by at most NEAREST runs of each build on either side, among the next NEAR runs of all
# builds.
NEAREST, NEAR = 4, 20
ENOUGH = 4  # fewest runs on either side of a jump; a run counts only if its build has runs on both sides
LEAST = 6.0  # smallest size of a jump, in s.d. of a run
GAIN = 20.0  # smallest reduction of the sum of absolute deviations, in s.d. of a run; noise and drift rarely reach it
NEARLY = 5.0  # positions whose reduction is up to NEARLY smaller may also be the jump, in s.d. of a run
TINY = 2e-3  # least s.d. of a run that is assumed
ROUNDS = 10  # iterations of reweighted least squares


def split_hosts_at_jumps(record: Record, model: NoiseModel) -> Record:
    """A copy of ``record`` in which the runs between two jumps belong to a separate host, and in which the estimated
    log speed of each host is subtracted from the host's readings.

    If there are no jumps, ``record`` is returned unchanged.
    """
    if model.exact or model.paired or record.bound.any():
        return record
    part, hosts = np.zeros(len(record.host), np.int64), np.unique(record.host)
    for host in hosts:
        rows = np.flatnonzero(record.host == host)
        rows = rows[np.argsort(record.at[rows], kind="stable")]
        visit = np.cumsum(np.diff(record.visit[rows], prepend=record.visit[rows[0]]) != 0)
        first = np.searchsorted(visit, np.arange(visit[-1] + 1))
        value = np.bincount(visit, record.value[rows]) / np.bincount(visit)
        starts = _jump_positions(record.build[rows[first]].tolist(), value.tolist())
        part[rows] = part.max() + 1 + np.searchsorted(starts, visit, side="right")
    if len(np.unique(part)) == len(hosts):
        return record
    cell = record.build * (part.max() + 1) + part
    alone = np.flatnonzero((np.bincount(cell)[cell] == 1) & (np.bincount(record.build)[record.build] > 1))
    part[alone] = part.max() + 1 + np.arange(len(alone))
    part = np.unique(part, return_inverse=True)[1]
    return replace(record, host=part, value=record.value - _host_speed_by_part(record, part)[part])


def _jump_positions(build: Sequence[int], value: Sequence[float]) -> list[int]:
    """The indexes of the runs at which the speed of a host jumps, in order of time; empty if there are no jumps."""
    order = np.argsort(build, kind="stable")
    steps = np.abs(np.diff(np.array(value)[order])[np.diff(np.array(build)[order]) == 0])
    noise = max(1.05 * float(np.median(steps)), TINY) if len(steps) else 0.0  # s.d. of normal readings
    if len(steps) < ENOUGH or steps.max() < LEAST * noise:
        return []
    starts, parts = set[int](), [(0, len(value))]
    while parts:
        start, end = parts.pop()
        gains = [_jump_gain(build, value, start, at, end) for at in range(start, end)]
        if gains and max(gains) >= GAIN * noise:
            candidates = [at for at, gain in enumerate(gains, start) if gain > max(gains) - NEARLY * noise]
            starts.update(candidates)
            parts += [(start, candidates[0]), (candidates[-1], end)]
    for start, end in pairwise(sorted({0, len(value), *starts}) if starts else ()):
        starts.update(at for at in range(start + 1, end) if not {*build[start:at]} & {*build[at:end]})
    return sorted(starts)


def _jump_gain(build: Sequence[int], value: Sequence[float], start: int, at: int, end: int) -> float:
    """How much the sum of absolute deviations of the runs from ``start`` to ``end`` becomes smaller, if the host's
    speed is assumed to jump immediately before run ``at``.
    """
    earlier = _values_by_build(build, value, range(at - 1, max(start, at - NEAR) - 1, -1))
    later = _values_by_build(build, value, range(at, min(end, at + NEAR)))
    both = [(earlier[row][:NEAREST], later[row][:NEAREST]) for row in earlier.keys() & later.keys()]
    shifts = [median(late) - median(early) for early, late in both for _ in range(min(len(early), len(late)))]
    if len(shifts) < ENOUGH:
        return 0.0
    shift = median(shifts)
    return sum(
        _absolute_deviations(early + late) - _absolute_deviations([*early, *(x - shift for x in late)])
        for early, late in both
    )


def _values_by_build(build: Sequence[int], value: Sequence[float], positions: range) -> dict[int, list[float]]:
    by_build: dict[int, list[float]] = defaultdict(list)
    for at in positions:
        by_build[build[at]].append(value[at])
    return by_build


def _absolute_deviations(values: Sequence[float]) -> float:
    middle = median(values)
    return sum(abs(value - middle) for value in values)


def _host_speed_by_part(record: Record, part: NDArray[np.int64]) -> NDArray[np.float64]:
    """The log speed of the host in each part (the runs between two jumps), fitted by iteratively reweighted least
    squares, for noise with a Student's t distribution."""
    builds = len(record.builds)
    columns, weight = np.hstack((np.eye(builds)[record.build], np.eye(part.max() + 1)[part])), np.ones(len(part))
    for _ in range(ROUNDS):
        root = np.sqrt(weight)
        fitted = np.linalg.lstsq(columns * root[:, None], record.value * root, rcond=None)[0]
        residual = np.abs(record.value - columns @ fitted)
        weight = (FREEDOM + 2) / (FREEDOM + (residual / max(1.48 * float(np.median(residual)), TINY)) ** 2)
    return np.asarray(fitted[builds:], np.float64)
