"""The noise models, which are assumptions made before the first reading; and the weights and the modes (fast or slow)
of readings, which are estimated from the readings.

* ``USUAL``: timed runs of builds in the usual layout. The layouts (placements of code in memory) of two builds differ,
  the effect of a layout does not average out over repeated runs, and the speed of the host drifts.
* ``RANDOMIZED_LAYOUTS``: timed runs in randomized layouts. The layout of a build changes with every visit (start of the
  server), so the effect of the layout is a part of the noise, and averages out over repeated visits.
* ``EXACT``: counts that are almost equal in repeated runs, such as instructions. Exact counts do not drift, and do not
  depend on the layout of a build or on other load on the host. Because exact counts have little noise, they show
  changes that timed runs cannot show. Many of these changes are too small to be of interest.

In this module, all sizes, such as standard deviations, are in units of the natural logarithm: 0.01 is about 1 %.

**Outliers.** A reading is compared with the other readings of *its own build*, never with the value that the most
probable culprit predicts. Otherwise each reading that contradicts the most probable culprit would count as an outlier.
The single reading of a build is compared with the nearer of the levels of good and bad, unless the reading is an exact
count.

**Modes.** In some programs, each layout is either fast or slow, depending on the placement of one hot loop. A build can
then have two speeds, and the gap between the two speeds is equal for all builds. The gap can be 10 % or more, while
runs in one mode vary by 1 %. If the gap were treated as noise, no change smaller than the gap could be shown.
Therefore, if the two modes are clearly distinct, the gap is added to the readings in the slow mode. A reading has less
weight if its mode is uncertain. In most programs, the effects of layouts do not form two modes, and no reading is
changed. The readings are assumed to lie around four levels: the level of the fast builds and the level of the slow
builds, each in the fast mode and in the slow mode.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.orders import Measure, PlannedRuns, Purpose
from perfbisect.core.inference.record import Record

Array = NDArray[np.float64]
Drift = tuple[float, float, float]  # (size in s.d. of a run, memory in units of the pace of readings, prior)
Visit = tuple[float, float]  # (size of the effect that the runs of a visit share, in s.d. of a run; prior)


@dataclass(frozen=True, slots=True)
class NoiseModel:
    """The possible probability distributions of readings of one kind, with the prior probability of each; and the
    numbers of runs that decisions need."""

    # Whether readings are exact counts: without outliers, and so exact that they show steps of any size.
    exact: bool
    layouts: tuple[tuple[float, float], ...]  # (s.d. between builds by code placement, prior)
    odd_build_prior: float  # prior that a build is odd: the effect of its layout is as large as the change
    walks: tuple[tuple[float, float], ...]  # (s.d. of the sum of all small steps in the range, prior)
    drifts: tuple[Drift, ...]
    visits: tuple[Visit, ...]  # possible effects of a visit, used if visits have several runs
    # Further drifts and effects of visits, only for the intervals of printed ratios; decisions do not depend on them.
    large_drifts: tuple[Drift, ...]
    large_visits: tuple[Visit, ...]
    calm_noise: float  # with more noise, a host without drift is less probable: disturbances come in phases
    guessed_noise: float  # guessed s.d. of a run, before there are runs
    guess_weight: float  # weight of ``guessed_noise``, as a number of runs
    host_offset: float  # s.d. of a constant difference between two hosts, in s.d. of a run
    first_runs: tuple[int, int]  # number of first runs of each end: (if builds are cheap, if builds are expensive)
    fewest_end_runs: float  # the fewest runs of each end after which the ends may count as equal
    proof_runs: int  # number of new runs of the culprit and of each parent in a proof; one more on a host that drifts
    patience: float  # a search may cost this multiple of the usual cost of finding a change of the same size
    # a search may cost this multiple of the usual cost of finding the whole difference of the ends
    end_patience: float
    # A hunt gives up if the ends show that a change of this size, in s.d. of a run, is improbable; if the smallest
    # change of interest is larger, that change counts.
    change_to_show: float
    most_end_runs: float  # most runs of each end
    most_proof_runs: int  # most new runs of a build; after these runs the proof is given up
    modes: bool  # whether layouts may have two modes, fast and slow
    paired: bool = False  # whether readings are differences of paired runs
    randomized_layouts: bool = False  # whether each run is in a randomized layout

    def measurement(self, plan: tuple[PlannedRuns, ...], purpose: Purpose) -> Measure:
        """The work order that measures ``plan`` as this noise model assumes: in usual or randomized layouts, by
        interleaved or paired runs."""
        return Measure(plan, purpose, fresh=self.randomized_layouts, together=self.paired)

    @property
    def for_paired_runs(self) -> "NoiseModel":
        """This noise model changed for paired runs: without drift, because disturbances of the host affect both builds
        of a pair equally."""
        return replace(
            self,
            drifts=EXACT.drifts,
            large_drifts=(),
            calm_noise=1.0,
            guessed_noise=USUAL.guessed_noise / 2,
            modes=False,
            paired=True,
        )


USUAL = NoiseModel(
    exact=False,
    layouts=((0.002, 0.30), (0.005, 0.45), (0.010, 0.25)),
    odd_build_prior=0.02,
    walks=((0.0, 1.0),),
    drifts=((0.0, 1.0, 0.40), (0.8, 5.0, 0.12), (2.0, 5.0, 0.08), (0.8, 25.0, 0.10), (2.0, 25.0, 0.10),
            (0.8, 100.0, 0.10), (2.5, 100.0, 0.10)),
    visits=((0.0, 0.65), (1.0, 0.35)),
    large_drifts=((6.0, 25.0, 0.06), (6.0, 100.0, 0.06)),
    large_visits=((2.0, 0.20), (4.0, 0.05)),
    calm_noise=0.02,
    guessed_noise=0.015,
    guess_weight=3.0,
    host_offset=5.0,
    first_runs=(2, 3),
    fewest_end_runs=3,
    proof_runs=3,
    patience=9.0,
    end_patience=4.5,
    change_to_show=0.9,
    most_end_runs=36.0,
    most_proof_runs=40,
    modes=False,
)  # fmt: skip
RANDOMIZED_LAYOUTS = replace(
    USUAL,
    layouts=((0.0, 1.0),),
    odd_build_prior=0.0,
    visits=((0.0, 0.4), (1.0, 0.3), (3.0, 0.3)),
    large_visits=((6.0, 0.20),),
    calm_noise=0.15,
    guessed_noise=0.05,
    guess_weight=1.0,
    first_runs=(5, 5),
    fewest_end_runs=5,
    proof_runs=5,
    patience=40.0,
    end_patience=30.0,
    change_to_show=0.4,
    most_end_runs=120.0,
    most_proof_runs=120,
    modes=True,
    randomized_layouts=True,
)
EXACT = replace(
    USUAL,
    exact=True,
    layouts=((0.0, 1.0),),
    odd_build_prior=0.0,
    walks=((0.0, 0.4), (0.0003, 0.2), (0.001, 0.2), (0.004, 0.2)),
    drifts=((0.0, 1.0, 1.0),),
    visits=((0.0, 1.0),),
    large_drifts=(),
    large_visits=(),
    calm_noise=1.0,
    guessed_noise=1e-5,
    guess_weight=1.0,
    host_offset=1000.0,
    first_runs=(2, 2),
    fewest_end_runs=2,
    proof_runs=1,
)


FREEDOM = 4.0  # degrees of freedom of the Student distribution that gives the weights


@dataclass(frozen=True, slots=True, eq=False)
class ReadingWeights:
    """The weight of each reading, at most 1; whether the host has two speeds; and the number of outliers."""

    weight: NDArray[np.float64]
    has_two_speeds: bool
    outliers: int


def weigh_readings(record: Record, good: int, bad: int, model: NoiseModel = USUAL) -> ReadingWeights:
    """The weights of the readings, lower for outliers. ``good`` and ``bad`` are the ends of the range; at least one end
    was measured."""
    # A cell: all readings of one build, or of one pair of builds.
    cells = record.build + (record.partner + 1) * len(record.builds)
    _, cell, runs = np.unique(cells, return_inverse=True, return_counts=True)
    value = record.value[np.lexsort((record.value, cell))]
    first = np.cumsum(runs) - runs
    centre = (value[first + (runs - 1) // 2] + value[first + runs // 2]) / 2
    if model.paired:
        between = record.paired_differences(good, bad)[1]
        step = float(np.median(between)) if len(between) else 0.0
        ends = np.array([-step, 0.0, step])
    else:
        ends = centre[np.isin(record.builds, [good, record.build_id(bad)])]
    deviation = record.value - centre[cell]
    repeated = runs[cell] > 1
    varying = repeated & (record.bound == 0)  # a stopped run has only a limit of its metric
    scale = _winsorized_run_sd(deviation[varying], len(np.unique(cell[varying])), model)
    single = np.abs(record.value[:, None] - ends[None]).min(axis=1)
    distance = np.where(repeated, np.abs(deviation), 0.0 if model.exact else single) / scale
    weight = np.minimum(1.0, (FREEDOM + 2) / (FREEDOM + distance**2))
    return ReadingWeights(weight, _has_two_speeds(deviation[varying]), int((repeated & (distance > 6)).sum()))


def _winsorized_run_sd(deviation: NDArray[np.float64], builds: int, model: NoiseModel) -> float:
    """The standard deviation of a run, computed from the deviations of readings from the medians of their builds. A
    deviation that is larger than four times the typical deviation is reduced to four times the typical deviation.
    """
    if not len(deviation):
        return model.guessed_noise
    free = max(len(deviation) - builds, 1)
    typical = 1.4826 * np.median(np.abs(deviation)) * np.sqrt(len(deviation) / free)
    limit = 4 * max(float(typical), model.guessed_noise / 3)
    squares = (np.minimum(np.abs(deviation), limit) ** 2).sum()
    return float(np.sqrt((model.guess_weight * model.guessed_noise**2 + squares) / (model.guess_weight + free)))


def _has_two_speeds(deviation: NDArray[np.float64]) -> bool:
    """Whether the deviations form two clusters such that the variance within the clusters is less than 20 % of the
    whole variance. For a normal distribution, the best division into two clusters leaves 36 %.
    """
    n = len(deviation)
    if n < 20:
        return False
    x = np.sort(deviation)
    count = np.arange(1, n)
    total, squares = np.cumsum(x), np.cumsum(x * x)
    within = squares[-1] - total[:-1] ** 2 / count - (total[-1] - total[:-1]) ** 2 / (n - count)
    spread = squares[-1] - total[-1] ** 2 / n
    cut = int(within.argmin())
    return bool(spread > 0 and within[cut] < 0.2 * spread and min(count[cut], n - count[cut]) >= 0.12 * n)


FEWEST = 10  # the fewest readings of builds that were measured several times
REPEATED = 3  # the fewest runs of a build that count as several measurements
GAPS = np.geomspace(0.03, 0.5, 16)  # starting values of the gap, in log units
APART = 6.0  # the smallest gap, in s.d. within a mode
SHARE = 0.08  # the smallest share of readings in each mode
# If all readings of a build are in one mode, and there are at least SURE readings, this is the build's fast mode. If
# the other build is faster by more than the share NEAR of the gap, SURE_IF_LOWER readings are needed.
SURE, SURE_IF_LOWER, NEAR = 8, 12, 0.3
GAIN = 8.0  # smallest gain of the log likelihood by two modes; a smaller gain may be chance in a few readings
ROUNDS = 40  # iterations of the EM algorithm
LEAST_NOISE = 1e-3
TINY = 1e-9
STRAY = 0.02  # share of readings in neither mode


@dataclass(frozen=True, slots=True, eq=False)
class _Modes:
    gap: float
    noise: float  # s.d. within a mode
    fast: float  # level of the good build in the fast mode of layouts
    slow: float  # level of the bad build in the fast mode of layouts
    # Rows of the builds whose readings are all in one mode, if this may be the fast or the slow mode.
    unknown: tuple[int, ...]


def correct_to_fast_mode(record: Record, good: int, bad: int) -> tuple[Record, Array]:
    """The record with all readings corrected to the fast mode; and for each reading a factor from 0 to 1 by which to
    multiply its weight. The factor is smaller if the mode of the reading is uncertain.
    """
    ends = record.build_id(good), record.build_id(bad)
    modes = _recognise_modes(record, *ends)
    if modes is None:
        return record, np.ones(len(record.value))
    in_slow_mode = _slow_mode_probability(record, modes, *ends)
    trust = 1 / (1 + (modes.gap / modes.noise) ** 2 * in_slow_mode * (1 - in_slow_mode))
    return replace(record, value=record.value + modes.gap * in_slow_mode), trust


def remove_modes_and_weigh(record: Record, good: int, bad: int, model: NoiseModel) -> tuple[Record, ReadingWeights]:
    """The record in which the effects of the fast and the slow mode are removed, and the weights of its readings. A
    reading has less weight if its mode is uncertain.
    """
    trust: Array | float = 1.0
    if model.modes and record.build_id(bad) in record.builds:
        record, trust = correct_to_fast_mode(record, good, bad)
    noticed = weigh_readings(record, good, bad, model)
    return record, replace(noticed, weight=noticed.weight * trust)


def _recognise_modes(record: Record, good: int, bad: int) -> _Modes | None:
    """The two modes of the readings; None if the modes are not clearly distinct."""
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
    # Two starting values of a build's level in the fast mode: the bound of its fastest quarter, and its fastest
    # reading.
    ordered = [np.sort(values[of == k]) for k in range(len(used))]
    starts = [
        [ordered_values[-max(1, len(ordered_values) // 4)] for ordered_values in ordered],
        [ordered_values[-1] for ordered_values in ordered],
    ]
    level = np.repeat(starts, len(gap), axis=0)  # (G, K)
    gap = np.tile(gap, len(starts))
    noise, share = np.maximum(gap / 8, LEAST_NOISE), np.full(len(gap), 0.5)
    for _ in range(ROUNDS):
        log, slow, ordinary = _mode_probabilities(values, level[:, of], gap, noise, share)
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
    position = np.searchsorted(used, ends)
    first, second = level[best, position].tolist()
    lower = [first < second - gap[best] * NEAR, second < first - gap[best] * NEAR]
    needed = np.where(lower, SURE_IF_LOWER, SURE)
    unknown = tuple(ends[k] for k in (0, 1) if members[position[k]] < 0.5 and runs[ends[k]] < needed[k])
    modes = _Modes(float(gap[best]), float(noise[best]), first, second, unknown)
    within = values - (values @ member / member.sum(axis=0))[of]
    width = max(float(np.sqrt((within**2).sum() / max(len(within) - len(used), 1))), LEAST_NOISE)
    alone = float(np.log(_normal_density(within, width)).sum())
    clear = modes.gap >= APART * modes.noise and log[best] >= alone + GAIN
    if not clear or not SHARE <= members.sum() / len(values) <= 1 - SHARE:
        return None
    return modes


def _mode_probabilities(
    values: Array, level: Array, gap: Array, noise: Array, share: Array
) -> tuple[Array, Array, Array]:
    """Three arrays with a row for each assumed gap between the modes: the log likelihood of the gap; for each reading
    (column), the probability that the reading is in the slow mode; and for each reading, the probability that the
    reading is in one of the two modes, and not an outlier.
    """
    s, w = noise[:, None], share[:, None]
    fast = _normal_density(values - level, s) * (1 - w) * (1 - STRAY)
    slow = _normal_density(values - level + gap[:, None], s) * w * (1 - STRAY)
    stray = STRAY / (1.0 + np.ptp(values))
    total = fast + slow + stray
    return np.log(total).sum(axis=1), slow / total, (fast + slow) / total


def _normal_density(distance: Array, noise: Array | float) -> Array:
    result: Array = np.exp(-0.5 * (distance / noise) ** 2) / noise / np.sqrt(2 * np.pi)
    return result


def _slow_mode_probability(record: Record, modes: _Modes, good: int, bad: int) -> Array:
    """For each reading, the probability that it was taken in the slow mode."""
    levels = np.array([modes.fast, modes.slow])[:, None]
    fast = _normal_density(record.value - levels, modes.noise) + 1e-12  # (2, N)
    slow = _normal_density(record.value - levels + modes.gap, modes.noise) + 1e-12
    log = np.log(fast + slow)
    log_likelihood = np.stack([np.bincount(record.build, row, len(record.builds)) for row in log])  # (2, M)
    like = np.exp(log_likelihood - log_likelihood.max(axis=0))
    for side, build in enumerate((good, bad)):
        like[1 - side, record.builds.index(build)] = 0.0
    like /= like.sum(axis=0)
    result: Array = (like[:, record.build] * slow / (fast + slow)).sum(axis=0)
    return np.where(np.isin(record.build, modes.unknown), 0.5, result)
