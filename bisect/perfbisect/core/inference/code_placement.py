"""Layouts of two modes: which of the readings in fresh layouts are in the slow one.

Of some programs every layout is either fast or slow, by the place of one hot loop: all builds then have two speeds, the
same gap apart, 10 % or more, where runs in one mode vary by 1 %. As noise that would hide every change smaller than the
gap. Where the modes are clearly distinct, readings in the slow one are raised by the gap. A reading whose mode is
uncertain counts less. Where layouts are spread broadly, as those of most programs, nothing is changed.

Readings are taken to lie around four places: those of the two builds that are compared, in either mode. Which of the
two builds another one is like is judged by its own readings alone, not by the favoured answer.

Whether a commit that moves code executes what the code before it executed is known by counts of instructions, which
repeat.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.events import BuildFinished, RunFinished
from perfbisect.core.domain.measured_log import Binaries, Logged
from perfbisect.core.domain.metrics import INSTRUCTIONS, exact, readable
from perfbisect.core.domain.orders import CodePlacement, Step, Verdict
from perfbisect.core.inference.metric_choice import CLEAR
from perfbisect.core.inference.noise_model import EXACT, NoiseModel
from perfbisect.core.inference.record import Behaviour, Record, behaviour

Array = NDArray[np.float64]

FEWEST = 10  # readings of builds that were measured several times
REPEATED = 3  # runs of such a build
GAPS = np.geomspace(0.03, 0.5, 16)  # where the search for the gap starts, in log units
APART = 6.0  # gap between the modes, in s.d. within one
SHARE = 0.08  # of these readings that each mode has, at least
SURE = 8  # readings of a build, all in one mode, from which that is taken to be the fast one;
SURE_IF_LOWER = 12  # the same where the other build is faster by more than
NEAR = 0.3  # of the gap
GAIN = 8.0  # of the log likelihood: by chance few readings look like two groups
ROUNDS = 40  # of expectation and maximisation
LEAST_NOISE = 1e-3
TINY = 1e-9
STRAY = 0.02  # share of readings that are in no mode


@dataclass(frozen=True, slots=True, eq=False)
class _Modes:
    gap: float
    noise: float  # s.d. within a mode
    fast: float  # level of each of the two builds in the fast mode
    slow: float
    unknown: tuple[int, ...]  # the rows of those of the two that were seen in one mode, and it may be either


def without_modes(record: Record, good: int, bad: int) -> tuple[Record, Array]:
    """The record as if all layouts were in the fast mode, and how far each reading can be trusted, from 0 to 1."""
    ends = [record.name(build) for build in (good, bad)]
    modes = _recognised(record, *ends)
    if modes is None:
        return record, np.ones(len(record.value))
    in_slow_mode = _in_slow_mode(record, modes, *ends)
    trust = 1 / (1 + (modes.gap / modes.noise) ** 2 * in_slow_mode * (1 - in_slow_mode))
    return replace(record, value=record.value + modes.gap * in_slow_mode), trust


def judged(record: Record, good: int, bad: int, model: NoiseModel) -> tuple[Record, Behaviour]:
    """The record without modes, and how its readings behave; their weights have the trust in them as a factor."""
    trust: Array | float = 1.0
    if model.modes and record.name(bad) in record.builds:
        record, trust = without_modes(record, good, bad)
    seen = behaviour(record, good, bad, model)
    return record, replace(seen, weight=seen.weight * trust)


def _recognised(record: Record, good: int, bad: int) -> _Modes | None:
    """The modes of the readings, if there clearly are two; ``good`` and ``bad`` are the builds that are compared.

    All builds that were measured several times show the gap, each at a level of its own.
    """
    runs = np.bincount(record.build, minlength=len(record.builds))
    ends = [record.builds.index(build) for build in (good, bad)]
    used = np.flatnonzero(runs >= REPEATED)
    if runs[ends].min() < 2 or runs[used].sum() < FEWEST:
        return None
    used = np.union1d(used, ends)
    rows = np.isin(record.build, used)
    values, of = record.value[rows], np.searchsorted(used, record.build[rows])
    member = np.eye(len(used))[of]  # (N, K)
    gap = GAPS[1.1 * np.ptp(values) > GAPS]
    if not len(gap):
        return None
    # each start: the fast mode of a build is where its fastest readings are, or its fastest reading is
    ordered = [np.sort(values[of == k]) for k in range(len(used))]
    starts = [[own[-max(1, len(own) // 4)] for own in ordered], [own[-1] for own in ordered]]
    level = np.repeat(starts, len(gap), axis=0)  # (G, K)
    gap = np.tile(gap, len(starts))
    noise, share = np.maximum(gap / 8, LEAST_NOISE), np.full(len(gap), 0.5)
    for _ in range(ROUNDS):
        log, slow, ordinary = _shares(values, level[:, of], gap, noise, share)
        share = np.clip(slow.sum(axis=1) / np.maximum(ordinary.sum(axis=1), TINY), 0.02, 0.98)
        raised = ordinary * values + slow * gap[:, None]
        level = np.where(ordinary @ member > TINY, raised @ member / np.maximum(ordinary @ member, TINY), level)
        below = level[:, of] - values
        gap = np.maximum((slow * below).sum(axis=1) / np.maximum(slow.sum(axis=1), TINY), 0.0)
        squares = ((ordinary - slow) * below**2 + slow * (below - gap[:, None]) ** 2).sum(axis=1)
        free = np.maximum(ordinary.sum(axis=1) - len(used), 1.0)
        noise = np.maximum(np.sqrt(squares / free), LEAST_NOISE)
    best = int(log.argmax())
    members = slow[best] @ member
    place = np.searchsorted(used, ends)
    first, second = level[best, place].tolist()
    lower = [first < second - gap[best] * NEAR, second < first - gap[best] * NEAR]
    needed = np.where(lower, SURE_IF_LOWER, SURE)
    unknown = tuple(ends[k] for k in (0, 1) if members[place[k]] < 0.5 and runs[ends[k]] < needed[k])
    modes = _Modes(float(gap[best]), float(noise[best]), first, second, unknown)
    within = values - (values @ member / member.sum(axis=0))[of]
    width = max(float(np.sqrt((within**2).sum() / max(len(within) - len(used), 1))), LEAST_NOISE)
    alone = float(np.log(_density(within, width)).sum())
    clear = modes.gap >= APART * modes.noise and log[best] >= alone + GAIN
    if not clear or not SHARE <= members.sum() / len(values) <= 1 - SHARE:
        return None
    return modes


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
    return np.where(np.isin(record.build, modes.unknown), 0.5, result)


RESOLVED = CLEAR * math.sqrt(2) * EXACT.noise  # in log units: two counts that differ by less are taken for equal

Log = Sequence[tuple[float, Logged]]


def sides(step: Step, commits: Sequence[str], log: Log) -> tuple[str, ...]:
    """The commit of a step, and those it was compared with; of equal binaries the one built first, which has their runs."""
    binaries = Binaries()
    builds = [event.facts for _, event in log if isinstance(event, BuildFinished)]
    first = {build.commit: binaries.same_as(0, build) or build.commit for build in builds}
    named = (commits[node] for node in (step.candidate, *step.parents))
    return tuple(dict.fromkeys(first.get(sha, sha) for sha in named))


def with_counts(verdict: Verdict, commits: Sequence[str], log: Log) -> Verdict:
    """A verdict of code placement with what the counts in ``log`` say of it; any other as it is.

    ``commits`` are those of the nodes. Without a count of each side nothing is said.
    """
    if not isinstance(verdict, CodePlacement):
        return verdict
    after, *before = (_count(sha, log) for sha in sides(verdict.step, commits, log))
    known = [count for count in before if count is not None]
    if after is None or not known or len(known) < len(before):
        return verdict
    return replace(verdict, same_counts=all(abs(after - count) <= RESOLVED for count in known))


def _count(sha: str, log: Log) -> float | None:
    """The logarithm of the instructions that an operation of a commit executes; None where they were not counted."""
    runs = [event.facts for _, event in log if isinstance(event, RunFinished) and event.facts.commit == sha]
    counts = [count for run in runs if exact(run, INSTRUCTIONS) and (count := readable(run, INSTRUCTIONS)) is not None]
    return median(counts) if counts else None
