"""Layouts of two modes: which of the readings in fresh layouts are in the slow one.

Of some programs every layout is either fast or slow, by the place of one hot loop: all builds then have two speeds, the
same gap apart, 10 % or more, where runs in one mode vary by 1 %. As noise that would hide every change smaller than the
gap. Where the modes are told apart clearly, readings in the slow one are raised by the gap. A reading whose mode is
uncertain counts less. Where layouts are spread broadly, as those of most programs, nothing is changed.

Readings are taken to lie around four places: those of the two builds that are compared, in either mode. Which of the two
builds another one is like is judged by its own readings alone, not by the favoured answer.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.inference.record import Record

Array = NDArray[np.float64]

FEWEST = 8  # readings of the two builds
GAPS = np.geomspace(0.03, 0.5, 16)  # where the search for the gap starts, in log units
APART = 4.5  # gap between the modes, in s.d. within one
SHARE = 0.12  # of the readings of the two builds that each mode has, at least
GAIN = 5.0  # of the log likelihood
ROUNDS = 40  # of expectation and maximisation
LEAST_NOISE = 1e-3
STRAY = 0.02  # share of readings that are in no mode


@dataclass(frozen=True, slots=True, eq=False)
class _Modes:
    gap: float
    noise: float  # s.d. within a mode
    fast: float  # level of each of the two builds in the fast mode
    slow: float


def without_modes(record: Record, good: int, bad: int) -> tuple[Record, Array]:
    """The record as if all layouts were in the fast mode, and how far each reading can be trusted, from 0 to 1."""
    ends = [record.readings(build) for build in (good, bad)]
    modes = _recognised([record.value[of] for of in ends])
    if modes is None:
        return record, np.ones(len(record.value))
    in_slow_mode = _in_slow_mode(record, modes, record.name(good), record.name(bad))
    trust = 1 / (1 + (modes.gap / modes.noise) ** 2 * in_slow_mode * (1 - in_slow_mode))
    return replace(record, value=record.value + modes.gap * in_slow_mode), trust


def _recognised(ends: list[Array]) -> _Modes | None:
    """The modes of the readings of two builds, if there clearly are two."""
    values = np.concatenate(ends)
    of = np.repeat([0, 1], [len(end) for end in ends])
    if len(values) < FEWEST or min(len(end) for end in ends) < 2:
        return None
    spread = float(values.max() - values.min())
    gap = GAPS[1.1 * spread > GAPS]
    if not len(gap):
        return None
    # each start: the fast mode of a build is where its fastest readings are
    level = np.array([[np.sort(end)[-max(1, len(end) // 4)] for end in ends]] * len(gap))  # (G, 2)
    noise = np.maximum(gap / 8, LEAST_NOISE)
    share = np.full(len(gap), 0.5)
    for _ in range(ROUNDS):
        log, slow, ordinary = _shares(values, level[:, of], gap, noise, share)
        fast = ordinary - slow
        share = np.clip(slow.sum(axis=1) / np.maximum(ordinary.sum(axis=1), 1e-9), 0.02, 0.98)
        for side in (0, 1):
            own = of == side
            raised = ordinary[:, own] * values[own] + slow[:, own] * gap[:, None]
            level[:, side] = raised.sum(axis=1) / np.maximum(ordinary[:, own].sum(axis=1), 1e-9)
        below = level[:, of] - values
        gap = np.clip((slow * below).sum(axis=1) / np.maximum(slow.sum(axis=1), 1e-9), 0.0, None)
        squares = (fast * below**2 + slow * (below - gap[:, None]) ** 2).sum(axis=1) + LEAST_NOISE**2
        noise = np.sqrt(squares / np.maximum(ordinary.sum(axis=1) - 2, 1.0))
        noise = np.maximum(noise, LEAST_NOISE)
    best = int(log.argmax())
    members = slow[best].sum() / len(values)
    plain = np.concatenate([end - end.mean() for end in ends])
    width = max(float(np.sqrt((plain**2).sum() / max(len(plain) - 2, 1))), LEAST_NOISE)
    alone = float((-0.5 * (plain / width) ** 2 - np.log(width) - 0.5 * np.log(2 * np.pi)).sum())
    if gap[best] < APART * noise[best] or not SHARE <= members <= 1 - SHARE or log[best] < alone + GAIN:
        return None
    return _Modes(float(gap[best]), float(noise[best]), float(level[best, 0]), float(level[best, 1]))


def _shares(values: Array, level: Array, gap: Array, noise: Array, share: Array) -> tuple[Array, Array, Array]:
    """Log likelihood (G,), and the probabilities (G, N) that readings are in the slow mode, and that they are in any."""
    s, w = noise[:, None], share[:, None]
    fast = _density(values - level, s) * (1 - w) * (1 - STRAY)
    slow = _density(values - level + gap[:, None], s) * w * (1 - STRAY)
    stray = STRAY / (1.0 + np.ptp(values))
    total = fast + slow + stray
    return np.log(total).sum(axis=1), slow / total, (fast + slow) / total


def _density(distance: Array, noise: Array | float) -> Array:
    result: Array = np.exp(-0.5 * (distance / noise) ** 2) / noise / np.sqrt(2 * np.pi)
    return result


def _in_slow_mode(record: Record, modes: _Modes, good: int, bad: int) -> Array:
    """The probability that each reading is in the slow mode."""
    levels = np.array([modes.fast, modes.slow])[:, None]
    fast = _density(record.value - levels, modes.noise) + 1e-12  # (2, N)
    slow = _density(record.value - levels + modes.gap, modes.noise) + 1e-12
    log = np.log(fast + slow)
    own = np.stack([np.bincount(record.build, row, len(record.builds)) for row in log])  # (2, M)
    like = np.exp(own - own.max(axis=0))
    for side, build in enumerate((good, bad)):
        like[1 - side, record.builds.index(build)] = 0.0
    like /= like.sum(axis=0)
    result: Array = (like[:, record.build] * slow / (fast + slow)).sum(axis=0)
    return result
