"""Figures over many hunts: means, shares with intervals, and the calibration of stated probabilities."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from perfbisect.simulate.tally import JudgedHunt, Judgement, ShareInterval, mean

BINS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95, 0.97, 0.98, 0.99, 1.0)
Bin = tuple[str, int, float, ShareInterval]  # its name, hunts, mean stated, how often it came true


def geometric(values: Iterable[float]) -> float:
    """Geometric mean; NaN without values."""
    return math.exp(mean(math.log(v) for v in values))


def how_often(trials: Sequence[JudgedHunt], what: Callable[[JudgedHunt], bool]) -> ShareInterval:
    """The share of ``trials`` for which ``what`` is true, with its 95 % interval."""
    return ShareInterval.of(sum(what(t) for t in trials), len(trials))


def is_right(trial: JudgedHunt) -> bool:
    """Whether the verdict was right."""
    return trial.judgement is Judgement.RIGHT


def bins(stated: Iterable[tuple[float | None, bool]]) -> Iterator[Bin]:
    """Pairs of a stated probability and whether it came true, by bin; without those where none was stated."""
    known = [(p, true) for p, true in stated if p is not None]
    for low, high in pairwise(BINS):
        inside = [(p, true) for p, true in known if low <= p < high or p >= high == 1]
        if inside:
            stated = mean(p for p, _ in inside)
            yield (
                f"{low:g} to {high:g}",
                len(inside),
                stated,
                ShareInterval.of(sum(true for _, true in inside), len(inside)),
            )


def of_favourites(trials: Iterable[JudgedHunt]) -> Iterator[Bin]:
    """The most probable candidate at the end."""
    return bins((t.stated, t.favoured) for t in trials)


def of_sets(trials: Iterable[JudgedHunt]) -> Iterator[Bin]:
    """The set of an inconclusive hunt."""
    return bins((t.together, t.held) for t in trials)
