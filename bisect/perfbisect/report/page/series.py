"""The line of a series of releases: a dot for each, a bar at the level between two steps, and where the steps are.

From left to right are the releases, oldest version first; the vertical scale is that of ratios to the first one measured.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from markupsafe import Markup

from perfbisect.core.stats.release_series import Line, Step, is_worse
from perfbisect.report.page.svg import Scale, chart, element, joined, percent, plain
from perfbisect.report.series import plateaus_of, sentence, spanned
from perfbisect.wording.quantities import decimals

HEIGHT = 220.0
LABEL = 14.0  # height of a row of labels
ROWS = 3  # of labels, so that those of neighbouring steps do not meet
ROOM = 0.08  # of the height above and below the line


def drawing(line: Line, names: Sequence[str], metric: str) -> Markup:
    """The drawing of one workload, in which something was measured."""
    low, high = spanned([ratio for ratio in line.ratios if ratio is not None])
    room = (high / low) ** ROOM
    scale = Scale(low / room, high * room, logarithmic=True)
    marks = [grid(scale), *steps(line, names, metric), *plateaus(line, scale), *dots(line, names, scale)]
    label = f"{line.work}: each release relative to the first"
    return chart(HEIGHT + ROWS * LABEL, label, *marks, *labels(line, names), class_="series")


def y_of(value: float, scale: Scale) -> float:
    """The vertical place of a ratio."""
    return HEIGHT * (1 - scale(value))


def grid(scale: Scale) -> Markup:
    """Horizontal lines with their values."""
    found = []
    for tick in scale.ticks(4):
        y = y_of(tick, scale)
        found.append(element("line", x1="0%", x2="100%", y1=y, y2=y, class_="grid"))
        found.append(element("text", plain(tick), x="0%", y=y - 3, class_="tick left"))
    return joined(found)


def steps(line: Line, names: Sequence[str], metric: str) -> Iterator[Markup]:
    """A vertical line before the first release with a step, and a band where its place is uncertain."""
    size = len(names)
    for step in line.steps:
        title = element("title", sentence(step, names))
        if (step.first, step.last) != (step.before, step.after):
            left, right = (step.first + 0.5) / size, (step.last + 0.5) / size
            yield element(
                "rect", title, x=percent(left), width=percent(right - left), y=0.0, height=HEIGHT, class_="place"
            )
        x = percent((step.before + step.after + 1) / 2 / size)
        yield element("line", title, x1=x, x2=x, y1=0.0, y2=HEIGHT, class_=tone(step, metric))


def tone(step: Step, metric: str) -> str:
    """The class of a step."""
    return "step bad" if is_worse(step, metric) else "step good"


def plateaus(line: Line, scale: Scale) -> Iterator[Markup]:
    """The level between two steps."""
    size, levels = len(line.ratios), plateaus_of(line)
    bounds = [0, *(step.after for step in line.steps), size]
    for start, end in pairwise(bounds):
        if (level := levels[start]) is not None:
            y = y_of(level, scale)
            yield element("line", x1=percent(start / size), x2=percent(end / size), y1=y, y2=y, class_="plateau")


def dots(line: Line, names: Sequence[str], scale: Scale) -> Iterator[Markup]:
    """The releases; a gap is a cross at the bottom."""
    for number, (name, ratio) in enumerate(zip(names, line.ratios, strict=True)):
        x = percent((number + 0.5) / len(names))
        if ratio is None:
            yield element("text", element("title", f"{name}: not measured"), "×", x=x, y=HEIGHT - 2, class_="skipped")
        else:
            title = element("title", f"{name}: {decimals(ratio, 3)}")
            yield element("circle", title, cx=x, cy=y_of(ratio, scale), r=3.5)


def labels(line: Line, names: Sequence[str]) -> Iterator[Markup]:
    """The names of the first and the last release in the first row, below them the first ones of steps in turns."""
    size = len(names)
    yield element("text", names[0], x="0%", y=HEIGHT + LABEL, class_="left")
    yield element("text", names[-1], x="100%", y=HEIGHT + LABEL, class_="right")
    for place, step in enumerate(line.steps):
        middle = (step.after + 0.5) / size
        side = "left" if middle < 0.1 else "right" if middle > 0.9 else None
        y = HEIGHT + (2 + place % (ROWS - 1)) * LABEL
        yield element("text", names[step.after], x=percent(middle), y=y, class_=side)
