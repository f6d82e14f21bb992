"""The candidates worth building next: those that split the posterior most evenly.

A candidate splits the range into its ancestors and the rest. The best split of the whole posterior is its median;
besides, each of the most probable hypotheses is split at the point nearest that median and at its own middle. Candidates
that may not build count less. The range is cut beforehand at the candidates that other hosts are measuring, so that no
two hosts work on the same question.
"""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.inference.hypotheses import Hypotheses
from perfbisect.core.inference.posterior import Posterior
from perfbisect.core.inference.record import Record

Array = NDArray[np.float64]

EXPLORED = 4  # hypotheses that are split


def splits(
    record: Record,
    classes: Hypotheses,
    posterior: Posterior,
    chance: Array,
    busy: Collection[int],
    among: Collection[int] | None = None,
) -> list[int]:
    """Candidates without readings that split the most probable hypotheses best; only those of ``among`` if it is given."""
    open_ = chance > 0
    open_[list(record.builds)] = False
    open_[[*record.same, *busy]] = False
    cells = _cut(classes, busy)
    if among is not None:
        allowed = np.zeros_like(open_)
        allowed[list(among)] = True
        open_ &= allowed
    if not open_.any():
        return []
    found: list[int] = []

    def take(weight: Array, among: NDArray[np.bool_] | None = None) -> None:
        split = np.zeros(len(weight))
        for cell in cells:  # what remains after each outcome of the present orders
            mass = float(weight[cell].sum())
            if mass > 0:
                below = classes.reach.sums(np.where(cell, weight, 0.0))
                split += below * (mass - below) / mass
        promise = np.where(open_ if among is None else open_ & among, split * chance, -1.0)
        promise[np.isnan(promise)] = -1.0
        best = int(promise.argmax())
        if promise[best] > 1e-9 and best not in found:
            found.append(best)

    overall = classes.spread(posterior.culprit)
    take(overall)
    likely = np.argsort(-np.where(classes.members > 1, posterior.culprit, -1.0), kind="stable")[:EXPLORED]
    for index in likely:
        if classes.members[index] < 2 or posterior.culprit[index] < 1e-4:
            continue
        members = classes.of == index
        take(overall, members)
        take(np.where(members, classes.weight / classes.prior[index], 0.0))
    return found


def _cut(classes: Hypotheses, busy: Collection[int]) -> list[NDArray[np.bool_]]:
    """The range, cut at the candidates that other hosts are measuring; masks (size,)."""
    cells = [np.ones(len(classes.of), bool)]
    for candidate in sorted(busy):
        below = classes.reach.ancestors(candidate)
        cells = [cut for cell in cells for cut in (cell & below, cell & ~below) if cut.any()]
    return cells
