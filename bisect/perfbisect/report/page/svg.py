"""Elements of SVG and HTML as escaped text, and the scales of charts.

Charts are drawn with horizontal positions in percent and vertical ones in pixels, so that one drawing fits a desktop, a
phone and paper. Colours are classes, which the style sheet resolves for light and dark.
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
    """An element; content that is no Markup is escaped. ``class_`` stands for class, ``_`` in other names for a hyphen.

    Attributes that are None are left out.
    """
    given = Markup("").join(
        Markup(' {}="{}"').format(Markup(key.rstrip("_").replace("_", "-")), shown(value))
        for key, value in attributes.items()
        if value is not None
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), given, Markup("").join(map(shown, content)))


def shown(value: object) -> Markup:
    """A value as it may stand in a page: text is made safe to show (wording.text.safe) and escaped; Markup stays."""
    if isinstance(value, Markup):
        return value
    return escape(number(value) if isinstance(value, float) else safe(str(value)))


def joined(parts: Iterable[Markup]) -> Markup:
    """Elements beside each other."""
    return Markup("").join(parts)


def number(value: float) -> str:
    """A coordinate in at most two decimals: 12.5, 3."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if math.isfinite(value) else "0"


def percent(fraction: float) -> str:
    """A horizontal position, given as a fraction of the width."""
    return f"{number(100 * fraction)}%"


def across(left: float, right: float, y: float, class_: str) -> Markup:
    """A horizontal line between two fractions of the width."""
    return element("line", x1=percent(left), x2=percent(right), y1=y, y2=y, class_=class_)


def upright(place: float, height: float, class_: str, *title: Markup) -> Markup:
    """A vertical line at a fraction of the width."""
    return element("line", *title, x1=percent(place), x2=percent(place), y1=0.0, y2=height, class_=class_)


def bar(left: float, width: float, y: float, height: float, class_: str, *title: Markup) -> Markup:
    """A rectangle; ``left`` and ``width`` are fractions of the width."""
    return element("rect", *title, x=percent(left), width=percent(width), y=y, height=height, class_=class_)


def dot(place: float, y: float, r: float, class_: str | None = None, *title: Markup) -> Markup:
    """A circle at a fraction of the width."""
    return element("circle", *title, cx=percent(place), cy=y, r=r, class_=class_)


def chart(height: float, label: str, *content: Markup, class_: str = "") -> Markup:
    """A drawing as wide as its place; ``label`` is what a screen reader says."""
    return element(
        "svg", *content, class_=f"chart {class_}".rstrip(), width="100%", height=height, role="img", aria_label=label
    )


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps a value to a fraction of the width or height."""

    low: float
    high: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The place of ``value``, from 0 to 1; what is outside is put to the edge."""
        if self.logarithmic:
            low, high, value = math.log(self.low), math.log(self.high), math.log(max(value, self.low))
        else:
            low, high = self.low, self.high
        return min(1.0, max(0.0, (value - low) / (high - low)))

    def ticks(self, count: int = 5) -> list[float]:
        """About ``count`` round values within the scale."""
        if self.logarithmic and self.high / self.low > 8:
            found = decades(self.low, self.high, (1, 2, 5))
            return found if len(found) <= count + 1 else decades(self.low, self.high, (1,))
        least = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(least))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [place * step for place in range(first, last + 1)]


def decades(low: float, high: float, digits: Sequence[int]) -> list[float]:
    """The ``digits`` times the powers of ten between the two."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [value for power in exponents for digit in digits if low <= (value := digit * 10.0**power) <= high]


def linear(values: Sequence[float], margin: float = 0.08) -> Scale:
    """A scale of these values, with room at both ends."""
    low, high = min(values), max(values)
    room = (high - low) * margin or abs(high) * margin or 1.0
    return Scale(max(0.0, low - room) if low >= 0 else low - room, high + room)


def plain(value: float) -> str:
    """The label of a tick: 1.05, 20,000, 0.5."""
    if abs(value) >= 1e7 or 0 < abs(value) < 1e-3:
        return f"{value:.3g}"
    return f"{value:,.4f}".rstrip("0").rstrip(".") if abs(value) < 100 else f"{value:,.0f}"


NARROWEST_LINE = 0.04  # of the ratios that the line of a series spans, in logarithms


def spanned(known: Sequence[float]) -> tuple[float, float]:
    """The ends of the scale of the line of a series."""
    low, high = min(known), max(known)
    room = max(0.0, NARROWEST_LINE - math.log(high / low)) / 2
    return low * math.exp(-room), high * math.exp(room)


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


def interval(found: Interval | None, scale: Scale, tone: str = "") -> Markup:
    """One interval: a line from end to end with a dot at the middle; ``tone`` is the class of its colour.

    Where one end is unknown the line goes to the edge and has no dot.
    """
    middle = ROW / 2
    grid = [upright(scale(tick), ROW, "grid") for tick in scale.ticks(4)]
    one = upright(scale(1.0), ROW, "one")
    if found is None:
        return chart(ROW, "not measured", *grid, one)
    low, high = scale(found.low), scale(min(found.high, scale.high))
    marks = [across(low, high, middle, "interval")]
    if not found.bound:
        marks.append(dot(scale(found.middle), middle, 4.5, "dot"))
    text = ratio(found)
    return chart(ROW, text, *grid, one, element("g", element("title", text), *marks, class_=tone or None))
