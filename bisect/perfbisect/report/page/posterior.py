"""Where in the range the culprit can be: how the search narrowed it, and the probability of each commit at its end.

From left to right are the candidates, oldest first; from top to bottom the decisions of the search, and below them the
latest probabilities. A line spans the commits that together had 95 % of the probability; dots are what was measured then.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from perfbisect.core.domain.events import Commit
from perfbisect.report.page.svg import chart, element, joined, percent
from perfbisect.wording.quantities import chance

MASS = 0.95  # of the commits that a line spans
STEPS = 60  # lines at most; of more, those at even distances are drawn
STEP = 9.0  # height of a line
BARS = 90.0  # height of the tallest bar
WIDEST = 300  # bars at most; in a longer range each is the sum of neighbours
FAINT = 5e-4  # probabilities below this are not drawn


@dataclass(frozen=True, slots=True)
class Narrowing:
    """One decision: what was believed, and which candidates were ordered."""

    culprit: NDArray[np.float64]  # probability of each candidate
    measured: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """The candidates of a hunt, with the colour class of those that were tested ("good", "bad", "skipped", …)."""

    size: int
    tested: Mapping[int, tuple[Commit, str]]

    def place(self, candidate: float) -> float:
        """The middle of a candidate, as a fraction of the width."""
        return (candidate + 0.5) / self.size


def posterior(extent: Range, course: Sequence[Narrowing]) -> Markup:
    """The drawing; ``course`` is not empty, and its last entry has the final probabilities."""
    lines = thinned(course)
    top = len(lines) * STEP
    rows = joined(span(extent, each, number * STEP + STEP / 2) for number, each in enumerate(lines))
    base = top + BARS + 8
    axis = element("line", x1="0%", x2="100%", y1=base, y2=base, class_="axis")
    marks = joined(tested(extent, base + 10))
    label = "Probability of each commit, and how the search narrowed the range"
    return chart(base + 20, label, rows, joined(bars(extent, course[-1].culprit, base)), axis, marks, class_="range")


def thinned(course: Sequence[Narrowing]) -> list[Narrowing]:
    """The decisions that are drawn: all, or some at even distances with the first and the last."""
    if len(course) <= STEPS:
        return list(course)
    return [course[round(place * (len(course) - 1) / (STEPS - 1))] for place in range(STEPS)]


def span(extent: Range, one: Narrowing, y: float) -> Markup:
    """The commits that held the mass at a decision, and dots for those that were measured then."""
    low, high = credible(one.culprit)
    half = 0.5 / extent.size
    left, right = percent(extent.place(low) - half), percent(extent.place(high) + half)
    line = element("line", x1=left, x2=right, y1=y, y2=y, class_="span")
    dots = [
        element("circle", cx=percent(extent.place(each)), cy=y, r=2.6, class_=tone(extent, each))
        for each in one.measured
    ]
    return joined([line, *dots])


def credible(culprit: NDArray[np.float64]) -> tuple[int, int]:
    """The first and the last of the most probable candidates that together have the mass."""
    order = np.argsort(-culprit, kind="stable")
    total = np.cumsum(culprit[order])
    inside = order[: int(np.searchsorted(total, MASS * total[-1])) + 1]
    return int(inside.min()), int(inside.max())


def bars(extent: Range, culprit: NDArray[np.float64], base: float) -> Iterator[Markup]:
    """A bar for each candidate, or for each group of neighbours, that has some probability."""
    groups = np.array_split(np.arange(extent.size), min(extent.size, WIDEST))
    sums = [float(culprit[group].sum()) for group in groups]
    tallest = max(sums) or 1.0
    for group, total in zip(groups, sums, strict=True):
        if total < FAINT:
            continue
        height = max(1.0, BARS * total / tallest)
        likeliest = int(group[culprit[group].argmax()])
        known = extent.tested.get(likeliest)
        name = f"{known[0].short} {known[0].subject}" if known else f"commit {likeliest} of {extent.size - 1}"
        yield element(
            "rect",
            element("title", f"{name}: {chance(total)}"),
            x=percent(group[0] / extent.size),
            width=percent(len(group) / extent.size),
            y=base - height,
            height=height,
            class_=f"bar {tone(extent, likeliest)}",
        )


def tested(extent: Range, y: float) -> Iterator[Markup]:
    """A mark below the axis for each commit that was tested."""
    for candidate, (commit, what) in sorted(extent.tested.items()):
        title = element("title", f"{commit.short} {commit.subject}: {what}")
        x = percent(extent.place(candidate))
        if what == "skipped":
            yield element("text", title, "×", x=x, y=y + 4, class_="skipped")
        else:
            yield element("circle", title, cx=x, cy=y, r=4.0, class_=tone(extent, candidate))


def tone(extent: Range, candidate: int) -> str | None:
    """The colour class of a candidate, if it was tested."""
    known = extent.tested.get(candidate)
    return known[1] if known else None
