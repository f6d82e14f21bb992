"""Drawings of a page: runs in order of time, the posterior over the range, and the line of a series of releases."""

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
from perfbisect.core.stats.release_series import SpeedLine, makes_worse
from perfbisect.report.document import Figure
from perfbisect.report.hunt_report import SearchDecision
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
POINTS = 100  # of a run at most; of more samples, neighbours are averaged
FEW = 3  # report intervals from which on a run is a line; a run with fewer is one dot
LABEL = 14.0  # height of a row of labels
GAP = 0.15  # between two runs, as a share of a run's width
LATEST = 60  # runs or pairs that are drawn at most


@dataclass(frozen=True, slots=True)
class RunDrawing:
    """A run of one side; it has one value, or a value for each second."""

    side: str  # class of colour: "parent", "culprit"
    values: tuple[float, ...]
    round: str = ""  # equal for the runs that are compared with each other

    @property
    def middle(self) -> float:
        """The median of the values."""
        return median(self.values)


def by_second(
    sides: Sequence[tuple[str, Sequence[RunFacts]]], value: Callable[[RunFacts], float | None]
) -> list[RunDrawing]:
    """The latest runs of all sides in order of time, each with its samples; with ``value`` if a run has too few samples.

    Without samples, runs whose ``value`` is None are omitted.
    """
    runs = sorted(((run, side) for side, runs in sides for run in runs), key=lambda pair: pair[0].started)[-LATEST:]
    if all(len(run.samples) >= FEW for run, _ in runs):
        return [RunDrawing(side, averaged(run.samples), run.round) for run, side in runs]
    return [RunDrawing(side, (rate,), run.round) for run, side in runs if (rate := value(run)) is not None]


def averaged(samples: Sequence[float]) -> tuple[float, ...]:
    """The samples; if there are more than POINTS, the means of POINTS groups of neighbours."""
    if len(samples) <= POINTS:
        return tuple(samples)
    cuts = [round(index * len(samples) / POINTS) for index in range(POINTS + 1)]
    return tuple(mean(samples[low:high]) for low, high in pairwise(cuts))


def of_runs(runs: Sequence[RunDrawing], y: str, colours: Sequence[tuple[str, str]]) -> Figure:
    """The figure of runs; ``y`` is the title of the axis unless it is QPS in each second."""
    y, notes = ("QPS", ["a thin line is one run, a flat line is its median"]) if len(runs[0].values) > 1 else (y, [])
    notes += ["gray lines join the runs of one round"] * any(run.round for run in runs)
    legend = (*colours, *(("muted", note) for note in notes))
    return Figure(
        partial(timeline, runs, y), legend=legend, y_title=y, x_title=f"{count(len(runs), 'run')}, in order of time"
    )


def timeline(runs: Sequence[RunDrawing], unit: str) -> Markup:
    """The drawing of runs in order of time: a line with its median for each run, or a dot for one value; ticks at the left.

    The runs of both sides are interleaved: common movements are the host's, a distance between the sides is the commit's.
    """
    scale = linear([value for run in runs for value in run.values])
    body = joined(in_time(run, column, len(runs), scale) for column, run in enumerate(runs))
    label = f"{unit} of the runs in order of time"
    return chart(HEIGHT, label, grid(scale), joined(rounds(runs, scale)), body, class_="timeline")


def rounds(runs: Sequence[RunDrawing], scale: Scale) -> Iterator[Markup]:
    """Lines that join the runs of one round."""
    spots = [(run.round, (column + 0.5) / len(runs), y_of(run.middle, scale)) for column, run in enumerate(runs)]
    for (round_of_run, x, y), (next_round, next_x, next_y) in pairwise(spots):
        if round_of_run == next_round != "":
            yield element("line", x1=percent(x), x2=percent(next_x), y1=y, y2=next_y, class_="interval")


def y_of(value: float, scale: Scale) -> float:
    """The vertical position of a value, in pixels."""
    return HEIGHT * (1 - scale(value))


def grid(scale: Scale) -> Markup:
    """Horizontal lines at round values, with the values."""
    return joined(
        across(0.0, 1.0, y, "grid") + element("text", plain(tick), x="0%", y=y - 3, class_="tick left")
        for tick in scale.ticks(4)
        for y in [y_of(tick, scale)]
    )


def in_time(run: RunDrawing, column: int, of: int, scale: Scale) -> Markup:
    """The drawing of a run in column ``column`` of ``of``."""
    left, width = (column + GAP / 2) / of, (1 - GAP) / of
    title = element("title", f"run {column + 1}, {run.side}: {figure(run.middle)}")
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
MARGIN = 0.1  # share of the width for the ticks of the ratios


def of_pairs(pairs: Sequence[tuple[float, float]], y: str, colours: Sequence[tuple[str, str]]) -> Figure:
    """The figure of paired runs; ``y`` is the title of the axis."""
    x = f"{count(min(len(pairs), LATEST), 'pair')}, in order of time"
    return Figure(partial(dumbbells, pairs, y), legend=(*colours, ("muted", PAIRED)), y_title=y, x_title=x)


def dumbbells(pairs: Sequence[tuple[float, float]], unit: str) -> Markup:
    """The drawing of the latest pairs in order of time: both values, joined by a line, and their ratio below.

    A disturbance moves both values of a pair, but not their ratio.
    """
    shown = pairs[-LATEST:]
    ratios = [culprit / parent for parent, culprit in shown]
    scale, lower = linear([value for pair in shown for value in pair]), linear([1.0, *ratios], margin=0.2)
    base, width, middle = HEIGHT + LABEL, (1 - MARGIN) / len(shown), median(ratios)

    def below(ratio: float) -> float:
        return base + BELOW * (1 - lower(ratio))

    marks = [grid(scale), across(MARGIN, 1.0, below(1.0), "one"), across(MARGIN, 1.0, below(middle), "median")]
    names = {below(1.0): "1"} if abs(below(1.0) - below(middle)) > LABEL else {}
    names[below(middle)] = factor(middle)
    marks += [element("text", name, x="0%", y=y + 4, class_="tick left") for y, name in names.items()]
    for index, (parent, culprit) in enumerate(shown):
        x, ratio = MARGIN + index * width, ratios[index]
        center, top, bottom = x + width / 2, y_of(parent, scale), y_of(culprit, scale)
        title = element("title", f"pair {index + 1}: {figure(parent)}, {figure(culprit)}, {factor(ratio)}")
        area = bar(x, width, 0.0, base + BELOW, "hover")
        line = element("line", x1=percent(center), x2=percent(center), y1=top, y2=bottom, class_="interval")
        ends = dot(center, top, 4.0, "good"), dot(center, bottom, 4.0, "bad")
        marks.append(element("g", title, area, line, *ends, dot(center, below(ratio), 4.0)))
    label = f"{unit} of both builds in each pair, and their ratio: {factor(middle)} as the median"
    return chart(base + BELOW, label, *marks, class_="timeline")


MASS = 0.95  # probability of the commits that a line spans
STEPS = 60  # lines at most; of more decisions, lines at even distances are drawn
STEP = 9.0  # height of a line
BARS = 90.0  # height of the tallest bar
WIDEST = 300  # bars at most; in a longer range a bar is the sum of neighbours
FAINT = 5e-4  # probabilities below this are not drawn

Tried = Mapping[int, tuple[Commit, str]]  # candidate → its commit, and its class of colour: "good", "bad", "skipped", …


def posterior(tried: Tried, course: Sequence[SearchDecision]) -> Markup:
    """The drawing of how the search narrowed the range; ``course`` is not empty, and ends with the final probabilities.

    From left to right are the candidates, oldest first; from top to bottom the decisions, and below them the final
    probabilities. A line spans the commits that together had 95 % of the probability; its dots are the measured commits.
    """
    shown = course
    if len(course) > STEPS:
        shown = [course[round(index * (len(course) - 1) / (STEPS - 1))] for index in range(STEPS)]
    lines = joined(span(tried, decision, number * STEP + STEP / 2) for number, decision in enumerate(shown))
    base = len(shown) * STEP + BARS + 2 * LABEL
    axis = across(0.0, 1.0, base, "axis")
    final = course[-1].probabilities
    marks = joined(tested(tried, len(final), base + 10))
    label = f"How the search narrowed the range in {len(course)} decisions, and the probability of each commit: {chance(final.max())} at most"
    return chart(base + 20, label, lines, joined(bars(tried, final, base)), axis, marks, class_="range")


def span(tried: Tried, decision: SearchDecision, y: float) -> Markup:
    """A line over the commits that held MASS of the probability at a decision, with dots for the measured commits."""
    low, high = credible(decision.probabilities)
    size = len(decision.probabilities)
    line = across(low / size, (high + 1) / size, y, "span")
    return joined(
        [
            line,
            *(
                dot((candidate + 0.5) / size, y, 2.6, colour(tried, candidate))
                for candidate in decision.ordered_candidates
            ),
        ]
    )


def credible(culprit: NDArray[np.float64]) -> tuple[int, int]:
    """The lowest and highest number among the most probable candidates that together have MASS of the probability."""
    order = np.argsort(-culprit, kind="stable")
    total = np.cumsum(culprit[order])
    inside = order[: int(np.searchsorted(total, MASS * total[-1])) + 1]
    return int(inside.min()), int(inside.max())


def bars(tried: Tried, culprit: NDArray[np.float64], base: float) -> Iterator[Markup]:
    """A bar for each candidate, or group of neighbours, whose probability is at least FAINT; ``base`` is their lower end."""
    size = len(culprit)
    groups = np.array_split(np.arange(size), min(size, WIDEST))
    sums = [float(culprit[group].sum()) for group in groups]
    tallest = max(sums) or 1.0
    for group, total in zip(groups, sums, strict=True):
        if total < FAINT:
            continue
        height = max(1.0, BARS * total / tallest)
        likeliest = int(group[culprit[group].argmax()])
        entry = tried.get(likeliest)
        name = f"{entry[0].short} {entry[0].subject}" if entry else f"commit {likeliest} of {size - 1}"
        if total == tallest:
            middle = percent((group[0] + group[-1] + 1) / 2 / size)
            yield element("text", chance(total), x=middle, y=base - BARS - 4)
        title = element("title", f"{name}: {chance(total)}")
        tone = f"bar {colour(tried, likeliest)}"
        yield bar(group[0] / size, len(group) / size, base - height, height, tone, title)


def tested(tried: Tried, size: int, y: float) -> Iterator[Markup]:
    """A mark below the axis for each commit that was tested."""
    for candidate, (commit, tone) in sorted(tried.items()):
        title = element("title", f"{commit.short} {commit.subject}: {tone}")
        x = (candidate + 0.5) / size
        yield cross(x, y + 4, title) if tone == "skipped" else dot(x, y, 4.0, tone, title)


def colour(tried: Tried, candidate: int) -> str | None:
    """The class of colour of a candidate; None if it was not tested."""
    return tried[candidate][1] if candidate in tried else None


def cross(x: float, y: float, title: Markup) -> Markup:
    """The mark of an unmeasured build; ``x`` is a fraction of the width."""
    return element("text", title, "×", x=percent(x), y=y, class_="skipped")


SHORT = 60  # characters of all names together that fit side by side even on a phone
ROWS = 3  # of labels, so that labels of neighbouring steps do not overlap
ROOM = 0.08  # share of the height that stays free above and below the line


def releases(line: SpeedLine, names: Sequence[str], metric: str) -> Markup:
    """The drawing of a workload's line: a dot for each release, a bar for the level between two steps, and the steps.

    If there are too few releases for steps, a line joins the dots. From left to right are the releases, oldest version
    first; the vertical scale has ratios to the first measured release.
    """
    measured = [ratio for ratio in line.ratios if ratio is not None]
    if not measured:
        return Markup("")
    low, high = spanned(measured)
    room = (high / low) ** ROOM
    scale = Scale(low / room, high * room, logarithmic=True)
    marks = [grid(scale), *steps(line, names, metric), *(plateaus if line.scatter else between)(line, scale)]
    for at, (name, ratio) in enumerate(zip(names, line.ratios, strict=True)):
        x = (at + 0.5) / len(names)
        title = element("title", f"{name}: {'not measured' if ratio is None else decimals(ratio, 3)}")
        y = HEIGHT - 2 if ratio is None else y_of(ratio, scale)
        marks.append(cross(x, y, title) if ratio is None else dot(x, y, 3.5, None, title))
    label = f"{line.work}: each release relative to the first"
    return chart(HEIGHT + ROWS * LABEL, label, *marks, *labels(line, names), class_="series")


def steps(line: SpeedLine, names: Sequence[str], metric: str) -> Iterator[Markup]:
    """A vertical line before the first release with a step, and a band over the releases that it may be between."""
    size = len(names)
    for step in line.steps:
        title = element("title", step_sentence(step, names))
        if (step.first, step.last) != (step.before, step.after):
            left, right = (step.first + 0.5) / size, (step.last + 0.5) / size
            yield bar(left, right - left, 0.0, HEIGHT, "place", title)
        tone = "bad" if makes_worse(step, metric) else "good"
        yield upright((step.before + step.after + 1) / 2 / size, HEIGHT, f"step {tone}", title)


def plateaus(line: SpeedLine, scale: Scale) -> Iterator[Markup]:
    """A horizontal line at each level between two steps."""
    size = len(line.ratios)
    for start, end in pairwise([0, *(step.after for step in line.steps), size]):
        if (level := line.plateaus[start]) is not None:
            yield across(start / size, end / size, y_of(level, scale), "plateau")


def between(line: SpeedLine, scale: Scale) -> Iterator[Markup]:
    """Lines that join the measured releases."""
    size, measured = len(line.ratios), [(at, ratio) for at, ratio in enumerate(line.ratios) if ratio is not None]
    for (index, start), (next_index, end) in pairwise(measured):
        ends = {"x1": percent((index + 0.5) / size), "x2": percent((next_index + 0.5) / size)}
        yield element("line", **ends, y1=y_of(start, scale), y2=y_of(end, scale), class_="plateau")


def labels(line: SpeedLine, names: Sequence[str]) -> Iterator[Markup]:
    """The names of all releases; if too long, of the first, the last, and in alternating rows those with a step."""
    size = len(names)
    if sum(len(name) + 2 for name in names) <= SHORT:
        yield from (
            element("text", name, x=percent((at + 0.5) / size), y=HEIGHT + LABEL) for at, name in enumerate(names)
        )
        return
    yield element("text", names[0], x="0%", y=HEIGHT + LABEL, class_="left")
    yield element("text", names[-1], x="100%", y=HEIGHT + LABEL, class_="right")
    for index, step in enumerate(line.steps):
        middle = (step.after + 0.5) / size
        side = "left" if middle < 0.1 else "right" if middle > 0.9 else None
        y = HEIGHT + (2 + index % (ROWS - 1)) * LABEL
        yield element("text", names[step.after], x=percent(middle), y=y, class_=side)
