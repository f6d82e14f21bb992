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

What a measurement will tell follows from its predictive distribution under every hypothesis, by the most probable cell of
the model. It reads the level of a build less the estimated drift of the host, so combinations of levels are predicted. The
level of a build that is known well is predicted alike by all hypotheses, so more runs of it promise nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.inference.ancestry import Hypotheses
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
class BestCell:
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
    fit: BestCell


@dataclass(frozen=True, slots=True, eq=False)
class _Terms:
    """Log marginals (Q, C) of a batch of Q cells, and the coefficients behind them."""

    log: Array
    drop: Array
    precision: Array
    decoy: Array
    decoy_class: NDArray[np.int64]
    odd: NDArray[np.int64]  # (Q, C) the odd build, -1 if none


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    """Q cells of the model: a law of noise, and sizes of layout and of the walk."""

    residual: Array  # (Q,) as in Levels
    freedom: float
    s2: Array  # (Q,)
    prior: Array  # (Q,) logarithm
    still: NDArray[np.bool_]  # (Q,) those without small steps
    drops: _Drops
    classes: Array  # (C,) prior of each class of culprits


def infer(levels: Levels, classes: Hypotheses, drop: float, error: float = 0.0, *, change: float = CHANGE) -> Posterior:
    """Posterior over classes; ``drop`` is the difference between the ends (log units, positive), with its error.

    ``change`` is the probability beforehand that anything changed.
    """
    model = levels.model
    laws = len(levels.mean)
    sizes = [(layout, walk, p * q) for (layout, p), (walk, q) in product(model.layouts, model.walks)]
    law = np.repeat(np.arange(laws), len(sizes))
    width, steps, share = (np.tile(column, laws) for column in zip(*sizes, strict=True))
    s2 = levels.variance[law]
    log_prior, drops = levels.evidence[law] + np.log(share), _Drops.of(drop, error)
    cells = _Cells(levels.residual[law], levels.freedom, s2, log_prior, steps == 0, drops, classes.prior)
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
    odd_width = min(ODD_WIDTH * drop, ODD_MOST)
    sums = _Sums.of(plain, y, slow, odd_width**2 / s2, model.odd)
    terms = (_one_step(cells, sums), _several_steps(cells, rough, y, slow))
    log = np.stack([terms[0].log + np.log(1 - SEVERAL), terms[1].log + np.log(SEVERAL)])
    log = log + log_prior[None, :, None] + np.log(classes.prior)
    p = np.exp(log - log_sum(log))
    p /= p.sum()
    structure, q, c = np.unravel_index(int(p.argmax()), p.shape)
    best = terms[structure]
    odd = odd_width**2 / s2[q] * (np.arange(len(slow)) == best.odd[q, c])
    fit = BestCell(
        law=int(law[q]), s=float(np.sqrt(s2[q])), layout=float(width[q] ** 2 / s2[q]), odd=odd,
        walk=float(steps[q] ** 2 / s2[q] + (walk[q] if structure else 0.0)), base=float(base[q]), centre=centre,
        covariance=(rough if structure else plain)[q] + np.diag(odd), drop=best.drop[q], drop_precision=best.precision[q],
        decoy=best.decoy[q], decoy_class=best.decoy_class[q],
    )  # fmt: skip
    return Posterior(
        culprit=p.sum(axis=(0, 1)),
        change=_changed(cells, sums, change),
        several=float(p[1].sum()),
        drifting=float(p.sum(axis=(0, 2)) @ (levels.drift[law] > 0)),
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

    @property
    def without_odd(self) -> "_Sums":
        """Those with none odd, without the axis B."""
        return _Sums(self.yy[:, 0], self.zz[:, 0], self.zy[:, 0], self.log_det[:, 0], self.log_prior[0])

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


def _one_step(cells: _Cells, sums: _Sums) -> _Terms:
    """One step, no decoy, and one build that may be odd."""
    log, drop, precision = _main_step(cells, sums, cells.drops.one)
    log = log + sums.log_prior
    best = log.argmax(axis=1)[:, None]

    def at_best(values: Array) -> Array:
        return np.take_along_axis(values, best, axis=1)[:, 0]

    odd = best[:, 0] - 1
    none = np.zeros_like(odd)
    return _Terms(log_sum(log, axis=1), at_best(drop), at_best(precision), none.astype(np.float64), none, odd)


def _changed(cells: _Cells, sums: _Sums, change: float) -> float:
    """Probability of one step against none, which is possible in the cells without small steps alone.

    The size of the step has a prior of its own, half of a normal distribution: with one that is centred on what was seen
    between the ends, a change would always look better than none. No build is odd here: otherwise a change next to an
    end could never be distinguished from an odd end.
    """
    plain, prior = sums.without_odd, cells.prior[:, None]
    step = _main_step(cells, plain, (0.0, CHANGE_WIDTH))[0] + np.log(2 * cells.classes)
    none = -0.5 * plain.log_det - 0.5 * cells.freedom * np.log(np.maximum(cells.residual[:, None] + plain.yy, 1e-12))
    odds = log_sum((prior + none)[cells.still].ravel(), axis=0) - log_sum((prior + step).ravel(), axis=0)
    return float(1 / (1 + np.exp(np.clip(odds, -700, 700)) * (1 - change) / change))


def _main_step(cells: _Cells, sums: _Sums, size: tuple[float, float]) -> tuple[Array, Array, Array]:
    """One step with a prior of this mean drop and s.d., no decoy: log marginals, its coefficient and the precision of that."""
    shape, freedom = (-1, *[1] * (sums.zz.ndim - 1)), cells.freedom
    s2, residual = cells.s2.reshape(shape), cells.residual.reshape(shape)
    width, mean = s2 / size[1] ** 2, -size[0]
    precision, right = sums.zz + width, sums.zy + width * mean
    drop = right / precision
    squares = np.maximum(residual + sums.yy + width * mean**2 - right * drop, 1e-12)
    log = -0.5 * (sums.log_det + np.log(precision / width)) - 0.5 * freedom * np.log(squares)
    log = log + log_cdf(-drop * np.sqrt(precision * freedom / squares))
    return log, drop, precision


def _several_steps(cells: _Cells, covariance: Array, y: Array, slow: Array) -> _Terms:
    (white_y, z), log_det = _solve(covariance, y[:, :, None], slow)
    drops, freedom, s2 = cells.drops, cells.freedom, cells.s2
    width, mean = s2 / drops.main[1] ** 2, -drops.main[0]
    zz, zy, yy = (z**2).sum(axis=1), (white_y * z).sum(axis=1), (white_y**2).sum(axis=(1, 2))
    alone, drop, precision = _main_step(cells, _Sums(yy[:, None], zz, zy, log_det[:, None], np.zeros(1)), drops.main)
    w1, w2 = width[:, None, None], (s2 / drops.decoy**2)[:, None, None]
    cross = np.swapaxes(z, 1, 2) @ z  # (Q, C, C): axis 1 the culprit K, axis 2 the decoy J
    a, b = zz[:, :, None] + w1, zz[:, None, :] + w2
    det = np.maximum(a * b - cross**2, 1e-12)
    r1, r2 = zy[:, :, None] + w1 * mean, zy[:, None, :]
    main, decoy = (b * r1 - cross * r2) / det, (a * r2 - cross * r1) / det
    squares = cells.residual + yy + width * mean**2
    squares = np.maximum(squares[:, None, None] - r1 * main - r2 * decoy, 1e-12)
    margin = np.sqrt(squares / freedom * np.maximum(a + b - 2 * np.abs(cross), 1e-9) / det)
    log = -0.5 * (log_det[:, None, None] + np.log(det / (w1 * w2))) - 0.5 * freedom * np.log(squares)
    log = log + log_cdf((-main - np.abs(decoy)) / margin) + np.log(DECOY * cells.classes)
    every = np.concatenate(((alone + np.log(1 - DECOY))[:, :, None], log), axis=2)
    best = every.argmax(axis=2)
    without, pick = best == 0, np.maximum(best - 1, 0)[:, :, None]
    main, decoy = (np.take_along_axis(each, pick, axis=2)[:, :, 0] for each in (main, decoy))
    return _Terms(
        log_sum(every, axis=2),
        np.where(without, drop, main),
        precision,
        np.where(without, 0.0, decoy),
        pick[:, :, 0],
        np.full_like(best, -1),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Separation:
    """How well measurements separate the hypotheses, in s.d. and variances of one run; all of one shape."""

    above: Array  # probability that the reading is above the mean of all predictions
    between: Array  # variance between the predictions of the hypotheses
    within: Array  # variance given the hypothesis, without run noise and drift


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """Prediction of the levels of O candidates and M builds under C hypotheses, in log units and units of s².

    The first index of an array of O + M runs over the candidates, then over the builds.
    """

    candidates: int
    mean: Array  # (O + M, C), up to a constant: if the candidate is before the culprit, where a hypothesis leaves that open
    jump: Array  # (O, C), what is added if it is not; 0 where that is not open
    slow_side: Array  # (O, C), probability of that
    fast_side: Array  # (O, C)
    left: Array  # (O + M, C), share of the step that the readings leave open, as its size is uncertain
    step: Array  # (C,), that uncertainty, times the probability of the hypothesis
    covariance: Array  # (O + M, O + M), given the steps of the hypotheses
    s: float

    def against(self, one: Array, other: Array, trust: Array) -> Separation:
        """The separation by a reading of each candidate less a combination of the builds' levels: shapes (O, B).

        Combination b of candidate o is  ``trust[o, b]`` · ``one[o]`` + (1 - ``trust[o, b]``) · ``other[o]``,  where
        ``one`` and ``other`` (O, M) are weights of the builds. All but ``above`` are polynomials in that trust, so no
        array of the size O · B · M is needed.
        """
        o = self.candidates
        turn = one - other
        # (O, C): mean - trust · mean_turn
        mean, mean_turn = self.mean[:o] - other @ self.mean[o:], turn @ self.mean[o:]
        left, left_turn = self.left[:o] - other @ self.left[o:], turn @ self.left[o:]
        own, cross, builds = self.covariance[:o, :o], self.covariance[:o, o:], self.covariance[o:, o:]
        variance = _quadratic(
            np.diagonal(own) - 2 * (other * cross).sum(axis=1) + ((other @ builds) * other).sum(axis=1),
            (turn * cross).sum(axis=1) - ((other @ builds) * turn).sum(axis=1),
            ((turn @ builds) * turn).sum(axis=1),
            trust,
        )
        steps = _quadratic(left**2 @ self.step, (left * left_turn) @ self.step, left_turn**2 @ self.step, trust)

        weight = np.concatenate((self.fast_side, self.slow_side), axis=1)  # (O, 2 C)
        level, level_turn = np.concatenate((mean, mean + self.jump), axis=1), np.tile(mean_turn, 2)
        level = level - (weight * level).sum(axis=1, keepdims=True)
        level_turn = level_turn - (weight * level_turn).sum(axis=1, keepdims=True)
        between = _quadratic(
            (weight * level**2).sum(axis=1), (weight * level * level_turn).sum(axis=1), (weight * level_turn**2).sum(axis=1), trust
        )  # fmt: skip
        higher = level[:, None] > trust[:, :, None] * level_turn[:, None]
        above = (higher @ weight[:, :, None])[:, :, 0]
        return Separation(
            np.clip(above, 1e-9, 1 - 1e-9),
            np.maximum(between, 0.0) / self.s**2,
            np.maximum(variance, 1e-9) + np.maximum(steps, 0.0),
        )


def _quadratic(constant: Array, linear: Array, square: Array, trust: Array) -> Array:
    """(constant - 2 linear · t + square · t²) of each row for all t of ``trust`` (O, B)."""
    return constant[:, None] - 2 * linear[:, None] * trust + square[:, None] * trust**2


def predict(
    levels: Levels, classes: Hypotheses, posterior: Posterior, candidates: Sequence[int], builds: Sequence[int]
) -> Prediction:
    """Predict ``candidates``; ``builds`` is the row of the readings of each, -1 if it has none."""
    fit, pi = posterior.fit, posterior.culprit
    slow = classes.slow.astype(np.float64)
    shares = [slow[b] if b >= 0 else classes.share(v) for v, b in zip(candidates, builds, strict=True)]
    share = np.concatenate((np.array(shares, np.float64).reshape(len(shares), -1), slow))  # (O + M, C)
    row = np.array([*builds, *range(len(slow))])
    splits = (share > 0) & (share < 1)
    alike = (row[:, None] == row[None]) & (row >= 0) | np.eye(len(row), dtype=bool)

    walk = fit.walk * (share * classes.prior) @ share.T
    np.fill_diagonal(walk, fit.walk * share @ classes.prior)
    layout = fit.layout + np.where(row >= 0, fit.odd[row], 0.0)
    prior = fit.base + walk + layout * alike  # (O + M, O + M)
    cross = prior[:, len(candidates) :]  # with the builds' levels
    y = levels.mean[fit.law] - fit.centre
    solved = np.linalg.solve(fit.covariance, np.column_stack((y, slow, cross.T)))
    solved_y, solved_z, solved_c = solved[:, 0], solved[:, 1 : 1 + slow.shape[1]], solved[:, 1 + slow.shape[1] :]

    left = np.where(splits, 0.0, share) - cross @ solved_z
    decoy_left = share - cross @ solved_z
    mean = (cross @ solved_y)[:, None] + fit.drop * left + fit.decoy * decoy_left[:, fit.decoy_class]
    options = slice(len(candidates))
    slow_side = np.where(splits, share, 0.0)[options] * pi
    return Prediction(
        candidates=len(candidates), mean=mean, jump=np.where(splits, fit.drop, 0.0)[options], slow_side=slow_side,
        fast_side=pi - slow_side, left=left, step=pi / np.maximum(fit.drop_precision, 1e-9),
        covariance=prior - cross @ solved_c, s=fit.s,
    )  # fmt: skip
