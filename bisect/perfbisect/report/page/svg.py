"""Writes elements of SVG and HTML as escaped text, and computes the scales of charts.

Horizontal positions are in percent and vertical positions are in pixels, so that a chart fits wide screens, phones and
paper. Colours are given as CSS classes; the style sheet defines them for light and for dark mode.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from perfbisect.core.domain.orders import Interval
from perfbisect.wording.quantities import ratio
from perfbisect.wording.text import safe

Attribute = str | float | None


def element(name: str, *content: str, **attributes: Attribute) -> Markup:
    """The text of an SVG or HTML element. ``content`` is escaped, except if it is Markup.

    The attribute ``class_`` is written as ``class``. In the names of the other attributes, ``_`` is replaced by a
    hyphen. Attributes with the value None are omitted.
    """
    pairs = Markup("").join(
        Markup(' {}="{}"').format(Markup(key.rstrip("_").replace("_", "-")), escaped_value(value))
        for key, value in attributes.items()
        if value is not None
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), pairs, Markup("").join(map(escaped_value, content)))


def escaped_value(value: object) -> Markup:
    """A value as Markup. Text is made safe to print (``wording.text.safe``), and then escaped; Markup is returned
    unchanged."""
    if isinstance(value, Markup):
        return value
    return escape(coordinate(value) if isinstance(value, float) else safe(str(value)))


def concatenated(parts: Iterable[Markup]) -> Markup:
    """The elements, concatenated."""
    return Markup("").join(parts)


def coordinate(value: float) -> str:
    """A coordinate as text with at most two decimals, such as 12.5 or 3; 0 if ``value`` is not finite."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if math.isfinite(value) else "0"


def percent(fraction: float) -> str:
    """A fraction of the width as a percentage, such as 12.5%."""
    return f"{coordinate(100 * fraction)}%"


def horizontal_line(start: float, end: float, y: float, class_: str) -> Markup:
    """A horizontal line from ``start`` to ``end``, which are fractions of the chart's width."""
    return element("line", x1=percent(start), x2=percent(end), y1=y, y2=y, class_=class_)


def vertical_line(x: float, height: float, class_: str, *title: Markup) -> Markup:
    """A vertical line at ``x``, which is a fraction of the chart's width."""
    return element("line", *title, x1=percent(x), x2=percent(x), y1=0.0, y2=height, class_=class_)


def rectangle(x: float, width: float, y: float, height: float, class_: str, *title: Markup) -> Markup:
    """A rectangle; ``x`` and ``width`` are fractions of the chart's width."""
    return element("rect", *title, x=percent(x), width=percent(width), y=y, height=height, class_=class_)


def circle(x: float, y: float, radius: float, class_: str | None = None, *title: Markup) -> Markup:
    """A circle with its centre at ``x``, which is a fraction of the chart's width."""
    return element("circle", *title, cx=percent(x), cy=y, r=radius, class_=class_)


def chart(height: float, label: str, *content: Markup, class_: str = "") -> Markup:
    """A chart as wide as its container; ``label`` is the text for screen readers."""
    return element(
        "svg", *content, class_=f"chart {class_}".rstrip(), width="100%", height=height, role="img", aria_label=label
    )


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps a value to a fraction of the chart's width or height."""

    low: float
    high: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The position of ``value`` on the scale, from 0 to 1. A value outside of the scale gets the nearer end."""
        if self.logarithmic:
            low, high, value = math.log(self.low), math.log(self.high), math.log(max(value, self.low))
        else:
            low, high = self.low, self.high
        return min(1.0, max(0.0, (value - low) / (high - low)))

    def ticks(self, count: int = 5) -> list[float]:
        """About ``count`` round values within the scale."""
        if self.logarithmic and self.high / self.low > 8:
            values = log_ticks(self.low, self.high, (1, 2, 5))
            return values if len(values) <= count + 1 else log_ticks(self.low, self.high, (1,))
        least = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(least))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [multiple * step for multiple in range(first, last + 1)]


def log_ticks(low: float, high: float, digits: Sequence[int]) -> list[float]:
    """The numbers between ``low`` and ``high`` that are the product of a power of ten and one of ``digits``."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [value for power in exponents for digit in digits if low <= (value := digit * 10.0**power) <= high]


def linear_scale(values: Sequence[float], margin: float = 0.08) -> Scale:
    """A linear scale that contains ``values``, and at each end a margin: the fraction ``margin`` of the range of the
    values."""
    low, high = min(values), max(values)
    room = (high - low) * margin or abs(high) * margin or 1.0
    return Scale(max(0.0, low - room) if low >= 0 else low - room, high + room)


def tick_label(value: float) -> str:
    """The label of a tick, such as 1.05, 20,000 or 0.5."""
    if abs(value) >= 1e7 or 0 < abs(value) < 1e-3:
        return f"{value:.3g}"
    return f"{value:,.4f}".rstrip("0").rstrip(".") if abs(value) < 100 else f"{value:,.0f}"


NARROWEST_LINE = 0.04  # smallest range of the value axis of a series' line, in logarithms of ratios


def line_scale_ends(ratios: Sequence[float]) -> tuple[float, float]:
    """The lowest and the highest value of the vertical axis for the line of a series."""
    low, high = min(ratios), max(ratios)
    room = max(0.0, NARROWEST_LINE - math.log(high / low)) / 2
    return low * math.exp(-room), high * math.exp(room)


ROW = 22.0  # height of a row
WIDEST = 50.0  # ratios above it, or below its inverse, are drawn at the edge
NARROWEST = 0.01  # smallest range of a value axis, in logarithms


def log_ratio_scale(intervals: Iterable[Interval]) -> Scale:
    """A logarithmic scale that contains 1 and all known ends of ``intervals``, but no ratios above WIDEST or below 1 /
    WIDEST."""
    ends = [end for span in intervals for end in (span.low, span.middle, span.high) if 0 < end < math.inf]
    logs = [0.0, *(max(-math.log(WIDEST), min(math.log(WIDEST), math.log(end))) for end in ends)]
    low, high = min(logs), max(logs)
    room = max(0.08 * (high - low), NARROWEST / 2)
    return Scale(math.exp(low - room), math.exp(high + room), logarithmic=True)


def axis_drawing(scale: Scale, label: str) -> Markup:
    """The drawing of a scale: the values of its ticks."""
    ticks = [
        element("text", tick_label(tick), x=percent(scale(tick)), y=14.0, class_="tick") for tick in scale.ticks(4)
    ]
    return chart(18.0, label, *ticks)


def interval_drawing(estimate: Interval | None, scale: Scale, colour_class: str = "") -> Markup:
    """The drawing of an interval: a line from end to end, and a dot at the middle value. ``colour_class`` sets the
    colour of the line and the dot.

    If an end of the interval is unknown, the line is drawn to the edge of the chart, without a dot. If ``estimate`` is
    None, neither line nor dot is drawn.
    """
    middle = ROW / 2
    grid = [vertical_line(scale(tick), ROW, "grid") for tick in scale.ticks(4)]
    line_at_one = vertical_line(scale(1.0), ROW, "one")
    if estimate is None:
        return chart(ROW, "not measured", *grid, line_at_one)
    low, high = scale(estimate.low), scale(min(estimate.high, scale.high))
    marks = [horizontal_line(low, high, middle, "interval")]
    if not estimate.only_known_bound:
        marks.append(circle(scale(estimate.middle), middle, 4.5, "dot"))
    text = ratio(estimate)
    group = element("g", element("title", text), *marks, class_=colour_class or None)
    return chart(ROW, text, *grid, line_at_one, group)
