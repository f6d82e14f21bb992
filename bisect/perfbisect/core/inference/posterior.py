"""The probability of each class of culprits, given the levels of the builds, by a linear-Gaussian model.

The level of build v if commit K is the culprit; bad(v; K) is 1 if K is v or an ancestor of v, otherwise 0:

    level(v) = base - D bad(v; K) + layout(v)                                          one step
    level(v) = base - D bad(v; K) + d bad(v; J) + walk(v) + layout(v)                  several steps

* base: the level without steps; its prior is nearly flat.
* D: the drop at the culprit. The prior mean of D is about the drop between the ends in the model with one step, and
  MAIN times this drop in the model with several steps. The priors of D in the two models have similar widths, because
  the model with a much narrower prior would be more probable only for this reason (Lindley's paradox).
* layout: the effect of code placement on one binary. All runs of a build have the same layout effect, so more runs do
  not average the effect out. The standard deviation of layout effects is one of a few assumed values. In the model with
  one step, one build may be odd, that is, its layout effect has a larger standard deviation (ODD_WIDTH). Without odd
  builds, the model would classify a build between slow and fast with false certainty.
* d: a second step, for the better or the worse, at any commit J; all pairs (K, J) are computed. A model
  without a second step could name a step as the culprit, with false certainty, although another step is larger.
* walk: many small steps, as a random walk along the history; the covariance of two builds is proportional to the prior
  probability of their common ancestors. Exact counts of instructions show more small steps than times do; for exact
  counts, the model with one step also has a walk, and the size of this walk does not depend on the drop.
* The probability of a change results from a comparison of the model without a change, level(v) = base + layout(v), with
  a model of one step at any commit; the prior of the size of this step does not depend on the readings.
* The culprit is the largest step in the hunted direction, so the likelihood has the factor P(D > 0) in the model with
  one step, and P(D > |d|) in the model with several steps.

D, d and the variance s² of a run (with a scaled inverse χ² prior) are integrated out in closed form. So the marginal
likelihood of a class of culprits (candidates that no measured build separates) is a Student-t density in each cell. A
cell is a combination of a noise distribution, a standard deviation of layout effects and a size of the walk.

The expected information of a measurement is computed from the results that the hypotheses predict in the most probable
cell. After many runs of a build, all hypotheses predict the same level, so more runs of this build give no
information."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.inference.ancestry import Hypotheses
from perfbisect.core.inference.state_space import Levels
from perfbisect.core.stats.distributions import log_normal_cdf, log_sum_exp

Array = NDArray[np.float64]

ODD_WIDTH = 0.25  # s.d. of the layout of an odd build, in units of the drop between the ends
ODD_MOST = 0.08  # largest s.d. of the layout of an odd build, in log units: layouts change speed by some per cent
SEVERAL = 0.4  # prior of several steps
CHANGE = 0.5  # prior that anything changed
CHANGE_WIDTH = 0.1  # s.d. of the size of a change, in log units, if nothing is known of the size
BASE = 1.0  # s.d. of the prior of the base level, far wider than any reading
ONE_WIDTH = 0.5  # s.d. of the drop D at the culprit, in units of the drop between the ends
MAIN, MAIN_WIDTH = 0.9, 0.35  # mean and s.d. of D if there are several steps, in units of the drop between the ends
SECOND, SECOND_WIDTH = 0.5, 0.4  # prior of a sharp second step, and the s.d. of its size
DOUBT = 1.5  # the s.d. of the priors includes this number of standard errors of the drop between the ends
NEVER = 1e-300  # in place of a probability of 0
WALK = 0.3  # s.d. of the walk from end to end


@dataclass(frozen=True, slots=True)
class _StepPriors:
    """The priors of the sizes of steps, in log units: the mean and the standard deviation of the culprit's drop in the
    model with one step (``one``) and with several steps (``main``), and the standard deviation of a second step
    (``second``). The readings of the ends determine these priors, and the posterior uses the same readings again; this
    does no harm if the drop is much larger than its error. A drop near its error is probably overestimated, so its
    priors are nearer to 0 and wider."""

    one: tuple[float, float]
    main: tuple[float, float]
    second: float

    @classmethod
    def of(cls, drop: float, error: float) -> "_StepPriors":
        shrunk = drop * max(1 - (error / drop) ** 2, 0.5)
        return cls(
            one=(shrunk, float(np.hypot(ONE_WIDTH * drop, DOUBT * error))),
            main=(MAIN * shrunk, float(np.hypot(MAIN_WIDTH * drop, DOUBT * error))),
            second=SECOND_WIDTH * drop,
        )


@dataclass(frozen=True, slots=True, eq=False)
class BestCell:
    """The most probable cell (combination of noise distribution, layout effects and walk), which predicts readings;
    variances are in units of s², the variance of a run."""

    law: int  # index of the law in ``Levels``
    s: float
    layout: float  # variance of the layout effect
    odd: Array  # (M,) additional variance of the odd build; 0 for other builds
    walk: float  # variance of the walk over the whole range
    base: float  # variance of the base level
    centre: float  # subtracted from the levels
    covariance: Array  # (M, M) covariance of the levels by all effects except the steps
    drop: Array  # (C,) coefficient of bad(.; K), which is -D: negative
    drop_precision: Array  # (C,)
    second: Array  # (C,) coefficient of each class's most probable second step; 0 without one
    second_class: NDArray[np.int64]  # (C,) the class of commits at which this second step is


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """The probabilities of the culprits, given the levels."""

    culprit: Array  # (C,) probability of each class, sums to one
    change: float  # probability that anything changed; the other fields assume a change
    several: float  # probability that there is more than one step
    drifting: float  # probability that the host drifts
    fit: BestCell


@dataclass(frozen=True, slots=True, eq=False)
class _StepTerms:
    """The log marginal likelihoods and the sizes of the steps, for each cell of ``_ModelCells`` and each class of
    culprits; the shape of all arrays is (number of cells Q, number of classes C)."""

    log: Array
    drop: Array
    precision: Array
    second: Array
    second_class: NDArray[np.int64]
    odd: NDArray[np.int64]  # (Q, C) the odd build, -1 if none


@dataclass(frozen=True, slots=True, eq=False)
class _ModelCells:
    """The Q cells of the model; each combines a noise distribution, a size of layout effects and a size of the walk."""

    residual: Array  # (Q,) like ``Levels.residual``
    freedom: float
    s2: Array  # (Q,)
    prior: Array  # (Q,) logarithm
    has_no_walk: NDArray[np.bool_]  # (Q,) whether the cell is without small steps
    step_priors: _StepPriors
    class_prior: Array  # (C,) prior of each class of culprits


def posterior_of(
    levels: Levels, classes: Hypotheses, drop: float, drop_error: float = 0.0, *, change: float = CHANGE
) -> Posterior:
    """The posterior probability of each class of culprits; ``drop`` is the difference between the ends (log units,
    positive). ``drop_error`` is the standard error of ``drop``; ``change`` is the prior probability that there is a
    change."""
    model = levels.model
    laws = len(levels.mean)
    sizes = [(layout, walk, p * q) for (layout, p), (walk, q) in product(model.layouts, model.walks)]
    law = np.repeat(np.arange(laws), len(sizes))
    width, steps, share = (np.tile(column, laws) for column in zip(*sizes, strict=True))
    s2 = levels.noise_variance[law]
    log_prior, priors = levels.evidence[law] + np.log(share), _StepPriors.of(drop, drop_error)
    cells = _ModelCells(levels.residual[law], levels.freedom, s2, log_prior, steps == 0, priors, classes.prior)
    centre = float(levels.mean[0].mean())
    y = levels.mean[law] - centre
    slow = classes.slow.astype(np.float64)
    eye = np.eye(len(slow))
    base = BASE**2 / s2
    common = (slow * classes.prior) @ slow.T  # (M, M) prior probability of the culprits that slow both builds
    plain = levels.covariance[law] + (width**2 / s2)[:, None, None] * eye + base[:, None, None]
    plain = plain + (steps**2 / s2)[:, None, None] * common
    walk = (WALK * drop) ** 2 / s2
    rough = plain + walk[:, None, None] * common
    odd_width = min(ODD_WIDTH * drop, ODD_MOST)
    sums = _WhitenedSums.of(plain, y, slow, odd_width**2 / s2, model.odd_build_prior)
    terms = (_one_step_terms(cells, sums), _several_steps_terms(cells, rough, y, slow))
    log = np.stack([terms[0].log + np.log(1 - SEVERAL), terms[1].log + np.log(SEVERAL)])
    log = log + log_prior[None, :, None] + np.log(classes.prior)
    p = np.exp(log - log_sum_exp(log))
    p /= p.sum()
    structure, q, c = np.unravel_index(int(p.argmax()), p.shape)
    best = terms[structure]
    odd = odd_width**2 / s2[q] * (np.arange(len(slow)) == best.odd[q, c])
    fit = BestCell(
        law=int(law[q]), s=float(np.sqrt(s2[q])), layout=float(width[q] ** 2 / s2[q]), odd=odd,
        walk=float(steps[q] ** 2 / s2[q] + (walk[q] if structure else 0.0)), base=float(base[q]), centre=centre,
        covariance=(rough if structure else plain)[q] + np.diag(odd), drop=best.drop[q], drop_precision=best.precision[q],
        second=best.second[q], second_class=best.second_class[q],
    )  # fmt: skip
    return Posterior(
        culprit=p.sum(axis=(0, 1)),
        change=_change_probability(cells, sums, change),
        several=float(p[1].sum()),
        drifting=float(p.sum(axis=(0, 2)) @ (levels.drift[law] > 0)),
        fit=fit,
    )


def _whiten_columns(covariance: Array, *columns: Array) -> tuple[tuple[Array, ...], Array]:
    """``columns`` (…, M, any) whitened by ``covariance`` (Q, M, M), and the log determinant of ``covariance`` (Q,)."""
    factor = np.linalg.cholesky(covariance)
    every = [np.broadcast_to(column, (len(factor), *column.shape[-2:])) for column in columns]
    white = np.linalg.solve(factor, np.concatenate(every, axis=2))
    cuts = np.cumsum([column.shape[-1] for column in columns])[:-1].tolist()
    return tuple(np.split(white, cuts, axis=2)), 2 * np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class _WhitenedSums:
    """Sums over the whitened levels of M builds. The axis B has length 1 + M: index 0 assumes no odd build, and index 1
    + i assumes that build i is odd."""

    yy: Array  # (Q, B, 1)
    zz: Array  # (Q, B, C)
    zy: Array  # (Q, B, C)
    log_det: Array  # (Q, B, 1)
    log_prior: Array  # (B, 1) log prior of each possible odd build

    @property
    def assuming_no_odd_build(self) -> "_WhitenedSums":
        """The values of all sums if no build is odd: index 0 of the axis B (the possible odd builds)."""
        return _WhitenedSums(self.yy[:, 0], self.zz[:, 0], self.zy[:, 0], self.log_det[:, 0], self.log_prior[0])

    @classmethod
    def of(cls, covariance: Array, y: Array, slow: Array, odd: Array, prior: float) -> "_WhitenedSums":
        """Compute the sums; ``odd``, shape (Q,), is the variance that is added to the variance of an odd build's level.
        ``prior`` is the prior probability that a build is odd."""
        builds = len(slow)
        (white_y, z, unit), log_det = _whiten_columns(covariance, y[:, :, None], slow, np.eye(builds))
        uz, uy = np.swapaxes(unit, 1, 2) @ z, np.swapaxes(unit, 1, 2) @ white_y  # (Q, M, C), (Q, M, 1)
        gain = 1 + odd[:, None] * (unit**2).sum(axis=1)  # (Q, M)
        less = (odd[:, None] / gain)[:, :, None]
        zz, zy, yy = (z**2).sum(axis=1), (white_y * z).sum(axis=1), (white_y**2).sum(axis=(1, 2))
        any_odd = min(max(builds * prior, NEVER), 0.5)
        return cls(
            np.concatenate((yy[:, None, None], yy[:, None, None] - less * uy**2), axis=1),
            np.concatenate((zz[:, None], zz[:, None] - less * uz**2), axis=1),
            np.concatenate((zy[:, None], zy[:, None] - less * uz * uy), axis=1),
            np.concatenate((log_det[:, None, None], (log_det[:, None] + np.log(gain))[:, :, None]), axis=1),
            np.log([1 - any_odd] + builds * [any_odd / builds])[:, None],
        )


def _one_step_terms(cells: _ModelCells, sums: _WhitenedSums) -> _StepTerms:
    """The likelihoods and step sizes in the model with one step, in which one build may be odd."""
    log, drop, precision = _step_marginals(cells, sums, cells.step_priors.one)
    log = log + sums.log_prior
    best = log.argmax(axis=1)[:, None]

    def at_best(values: Array) -> Array:
        return np.take_along_axis(values, best, axis=1)[:, 0]

    odd = best[:, 0] - 1
    none = np.zeros_like(odd)
    return _StepTerms(log_sum_exp(log, axis=1), at_best(drop), at_best(precision), none.astype(np.float64), none, odd)


def _change_probability(cells: _ModelCells, sums: _WhitenedSums, prior_probability: float) -> float:
    """The probability that there is a change, from a comparison of one step with no step. "No step" is computed only in
    cells without a walk. The prior of the step's size is a half-normal distribution, because with a prior around the
    drop between the ends, a change would always be more probable than no change. In this comparison no build is odd,
    because a change next to an end could not be distinguished from an odd end."""
    plain, prior = sums.assuming_no_odd_build, cells.prior[:, None]
    step = _step_marginals(cells, plain, (0.0, CHANGE_WIDTH))[0] + np.log(2 * cells.class_prior)
    none = -0.5 * plain.log_det - 0.5 * cells.freedom * np.log(np.maximum(cells.residual[:, None] + plain.yy, 1e-12))
    odds = log_sum_exp((prior + none)[cells.has_no_walk].ravel(), axis=0) - log_sum_exp((prior + step).ravel(), axis=0)
    return float(1 / (1 + np.exp(np.clip(odds, -700, 700)) * (1 - prior_probability) / prior_probability))


def _step_marginals(cells: _ModelCells, sums: _WhitenedSums, prior: tuple[float, float]) -> tuple[Array, Array, Array]:
    """The log marginal likelihoods of a single step, its size and its precision; ``prior`` is the prior mean and
    the prior standard deviation of the size."""
    shape, freedom = (-1, *[1] * (sums.zz.ndim - 1)), cells.freedom
    s2, residual = cells.s2.reshape(shape), cells.residual.reshape(shape)
    width, mean = s2 / prior[1] ** 2, -prior[0]
    precision, right = sums.zz + width, sums.zy + width * mean
    drop = right / precision
    squares = np.maximum(residual + sums.yy + width * mean**2 - right * drop, 1e-12)
    log = -0.5 * (sums.log_det + np.log(precision / width)) - 0.5 * freedom * np.log(squares)
    log = log + log_normal_cdf(-drop * np.sqrt(precision * freedom / squares))
    return log, drop, precision


def _several_steps_terms(cells: _ModelCells, covariance: Array, y: Array, slow: Array) -> _StepTerms:
    (white_y, z), log_det = _whiten_columns(covariance, y[:, :, None], slow)
    priors, freedom, s2 = cells.step_priors, cells.freedom, cells.s2
    width, mean = s2 / priors.main[1] ** 2, -priors.main[0]
    zz, zy, yy = (z**2).sum(axis=1), (white_y * z).sum(axis=1), (white_y**2).sum(axis=(1, 2))
    sums = _WhitenedSums(yy[:, None], zz, zy, log_det[:, None], np.zeros(1))
    alone, drop, precision = _step_marginals(cells, sums, priors.main)
    w1, w2 = width[:, None, None], (s2 / priors.second**2)[:, None, None]
    cross = np.swapaxes(z, 1, 2) @ z  # (Q, C, C): axis 1 is the culprit K, axis 2 the second step J
    a, b = zz[:, :, None] + w1, zz[:, None, :] + w2
    det = np.maximum(a * b - cross**2, 1e-12)
    r1, r2 = zy[:, :, None] + w1 * mean, zy[:, None, :]
    main, second = (b * r1 - cross * r2) / det, (a * r2 - cross * r1) / det
    squares = cells.residual + yy + width * mean**2
    squares = np.maximum(squares[:, None, None] - r1 * main - r2 * second, 1e-12)
    margin = np.sqrt(squares / freedom * np.maximum(a + b - 2 * np.abs(cross), 1e-9) / det)
    log = -0.5 * (log_det[:, None, None] + np.log(det / (w1 * w2))) - 0.5 * freedom * np.log(squares)
    log = log + log_normal_cdf((-main - np.abs(second)) / margin) + np.log(SECOND * cells.class_prior)
    every = np.concatenate(((alone + np.log(1 - SECOND))[:, :, None], log), axis=2)
    best = every.argmax(axis=2)
    without, pick = best == 0, np.maximum(best - 1, 0)[:, :, None]
    main, second = (np.take_along_axis(values, pick, axis=2)[:, :, 0] for values in (main, second))
    return _StepTerms(
        log_sum_exp(every, axis=2),
        np.where(without, drop, main),
        precision,
        np.where(without, 0.0, second),
        pick[:, :, 0],
        np.full_like(best, -1),
    )


@dataclass(frozen=True, slots=True, eq=False)
class HypothesisSeparation:
    """How well a reading separates the hypotheses; arrays of one shape; variances relative to the variance of a run."""

    above: Array  # probability that the true level is above the mean of the levels that the hypotheses predict
    between: Array  # variance of the predicted level from hypothesis to hypothesis
    within: Array  # variance of the level if a single hypothesis is true, without the noise of a run and drift


@dataclass(frozen=True, slots=True, eq=False)
class PredictedLevels:
    """Levels of O candidates and M builds that C hypotheses predict, in log units; variances are in units of s². On an
    axis of length O + M, the O candidates come first, then the M builds."""

    candidates: int
    mean: Array  # (O + M, C), up to a constant; on the fast side if a hypothesis leaves the side of a candidate open
    jump: Array  # (O, C), added to ``mean`` on the slow side; 0 if the side is not open
    slow_side: Array  # (O, C), probability of the slow side
    fast_side: Array  # (O, C), probability of the fast side
    uncertain: Array  # (O + M, C), share of the step that stays uncertain
    step: Array  # (C,), variance of the size of the step, times the probability of the hypothesis
    covariance: Array  # (O + M, O + M), given the steps of the hypotheses
    s: float

    def separation(self, trusted: Array, fallback: Array, trust: Array) -> HypothesisSeparation:
        """How well readings of O candidates, each minus B combinations of builds' levels, separate the hypotheses;
        shape (O, B). Combination b of candidate o is the sum of the builds' levels with the weights ``trust[o, b]`` ·
        ``trusted[o]`` + (1 - ``trust[o, b]``) · ``fallback[o]``; ``trusted`` and ``fallback`` have the shape (O, M).
        All results except ``above`` are computed as polynomials in ``trust``, without an array of size O · B · M."""
        o = self.candidates
        turn = trusted - fallback
        # (O, C): mean - trust · mean_turn
        mean, mean_turn = self.mean[:o] - fallback @ self.mean[o:], turn @ self.mean[o:]
        share, share_turn = self.uncertain[:o] - fallback @ self.uncertain[o:], turn @ self.uncertain[o:]
        variances, cross, builds = self.covariance[:o, :o], self.covariance[:o, o:], self.covariance[o:, o:]
        variance = _quadratic(
            np.diagonal(variances) - 2 * (fallback * cross).sum(axis=1) + ((fallback @ builds) * fallback).sum(axis=1),
            (turn * cross).sum(axis=1) - ((fallback @ builds) * turn).sum(axis=1),
            ((turn @ builds) * turn).sum(axis=1),
            trust,
        )
        steps = _quadratic(share**2 @ self.step, (share * share_turn) @ self.step, share_turn**2 @ self.step, trust)

        weight = np.concatenate((self.fast_side, self.slow_side), axis=1)  # (O, 2 C)
        level, level_turn = np.concatenate((mean, mean + self.jump), axis=1), np.tile(mean_turn, 2)
        level = level - (weight * level).sum(axis=1, keepdims=True)
        level_turn = level_turn - (weight * level_turn).sum(axis=1, keepdims=True)
        between = _quadratic(
            (weight * level**2).sum(axis=1), (weight * level * level_turn).sum(axis=1), (weight * level_turn**2).sum(axis=1), trust
        )  # fmt: skip
        higher = level[:, None] > trust[:, :, None] * level_turn[:, None]
        above = (higher @ weight[:, :, None])[:, :, 0]
        return HypothesisSeparation(
            np.clip(above, 1e-9, 1 - 1e-9),
            np.maximum(between, 0.0) / self.s**2,
            np.maximum(variance, 1e-9) + np.maximum(steps, 0.0),
        )


def _quadratic(constant: Array, linear: Array, square: Array, trust: Array) -> Array:
    """``constant`` - 2 ``linear`` t + ``square`` t², for each value t in ``trust``, shape (O, B)."""
    return constant[:, None] - 2 * linear[:, None] * trust + square[:, None] * trust**2


def predict_levels(
    levels: Levels, classes: Hypotheses, posterior: Posterior, candidates: Sequence[int], reading_rows: Sequence[int]
) -> PredictedLevels:
    """The predicted levels of ``candidates`` and builds; ``reading_rows`` has each candidate's row in ``levels``, or -1
    for a candidate that has no readings."""
    fit, pi = posterior.fit, posterior.culprit
    slow = classes.slow.astype(np.float64)
    shares = [slow[b] if b >= 0 else classes.slow_prior_share(v) for v, b in zip(candidates, reading_rows, strict=True)]
    share = np.concatenate((np.array(shares, np.float64).reshape(len(shares), -1), slow))  # (O + M, C)
    row = np.array([*reading_rows, *range(len(slow))])
    splits = (share > 0) & (share < 1)
    alike = (row[:, None] == row[None]) & (row >= 0) | np.eye(len(row), dtype=bool)

    walk = fit.walk * (share * classes.prior) @ share.T
    np.fill_diagonal(walk, fit.walk * share @ classes.prior)
    layout = fit.layout + np.where(row >= 0, fit.odd[row], 0.0)
    prior = fit.base + walk + layout * alike  # (O + M, O + M)
    cross = prior[:, len(candidates) :]  # (O + M, M) prior covariance with the builds' levels
    y = levels.mean[fit.law] - fit.centre
    solved = np.linalg.solve(fit.covariance, np.column_stack((y, slow, cross.T)))
    solved_y, solved_z, solved_c = solved[:, 0], solved[:, 1 : 1 + slow.shape[1]], solved[:, 1 + slow.shape[1] :]

    uncertain = np.where(splits, 0.0, share) - cross @ solved_z
    second_uncertain = share - cross @ solved_z
    mean = (cross @ solved_y)[:, None] + fit.drop * uncertain + fit.second * second_uncertain[:, fit.second_class]
    options = slice(len(candidates))
    slow_side = np.where(splits, share, 0.0)[options] * pi
    return PredictedLevels(
        candidates=len(candidates), mean=mean, jump=np.where(splits, fit.drop, 0.0)[options], slow_side=slow_side,
        fast_side=pi - slow_side, uncertain=uncertain, step=pi / np.maximum(fit.drop_precision, 1e-9),
        covariance=prior - cross @ solved_c, s=fit.s,
    )  # fmt: skip
