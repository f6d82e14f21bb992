"""From readings to the level of each build, under each law that the host's noise may follow.

A reading is  level(build) + drift(host, time) + noise.  The drift is a stationary Markov process
(Ornstein-Uhlenbeck) whose size, relative to the noise of a run, and whose memory, relative to the pace
of the readings, are unknown: both are put on a small grid, so that the same code serves runs of one
second and of ten minutes. Runs of one visit may share a visit effect besides.

Because the drift is Markov, the readings can be whitened one by one (a Kalman filter), for all laws at
once and in time linear in the readings. What remains is ordinary least squares of the levels. Everything
that the search asks later (which culprit, how large, how sure) depends on the readings only through the
levels, their covariance and the residual left: see model.py.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.inference.dataset import Record
from perfbisect.core.inference.outliers import PRIOR_NOISE, PRIOR_RUNS
from perfbisect.core.stats.distributions import log_sum

# (size of the drift in s.d. of a run, memory in units of the pace of readings, prior)
DRIFTS = ((0.0, 1.0, 0.40), (0.8, 5.0, 0.12), (2.0, 5.0, 0.08), (0.8, 25.0, 0.10), (2.0, 25.0, 0.10),
          (0.8, 100.0, 0.10), (2.5, 100.0, 0.10))  # fmt: skip
CALM = 0.02  # noise from which on a steady host becomes unlikely: what makes runs vary comes in phases
VISITS = ((0.0, 0.65), (1.0, 0.35))  # (size of the visit effect in s.d. of a run, prior)
HOST_OFFSET = 5.0  # s.d. of a constant difference between two hosts, in s.d. of a run
KEPT = 4e-3  # laws less probable than this are dropped


@dataclass(frozen=True, slots=True, eq=False)
class Present:
    """What the readings tell of the speed of each of S hosts now; variances in units of s².

    Given the levels, the drift of a host is  some constant - ``drift`` · [levels, offsets]  + an error, and the offsets
    of the further hosts are  some constant - ``offset`` · levels  + an error. So readings of one build in a row
    say as little of the build as they say of the host.
    """

    hosts: NDArray[np.int64]  # (S,)
    drift: NDArray[np.float64]  # (S, H, M + S - 1)
    drift_error: NDArray[np.float64]  # (S, H), variance
    offset: NDArray[np.float64]  # (H, S - 1, M)
    offset_error: NDArray[np.float64]  # (H, S - 1, S - 1), covariance

    def at(self, host: int, law: int, kept: float) -> tuple[NDArray[np.float64], float]:
        """How the levels enter what is known of a host's speed, (M,), and the variance of the error.

        ``kept`` is the share of the drift that is left by the time in question. Of a host without readings nothing
        is known.
        """
        builds = self.offset.shape[2]
        known = np.flatnonzero(self.hosts == host)
        if not len(known):
            return np.zeros(builds), HOST_OFFSET**2
        drift = kept * self.drift[known[0], law]
        own = (np.arange(1, len(self.hosts)) == known[0]) - drift[builds:]  # how the offsets enter
        error = float(own @ self.offset_error[law] @ own)
        return drift[:builds] + own @ self.offset[law], kept**2 * float(self.drift_error[known[0], law]) + error


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """The levels of M builds under H laws of noise; variances are in units of that law's s²."""

    mean: NDArray[np.float64]  # (H, M)
    covariance: NDArray[np.float64]  # (H, M, M)
    residual: NDArray[np.float64]  # (H,) sum of squares left, prior guess included
    freedom: float  # of ``residual`` with the levels known: prior runs + readings
    evidence: NDArray[np.float64]  # (H,) log prior and whatever of the likelihood does not depend on the levels
    probability: NDArray[np.float64]  # (H,) of each law, given nothing but the readings
    drift: NDArray[np.float64]  # (H,) s.d. of the drift in s
    memory: NDArray[np.float64]  # (H,) of the drift, in minutes
    runs: NDArray[np.float64]  # (M,) weighted runs of each build
    pace: float  # minutes from one reading to the next within a measurement
    present: Present

    @property
    def variance(self) -> NDArray[np.float64]:
        """s² under each law, (H,)."""
        result: NDArray[np.float64] = self.residual / max(self.freedom - self.mean.shape[1], 1.0)
        return result

    @property
    def noise(self) -> float:
        """S.d. of one run, drift included, as a fraction."""
        return float(np.sqrt(self.probability @ (self.variance * (1 + self.drift**2))))


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """Consecutive readings of one visit to one build, taken together."""

    build: NDArray[np.int64]
    host: NDArray[np.int64]
    at: NDArray[np.float64]
    weight: NDArray[np.float64]
    mean: NDArray[np.float64]
    within: float  # weighted squares around the group means
    repeated: bool  # whether any group holds more than one reading


def estimate(record: Record, weight: NDArray[np.float64], noise: float | None = None) -> Levels:
    """Levels of all builds of ``record``, readings weighted by ``weight``; ``noise`` is the host's known s.d."""
    groups = _group(record, weight)
    pace = _pace(record)
    laws = [
        (drift, memory * pace, visit, p * q)
        for (drift, memory, p), (visit, q) in product(DRIFTS, VISITS if groups.repeated else ((0.0, 1.0),))
    ]
    drift, memory, visit, prior = (np.array(column) for column in zip(*laws, strict=True))
    prior = np.where(drift == 0, prior * min(1.0, CALM / _spread(record, weight)), prior)
    white, log_det, state, spread = _whiten(groups, len(record.builds), drift, memory, visit)
    y, x = white[:, :, 0], white[:, :, 1:]
    information = np.swapaxes(x, 1, 2) @ x
    covariance = np.linalg.inv(information)
    mean = (covariance @ (np.swapaxes(x, 1, 2) @ y[:, :, None]))[:, :, 0]
    left = ((y - (x @ mean[:, :, None])[:, :, 0]) ** 2).sum(axis=1) + groups.within
    builds = len(record.builds)
    covariance, mean = covariance[:, :builds, :builds], mean[:, :builds]
    guess, worth = (PRIOR_NOISE, PRIOR_RUNS) if noise is None else (noise, 10.0)
    residual = left + worth * guess**2
    freedom = worth + float(weight.sum())
    # |S of the readings| · |covariance of the levels|⁻¹ stands before the part that model.py adds
    evidence = np.log(prior / prior.sum()) - 0.5 * log_det - 0.5 * np.linalg.slogdet(information)[1]
    total = evidence - 0.5 * (freedom - builds) * np.log(residual)
    probability = np.exp(total - log_sum(total))
    kept = probability > KEPT
    return Levels(
        mean[kept], covariance[kept], residual[kept], freedom, evidence[kept], probability[kept] / probability[kept].sum(),
        drift[kept], memory[kept], np.bincount(record.build, weight, builds).astype(np.float64), pace,
        Present(np.unique(groups.host), state[:, kept, 1:], spread[:, kept], *_offsets(information[kept], builds)),
    )  # fmt: skip


def _offsets(information: NDArray[np.float64], builds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of the further hosts, given the levels: how the levels enter, (H, S - 1, M), and the error's covariance."""
    error = np.linalg.inv(information[:, builds:, builds:]).astype(np.float64)
    return error @ information[:, builds:, :builds], error


def _spread(record: Record, weight: NDArray[np.float64]) -> float:
    """S.d. of the readings around their builds' means, as if the host were steady."""
    total = np.bincount(record.build, weight)
    centre = np.bincount(record.build, weight * record.value) / total
    squares = float((weight * (record.value - centre[record.build]) ** 2).sum())
    free = float(weight.sum()) - len(total)
    return float(np.sqrt((squares + PRIOR_RUNS * PRIOR_NOISE**2) / (max(free, 0.0) + PRIOR_RUNS)))


def _pace(record: Record) -> float:
    """Minutes between neighbouring readings of a host; builds in between are not counted (the lower half is)."""
    gaps = np.concatenate([np.diff(np.sort(record.at[record.host == host])) for host in np.unique(record.host)])
    gaps = gaps[gaps > 0]
    return float(np.median(gaps)) if len(gaps) else record.run_seconds / 60


def _group(record: Record, weight: NDArray[np.float64]) -> _Groups:
    order = np.lexsort((record.at, record.host))  # what other hosts do meanwhile does not end a visit
    build, visit, host = record.build[order], record.visit[order], record.host[order]
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(build) != 0) | (np.diff(visit) != 0) | (np.diff(host) != 0)
    group = np.cumsum(new) - 1
    w, value = weight[order], record.value[order]
    total = np.bincount(group, w).astype(np.float64)
    mean = np.bincount(group, w * value) / total
    at = np.bincount(group, w * record.at[order]) / total
    within = float((w * (value - mean[group]) ** 2).sum())
    return _Groups(build[new], host[new], at, total, mean, within, not bool(new.all()))


def _whiten(
    groups: _Groups,
    builds: int,
    drift: NDArray[np.float64],
    memory: NDArray[np.float64],
    visit: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The columns [reading, build indicators, host indicators] made independent, and log|S|, for every law.

    Shapes (H, groups + pseudo-readings, 1 + M + S - 1) and (H,) for S hosts. A pseudo-reading says that the offset
    of a further host is about zero. Then what the filter knows of each host's drift after its last reading: the mean,
    as the same columns, (S, H, columns), and the variance, (S, H).
    """
    hosts, host = np.unique(groups.host, return_inverse=True)
    count, extra = len(groups.mean), len(hosts) - 1
    columns = np.zeros((count + extra, 1 + builds + extra))
    columns[:count, 0] = groups.mean
    columns[np.arange(count), 1 + groups.build] = 1.0
    further = np.flatnonzero(host)
    columns[further, builds + host[further]] = 1.0
    columns[count + np.arange(extra), 1 + builds + np.arange(extra)] = 1 / HOST_OFFSET

    size, noise = drift**2, 1 / groups.weight[:, None] + (visit**2)[None]
    state = np.zeros((len(hosts), len(drift), columns.shape[1]))
    spread = np.tile(size, (len(hosts), 1))
    last = np.full(len(hosts), -np.inf)
    white = np.empty((count, len(drift), columns.shape[1]))
    forecast = np.empty((count, len(drift)))
    for i in range(count):
        h = host[i]
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
    pseudo = np.broadcast_to(columns[count:, None], (extra, len(drift), columns.shape[1]))
    return np.swapaxes(np.concatenate((white, pseudo)), 0, 1), np.log(forecast).sum(axis=0), state, spread
