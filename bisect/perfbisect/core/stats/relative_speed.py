"""Relative QPS: how fast each build of a hunt is against the base, with a 95 % interval.

All runs of the hunt are one linear model of log values (so a ratio is a difference):

    log value  =  level of the build  +  offset of the visit  +  drift of the host  +  noise of the run

The levels are unknown and equally likely everywhere. Runs of one visit share its offset; drift is a process whose
correlation fades with the time between two runs, which is what pairs a run with its neighbours in time: a build
measured an hour after the base is compared through whatever was measured in between. How large visits' offsets and
drift are, in units of the noise, is not known either: a small grid of answers is weighted by how well each explains
the runs (noise and levels integrated out), and the interval is that of the mixture of their Student-t's.

A run far from the others of its build (a neighbour on the machine, a checkpoint) is believed less, not thrown away.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.observations import Reading
from perfbisect.core.domain.orders import Interval

Array = NDArray[np.float64]

VISIT = ((0.0, 0.35), (1.0, 0.35), (4.0, 0.3))
"""Variance of a visit's offset in units of the noise's, with prior weight."""

DRIFT = ((0.0, 1.0, 0.4), *((size, minutes, 0.1) for size in (1.0, 6.0, 36.0) for minutes in (10.0, 90.0)))
"""Variance of the drift in units of the noise's, minutes in which its correlation falls to 1/e, prior weight."""

FAR = 4.0  # standard deviations beyond which a run is believed less
QUIET = 1e-9  # floor of the noise: counts can be exact, and logarithms of their scatter must stay finite


@dataclass(frozen=True, slots=True)
class Fit:
    """The levels of the builds, given one answer for visits and drift."""

    evidence: float  # log marginal likelihood, up to a constant
    level: Array  # shape (builds,)
    spread: Array  # shape (builds, builds): covariance of the levels, noise included
    residual: Array  # shape (runs,): the part of each run that only noise can explain


def relative(readings: Sequence[Reading], base: int, kinds: Sequence[str] = ()) -> Mapping[int, Interval]:
    """The ratio of every measured candidate to ``base``, on the hosts where the base was measured.

    Hosts of one class, ``kinds`` by number, show the same ratios; of several classes the first that measured a candidate
    speaks. Nothing is said where the base was not measured, or no build twice: nothing then tells noise from change.
    """
    classes = dict.fromkeys(kinds) or {"": None}
    found: dict[int, Interval] = {}
    for kind in classes:
        alike = [one for one in readings if not kinds or kinds[one.host] == kind]
        found = {**among_equals(alike, base), **found}
    return found


def among_equals(readings: Sequence[Reading], base: int) -> Mapping[int, Interval]:
    """The same on hosts of one class, which may be of different speeds."""
    hosts = {one.host for one in readings if one.candidate == base}
    runs = [one for one in readings if one.host in hosts]
    builds = sorted({one.candidate for one in runs})
    freedom = len(runs) - len(builds) - max(len(hosts) - 1, 0)
    if freedom < 1 or len(builds) < 2:
        return {}
    weight, fits = mixture(runs, builds)
    origin = builds.index(base)
    return {
        build: ratio(
            weight,
            np.array([fit.level[row] - fit.level[origin] for fit in fits]),
            np.array([
                fit.spread[row, row] + fit.spread[origin, origin] - 2 * fit.spread[row, origin] for fit in fits
            ]),
            freedom,
        )
        for row, build in enumerate(builds)
        if build != base
    }  # fmt: skip


def mixture(runs: Sequence[Reading], builds: Sequence[int]) -> tuple[Array, list[Fit]]:
    """The fits worth keeping, with their weights. How far runs are believed comes from a first fit, whose own comes from medians."""
    row = {build: index for index, build in enumerate(builds)}
    member = np.array([row[one.candidate] for one in runs])
    hosts, host = np.unique([one.host for one in runs], return_inverse=True)
    design = np.zeros((len(runs), len(builds) + len(hosts) - 1))
    design[np.arange(len(runs)), member] = 1.0
    further = np.flatnonzero(host)
    design[further, len(builds) - 1 + host[further]] = 1.0  # how much faster than the first
    value = np.array([one.value for one in runs])
    shapes = list(covariances(runs))
    _, apart = np.unique(member * len(hosts) + host, return_inverse=True)
    middle = np.array([np.median(value[apart == row]) for row in range(apart.max() + 1)])
    belief = credibility(value - middle[apart], member)
    for _ in range(2):
        fits = [fit(value, design, shape, belief) for shape, _ in shapes]
        score = np.array([one.evidence + np.log(prior) for one, (_, prior) in zip(fits, shapes, strict=True)])
        weight = np.exp(score - score.max())
        belief = credibility(fits[int(weight.argmax())].residual, member)
    keep = weight > 1e-3 * weight.max()
    return weight[keep] / weight[keep].sum(), [one for one, kept in zip(fits, keep, strict=True) if kept]


def covariances(runs: Sequence[Reading]) -> Iterator[tuple[Array, float]]:
    """What the runs share under each answer for visits and drift, in units of the noise's variance, and its prior."""
    at = np.array([one.at for one in runs])
    visit = np.array([one.visit for one in runs])
    host = np.array([one.host for one in runs])
    together = (host[:, None] == host[None, :]).astype(np.float64)
    same = together * (visit[:, None] == visit[None, :])
    apart = np.abs(at[:, None] - at[None, :])
    # Where every run has a visit of its own, a visit's offset cannot be told from noise.
    visits: Iterable[tuple[float, float]] = VISIT if same.sum() > len(runs) else ((0.0, 1.0),)
    for offset, visit_prior in visits:
        for size, minutes, drift_prior in DRIFT:
            yield offset * same + size * together * np.exp(-apart / minutes), visit_prior * drift_prior


def fit(value: Array, design: Array, shared: Array, belief: Array) -> Fit:
    """Generalised least squares, flat in the levels and in the log of the noise."""
    runs, builds = design.shape
    lower = np.linalg.cholesky(shared + np.diag(1 / belief))
    x = np.linalg.solve(lower, design)
    y = np.linalg.solve(lower, value)
    information = x.T @ x
    level = np.linalg.solve(information, x.T @ y)
    rest = y - x @ level
    squares = float(rest @ rest) + QUIET**2
    freedom = runs - builds
    evidence = -np.log(np.diag(lower)).sum() - np.linalg.slogdet(information)[1] / 2 - freedom / 2 * np.log(squares)
    residual = np.linalg.solve(lower.T, rest) / belief
    return Fit(float(evidence), level, np.linalg.inv(information) * (squares / freedom), residual)


def credibility(residual: Array, member: NDArray[np.int64]) -> Array:
    """How far each run is believed: 1 for most, less for one far out among at least three of its build.

    The fourth power lets the weight fall faster than the square of the distance grows, so that a wild run does not
    swell the noise either.
    """
    belief = np.ones(len(residual))
    common = np.bincount(member)[member] >= 3
    if common.sum() < 6:
        return belief
    scale = 1.4826 * np.median(np.abs(residual[common])) + QUIET
    far = FAR * (1 + 8 / common.sum())  # with few runs the scale itself is a guess
    out = np.abs(residual) / scale
    return np.where(common & (out > far), (far / np.maximum(out, far)) ** 4, belief)


def ratio(weight: Array, middle: Array, variance: Array, freedom: int) -> Interval:
    """Median and central 95 % of a mixture of Student-t's of log ratios, as ratios.

    The density is summed on points that lie as a Cauchy's quantiles do, so that the widest tails are reached too.
    """
    scale = np.sqrt(variance)
    points = weight @ middle + scale.max() * np.tan(np.linspace(-np.pi / 2, np.pi / 2, 4003)[1:-1])
    far = (points[:, None] - middle) / scale
    density = ((1 + far**2 / freedom) ** (-(freedom + 1) / 2) / scale) @ weight
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(points))])
    low, mid, high = np.exp(np.interp([0.025, 0.5, 0.975], mass / mass[-1], points))
    return Interval(float(low), float(mid), float(high))
