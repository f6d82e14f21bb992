"""What can disturb a reading: what is assumed before the first one, by how it was measured, and what the readings show.

* ``USUAL``: timed runs of builds as they are linked. Each build has a layout of its own, which repeats never average away,
  and the host drifts.
* ``FRESH``: timed runs, each of a build that was linked again with its functions in another order. Its layout is drawn
  again with every visit, so it is part of the visit effect and of the noise of a run, and repeats average it away.
* ``EXACT``: counts that repeat, such as instructions. Nothing drifts, and layout and neighbours have no effect. So little
  noise shows steps that runs would hide: many commits that are not worth a name change the count of instructions a bit.

All sizes are in log units: fractions, where they are small.

What did disturb a reading is judged against the other readings of *its own build*, never against the favoured answer:
weights taken from residuals of the favourite would talk every contradiction away. A build with a
single reading is judged against the nearer of the two ends, unless it is a count that repeats.

Of some programs every layout is either fast or slow, by the place of one hot loop: all builds then have two speeds, the
same gap apart, 10 % or more, where runs in one mode vary by 1 %. As noise that would hide every change smaller than the
gap. Where the modes are clearly distinct, readings in the slow one are raised by the gap. A reading whose mode is
uncertain counts less. Where layouts are spread broadly, as those of most programs, nothing is changed. Readings are taken
to lie around four places: those of the two builds that are compared, in either mode.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.orders import Measure, Purpose, Share
from perfbisect.core.inference.record import Record

Array = NDArray[np.float64]
Drift = tuple[float, float, float]  # (size in s.d. of a run, memory in units of the pace of readings, prior)
Visit = tuple[float, float]  # (size of the effect that the runs of a visit share, in s.d. of a run; prior)


@dataclass(frozen=True, slots=True)
class NoiseModel:
    """The laws that readings of one sort may follow, each with its prior."""

    exact: bool  # whether a run shows the level of its build: no outliers, and steps of any size are seen
    layouts: tuple[tuple[float, float], ...]  # (s.d. of what one build differs by for code placement, prior)
    odd: float  # prior of a build to be odd: its layout is of the order of the change
    walks: tuple[tuple[float, float], ...]  # (s.d. of all small steps of the range together, prior)
    drifts: tuple[Drift, ...]
    visits: tuple[Visit, ...]  # where visits have several runs
    # further laws, for ratios alone: decisions do not depend on them
    large_drifts: tuple[Drift, ...]
    large_visits: tuple[Visit, ...]
    calm: float  # noise above which a steady host becomes unlikely: what makes runs vary comes in phases
    noise: float  # s.d. of a run before any was seen,
    worth: float  # and how many runs that guess is worth
    host_offset: float  # s.d. of a constant difference between two hosts, in s.d. of a run
    first_runs: tuple[int, int]  # of each end: where builds are cheap, and where they are dear
    fewest: float  # runs of each end before they are taken not to differ
    proof: int  # fresh runs of the culprit and of each parent; one more on a host that drifts
    patience: float  # a search may cost so many times what is usual for such a change
    spent: float  # and may have cost so many times what is usual for the whole difference between the ends
    promised: float  # s.d. of a run: on a noisy host the change that the ends have to show, if not the one hunted
    most: float  # runs of each end
    proof_most: int  # the same after which a proof is given up
    modes: bool  # whether there may be two modes of layouts
    rounds: bool = False  # whether two builds ran at the same time, and readings are differences between them
    fresh: bool = False  # whether each run is in a layout of its own

    def order(self, plan: tuple[Share, ...], purpose: Purpose) -> Measure:
        """A measurement of this sort."""
        return Measure(plan, purpose, fresh=self.fresh, together=self.rounds)

    @property
    def of_rounds(self) -> "NoiseModel":
        """The same for rounds: what disturbs the host disturbs both builds, so nothing drifts."""
        return replace(
            self, drifts=EXACT.drifts, large_drifts=(), calm=1.0, noise=USUAL.noise / 2, modes=False, rounds=True
        )


USUAL = NoiseModel(
    exact=False,
    layouts=((0.002, 0.30), (0.005, 0.45), (0.010, 0.25)),
    odd=0.02,
    walks=((0.0, 1.0),),
    drifts=((0.0, 1.0, 0.40), (0.8, 5.0, 0.12), (2.0, 5.0, 0.08), (0.8, 25.0, 0.10), (2.0, 25.0, 0.10),
            (0.8, 100.0, 0.10), (2.5, 100.0, 0.10)),
    visits=((0.0, 0.65), (1.0, 0.35)),
    large_drifts=((6.0, 25.0, 0.06), (6.0, 100.0, 0.06)),
    large_visits=((2.0, 0.20), (4.0, 0.05)),
    calm=0.02,
    noise=0.015,
    worth=3.0,
    host_offset=5.0,
    first_runs=(2, 3),
    fewest=3,
    proof=3,
    patience=9.0,
    spent=4.5,
    promised=0.9,
    most=36.0,
    proof_most=40,
    modes=False,
)  # fmt: skip
FRESH = replace(
    USUAL,
    layouts=((0.0, 1.0),),
    odd=0.0,
    visits=((0.0, 0.4), (1.0, 0.3), (3.0, 0.3)),
    large_visits=((6.0, 0.20),),
    calm=0.15,
    noise=0.05,
    worth=1.0,
    first_runs=(5, 5),
    fewest=5,
    proof=5,
    patience=40.0,
    spent=30.0,
    promised=0.4,
    most=120.0,
    proof_most=120,
    modes=True,
    fresh=True,
)
EXACT = replace(
    USUAL,
    exact=True,
    layouts=((0.0, 1.0),),
    odd=0.0,
    walks=((0.0, 0.4), (0.0003, 0.2), (0.001, 0.2), (0.004, 0.2)),
    drifts=((0.0, 1.0, 1.0),),
    visits=((0.0, 1.0),),
    large_drifts=(),
    large_visits=(),
    calm=1.0,
    noise=1e-5,
    worth=1.0,
    host_offset=1000.0,
    first_runs=(2, 2),
    fewest=2,
    proof=1,
)


FREEDOM = 4.0  # of the Student distribution whose weights are used


@dataclass(frozen=True, slots=True, eq=False)
class Behaviour:
    """A weight for every reading (1 = ordinary, shape (readings,)) and what was noticed of the host."""

    weight: NDArray[np.float64]
    two_speeds: bool
    outliers: int


def behaviour(record: Record, good: int, bad: int, model: NoiseModel = USUAL) -> Behaviour:
    """Judge every reading; ``good`` and ``bad`` are the two ends, at least one of them measured."""
    # builds, or pairs of them, with the median of each
    _, cell, runs = np.unique(
        record.build + (record.partner + 1) * len(record.builds), return_inverse=True, return_counts=True
    )
    value = record.value[np.lexsort((record.value, cell))]
    first = np.cumsum(runs) - runs
    centre = (value[first + (runs - 1) // 2] + value[first + runs // 2]) / 2
    if model.rounds:
        between = record.rounds(good, bad)[1]
        step = float(np.median(between)) if len(between) else 0.0
        ends = np.array([-step, 0.0, step])
    else:
        ends = centre[np.isin(record.builds, [good, record.name(bad)])]
    deviation = record.value - centre[cell]
    repeated = runs[cell] > 1
    varying = repeated & (record.bound == 0)  # runs that were stopped do not vary
    scale = _scale(deviation[varying], len(np.unique(cell[varying])), model)
    single = np.abs(record.value[:, None] - ends[None]).min(axis=1)
    distance = np.where(repeated, np.abs(deviation), 0.0 if model.exact else single) / scale
    weight = np.minimum(1.0, (FREEDOM + 2) / (FREEDOM + distance**2))
    return Behaviour(weight, _two_speeds(deviation[varying]), int((repeated & (distance > 6)).sum()))


def _scale(deviation: NDArray[np.float64], builds: int, model: NoiseModel) -> float:
    """S.d. of a run from deviations around build medians; outliers are cut at four times the typical one."""
    if not len(deviation):
        return model.noise
    free = max(len(deviation) - builds, 1)
    typical = 1.4826 * np.median(np.abs(deviation)) * np.sqrt(len(deviation) / free)
    limit = 4 * max(float(typical), model.noise / 3)
    squares = (np.minimum(np.abs(deviation), limit) ** 2).sum()
    return float(np.sqrt((model.worth * model.noise**2 + squares) / (model.worth + free)))


def _two_speeds(deviation: NDArray[np.float64]) -> bool:
    """Whether the deviations fall into two clusters: a normal sample keeps 36 % of its variance when cut in two."""
    n = len(deviation)
    if n < 20:
        return False
    x = np.sort(deviation)
    left = np.arange(1, n)
    total, squares = np.cumsum(x), np.cumsum(x * x)
    within = squares[-1] - total[:-1] ** 2 / left - (total[-1] - total[:-1]) ** 2 / (n - left)
    spread = squares[-1] - total[-1] ** 2 / n
    cut = int(within.argmin())
    return bool(spread > 0 and within[cut] < 0.2 * spread and min(left[cut], n - left[cut]) >= 0.12 * n)


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
    ends = record.name(good), record.name(bad)
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
