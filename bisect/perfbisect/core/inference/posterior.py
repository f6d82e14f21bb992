"""Which culprit explains the levels of the builds: one linear-Gaussian model for every hypothesis.

Level of build v, with bad(v; K) = 1 when K is v or an ancestor of v:

    level(v) = base - D bad(v; K) + layout(v)                                          one step
    level(v) = base - D bad(v; K) + d bad(v; J) + walk(v) + layout(v)                  several steps

* base: unknown, nearly flat prior.
* D, the drop at the culprit, is centred on the drop between the ends (all of it, or most of it if there are
  several steps). Both structures get priors of similar width: otherwise the narrower would win by
  its width alone (Lindley's paradox).
* layout: what one particular binary is faster or slower by, for reasons of code placement; drawn once for each
  build, so repeats never average it away. Its size is on a grid. With one step, one build may be odd: its
  layout is of the order of the drop itself. Otherwise a level half way between slow and fast would be taken for the nearer of the two
  with a certainty that only the tails of a normal distribution have.
* d at J: one sharp decoy of either sign anywhere in the range, every pair (K, J) enumerated. A smooth
  random walk alone cannot imitate a second step: zooming into it would make it look certain.
* walk: many small steps, a random walk along the history (covariance: prior mass of common ancestors). Counts that are
  exact show more of them, so there one step has a walk beside it too, of a size that does not depend on the drop.
* Or nothing changed at all: every build has the base level and its layout. This is compared with one step of any
  place and of a size that is not taken from the readings.
* The culprit is the *largest* step of the hunted sign: factors P(D > 0) and P(D > |d|).

D and d are integrated out in closed form, and so is s² (scaled inverse χ²), which leaves for each class of
culprits, law of noise and size of layout a Student-t marginal from one small Cholesky factor.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.inference.ancestry import Hypotheses
from perfbisect.core.inference.record import Record
from perfbisect.core.inference.state_space import Levels
from perfbisect.core.stats.distributions import log_cdf, log_sum

Array = NDArray[np.float64]

ODD_WIDTH = 0.25  # s.d. of its layout in units of the drop between the ends,
ODD_MOST = 0.08  # and at most, in log units: layouts move a build by some per cent, not by a factor
SEVERAL = 0.4  # prior of several steps
CHANGE = 0.5  # prior that anything changed
CHANGE_WIDTH = 0.1  # s.d. of its size, in log units, as long as nothing is known of it
BASE = 1.0  # s.d. of the prior of the base level, far wider than anything seen
ONE_WIDTH = 0.5  # s.d. of D in units of the drop between the ends
MAIN, MAIN_WIDTH = 0.9, 0.35  # mean and s.d. of D if there are several steps, same units
DECOY, DECOY_WIDTH = 0.5, 0.4  # prior of a sharp decoy, and the s.d. of its size
DOUBT = 1.5  # standard errors of that difference by which the priors widen
NEVER = 1e-300  # in place of a probability of 0
WALK = 0.3  # s.d. of the walk from end to end


@dataclass(frozen=True, slots=True)
class _Drops:
    """Priors of the steps, (mean, s.d.) in log units.

    They come from the difference between the ends, whose readings the posterior sees as well. Where it is clear that
    does no harm. Where it barely shows it was probably lucky, so the priors move towards nothing and widen.
    """

    one: tuple[float, float]
    main: tuple[float, float]
    decoy: float

    @classmethod
    def of(cls, drop: float, error: float) -> "_Drops":
        shrunk = drop * max(1 - (error / drop) ** 2, 0.5)
        return cls(
            one=(shrunk, float(np.hypot(ONE_WIDTH * drop, DOUBT * error))),
            main=(MAIN * shrunk, float(np.hypot(MAIN_WIDTH * drop, DOUBT * error))),
            decoy=DECOY_WIDTH * drop,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """The most probable cell of the model, from which new readings are predicted; variances in units of s²."""

    law: int  # index into Levels
    s: float
    layout: float  # variance of the layout effect
    odd: Array  # (M,) variance that it has besides in the odd build, elsewhere 0
    walk: float  # variance of the walk over the whole range
    base: float  # variance of the base level
    centre: float  # subtracted from the levels
    covariance: Array  # (M, M) of the levels, everything but the steps
    drop: Array  # (C,) coefficient of bad(.; K): negative
    drop_precision: Array  # (C,)
    decoy: Array  # (C,) coefficient of the most probable decoy of each class, 0 if none
    decoy_class: NDArray[np.int64]  # (C,)


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """What the levels say of the culprit."""

    culprit: Array  # (C,) probability of each class, sums to one
    change: float  # probability that anything changed; the others presume it
    several: float  # probability that there is more than one step
    drifting: float  # probability that the host drifts
    fit: Fit


@dataclass(frozen=True, slots=True, eq=False)
class _Terms:
    """Log marginals (Q, C) of a batch of Q cells, and the coefficients behind them."""

    log: Array
    drop: Array
    precision: Array
    decoy: Array
    decoy_class: NDArray[np.int64]
    odd: NDArray[np.int64]  # (Q, C) the odd build, -1 if none


def infer(levels: Levels, classes: Hypotheses, drop: float, error: float = 0.0, *, change: float = CHANGE) -> Posterior:
    """Posterior over classes; ``drop`` is the difference between the ends (log units, positive), with its error.

    ``change`` is the probability beforehand that anything changed.
    """
    prior, model = _Drops.of(drop, error), levels.model
    laws = len(levels.mean)
    sizes = [(layout, walk, p * q) for (layout, p), (walk, q) in product(model.layouts, model.walks)]
    law = np.repeat(np.arange(laws), len(sizes))
    width, steps, share = (np.tile(column, laws) for column in zip(*sizes, strict=True))
    log_prior = levels.evidence[law] + np.log(share)
    s2 = levels.variance[law]
    centre = float(levels.mean[0].mean())
    y = levels.mean[law] - centre
    slow = classes.slow.astype(np.float64)
    eye = np.eye(len(slow))
    base = BASE**2 / s2
    common = (slow * classes.prior) @ slow.T  # prior mass of common ancestors
    plain = levels.covariance[law] + (width**2 / s2)[:, None, None] * eye + base[:, None, None]
    plain = plain + (steps**2 / s2)[:, None, None] * common
    walk = (WALK * drop) ** 2 / s2
    rough = plain + walk[:, None, None] * common
    data = (y, slow, levels.residual[law], levels.freedom, s2, prior)
    odd_width = min(ODD_WIDTH * drop, ODD_MOST)
    sums = _Sums.of(plain, y, slow, odd_width**2 / s2, model.odd)
    terms = (_one_step(sums, *data[2:]), _several_steps(rough, *data, classes.prior))
    log = np.stack([terms[0].log + np.log(1 - SEVERAL), terms[1].log + np.log(SEVERAL)])
    log = log + log_prior[None, :, None] + np.log(classes.prior)
    p = np.exp(log - log_sum(log))
    p /= p.sum()
    structure, q, c = np.unravel_index(int(p.argmax()), p.shape)
    best = terms[structure]
    odd = odd_width**2 / s2[q] * (np.arange(len(slow)) == best.odd[q, c])
    fit = Fit(
        law=int(law[q]), s=float(np.sqrt(s2[q])), layout=float(width[q] ** 2 / s2[q]), odd=odd,
        walk=float(steps[q] ** 2 / s2[q] + (walk[q] if structure else 0.0)), base=float(base[q]), centre=centre,
        covariance=(rough if structure else plain)[q] + np.diag(odd), drop=best.drop[q], drop_precision=best.precision[q],
        decoy=best.decoy[q], decoy_class=best.decoy_class[q],
    )  # fmt: skip
    cells = p.sum(axis=(0, 2))
    return Posterior(
        culprit=p.sum(axis=(0, 1)),
        change=_changed(sums, levels.residual[law], levels.freedom, s2, log_prior, steps == 0, classes.prior, change),
        several=float(p[1].sum()),
        drifting=float(cells @ (levels.drift[law] > 0)),
        fit=fit,
    )


def _solve(covariance: Array, *columns: Array) -> tuple[tuple[Array, ...], Array]:
    """``columns``, each (…, M, any), whitened by ``covariance`` (Q, M, M), and log|covariance|, (Q,)."""
    factor = np.linalg.cholesky(covariance)
    every = [np.broadcast_to(column, (len(factor), *column.shape[-2:])) for column in columns]
    white = np.linalg.solve(factor, np.concatenate(every, axis=2))
    cuts = np.cumsum([column.shape[-1] for column in columns])[:-1].tolist()
    return tuple(np.split(white, cuts, axis=2)), 2 * np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    """Sums over whitened builds with none of them odd, or one: index 0 of the axis B = 1 + M is for none."""

    yy: Array  # (Q, B, 1)
    zz: Array  # (Q, B, C)
    zy: Array  # (Q, B, C)
    log_det: Array  # (Q, B, 1)
    log_prior: Array  # (B, 1) of which build is odd

    @classmethod
    def of(cls, covariance: Array, y: Array, slow: Array, odd: Array, prior: float) -> "_Sums":
        """``odd`` (Q,) is the variance that an odd build has besides: an update of rank one (Sherman and Morrison).

        ``prior`` is that of a build to be odd.
        """
        builds = len(slow)
        (white_y, z, unit), log_det = _solve(covariance, y[:, :, None], slow, np.eye(builds))
        uz, uy = np.swapaxes(unit, 1, 2) @ z, np.swapaxes(unit, 1, 2) @ white_y  # (Q, M, C), (Q, M, 1)
        gain = 1 + odd[:, None] * (unit**2).sum(axis=1)  # (Q, M)
        less = (odd[:, None] / gain)[:, :, None]
        zz, zy, yy = (z**2).sum(axis=1), (white_y * z).sum(axis=1), (white_y**2).sum(axis=(1, 2))
        some = min(max(builds * prior, NEVER), 0.5)
        return cls(
            np.concatenate((yy[:, None, None], yy[:, None, None] - less * uy**2), axis=1),
            np.concatenate((zz[:, None], zz[:, None] - less * uz**2), axis=1),
            np.concatenate((zy[:, None], zy[:, None] - less * uz * uy), axis=1),
            np.concatenate((log_det[:, None, None], (log_det[:, None] + np.log(gain))[:, :, None]), axis=1),
            np.log([1 - some] + builds * [some / builds])[:, None],
        )


def _one_step(sums: _Sums, residual: Array, freedom: float, s2: Array, drops: _Drops) -> _Terms:
    """One step, no decoy, and one build that may be odd."""
    mean, width = -drops.one[0], (s2 / drops.one[1] ** 2)[:, None, None]
    terms = _main_step(sums.yy, sums.zz, sums.zy, sums.log_det, residual[:, None, None], freedom, width, mean)
    log = terms.log + sums.log_prior
    best = log.argmax(axis=1)[:, None]

    def at_best(values: Array) -> Array:
        return np.take_along_axis(values, best, axis=1)[:, 0]

    odd = best[:, 0] - 1
    none = np.zeros_like(odd)
    return _Terms(
        log_sum(log, axis=1), at_best(terms.drop), at_best(terms.precision), none.astype(np.float64), none, odd
    )


def _changed(
    sums: _Sums,
    residual: Array,
    freedom: float,
    s2: Array,
    log_prior: Array,
    still: NDArray[np.bool_],
    prior: Array,
    change: float,
) -> float:
    """Probability of one step against none; ``still`` (Q,) are the cells without small steps, where none is possible.

    The size of the step has a prior of its own, half of a normal distribution: with one that is centred on what was seen
    between the ends, a change would always look better than none. No build is odd here: otherwise a change next to an
    end could never be distinguished from an odd end.
    """
    cells, left, log_det, yy = log_prior[:, None], residual[:, None], sums.log_det[:, 0], sums.yy[:, 0]
    width = (s2 / CHANGE_WIDTH**2)[:, None]
    step = _main_step(yy, sums.zz[:, 0], sums.zy[:, 0], log_det, left, freedom, width, 0.0).log + np.log(2 * prior)
    none = -0.5 * log_det - 0.5 * freedom * np.log(np.maximum(left + yy, 1e-12))
    odds = log_sum((cells + none)[still].ravel(), axis=0) - log_sum((cells + step).ravel(), axis=0)
    return float(1 / (1 + np.exp(np.clip(odds, -700, 700)) * (1 - change) / change))


@dataclass(frozen=True, slots=True, eq=False)
class _Main:
    """Log marginals of one step, its coefficient and the precision of that; all of one shape."""

    log: Array
    drop: Array
    precision: Array


def _main_step(
    yy: Array, zz: Array, zy: Array, log_det: Array, residual: Array, freedom: float, width: Array, mean: float
) -> _Main:
    """One step of prior mean ``mean`` and prior precision ``width`` (in 1/s²), no decoy; sums over whitened builds."""
    precision, right = zz + width, zy + width * mean
    drop = right / precision
    squares = np.maximum(residual + yy + width * mean**2 - right * drop, 1e-12)
    log = -0.5 * (log_det + np.log(precision / width)) - 0.5 * freedom * np.log(squares)
    log = log + log_cdf(-drop * np.sqrt(precision * freedom / squares))
    return _Main(log, drop, precision)


def _several_steps(
    covariance: Array, y: Array, slow: Array, residual: Array, freedom: float, s2: Array, drops: _Drops, prior: Array
) -> _Terms:
    (white_y, z), log_det = _solve(covariance, y[:, :, None], slow)
    width, mean = s2 / drops.main[1] ** 2, -drops.main[0]
    zz, zy, yy = (z**2).sum(axis=1), (white_y * z).sum(axis=1), (white_y**2).sum(axis=(1, 2))
    alone = _main_step(
        yy[:, None], zz, zy, log_det[:, None], residual[:, None], freedom, width[:, None], mean
    )  # fmt: skip
    w1, w2 = width[:, None, None], (s2 / drops.decoy**2)[:, None, None]
    cross = np.swapaxes(z, 1, 2) @ z  # (Q, C, C): axis 1 the culprit K, axis 2 the decoy J
    a, b = zz[:, :, None] + w1, zz[:, None, :] + w2
    det = np.maximum(a * b - cross**2, 1e-12)
    r1, r2 = zy[:, :, None] + w1 * mean, zy[:, None, :]
    main, decoy = (b * r1 - cross * r2) / det, (a * r2 - cross * r1) / det
    squares = residual + yy + width * mean**2
    squares = np.maximum(squares[:, None, None] - r1 * main - r2 * decoy, 1e-12)
    margin = np.sqrt(squares / freedom * np.maximum(a + b - 2 * np.abs(cross), 1e-9) / det)
    log = -0.5 * (log_det[:, None, None] + np.log(det / (w1 * w2))) - 0.5 * freedom * np.log(squares)
    log = log + log_cdf((-main - np.abs(decoy)) / margin) + np.log(DECOY * prior)
    every = np.concatenate(((alone.log + np.log(1 - DECOY))[:, :, None], log), axis=2)
    best = every.argmax(axis=2)
    without, pick = best == 0, np.maximum(best - 1, 0)[:, :, None]

    def at_best(values: Array) -> Array:
        return np.take_along_axis(values, pick, axis=2)[:, :, 0]

    return _Terms(
        log_sum(every, axis=2),
        np.where(without, alone.drop, at_best(main)),
        alone.precision,
        np.where(without, 0.0, at_best(decoy)),
        pick[:, :, 0],
        np.full_like(best, -1),
    )


@dataclass(frozen=True, slots=True)
class LeadingHypothesis:
    """A class of culprits whose members nothing measurable separates, and the builds on its two sides."""

    members: tuple[int, ...]
    probability: float
    slow: int  # the build that is slow if the hypothesis is right: the culprit itself, or the first slow one after it
    fast: int  # the last fast one before

    @property
    def certain(self) -> bool:
        """Whether it is a single candidate."""
        return len(self.members) == 1


def leading_hypothesis(
    classes: Hypotheses, posterior: Posterior, record: Record, *, stuck: bool = False
) -> LeadingHypothesis:
    """The likeliest single candidate, or the likeliest class that only failed candidates could split.

    A class that can still be split is not returned, however probable; its likeliest member is. If the search is
    ``stuck``, nothing can be split any more.
    """
    each = classes.spread(posterior.culprit)
    top = int(posterior.culprit.argmax())
    members = classes.of_class(top)
    tried = np.array([*record.skipped, *record.builds, *record.same], np.int64)
    untried = len(np.setdiff1d(members, tried)) > 0
    usable = [(i, b) for i, b in enumerate(record.builds) if b not in record.skipped]
    slow_builds = [b for i, b in usable if classes.slow[i, top]]
    fast_builds = [b for i, b in usable if not classes.slow[i, top]]
    slow = int(members[0]) if len(members) == 1 else min(slow_builds)
    below = classes.reach.ancestors(slow)
    fast = max((b for b in fast_builds if below[b]), default=0)
    if len(members) > 1 and untried and not stuck:
        best = int(each.argmax())
        return LeadingHypothesis((best,), float(each[best]), best, fast)
    return LeadingHypothesis(tuple(int(v) for v in members), float(posterior.culprit[top]), slow, fast)


def credible_set(culprit: np.ndarray, confidence: float) -> tuple[int, ...]:
    """The fewest candidates that hold ``confidence`` together, most probable first.

    Candidates as probable as the last one belong to it as well: no reading separates them.
    """
    order = np.argsort(-culprit, kind="stable")
    held = np.cumsum(culprit[order])
    needed = int(np.searchsorted(held, min(confidence, held[-1] * (1 - 1e-9)))) + 1
    last = culprit[order[needed - 1]]
    while needed < len(order) and culprit[order[needed]] >= last * (1 - 1e-6) > 0:
        needed += 1
    return tuple(int(c) for c in order[:needed])
