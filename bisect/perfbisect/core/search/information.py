"""What a measurement will tell: its predictive distribution under every hypothesis, and the information in it.

The information of a measurement depends on the distance between the predictions of the hypotheses and on the
uncertainty of each. A measurement reads the level of a build less the estimated drift of the host, which comes from
references beside it and from earlier readings; so both are needed for combinations of levels. The predictions are those
of the most probable cell of the model, given the readings: the level of a build that is known well is predicted alike
by all hypotheses, so more runs of it promise nothing.

The information is the mutual information of a binary label and a noisy reading of it. The label is 1 with probability
p; the reading is normal with unit variance and means that lie d apart. The integral has no closed form: it is tabulated
once, over logit p and log d², and interpolated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.inference.ancestry import Hypotheses
from perfbisect.core.inference.posterior import Posterior
from perfbisect.core.inference.state_space import Levels

LOGIT = np.linspace(0.0, 9.0, 28)  # the table is symmetric in p
LOG_SQUARE = np.linspace(np.log(1e-3), np.log(150.0), 48)


def entropy(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entropy of a binary label, in bits."""
    q = np.clip(p, 1e-15, 1 - 1e-15)
    return -(q * np.log2(q) + (1 - q) * np.log2(1 - q))


def exact_bits(p: float, separation: float) -> float:
    """The integral itself, in bits."""
    x, step = np.linspace(-9 - separation / 2, 9 + separation / 2, 1001, retstep=True)
    low = np.exp(-0.5 * (x + separation / 2) ** 2) / np.sqrt(2 * np.pi)
    high = np.exp(-0.5 * (x - separation / 2) ** 2) / np.sqrt(2 * np.pi)
    mix = (1 - p) * low + p * high
    left = entropy(p * high / np.maximum(mix, 1e-300))
    return max(0.0, float(entropy(np.array(p)) - (mix * left).sum() * step))


@lru_cache(maxsize=1)
def _table() -> NDArray[np.float64]:
    return np.array([[exact_bits(1 / (1 + np.exp(-l)), np.exp(g / 2)) for g in LOG_SQUARE] for l in LOGIT])


def bits(p: NDArray[np.float64], square: NDArray[np.float64]) -> NDArray[np.float64]:
    """Information in bits about a label of probability ``p`` at squared separation ``square`` (in noise variances)."""
    p = np.clip(p, 1e-12, 1 - 1e-12)
    row = np.minimum(np.abs(np.log(p / (1 - p))), LOGIT[-1]) / LOGIT[1]
    column = np.log(np.clip(square, 1e-3, 150.0))
    column = (column - LOG_SQUARE[0]) / (LOG_SQUARE[1] - LOG_SQUARE[0])
    i = np.minimum(row.astype(int), len(LOGIT) - 2)
    j = np.minimum(column.astype(int), len(LOG_SQUARE) - 2)
    a, b, table = row - i, column - j, _table()
    value = (1 - a) * ((1 - b) * table[i, j] + b * table[i, j + 1]) + a * (
        (1 - b) * table[i + 1, j] + b * table[i + 1, j + 1]
    )
    tiny = square < 1e-3  # the information is proportional to d² there
    result: NDArray[np.float64] = np.where(tiny, value * np.maximum(square, 0) / 1e-3, value)
    return result


Array = NDArray[np.float64]


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
