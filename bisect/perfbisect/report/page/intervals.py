"""Ratios with their 95 % intervals on a common scale: one small drawing for each row of a table, and the axis above them."""

import math
from collections.abc import Iterable

from markupsafe import Markup

from perfbisect.core.domain.orders import Interval
from perfbisect.report.page.svg import Scale, chart, element, percent, plain
from perfbisect.wording.quantities import ratio as in_words

ROW = 22.0  # height of a row
WIDEST = 50.0  # ratios of more than this, or less than its inverse, are drawn at the edge
NARROWEST = 0.01  # log width of the smallest scale


def scale_of(intervals: Iterable[Interval]) -> Scale:
    """A logarithmic scale that holds 1 and all ends that are known."""
    ends = [end for each in intervals for end in (each.low, each.middle, each.high) if 0 < end < math.inf]
    logs = [0.0, *(max(-math.log(WIDEST), min(math.log(WIDEST), math.log(end))) for end in ends)]
    low, high = min(logs), max(logs)
    room = max(0.08 * (high - low), NARROWEST / 2)
    return Scale(math.exp(low - room), math.exp(high + room), logarithmic=True)


def axis(scale: Scale, label: str) -> Markup:
    """The ticks of the scale with their values."""
    ticks = [element("text", plain(tick), x=percent(scale(tick)), y=14.0, class_="tick") for tick in scale.ticks(4)]
    return chart(18.0, label, *ticks)


def row(interval: Interval | None, scale: Scale, tone: str = "") -> Markup:
    """One interval: a line from end to end with a dot at the middle; ``tone`` is the class of its colour.

    Where one end is unknown the line goes to the edge and has no dot.
    """
    middle = ROW / 2
    grid = [
        element("line", x1=percent(scale(tick)), x2=percent(scale(tick)), y1=0.0, y2=ROW, class_="grid")
        for tick in scale.ticks(4)
    ]
    one = element("line", x1=percent(scale(1.0)), x2=percent(scale(1.0)), y1=0.0, y2=ROW, class_="one")
    if interval is None:
        return chart(ROW, "not measured", *grid, one)
    low, high = scale(interval.low), scale(min(interval.high, scale.high))
    marks = [element("line", x1=percent(low), x2=percent(high), y1=middle, y2=middle, class_="interval")]
    if not interval.bound:
        marks.append(element("circle", cx=percent(scale(interval.middle)), cy=middle, r=4.5, class_="dot"))
    text = in_words(interval)
    return chart(ROW, text, *grid, one, element("g", element("title", text), *marks, class_=tone or None))
