"""The runs of a culprit and its parents in order of time: operations per second in each second, or one value a run.

Runs of both sides were made in turns, so what both have in common is the host, and what separates them is the commit.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median

from markupsafe import Markup

from perfbisect.core.domain.facts import RunFacts
from perfbisect.report.page.svg import Scale, chart, element, joined, linear, number, percent, plain
from perfbisect.wording.quantities import figure

HEIGHT = 220.0
POINTS = 100  # of one run at most; of more, neighbours are averaged
FEW = 3  # fewer report intervals than this draw no line: the run is one value
GAP = 0.15  # between two runs, of the width of a run
LATEST = 60  # runs that are drawn at most


@dataclass(frozen=True, slots=True)
class Timed:
    """One run of one side: its class of colour, and the values in it (one, or one a second)."""

    side: str  # "parent", "culprit"
    values: tuple[float, ...]

    @property
    def middle(self) -> float:
        """The median of its values."""
        return median(self.values)


def by_second(
    sides: Sequence[tuple[str, Sequence[RunFacts]]], value: Callable[[RunFacts], float | None]
) -> list[Timed]:
    """The runs of all sides in order of time; by ``value`` alone where any of them has too few report intervals."""
    runs = sorted(((run, side) for side, runs in sides for run in runs), key=lambda pair: pair[0].started)[-LATEST:]
    if all(len(run.samples) >= FEW for run, _ in runs):
        return [Timed(side, averaged(run.samples)) for run, side in runs]
    values = ((value(run), side) for run, side in runs)
    return [Timed(side, (one,)) for one, side in values if one is not None]


def averaged(samples: Sequence[float]) -> tuple[float, ...]:
    """The samples, or means of neighbours where there are very many."""
    if len(samples) <= POINTS:
        return tuple(samples)
    cuts = [round(place * len(samples) / POINTS) for place in range(POINTS + 1)]
    return tuple(mean(samples[low:high]) for low, high in pairwise(cuts))


def timeline(runs: Sequence[Timed], unit: str) -> Markup:
    """The drawing: a line for each run, or a dot where it is one value, with its median; ticks at the left."""
    scale = linear([one for run in runs for one in run.values])
    body = joined(drawn(run, place, len(runs), scale) for place, run in enumerate(runs))
    label = f"{unit} of the runs in order of time"
    return chart(HEIGHT, label, joined(grid(scale)), body, class_="timeline")


def grid(scale: Scale) -> Iterator[Markup]:
    """Horizontal lines with their values."""
    for tick in scale.ticks(4):
        y = HEIGHT * (1 - scale(tick))
        yield element("line", x1="0%", x2="100%", y1=y, y2=y, class_="grid")
        yield element("text", plain(tick), x="0%", y=y - 3, class_="tick left")


def drawn(run: Timed, place: int, of: int, scale: Scale) -> Markup:
    """One run in its own column."""
    left, width = (place + GAP / 2) / of, (1 - GAP) / of
    title = element("title", f"run {place + 1}, {run.side}: {figure(run.middle)}")
    y = HEIGHT * (1 - scale(run.middle))
    if len(run.values) < FEW:
        marks = [element("circle", cx=percent(left + width / 2), cy=y, r=4.0, class_="dot")]
    else:
        last = len(run.values) - 1
        points = " ".join(
            f"{number(100 * x / last)},{number(HEIGHT * (1 - scale(value)))}" for x, value in enumerate(run.values)
        )
        inner = element(
            "svg",
            element("polyline", points=points, class_="line"),
            x=percent(left),
            width=percent(width),
            height=HEIGHT,
            viewBox=f"0 0 100 {number(HEIGHT)}",
            preserveAspectRatio="none",
        )
        marks = [inner, element("line", x1=percent(left), x2=percent(left + width), y1=y, y2=y, class_="median")]
    area = element("rect", x=percent(left), width=percent(width), y=0.0, height=HEIGHT, class_="hover")
    return element("g", title, area, *marks, class_=run.side)
