"""Drawings of a page: runs in order of time, where in the range a culprit can be, and the line of a series of releases."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import mean, median

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from perfbisect.core.domain.events import Commit
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.stats.release_series import SpeedLine, is_worse
from perfbisect.report.document import Figure
from perfbisect.report.hunt_report import Narrowing
from perfbisect.report.page.svg import (
    Scale,
    across,
    bar,
    chart,
    dot,
    element,
    joined,
    linear,
    number,
    percent,
    plain,
    spanned,
    upright,
)
from perfbisect.wording.quantities import chance, count, decimals, factor, figure
from perfbisect.wording.trials import step_sentence

HEIGHT = 220.0
POINTS = 100  # of one run at most; of more, neighbours are averaged
FEW = 3  # fewer report intervals than this draw no line: the run is one value
LABEL = 14.0  # height of a row of labels
GAP = 0.15  # between two runs, of the width of a run
LATEST = 60  # runs that are drawn at most


@dataclass(frozen=True, slots=True)
class RunDrawing:
    """One run of one side: its class of colour, and the values in it (one, or one a second)."""

    side: str  # "parent", "culprit"
    values: tuple[float, ...]
    round: str = ""  # what it shares with the runs of the other side that it is compared with

    @property
    def middle(self) -> float:
        """The median of its values."""
        return median(self.values)


def by_second(
    sides: Sequence[tuple[str, Sequence[RunFacts]]], value: Callable[[RunFacts], float | None]
) -> list[RunDrawing]:
    """The runs of all sides in order of time; by ``value`` alone where any of them has too few report intervals."""
    runs = sorted(((run, side) for side, runs in sides for run in runs), key=lambda pair: pair[0].started)[-LATEST:]
    if all(len(run.samples) >= FEW for run, _ in runs):
        return [RunDrawing(side, averaged(run.samples), run.round) for run, side in runs]
    return [RunDrawing(side, (one,), run.round) for run, side in runs if (one := value(run)) is not None]


def averaged(samples: Sequence[float]) -> tuple[float, ...]:
    """The samples, or means of neighbours where there are very many."""
    if len(samples) <= POINTS:
        return tuple(samples)
    cuts = [round(place * len(samples) / POINTS) for place in range(POINTS + 1)]
    return tuple(mean(samples[low:high]) for low, high in pairwise(cuts))


def of_runs(runs: Sequence[RunDrawing], y: str, colours: Sequence[tuple[str, str]]) -> Figure:
    """The figure of runs; ``y`` is what they measure, where that is not QPS in each second."""
    y, notes = ("QPS", ["a thin line is one run, a flat one its median"]) if len(runs[0].values) > 1 else (y, [])
    notes += ["gray lines join the runs of one round"] * any(run.round for run in runs)
    legend = (*colours, *(("muted", note) for note in notes))
    return Figure(partial(timeline, runs, y), legend=legend, y=y, x=f"{count(len(runs), 'run')}, in order of time")


def timeline(runs: Sequence[RunDrawing], unit: str) -> Markup:
    """The runs in order of time: a line for each, or a dot where it is one value, with its median; ticks at the left.

    Runs of both sides were made in turns, so what both have in common is the host, and what separates them is the commit.
    """
    scale = linear([one for run in runs for one in run.values])
    body = joined(in_time(run, place, len(runs), scale) for place, run in enumerate(runs))
    label = f"{unit} of the runs in order of time"
    return chart(HEIGHT, label, grid(scale), joined(rounds(runs, scale)), body, class_="timeline")


def rounds(runs: Sequence[RunDrawing], scale: Scale) -> Iterator[Markup]:
    """Lines that join the runs of one round."""
    spots = [(run.round, (place + 0.5) / len(runs), y_of(run.middle, scale)) for place, run in enumerate(runs)]
    for (one, left, top), (other, right, bottom) in pairwise(spots):
        if one == other != "":
            yield element("line", x1=percent(left), x2=percent(right), y1=top, y2=bottom, class_="interval")


def y_of(value: float, scale: Scale) -> float:
    """The vertical place of a value."""
    return HEIGHT * (1 - scale(value))


def grid(scale: Scale) -> Markup:
    """Horizontal lines with their values."""
    return joined(
        across(0.0, 1.0, y, "grid") + element("text", plain(tick), x="0%", y=y - 3, class_="tick left")
        for tick in scale.ticks(4)
        for y in [y_of(tick, scale)]
    )


def in_time(run: RunDrawing, place: int, of: int, scale: Scale) -> Markup:
    """One run in its own column."""
    left, width = (place + GAP / 2) / of, (1 - GAP) / of
    title = element("title", f"run {place + 1}, {run.side}: {figure(run.middle)}")
    y = y_of(run.middle, scale)
    if len(run.values) < FEW:
        marks = [dot(left + width / 2, y, 4.0, "dot")]
    else:
        last = len(run.values) - 1
        points = (f"{number(100 * x / last)},{number(y_of(value, scale))}" for x, value in enumerate(run.values))
        line = element("polyline", points=" ".join(points), class_="line")
        stretched = {"viewBox": f"0 0 100 {number(HEIGHT)}", "preserveAspectRatio": "none"}
        inner = element("svg", line, x=percent(left), width=percent(width), height=HEIGHT, **stretched)
        marks = [inner, across(left, left + width, y, "median")]
    return element("g", title, bar(left, width, 0.0, HEIGHT, "hover"), *marks, class_=run.side)


BELOW = 80.0  # height of the ratios of pairs
PAIRED = "each line is a pair that ran at the same time; below, their ratios with the median"
LEFT = 0.1  # of the width, for their ticks


def of_pairs(pairs: Sequence[tuple[float, float]], y: str, colours: Sequence[tuple[str, str]]) -> Figure:
    """The figure of pairs."""
    x = f"{count(min(len(pairs), LATEST), 'pair')}, in order of time"
    return Figure(partial(dumbbells, pairs, y), legend=(*colours, ("muted", PAIRED)), y=y, x=x)


def dumbbells(pairs: Sequence[tuple[float, float]], unit: str) -> Markup:
    """The latest pairs in order of time: what both builds needed, joined by a line, and below it the ratio of the two.

    What disturbs a pair moves both of its ends, and not its ratio.
    """
    shown = pairs[-LATEST:]
    found = [after / before for before, after in shown]
    scale, lower = linear([one for pair in shown for one in pair]), linear([1.0, *found], margin=0.2)
    base, width, middle = HEIGHT + LABEL, (1 - LEFT) / len(shown), median(found)

    def below(ratio: float) -> float:
        return base + BELOW * (1 - lower(ratio))

    marks = [grid(scale), across(LEFT, 1.0, below(1.0), "one"), across(LEFT, 1.0, below(middle), "median")]
    names = {below(1.0): "1"} if abs(below(1.0) - below(middle)) > LABEL else {}
    names[below(middle)] = factor(middle)
    marks += [element("text", name, x="0%", y=y + 4, class_="tick left") for y, name in names.items()]
    for place, (before, after) in enumerate(shown):
        left, ratio = LEFT + place * width, found[place]
        center, top, bottom = left + width / 2, y_of(before, scale), y_of(after, scale)
        title = element("title", f"pair {place + 1}: {figure(before)}, {figure(after)}, {factor(ratio)}")
        area = bar(left, width, 0.0, base + BELOW, "hover")
        line = element("line", x1=percent(center), x2=percent(center), y1=top, y2=bottom, class_="interval")
        ends = dot(center, top, 4.0, "good"), dot(center, bottom, 4.0, "bad")
        marks.append(element("g", title, area, line, *ends, dot(center, below(ratio), 4.0)))
    label = f"{unit} of both builds in each pair, and their ratio: {factor(middle)} as the median"
    return chart(base + BELOW, label, *marks, class_="timeline")


MASS = 0.95  # of the commits that a line spans
STEPS = 60  # lines at most; of more, those at even distances are drawn
STEP = 9.0  # height of a line
BARS = 90.0  # height of the tallest bar
WIDEST = 300  # bars at most; in a longer range each is the sum of neighbours
FAINT = 5e-4  # probabilities below this are not drawn

Tried = Mapping[int, tuple[Commit, str]]  # candidate → its commit, and its class of colour: "good", "bad", "skipped", …


def posterior(tried: Tried, course: Sequence[Narrowing]) -> Markup:
    """How the search narrowed the range; ``course`` is not empty, and its last entry has the final probabilities.

    From left to right are the candidates, oldest first; from top to bottom the decisions, and below them the latest
    probabilities. A line spans the commits that together had 95 % of the probability; dots are what was measured then.
    """
    shown = course
    if len(course) > STEPS:
        shown = [course[round(place * (len(course) - 1) / (STEPS - 1))] for place in range(STEPS)]
    lines = joined(span(tried, each, number * STEP + STEP / 2) for number, each in enumerate(shown))
    base = len(shown) * STEP + BARS + 2 * LABEL
    axis = across(0.0, 1.0, base, "axis")
    final = course[-1].culprit
    marks = joined(tested(tried, len(final), base + 10))
    label = f"How the search narrowed the range in {len(course)} decisions, and the probability of each commit: {chance(final.max())} at most"
    return chart(base + 20, label, lines, joined(bars(tried, final, base)), axis, marks, class_="range")


def span(tried: Tried, one: Narrowing, y: float) -> Markup:
    """The commits that held the mass at a decision, and dots for those that were measured then."""
    low, high = credible(one.culprit)
    size = len(one.culprit)
    line = across(low / size, (high + 1) / size, y, "span")
    return joined([line, *(dot((each + 0.5) / size, y, 2.6, colour(tried, each)) for each in one.measured)])


def credible(culprit: NDArray[np.float64]) -> tuple[int, int]:
    """The first and the last of the most probable candidates that together have the mass."""
    order = np.argsort(-culprit, kind="stable")
    total = np.cumsum(culprit[order])
    inside = order[: int(np.searchsorted(total, MASS * total[-1])) + 1]
    return int(inside.min()), int(inside.max())


def bars(tried: Tried, culprit: NDArray[np.float64], base: float) -> Iterator[Markup]:
    """A bar for each candidate, or for each group of neighbours, that has some probability."""
    size = len(culprit)
    groups = np.array_split(np.arange(size), min(size, WIDEST))
    sums = [float(culprit[group].sum()) for group in groups]
    tallest = max(sums) or 1.0
    for group, total in zip(groups, sums, strict=True):
        if total < FAINT:
            continue
        height = max(1.0, BARS * total / tallest)
        likeliest = int(group[culprit[group].argmax()])
        known = tried.get(likeliest)
        name = f"{known[0].short} {known[0].subject}" if known else f"commit {likeliest} of {size - 1}"
        if total == tallest:
            middle = percent((group[0] + group[-1] + 1) / 2 / size)
            yield element("text", chance(total), x=middle, y=base - BARS - 4)
        title = element("title", f"{name}: {chance(total)}")
        tone = f"bar {colour(tried, likeliest)}"
        yield bar(group[0] / size, len(group) / size, base - height, height, tone, title)


def tested(tried: Tried, size: int, y: float) -> Iterator[Markup]:
    """A mark below the axis for each commit that was tested."""
    for candidate, (commit, what) in sorted(tried.items()):
        title = element("title", f"{commit.short} {commit.subject}: {what}")
        place = (candidate + 0.5) / size
        yield cross(place, y + 4, title) if what == "skipped" else dot(place, y, 4.0, what, title)


def colour(tried: Tried, candidate: int) -> str | None:
    """The colour class of a candidate, if it was tested."""
    return tried[candidate][1] if candidate in tried else None


def cross(place: float, y: float, title: Markup) -> Markup:
    """The mark of what was not measured, at a fraction of the width."""
    return element("text", title, "×", x=percent(place), y=y, class_="skipped")


SHORT = 60  # characters of all names that stand beside each other on a phone, too
ROWS = 3  # of labels, so that those of neighbouring steps do not meet
ROOM = 0.08  # of the height above and below the line


def releases(line: SpeedLine, names: Sequence[str], metric: str) -> Markup:
    """A dot for each release of a workload, a bar at the level between two steps, and where the steps are.

    Where releases are too few for steps, a line leads from dot to dot.

    From left to right are the releases, oldest version first; the vertical scale is that of ratios to the first one measured.
    """
    known = [ratio for ratio in line.ratios if ratio is not None]
    if not known:
        return Markup("")
    low, high = spanned(known)
    room = (high / low) ** ROOM
    scale = Scale(low / room, high * room, logarithmic=True)
    marks = [grid(scale), *steps(line, names, metric), *(plateaus if line.scatter else between)(line, scale)]
    for at, (name, ratio) in enumerate(zip(names, line.ratios, strict=True)):
        place = (at + 0.5) / len(names)
        title = element("title", f"{name}: {'not measured' if ratio is None else decimals(ratio, 3)}")
        y = HEIGHT - 2 if ratio is None else y_of(ratio, scale)
        marks.append(cross(place, y, title) if ratio is None else dot(place, y, 3.5, None, title))
    label = f"{line.work}: each release relative to the first"
    return chart(HEIGHT + ROWS * LABEL, label, *marks, *labels(line, names), class_="series")


def steps(line: SpeedLine, names: Sequence[str], metric: str) -> Iterator[Markup]:
    """A vertical line before the first release with a step, and a band where its place is uncertain."""
    size = len(names)
    for step in line.steps:
        title = element("title", step_sentence(step, names))
        if (step.first, step.last) != (step.before, step.after):
            left, right = (step.first + 0.5) / size, (step.last + 0.5) / size
            yield bar(left, right - left, 0.0, HEIGHT, "place", title)
        tone = "bad" if is_worse(step, metric) else "good"
        yield upright((step.before + step.after + 1) / 2 / size, HEIGHT, f"step {tone}", title)


def plateaus(line: SpeedLine, scale: Scale) -> Iterator[Markup]:
    """The level between two steps."""
    size = len(line.ratios)
    for start, end in pairwise([0, *(step.after for step in line.steps), size]):
        if (level := line.plateaus[start]) is not None:
            yield across(start / size, end / size, y_of(level, scale), "plateau")


def between(line: SpeedLine, scale: Scale) -> Iterator[Markup]:
    """A line from each release that was measured to the next one."""
    size, known = len(line.ratios), [(at, ratio) for at, ratio in enumerate(line.ratios) if ratio is not None]
    for (one, before), (other, after) in pairwise(known):
        ends = {"x1": percent((one + 0.5) / size), "x2": percent((other + 0.5) / size)}
        yield element("line", **ends, y1=y_of(before, scale), y2=y_of(after, scale), class_="plateau")


def labels(line: SpeedLine, names: Sequence[str]) -> Iterator[Markup]:
    """The names of all releases, or where these are many of the first and the last, and below them the first ones of steps in turns."""
    size = len(names)
    if sum(len(name) + 2 for name in names) <= SHORT:
        yield from (
            element("text", name, x=percent((at + 0.5) / size), y=HEIGHT + LABEL) for at, name in enumerate(names)
        )
        return
    yield element("text", names[0], x="0%", y=HEIGHT + LABEL, class_="left")
    yield element("text", names[-1], x="100%", y=HEIGHT + LABEL, class_="right")
    for place, step in enumerate(line.steps):
        middle = (step.after + 0.5) / size
        side = "left" if middle < 0.1 else "right" if middle > 0.9 else None
        y = HEIGHT + (2 + place % (ROWS - 1)) * LABEL
        yield element("text", names[step.after], x=percent(middle), y=y, class_=side)
