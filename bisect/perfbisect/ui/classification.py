"""On which side of the culprit a candidate has been seen to be."""

import math
from enum import Enum

from perfbisect.core.domain.orders import Found, NotReproduced, Several
from perfbisect.ui.state import View

SURE = 0.95


class Classification(Enum):
    """What is known of a candidate that something was spent on; the value is how it is called."""

    NOW = "now"
    GOOD = "good"
    BAD = "bad"
    CULPRIT = "culprit"
    UNCLEAR = "unclear"
    SKIPPED = "skipped"
    BUILT = "built"


def side(view: View, candidate: int) -> Classification | None:
    """The side of a candidate; None while nothing was spent on it."""
    row = view.rows.get(candidate)
    if view.at(candidate) is not None:
        return Classification.NOW
    return None if row is None else seen(view, candidate)


def seen(view: View, candidate: int) -> Classification:
    """The side as the search believes it to be. The ends are what the user says they are."""
    last = len(view.node) - 1
    build = view.build(candidate)
    if view.rows[candidate].skipped:
        return Classification.SKIPPED
    if candidate in named(view):
        return Classification.CULPRIT
    if build in (0, last):
        return Classification.GOOD if build == 0 else Classification.BAD
    if build not in view.rows or not view.rows[build].qps:
        return Classification.BUILT
    if view.belief is not None and len(view.belief.slow) == len(view.node):
        return believed(view, float(view.belief.slow[build]))
    return by_interval(view, candidate)


def named(view: View) -> tuple[int, ...]:
    """The candidates that the verdict blames."""
    match view.verdict:
        case Found(step):
            return (step.candidate,)
        case Several(steps):
            return tuple(step.candidate for step in steps)
        case _:
            return ()


def believed(view: View, slow: float) -> Classification:
    """The side of a build that is slow with this probability. Without a change between the ends there are no sides."""
    if view.belief is None or view.belief.change < SURE or isinstance(view.verdict, NotReproduced):
        return Classification.UNCLEAR
    return Classification.BAD if slow > SURE else Classification.GOOD if slow < 1 - SURE else Classification.UNCLEAR


def by_interval(view: View, candidate: int) -> Classification:
    """The side of which its own interval leaves no doubt, for records that do not say what was believed."""
    whole, own = view.ratio(len(view.node) - 1), view.ratio(candidate)
    if whole is None or own is None:
        return Classification.UNCLEAR
    middle = math.sqrt(whole.middle)
    if own.low <= middle <= own.high:
        return Classification.UNCLEAR
    return Classification.BAD if (own.middle < middle) == (whole.middle < 1) else Classification.GOOD
