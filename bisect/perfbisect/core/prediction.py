"""What the model expects of a measurement not yet made, for every class of culprits.

Two numbers decide how much a measurement tells: how far apart the classes' predictions lie, and how
uncertain each of them is. The predictions are those of the most probable cell of the model, conditional
on what each build has shown already: a build well known to be fast predicts the same under all classes
and so promises nothing, however open the question whether it is "bad" may look.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.classes import Classes
from perfbisect.core.levels import Levels
from perfbisect.core.model import Posterior

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """Of the level of O candidates, in s.d. and variances of one run."""

    above: Array  # (O,) probability that the level is above the mean of all predictions
    between: Array  # (O,) variance between the classes' predictions
    within: Array  # (O,) variance of the level given its class, no run noise and no drift
    slow: Array  # (O,) probability that the candidate is slow


def predict(
    levels: Levels, classes: Classes, posterior: Posterior, candidates: Sequence[int], builds: Sequence[int]
) -> Prediction:
    """Predict ``candidates``; ``builds`` gives for each the row of its readings so far, -1 if there are none."""
    fit, pi = posterior.fit, posterior.culprit
    built = np.array(builds)
    share = np.array([classes.slow[b] if b >= 0 else classes.share(v) for v, b in zip(candidates, builds, strict=True)])
    share = share.astype(np.float64)  # (O, C)
    splits = (share > 0) & (share < 1)
    label = np.where(splits, 0.0, share)
    own = (built[:, None] == np.arange(len(classes.slow))[None]).astype(np.float64)  # (O, M)
    slow = classes.slow.astype(np.float64)

    walk_with = fit.walk * (share * classes.prior) @ slow.T  # (O, M)
    cross = fit.base + walk_with + fit.layout * own
    total = fit.base + fit.walk * share @ classes.prior + fit.layout
    y = levels.mean[fit.law] - fit.centre
    solved = np.linalg.solve(fit.covariance, np.column_stack((y, slow, cross.T)))
    solved_y, solved_z, solved_c = solved[:, 0], solved[:, 1 : 1 + slow.shape[1]], solved[:, 1 + slow.shape[1] :]

    left = label - cross @ solved_z  # (O, C): what is left of a step at class c once the readings are known
    decoy_share = np.where(splits, share, label) - cross @ solved_z
    low = (cross @ solved_y)[:, None] + fit.drop * left + fit.decoy * decoy_share[:, fit.decoy_class]
    high = low + np.where(splits, fit.drop, 0.0)  # a split class: the culprit may lie on either side
    w_high = np.where(splits, share, 0.0) * pi
    w_low = pi - w_high
    mean = (w_low * low + w_high * high).sum(axis=1, keepdims=True)
    s2 = fit.s**2
    between = (w_low * (low - mean) ** 2 + w_high * (high - mean) ** 2).sum(axis=1) / s2
    above = (w_low * (low > mean) + w_high * (high > mean)).sum(axis=1)
    steps = (left**2 / np.maximum(fit.drop_precision, 1e-9)) @ pi  # the size of the step is uncertain too
    within = np.maximum(total - (cross * solved_c.T).sum(axis=1), 1e-9) + steps
    return Prediction(np.clip(above, 1e-9, 1 - 1e-9), between, within, share @ pi)
