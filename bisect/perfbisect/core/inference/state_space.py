"""Estimates the level of each build from its readings, under each of several laws (noise distributions) of the host.

A reading is level(build) + offset(host) + drift(host, time) + visit effect + noise. The drift is a stationary Markov
process (Ornstein-Uhlenbeck). Three unknown quantities of the noise have values on a small grid, and each point of the
grid is a law: the size of the drift relative to the noise of a run, how long the drift persists relative to the time
between readings, and the size of the visit effect. Because the size and the persistence of the drift are relative to
the noise and the times of the readings, the same grid fits runs of one second and runs of ten minutes.

A round (paired runs of two builds) measures the difference of the levels of the two builds, which the speed and the
drift of the host do not affect. If all readings are from paired rounds, only differences of levels are known, so the
levels themselves are assumed to be near zero.

Because the drift is Markov, the readings can be whitened in sequence (by a Kalman filter), for all laws in the same
pass, in a time that is linear in the number of readings. An ordinary least-squares fit to the whitened readings then
gives the levels. The posterior of the culprit (posterior.py) and every ratio that is shown (relative_speed.py) depend
on the readings only through this fit.
"""

from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.inference.noise_model import USUAL, NoiseModel
from perfbisect.core.inference.record import Record, unite_stopped_runs
from perfbisect.core.stats.distributions import log_sum_exp

Array = NDArray[np.float64]

NEGLIGIBLE = 4e-3  # laws with a smaller probability are dropped
NEAR_ZERO = 1e-3  # precision, in 1/s, with which all levels are near 0 if all runs are paired


@dataclass(frozen=True, slots=True, eq=False)
class HostSpeeds:
    """The estimated drift and offset of each of S hosts after its last reading. Variances are in units of s², the
    variance of the noise of one run.

    The drift of a host is constant - ``drift`` · [levels, offsets] + error; the offsets of all hosts except the first
    are constant - ``offset`` · levels + error.
    """

    hosts: NDArray[np.int64]  # (S,)
    unknown: float  # s.d. of the offset of a host without readings
    drift: Array  # (S, H, M + S - 1)
    drift_error: Array  # (S, H), variance
    offset: Array  # (H, S - 1, M)
    offset_error: Array  # (H, S - 1, S - 1), covariance of the errors of the offsets

    def host_speed(self, host: int, law: int, remaining: float) -> tuple[Array, float]:
        """The speed of a host as a linear function of the levels: the coefficients, (M,), and the variance of the
        error.

        ``remaining`` is the share of the drift after the last reading that is expected to remain at the time of the
        prediction. For a host without readings, the coefficients are zero, and the variance is the variance of the
        prior.
        """
        builds = self.offset.shape[2]
        row = np.flatnonzero(self.hosts == host)
        if not len(row):
            return np.zeros(builds), self.unknown**2
        drift = remaining * self.drift[row[0], law]
        offset_part = (np.arange(1, len(self.hosts)) == row[0]) - drift[builds:]  # coefficients of the offsets
        error = float(offset_part @ self.offset_error[law] @ offset_part)
        drift_error = remaining**2 * float(self.drift_error[row[0], law])
        return drift[:builds] + offset_part @ self.offset[law], drift_error + error


@dataclass(frozen=True, slots=True, eq=False)
class LevelFit:
    """A least-squares fit to the whitened readings under each of H laws (noise distributions); the fit estimates the
    levels of M builds, and the offsets of all S hosts except the first.

    Variances are in units of s², the variance of the noise of one run under the law. The first M of the K = M + S - 1
    coefficients are the levels. The last S - 1 of the R fitted rows are pseudo-readings, which pull the offset of each
    host after the first towards zero.
    """

    model: NoiseModel
    drift: Array  # (H,) s.d. of the drift in s
    memory: Array  # (H,) correlation time of the drift, in minutes
    prior: Array  # (H,) not normalised
    searched: NDArray[np.bool_]  # (H,) whether decisions depend on the law; the other laws are only for printed ratios
    y: Array  # (H, R) whitened readings
    x: Array  # (H, R, K) whitened indicators of build and host
    log_det: Array  # (H,) log determinant of the readings' covariance
    information: Array  # (H, K, K)
    covariance: Array  # (H, K, K)
    coefficients: Array  # (H, K)
    squares: Array  # (H,) weighted sum of squared residuals
    within: float  # sum of squares within groups of readings: a part of ``squares`` that is equal under all laws
    runs: Array  # (M,) weighted readings of each build
    build: NDArray[np.int64]  # the build of each reading; all stopped runs of a build are united in one reading
    weight: Array  # weight of each reading
    excess_weight: float  # excess of ``weight`` by united stopped runs; this excess shows nothing of the noise
    free: int  # number of the K coefficients that readings determine
    pace: float  # minutes from one reading to the next within a measurement
    hosts: NDArray[np.int64]  # (S,)
    state: Array  # (S, H, 1 + K) mean of each host's drift after its last reading, as columns of [readings, indicators]
    spread: Array  # (S, H) variance of each host's drift


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """The levels of M builds under H laws of noise; variances are in units of s², a run's variance under the law."""

    model: NoiseModel
    mean: Array  # (H, M)
    covariance: Array  # (H, M, M)
    residual: Array  # (H,) residual sum of squares, with the prior guess
    freedom: float  # degrees of freedom of ``residual`` if the levels are known: prior runs + readings
    evidence: Array  # (H,) log prior and the part of the log likelihood that does not depend on the levels
    probability: Array  # (H,) probability of each law of the noise, given only the readings
    drift: Array  # (H,) s.d. of the drift in s
    memory: Array  # (H,) correlation time of the drift, in minutes
    runs: Array  # (M,) weighted runs of each build
    pace: float  # minutes from one reading to the next within a measurement
    present: HostSpeeds

    @property
    def noise_variance(self) -> Array:
        """The variance s² of a run under each of H laws, shape (H,)."""
        result: Array = self.residual / max(self.freedom - self.mean.shape[1], 1.0)
        return result

    @property
    def noise(self) -> float:
        """The standard deviation of one run, including drift, as a fraction."""
        return float(np.sqrt(self.probability @ (self.noise_variance * (1 + self.drift**2))))


@dataclass(frozen=True, slots=True, eq=False)
class _ReadingGroups:
    """Groups of consecutive readings from one visit to one build, or from one visit to the two builds of a paired
    round.
    """

    build: NDArray[np.int64]
    partner: NDArray[np.int64]  # the other build of paired runs; -1 for unpaired runs
    host: NDArray[np.int64]
    at: Array
    weight: Array
    mean: Array
    within: float  # weighted sum of squares around the group means
    has_repeated_readings: bool  # whether any group has more than one reading


def fit_levels(record: Record, weight: Array, model: NoiseModel = USUAL) -> LevelFit:
    """The fit of levels to the readings of ``record``, weighted by ``weight``, under the laws (noise distributions) of
    ``model``.
    """
    # The median is used, because the few gaps in which a build was made are longer.
    gaps = np.concatenate([np.diff(np.sort(record.at[record.host == host])) for host in np.unique(record.host)])
    gaps = gaps[gaps > 0]
    builds, pace = len(record.builds), float(np.median(gaps)) if len(gaps) else record.median_run_seconds / 60
    if model.paired:  # ratios of paired runs do not depend on a host's speed, so all hosts count as one
        record = replace(record, host=np.zeros_like(record.host))
    record, weight, excess_weight = unite_stopped_runs(record, weight)
    groups = _group_readings(record, weight)
    visits = model.visits if groups.has_repeated_readings else ((0.0, 1.0),)
    laws = [*product(model.drifts, visits)]
    large_visits = model.large_visits if groups.has_repeated_readings else ()
    further = [*product(model.large_drifts, visits), *product(model.drifts, large_visits)]
    columns = [(drift, memory * pace, visit, p * q) for (drift, memory, p), (visit, q) in laws + further]
    drift, memory, visit, prior = (np.array(column) for column in zip(*columns, strict=True))
    if not model.paired:
        calmness = model.calm_noise / _sd_within_builds(record, weight, excess_weight, model)
        prior = np.where(drift == 0, prior * min(1.0, calmness), prior)
    white, log_det, state, spread = _whiten_readings(groups, builds, drift, memory, visit, model.host_offset)
    y, x = white[:, :, 0], white[:, :, 1:]
    information = np.swapaxes(x, 1, 2) @ x
    covariance = np.linalg.inv(information).astype(np.float64)
    coefficients = (covariance @ (np.swapaxes(x, 1, 2) @ y[:, :, None]))[:, :, 0]
    squares = ((y - (x @ coefficients[:, :, None])[:, :, 0]) ** 2).sum(axis=1) + groups.within
    both = record.partner >= 0
    runs = np.bincount(record.build, weight, builds).astype(np.float64)
    runs += np.bincount(record.partner[both], weight[both], builds)
    free = int(x.shape[2]) - model.paired
    return LevelFit(
        model, drift, memory, prior, np.arange(len(prior)) < len(laws), y, x, log_det, information, covariance, coefficients, squares, groups.within, runs,
        record.build, weight, excess_weight, free, pace, np.unique(groups.host), state, spread,
    )  # fmt: skip


def levels_for_search(fitted: LevelFit, run_noise: float | None = None) -> Levels:
    """The levels that the search uses; ``run_noise`` is the standard deviation of a run on the host, if it is known."""
    ours = np.flatnonzero(fitted.searched)
    prior, builds = fitted.prior[ours], len(fitted.runs)
    guess, worth = fitted.model.guessed_noise, fitted.model.guess_weight
    # The noise of exact counts is not taken from earlier hunts, because the first two counts show as much.
    if run_noise is not None and not fitted.model.exact:
        guess, worth = run_noise, 10.0
    residual = fitted.squares[ours] + worth * guess**2
    freedom = worth + float(fitted.weight.sum()) - fitted.excess_weight + fitted.model.paired
    information = fitted.information[ours]
    # This is the part of the log likelihood that does not depend on the levels; posterior.py adds the other part.
    evidence = np.log(prior / prior.sum()) - 0.5 * fitted.log_det[ours] - 0.5 * np.linalg.slogdet(information)[1]
    total = evidence - 0.5 * (freedom - builds) * np.log(residual)
    probability = np.exp(total - log_sum_exp(total))
    probable = probability > NEGLIGIBLE
    law = ours[probable]
    # The covariance of the offsets of all hosts except the first, given the levels.
    error = np.linalg.inv(information[probable][:, builds:, builds:]).astype(np.float64)
    return Levels(
        fitted.model, fitted.coefficients[law, :builds], fitted.covariance[law, :builds, :builds], residual[probable], freedom, evidence[probable],
        probability[probable] / probability[probable].sum(), fitted.drift[law], fitted.memory[law], fitted.runs, fitted.pace,
        HostSpeeds(fitted.hosts, fitted.model.host_offset, fitted.state[:, law, 1:], fitted.spread[:, law], error @ information[probable][:, builds:, :builds], error),
    )  # fmt: skip


def _sd_within_builds(record: Record, weight: Array, excess_weight: float, model: NoiseModel) -> float:
    """The standard deviation of the readings around the means of their builds, computed as if the speed of the host
    did not change.
    """
    total = np.bincount(record.build, weight)
    centre = np.bincount(record.build, weight * record.value) / total
    squares = float((weight * (record.value - centre[record.build]) ** 2).sum())
    free = float(weight.sum()) - excess_weight - len(total)
    variance = (squares + model.guess_weight * model.guessed_noise**2) / (max(free, 0.0) + model.guess_weight)
    return float(np.sqrt(variance))


def _group_readings(record: Record, weight: Array) -> _ReadingGroups:
    order = np.lexsort((record.at, record.host))  # by host: a reading of another host does not end a visit
    columns = record.build, record.partner, record.visit, record.host
    build, partner, visit, host = (column[order] for column in columns)
    new = np.ones(len(order), bool)
    new[1:] = np.any([np.diff(column) != 0 for column in (build, partner, visit, host)], axis=0)
    group = np.cumsum(new) - 1
    w, value = weight[order], record.value[order]
    total = np.bincount(group, w).astype(np.float64)
    mean = np.bincount(group, w * value) / total
    at = np.bincount(group, w * record.at[order]) / total
    within = float((w * (value - mean[group]) ** 2).sum())
    return _ReadingGroups(build[new], partner[new], host[new], at, total, mean, within, not bool(new.all()))


class _WhitenedReadings(NamedTuple):
    """The whitened readings of M builds on S hosts under each of H laws.

    The columns are [reading, build indicators, host indicators]. A pseudo-reading for each host after the first says
    that the offset of the host is about zero. The state of a host is the Kalman filter's estimate of the host's drift
    after its last reading.
    """

    columns: Array  # (H, groups + pseudo-readings, 1 + M + S - 1)
    log_det: Array  # (H,), log determinant of the readings' covariance
    state_mean: Array  # (S, H, columns), as coefficients of the columns
    state_variance: Array  # (S, H)


def _whiten_readings(
    groups: _ReadingGroups, builds: int, drift: Array, memory: Array, visit: Array, host_offset: float
) -> _WhitenedReadings:
    """The readings of ``groups``, whitened under each law."""
    hosts, host = np.unique(groups.host, return_inverse=True)
    alone = groups.partner < 0
    count, extra, near_zero = len(groups.mean), len(hosts) - 1, 0 if alone.any() else builds
    columns = np.zeros((count + extra + near_zero, 1 + builds + extra))
    columns[:count, 0] = groups.mean
    columns[np.arange(count), 1 + groups.build] = 1.0
    columns[np.flatnonzero(~alone), 1 + groups.partner[~alone]] = -1.0
    further = np.flatnonzero((host > 0) & alone)
    columns[further, builds + host[further]] = 1.0
    columns[count + np.arange(extra), 1 + builds + np.arange(extra)] = 1 / host_offset
    columns[count + extra + np.arange(near_zero), 1 + np.arange(near_zero)] = NEAR_ZERO

    size, noise = drift**2, 1 / groups.weight[:, None] + (visit**2)[None]
    state = np.zeros((len(hosts), len(drift), columns.shape[1]))
    spread = np.tile(size, (len(hosts), 1))
    last = np.full(len(hosts), -np.inf)
    white = np.empty((count, len(drift), columns.shape[1]))
    forecast = np.empty((count, len(drift)))
    for i in range(count):
        h = host[i]
        if not alone[i]:
            forecast[i], white[i] = noise[i], columns[i] / np.sqrt(noise[i])[:, None]
            continue
        memory_kept = np.exp((last[h] - groups.at[i]) / memory)
        last[h] = groups.at[i]
        variance = size + memory_kept**2 * (spread[h] - size)
        expected = memory_kept[:, None] * state[h]
        forecast[i] = variance + noise[i]
        surprise = columns[i] - expected
        gain = variance / forecast[i]
        white[i] = surprise / np.sqrt(forecast[i])[:, None]
        state[h] = expected + gain[:, None] * surprise
        spread[h] = variance * (1 - gain)
    pseudo = np.broadcast_to(columns[count:, None], (extra + near_zero, len(drift), columns.shape[1]))
    whitened = np.swapaxes(np.concatenate((white, pseudo)), 0, 1)
    return _WhitenedReadings(whitened, np.log(forecast).sum(axis=0), state, spread)
