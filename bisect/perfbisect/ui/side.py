"""On which side of the culprit a candidate has been seen to be."""

import math
from enum import Enum

from perfbisect.ui.state import View


class Side(Enum):
    """What is known of a candidate that something was spent on; the value is how it is called."""

    NOW = "now"
    GOOD = "good"
    BAD = "bad"
    UNCLEAR = "unclear"
    SKIPPED = "skipped"
    BUILT = "built"


def side(view: View, candidate: int) -> Side | None:
    """The side of a candidate; None while nothing was spent on it."""
    row = view.rows.get(candidate)
    if view.now is not None and not view.now.finished and view.now.candidate == candidate:
        return Side.NOW
    return None if row is None else seen(view, candidate)


def seen(view: View, candidate: int) -> Side:
    """The side as measured: which level its interval excludes. The ends are what the user says they are."""
    last = len(view.node) - 1
    build = view.build(candidate)
    if view.rows[candidate].skipped:
        return Side.SKIPPED
    if build in (0, last):
        return Side.GOOD if build == 0 else Side.BAD
    if build not in view.rows or not view.rows[build].qps:
        return Side.BUILT
    whole, own = view.ratio(last), view.ratio(candidate)
    if whole is None or own is None:
        return Side.UNCLEAR
    middle = math.sqrt(whole.middle)
    if own.low <= middle <= own.high:
        return Side.UNCLEAR
    return Side.BAD if (own.middle < middle) == (whole.middle < 1) else Side.GOOD
