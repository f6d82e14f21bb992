"""Drawings of a page: runs in order of time, the probabilities of the candidates, and the speed of a series of
releases.
"""

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
    chart,
    circle,
    concatenated,
    coordinate,
    element,
    horizontal_line,
    line_scale_ends,
    linear_scale,
    percent,
    rectangle,
    tick_label,
    vertical_line,
)
from perfbisect.wording.quantities import chance, count, decimals, factor, figure
from perfbisect.wording.trials import step_sentence

HEIGHT = 220.0
POINTS = 100  # most points of a run; if it has more samples, neighbouring samples are averaged
FEW = 3  # a run with fewer report intervals is drawn as one dot, and not as a line
LABEL = 14.0  # height of a row of labels
GAP = 0.15  # between two runs, as a share of a run's width
LATEST = 60  # most runs or pairs that are drawn


@dataclass(frozen=True, slots=True)
class RunDrawing:
    """A run of one of the compared builds, with one value, or with a value for each second."""

    side: str  # CSS class, which sets the colour: "parent", "culprit"
    values: tuple[float, ...]
    round: str = ""  # equal for the two runs of a pair

    @property
    def median_value(self) -> float:
        """The median of the values."""
        return median(self.values)


def run_drawings(
    runs_by_side: Sequence[tuple[str, Sequence[RunFacts]]], value_of: Callable[[RunFacts], float | None]
) -> list[RunDrawing]:
    """The latest runs of all compared builds in time order. If each run has at least FEW samples (values for each
    second), the runs are drawn with their samples. Otherwise each run is drawn with one value, the result of
    ``value_of``; runs with the value None are omitted.
    """
    runs = sorted(((run, side) for side, runs in runs_by_side for run in runs), key=lambda pair: pair[0].started)[
        -LATEST:
    ]
    if all(len(run.samples) >= FEW for run, _ in runs):
        return [RunDrawing(side, averaged_samples(run.samples), run.round) for run, side in runs]
    return [RunDrawing(side, (rate,), run.round) for run, side in runs if (rate := value_of(run)) is not None]


def averaged_samples(samples: Sequence[float]) -> tuple[float, ...]:
    """The samples; if there are more than POINTS, the means of POINTS groups of neighbouring samples."""
    if len(samples) <= POINTS:
        return tuple(samples)
    cuts = [round(index * len(samples) / POINTS) for index in range(POINTS + 1)]
    return tuple(mean(samples[low:high]) for low, high in pairwise(cuts))


def runs_figure(runs: Sequence[RunDrawing], y_title: str, colours: Sequence[tuple[str, str]]) -> Figure:
    """The figure of runs; ``y_title`` is the title of the axis, unless the axis shows QPS in each second."""
    y_title, notes = (
        ("QPS", ["a thin line is one run, a flat line is its median"]) if len(runs[0].values) > 1 else (y_title, [])
    )
    notes += ["gray lines join the runs of one round"] * any(run.round for run in runs)
    legend = (*colours, *(("muted", note) for note in notes))
    order = f"{count(len(runs), 'run')}, in order of time"
    return Figure(partial(runs_drawing, runs, y_title), legend=legend, y_title=y_title, x_title=order)


def runs_drawing(runs: Sequence[RunDrawing], unit: str) -> Markup:
    """The drawing of runs in time order: for each run, a line through its samples and a line at their median, or a dot
    if the run has few values.

    The runs of both builds are interleaved. So a change of the host's speed moves the runs of both builds, and a
    constant distance between the builds is an effect of the commit.
    """
    scale = linear_scale([value for run in runs for value in run.values])
    body = concatenated(run_marks(run, column, len(runs), scale) for column, run in enumerate(runs))
    label = f"{unit} of the runs in order of time"
    return chart(HEIGHT, label, grid_lines(scale), concatenated(round_lines(runs, scale)), body, class_="timeline")


def round_lines(runs: Sequence[RunDrawing], scale: Scale) -> Iterator[Markup]:
    """Lines that join the runs of one round."""
    spots = [
        (run.round, (column + 0.5) / len(runs), y_position(run.median_value, scale)) for column, run in enumerate(runs)
    ]
    for (round_of_run, x, y), (next_round, next_x, next_y) in pairwise(spots):
        if round_of_run == next_round != "":
            yield element("line", x1=percent(x), x2=percent(next_x), y1=y, y2=next_y, class_="interval")


def y_position(value: float, scale: Scale) -> float:
    """The vertical position of a value, in pixels."""
    return HEIGHT * (1 - scale(value))


def grid_lines(scale: Scale) -> Markup:
    """Horizontal lines at round values, with the values."""
    return concatenated(
        horizontal_line(0.0, 1.0, y, "grid") + element("text", tick_label(tick), x="0%", y=y - 3, class_="tick left")
        for tick in scale.ticks(4)
        for y in [y_position(tick, scale)]
    )


def run_marks(run: RunDrawing, column: int, columns: int, scale: Scale) -> Markup:
    """The marks of one run in a chart of ``columns`` columns; ``column`` is the index of the run's column."""
    left, width = (column + GAP / 2) / columns, (1 - GAP) / columns
    title = element("title", f"run {column + 1}, {run.side}: {figure(run.median_value)}")
    y = y_position(run.median_value, scale)
    if len(run.values) < FEW:
        marks = [circle(left + width / 2, y, 4.0, "dot")]
    else:
        last = len(run.values) - 1
        points = (
            f"{coordinate(100 * x / last)},{coordinate(y_position(value, scale))}" for x, value in enumerate(run.values)
        )
        line = element("polyline", points=" ".join(points), class_="line")
        stretched = {"viewBox": f"0 0 100 {coordinate(HEIGHT)}", "preserveAspectRatio": "none"}
        inner = element("svg", line, x=percent(left), width=percent(width), height=HEIGHT, **stretched)
        marks = [inner, horizontal_line(left, left + width, y, "median")]
    return element("g", title, rectangle(left, width, 0.0, HEIGHT, "hover"), *marks, class_=run.side)


BELOW = 80.0  # height of the ratios of pairs
PAIRED = "each line is a pair that ran at the same time; below, their ratios with the median"
MARGIN = 0.1  # share of the width for the ticks of the ratios


def paired_runs_figure(
    pairs: Sequence[tuple[float, float]], y_title: str, colours: Sequence[tuple[str, str]]
) -> Figure:
    """The figure of paired runs; ``y_title`` is the title of the axis."""
    x = f"{count(min(len(pairs), LATEST), 'pair')}, in order of time"
    legend = (*colours, ("muted", PAIRED))
    return Figure(partial(pairs_drawing, pairs, y_title), legend=legend, y_title=y_title, x_title=x)


def pairs_drawing(pairs: Sequence[tuple[float, float]], unit: str) -> Markup:
    """The drawing of the latest pairs in time order: both values, joined by a line, and below them their ratio.

    A disturbance changes both values of a pair, but not their ratio.
    """
    shown = pairs[-LATEST:]
    ratios = [culprit / parent for parent, culprit in shown]
    scale, lower = linear_scale([value for pair in shown for value in pair]), linear_scale([1.0, *ratios], margin=0.2)
    base, width, middle = HEIGHT + LABEL, (1 - MARGIN) / len(shown), median(ratios)

    def below(ratio: float) -> float:
        return base + BELOW * (1 - lower(ratio))

    line_at_one = horizontal_line(MARGIN, 1.0, below(1.0), "one")
    marks = [grid_lines(scale), line_at_one, horizontal_line(MARGIN, 1.0, below(middle), "median")]
    names = {below(1.0): "1"} if abs(below(1.0) - below(middle)) > LABEL else {}
    names[below(middle)] = factor(middle)
    marks += [element("text", name, x="0%", y=y + 4, class_="tick left") for y, name in names.items()]
    for index, (parent, culprit) in enumerate(shown):
        x, ratio = MARGIN + index * width, ratios[index]
        center, top, bottom = x + width / 2, y_position(parent, scale), y_position(culprit, scale)
        title = element("title", f"pair {index + 1}: {figure(parent)}, {figure(culprit)}, {factor(ratio)}")
        area = rectangle(x, width, 0.0, base + BELOW, "hover")
        line = element("line", x1=percent(center), x2=percent(center), y1=top, y2=bottom, class_="interval")
        ends = circle(center, top, 4.0, "good"), circle(center, bottom, 4.0, "bad")
        marks.append(element("g", title, area, line, *ends, circle(center, below(ratio), 4.0)))
    label = f"{unit} of both builds in each pair, and their ratio: {factor(middle)} as the median"
    return chart(base + BELOW, label, *marks, class_="timeline")


MASS = 0.95  # a line spans the commits that together have this probability
STEPS = 60  # most lines; if there are more decisions, only every n-th decision has a line
STEP = 9.0  # height of a line
BARS = 90.0  # height of the tallest bar
WIDEST = 300  # most bars; in a longer range, a bar is the sum of several neighbouring commits
FAINT = 5e-4  # probabilities below this are not drawn

TestedCommits = Mapping[
    int, tuple[Commit, str]
]  # candidate → its commit, and the CSS class that sets its colour: "good", "bad", "skipped", …


def search_drawing(tried: TestedCommits, decisions: Sequence[SearchDecision]) -> Markup:
    """The drawing of how the search narrowed the range; ``decisions`` is not empty, and its last entry has the final
    probabilities.

    The candidates are drawn from left to right, oldest first; the decisions are drawn from top to bottom, and the final
    probabilities below the decisions. For each decision, a line spans the commits that together had 95 % of the
    probability, and dots mark the commits that were measured after the decision.
    """
    shown = decisions
    if len(decisions) > STEPS:
        shown = [decisions[round(index * (len(decisions) - 1) / (STEPS - 1))] for index in range(STEPS)]
    lines = concatenated(
        decision_line(tried, decision, number * STEP + STEP / 2) for number, decision in enumerate(shown)
    )
    base = len(shown) * STEP + BARS + 2 * LABEL
    axis = horizontal_line(0.0, 1.0, base, "axis")
    final = decisions[-1].probabilities
    marks = concatenated(tested_marks(tried, len(final), base + 10))
    label = f"How the search narrowed the range in {len(decisions)} decisions, and the probability of each commit: {chance(final.max())} at most"
    bars = concatenated(probability_bars(tried, final, base))
    return chart(base + 20, label, lines, bars, axis, marks, class_="range")


def decision_line(tried: TestedCommits, decision: SearchDecision, y: float) -> Markup:
    """A line over the commits that together had MASS of the probability at a decision; dots mark the commits that were
    measured next.
    """
    low, high = credible_range(decision.probabilities)
    size = len(decision.probabilities)
    line = horizontal_line(low / size, (high + 1) / size, y, "span")
    dots = (circle((index + 0.5) / size, y, 2.6, colour_class(tried, index)) for index in decision.ordered_candidates)
    return concatenated([line, *dots])


def credible_range(probabilities: NDArray[np.float64]) -> tuple[int, int]:
    """The lowest and highest number among the most probable candidates that together have MASS of the probability."""
    order = np.argsort(-probabilities, kind="stable")
    total = np.cumsum(probabilities[order])
    inside = order[: int(np.searchsorted(total, MASS * total[-1])) + 1]
    return int(inside.min()), int(inside.max())


def probability_bars(tried: TestedCommits, probabilities: NDArray[np.float64], bottom: float) -> Iterator[Markup]:
    """A bar for each candidate, or group of neighbouring candidates, whose probability is at least FAINT; ``bottom`` is
    the vertical position of the lower end of the bars.
    """
    size = len(probabilities)
    groups = np.array_split(np.arange(size), min(size, WIDEST))
    sums = [float(probabilities[group].sum()) for group in groups]
    tallest = max(sums) or 1.0
    for group, total in zip(groups, sums, strict=True):
        if total < FAINT:
            continue
        height = max(1.0, BARS * total / tallest)
        likeliest = int(group[probabilities[group].argmax()])
        entry = tried.get(likeliest)
        name = f"{entry[0].short_sha} {entry[0].subject}" if entry else f"commit {likeliest} of {size - 1}"
        if total == tallest:
            middle = percent((group[0] + group[-1] + 1) / 2 / size)
            yield element("text", chance(total), x=middle, y=bottom - BARS - 4)
        title = element("title", f"{name}: {chance(total)}")
        tone = f"bar {colour_class(tried, likeliest)}"
        yield rectangle(group[0] / size, len(group) / size, bottom - height, height, tone, title)


def tested_marks(tried: TestedCommits, candidates: int, y: float) -> Iterator[Markup]:
    """For each tested commit, a mark on the axis."""
    for candidate, (commit, tone) in sorted(tried.items()):
        title = element("title", f"{commit.short_sha} {commit.subject}: {tone}")
        x = (candidate + 0.5) / candidates
        yield skipped_mark(x, y + 4, title) if tone == "skipped" else circle(x, y, 4.0, tone, title)


def colour_class(tried: TestedCommits, candidate: int) -> str | None:
    """The CSS class with the colour of a candidate; None if the candidate was not tested."""
    return tried[candidate][1] if candidate in tried else None


def skipped_mark(x: float, y: float, title: Markup) -> Markup:
    """The mark of a build that was not measured; ``x`` is the position as a fraction of the chart's width."""
    return element("text", title, "×", x=percent(x), y=y, class_="skipped")


SHORT = 60  # characters of all names together that fit side by side even on a phone
ROWS = 3  # number of rows of labels, so that labels of neighbouring steps do not overlap
ROOM = 0.08  # share of the height that stays free above and below the line


def release_line_drawing(line: SpeedLine, names: Sequence[str], metric: str) -> Markup:
    """The chart of a workload: a dot for each release, a bar for each level between two steps, and the steps.

    If there are too few releases to find steps, a line joins the dots. The releases are from left to right, oldest
    version first; the scale shows ratios to the first measured release.
    """
    measured = [ratio for ratio in line.ratios if ratio is not None]
    if not measured:
        return Markup("")
    low, high = line_scale_ends(measured)
    room = (high / low) ** ROOM
    scale = Scale(low / room, high * room, logarithmic=True)
    levels = (level_lines if line.scatter else joining_lines)(line, scale)
    marks = [grid_lines(scale), *step_marks(line, names, metric), *levels]
    for at, (name, ratio) in enumerate(zip(names, line.ratios, strict=True)):
        x = (at + 0.5) / len(names)
        title = element("title", f"{name}: {'not measured' if ratio is None else decimals(ratio, 3)}")
        y = HEIGHT - 2 if ratio is None else y_position(ratio, scale)
        marks.append(skipped_mark(x, y, title) if ratio is None else circle(x, y, 3.5, None, title))
    label = f"{line.work}: each release relative to the first"
    return chart(HEIGHT + ROWS * LABEL, label, *marks, *release_labels(line, names), class_="series")


def step_marks(line: SpeedLine, names: Sequence[str], metric: str) -> Iterator[Markup]:
    """For each step, a vertical line between the releases before and after the step, and a band over the releases at
    which the step may be if its position is uncertain."""
    size = len(names)
    for step in line.steps:
        title = element("title", step_sentence(step, names))
        if (step.first, step.last) != (step.before, step.after):
            left, right = (step.first + 0.5) / size, (step.last + 0.5) / size
            yield rectangle(left, right - left, 0.0, HEIGHT, "place", title)
        tone = "bad" if makes_worse(step, metric) else "good"
        yield vertical_line((step.before + step.after + 1) / 2 / size, HEIGHT, f"step {tone}", title)


def level_lines(line: SpeedLine, scale: Scale) -> Iterator[Markup]:
    """For each level, a horizontal line from the step before to the step after."""
    size = len(line.ratios)
    for start, end in pairwise([0, *(step.after for step in line.steps), size]):
        if (level := line.plateaus[start]) is not None:
            yield horizontal_line(start / size, end / size, y_position(level, scale), "plateau")


def joining_lines(line: SpeedLine, scale: Scale) -> Iterator[Markup]:
    """Lines between the neighbouring measured releases."""
    size, measured = len(line.ratios), [(at, ratio) for at, ratio in enumerate(line.ratios) if ratio is not None]
    for (index, start), (next_index, end) in pairwise(measured):
        ends = {"x1": percent((index + 0.5) / size), "x2": percent((next_index + 0.5) / size)}
        yield element("line", **ends, y1=y_position(start, scale), y2=y_position(end, scale), class_="plateau")


def release_labels(line: SpeedLine, names: Sequence[str]) -> Iterator[Markup]:
    """The names of all releases; if the names do not fit, only the first name, the last name, and the names of releases
    with a step.
    """
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
