"""Draws the candidates of a range as lines of text: an axis with the probability of each candidate, and a table of the
tested candidates.

The module also draws the latest paired runs, and a table of the ratios of a trial.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.text import Text

from perfbisect.core.domain.events import Commit
from perfbisect.core.domain.facts import RunFacts, pair_runs
from perfbisect.core.domain.metrics import has_metric_unit, second_and_first_values, shown_unit, shown_value
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.inference.classification import Classification, classify
from perfbisect.core.stats.paired_comparison import mean_logs_by_round, paired_ratio
from perfbisect.ui.session_view import LatestBuild, SessionView
from perfbisect.wording import table as tables
from perfbisect.wording.glyphs import Glyphs, dumbbell
from perfbisect.wording.quantities import (
    MISSING,
    build_times,
    chance,
    clock,
    count,
    decimals,
    duration,
    factor,
    figure,
    ratio_cells,
)
from perfbisect.wording.table import GAP, cut, in_width
from perfbisect.wording.text import metric_title, printable
from perfbisect.wording.trials import compared_metric_title
from perfbisect.wording.verdicts import classification_name

MARKS = {  # style, and field of Glyphs; of several candidates in a column, the class that is last here is shown
    Classification.BUILT: ("default", "line"),
    Classification.SKIPPED: ("yellow", "skipped"),
    Classification.UNCLEAR: ("yellow", "unclear"),
    Classification.GOOD: ("green", "good"),
    Classification.BASELINE: ("green", "good"),
    Classification.BAD: ("red", "bad"),
    Classification.CULPRIT: ("bold red", "bad"),
    Classification.NOW: ("bold cyan", "now"),
}
STYLES = {classification: style for classification, (style, _) in MARKS.items()}
RANK = list(MARKS)
LEGEND = (Classification.GOOD, Classification.BAD, Classification.UNCLEAR, Classification.SKIPPED, Classification.NOW)
LONGEST = 30  # columns for an end of the range
WIDEST = 3  # most columns for one candidate
NEGLIGIBLE = 0.0005  # a smaller probability has no block


def axis_lines(view: SessionView, width: int, glyphs: Glyphs) -> list[Text]:
    """Three lines: the probabilities of the candidates, signs for the tested candidates, and the names of good and bad
    with the legend. The result is empty before the range is known."""
    size = len(view.state.commits)
    if size == 0:
        return []
    stretch = max(1, min(WIDEST, width // size))
    columns = min(width, size * stretch)
    belief = view.state.belief
    share = np.zeros(size) if belief is None or len(belief.culprit) != size else belief.culprit
    return [
        Text(probability_blocks(share, columns, stretch, glyphs), style="cyan"),
        classification_axis(view, size, columns, glyphs),
        axis_labels(view, columns, width, glyphs),
    ]


def probability_blocks(
    probabilities: NDArray[np.float64], columns: int, columns_per_candidate: int, glyphs: Glyphs
) -> str:
    """A line with one block character in each column. The height of a block grows with the square root of the
    probability, so that small probabilities are visible, too. ``probabilities`` has the probability of each candidate.
    """
    places = np.arange(len(probabilities)) * columns // len(probabilities)
    heights = np.bincount(places, weights=probabilities, minlength=columns)
    if columns_per_candidate > 1:
        heights = np.repeat(probabilities, columns_per_candidate)
    blocks = glyphs.blocks
    levels = np.clip(np.ceil(np.sqrt(heights) * len(blocks)), 1, len(blocks)).astype(int)
    columns_drawn = zip(levels, heights, strict=True)
    return "".join(blocks[level - 1] if height >= NEGLIGIBLE else " " for level, height in columns_drawn)


def classification_axis(view: SessionView, candidates: int, columns: int, glyphs: Glyphs) -> Text:
    """A line with a sign at each tested candidate, which shows the candidate's classification: good, bad, unclear, …"""
    by_column: dict[int, Classification] = {}
    half = (columns // candidates - 1) // 2 if columns >= candidates else 0
    for candidate in view.tested:
        classification = view.classification(candidate)
        column = candidate * columns // candidates + half
        if classification is None:
            continue
        if column not in by_column or RANK.index(classification) > RANK.index(by_column[column]):
            by_column[column] = classification
    line = Text("".join(sign(by_column.get(column), glyphs) for column in range(columns)), "dim")
    for column, classification in by_column.items():
        line.stylize(f"not dim {STYLES[classification]}", column, column + 1)
    return line


def sign(classification: Classification | None, glyphs: Glyphs) -> str:
    """The sign that marks a classification on the axis."""
    return str(getattr(glyphs, MARKS[classification][1] if classification else "line"))


def axis_labels(view: SessionView, columns: int, width: int, glyphs: Glyphs) -> Text:
    """The line below the axis: the name of good at its begin, the name of bad at its end, and the legend between or
    after the names if there is room."""
    if view.hunt_start is None:
        return Text()
    good, bad = short_revision(view.hunt_start.good), short_revision(view.hunt_start.bad)
    legend = Text()
    for classification in LEGEND:
        legend.append(f"{sign(classification, glyphs)} ", STYLES[classification])
        legend.append(f"{classification_name(classification)}  ", "dim")
    legend.rstrip()
    line = Text(good)
    room = columns - len(good) - len(bad)
    if room >= len(legend) + 6:
        line.append(" " * ((room - len(legend)) // 2)).append_text(legend)
    line.append(" " * max(2, columns - len(line) - len(bad))).append(bad)
    if room < len(legend) + 6 and len(line) + len(legend) + 4 <= width:
        line.append("    ").append_text(legend)
    return line


def short_revision(revision: str) -> str:
    """A short form of a revision: the first ten digits of a hash, or a name that is cut to LONGEST columns."""
    return Commit(revision).short_sha if re.fullmatch("[0-9a-f]{40}", revision) else cut(printable(revision), LONGEST)


PAIRS = 4  # number of the latest rounds that are shown, each on a line
RECENT = 400  # number of the latest entries of a log that are searched for pairs


def pair_lines(
    runs: Sequence[RunFacts], metric: str, build_name: Callable[[str], str], width: int, glyphs: Glyphs
) -> list[Text]:
    """A title, and a line for each of the latest pairs of paired runs, newest first, for the two builds that were
    measured last. The result is empty if the latest run is not paired.

    ``build_name`` is a function that returns the name of the build of a commit.
    """
    pairs_made = [*pair_runs(runs)]
    if not pairs_made or not runs[-1].round:
        return []
    commits = [run.commit for run in pairs_made[-1]]
    readings = second_and_first_values((pair for pair in pairs_made if [run.commit for run in pair] == commits), metric)
    if not readings:
        return []
    latest = readings[: -PAIRS - 1 : -1]
    behind = [f"  {factor(high / low)} {glyphs.dot} {figure(high)} beside {figure(low)}" for low, high in latest]
    size = max(5, min(60, width - max(36, *map(cell_len, behind))))
    span = min(map(min, latest)), max(map(max, latest))
    good_sign, bad_sign = (glyphs.good, "bold"), (glyphs.bad, STYLES[Classification.NOW])
    typically = f"{factor(median(high / low for low, high in readings))} in {count(len(readings), 'pair')}"
    figures = f", {metric_title(metric)}: {typically}"
    first_name, second_name = map(build_name, commits)
    lines = [Text.assemble(bad_sign, f" {first_name} beside ", good_sign, f" {second_name}{figures}")]
    for (low, high), values in zip(latest, behind, strict=True):
        left_margin, drawn, right_margin = dumbbell(low, high, span, size, glyphs)
        ends = [(sign, dict([good_sign, bad_sign]).get(sign, "")) for sign in drawn]
        lines.append(Text.assemble((left_margin, "dim"), *ends, (right_margin, "dim"), values))
    return lines


SUBJECT_MOST = 44
SUBJECT_FAIR = 18  # a rate is shown only if the subject has at least SUBJECT_FAIR columns more than its least width
COLUMNS = {  # column → least width, in the order of the line; the widths are constant, so that columns seldom move
    "commit": 10, "date": 10, "subject": 14, "rate": 9, "ratio": 5, "95 % interval": 13, "build": 6, "runs": 4,
    "prob.": 6, "state": 9,
}  # fmt: skip
RIGHT = ("rate", "ratio", "build", "runs", "prob.")
TEXTS = ("subject", "state")  # columns that may be cut; numbers may not
# Columns that a narrow screen omits, in this order.
MINOR = ("rate", "date", "build", "subject", "prob.", "runs", "state", "95 % interval", "ratio")


def row_texts(view: SessionView, candidate: int) -> dict[str, str]:
    """The texts of a candidate's row, by column.

    The column "prob." is the probability that the candidate is the culprit; the text is empty if the probability is
    below 0.5 %, or if good and bad may be equally fast.
    """
    row, commit, activity = view.tested[candidate], view.commit(candidate), view.activity_of(candidate)
    alike = runs_measured_like(row.runs, view.tested[0].runs if 0 in view.tested else ())
    rates = [shown_value(run, view.metric) for run in alike if has_metric_unit(run, view.metric)]
    ratio, interval = ratio_cells(view.ratio(candidate), baseline=bool(row.runs) and view.is_baseline(candidate))
    belief = view.state.belief
    culprit = belief.culprit if belief is not None and view.ends_differ else ()
    share = float(culprit[candidate]) if candidate < len(culprit) else 0.0
    if activity:
        state = "building" if isinstance(activity, LatestBuild) else "measuring"
    elif row.skip is not None:
        state = f"skipped, {row.skip.stage}: {printable(row.skip.reason)}"
    else:
        state = classification_name(classify(view.state, view.sha(candidate), view.ratios_to_good))
        state += f", same as {Commit(row.same_as).short_sha}" if row.same_as else ""
    return {
        "commit": commit.short_sha,
        "date": commit.date[:10],
        "subject": commit.subject,
        "rate": figure(median(rates)) if rates else "",
        "ratio": ratio,
        "95 % interval": interval,
        "build": build_times(row, short_duration),
        "runs": str(len(row.runs) or ""),
        "prob.": chance(share) if share >= 0.005 else "",
        "state": state,
    }


def runs_measured_like(runs: Sequence[RunFacts], baseline_runs: Sequence[RunFacts]) -> Sequence[RunFacts]:
    """The entries of ``runs`` that can be compared with ``baseline_runs``, because both were measured in the same way.

    The speed of a build differs between interleaved runs and paired runs, and between the usual layout and randomized
    layouts. If ``runs`` and ``baseline_runs`` have several kinds of runs in common, the kind with the largest
    ``layout_and_pairing`` is chosen. If they have no kind in common, all ``runs`` are returned.
    """
    baseline_kinds = {run.layout_and_pairing for run in baseline_runs}
    last = max({run.layout_and_pairing for run in runs} & baseline_kinds, default=None)
    return [run for run in runs if last in (None, run.layout_and_pairing)]


def short_duration(seconds: float) -> str:
    """A duration for a narrow column: 0.4 s, 12 s, 3:25."""
    return duration(seconds) if seconds < 59.5 else clock(seconds)


def candidate_table(view: SessionView, width: int, max_lines: int) -> list[Text]:
    """The table of the tested candidates: a header, and at most ``max_lines`` further lines, which are at most
    ``width`` columns wide. The result is empty if no candidate was tested.
    """
    if not view.tested:
        return []
    candidates = sorted(view.tested)
    if hidden := max(0, len(candidates) - max(1, max_lines - 1)) if len(candidates) > max_lines else 0:
        candidates = most_relevant_candidates(view, len(candidates) - hidden)
    any_run = next((run for row in view.tested.values() for run in row.runs), None)
    titles = {"rate": printable(shown_unit(view.metric, any_run)), "ratio": view.ratio_title}
    shown = {candidate: row_texts(view, candidate) for candidate in candidates}
    widths = {
        name: least
        if name in TEXTS
        else max(least, *map(cell_len, (titles.get(name, ""), *(row[name] for row in shown.values()))))
        for name, least in COLUMNS.items()
    }
    widths = fitting_columns(width, widths)
    lines = [row_line({name: titles.get(name, name) for name in widths}, widths, "")]
    lines[0].stylize("dim")
    for candidate, row in shown.items():
        classification = view.classification(candidate)
        lines.append(row_line(row, widths, STYLES[classification] if classification else ""))
    return [*lines, Text(f"and {hidden} more", "dim")] if hidden and max_lines > 1 else lines


def fitting_columns(width: int, widths: Mapping[str, int]) -> dict[str, int]:
    """The table's columns that fit into ``width``, with their widths. Remaining space widens the column "subject", then
    the column "state"."""
    for dropped in range(len(MINOR) + 1):
        columns = {name: size for name, size in widths.items() if name not in MINOR[:dropped]}
        spare = width - sum(columns.values()) - len(GAP) * (len(columns) - 1)
        if spare >= SUBJECT_FAIR * ("rate" in columns):
            break
    for name, widest in (("subject", SUBJECT_MOST), ("state", width)):
        if name in columns:
            added = max(0, min(widest - columns[name], spare))
            columns[name] += added
            spare -= added
    return columns


def row_line(texts: Mapping[str, str], widths: Mapping[str, int], style: str) -> Text:
    """The line of a candidate in the table; ``style`` is the style of the ratio and the state. If the state does not
    fit into its column, the details of the state are left out.
    """
    text = Text()
    for name, size in widths.items():
        cell = texts[name].partition(",")[0] if name == "state" and cell_len(texts[name]) > size else texts[name]
        text.append(GAP if text else "")
        text.append(in_width(cell, size, right=name in RIGHT), style if name in ("ratio", "state") else "")
    text.rstrip()
    return text


def most_relevant_candidates(view: SessionView, max_count: int) -> list[int]:
    """The ``max_count`` most relevant tested candidates, for a short table: candidates that are being built or
    measured, then good and bad, then the candidates nearest to the most probable culprit.
    """
    leader = int(view.state.belief.culprit.argmax()) if view.state.belief is not None else 0
    ends = (0, len(view.state.commits) - 1)

    def rank(candidate: int) -> tuple[bool, bool, bool, int]:
        skipped = view.tested[candidate].skip is not None
        return view.activity_of(candidate) is None, candidate not in ends, skipped, abs(candidate - leader)

    return sorted(sorted(view.tested, key=rank)[:max_count])


def ratio_lines(trial: SessionState, width: int) -> Iterator[str]:
    """A table of the ratio of each build to the first build in each workload, from the rounds that have runs of both
    builds.

    Rows are builds and columns are workloads; if there are more workloads than builds, rows are workloads. If not all
    columns fit into ``width``, a last line states how many are left out.
    """
    request = trial.request
    if len(request.subjects) < 2 or not trial.runs:
        return
    names = [printable(build.name) for build in request.subjects[1:]]
    works = [printable(work.name) for work in request.works]
    cells = []
    for number in range(len(works)):
        rounds = mean_logs_by_round(trial, number, request.metric)
        estimates = [paired_ratio(rounds.get(0, {}), rounds.get(build, {})) for build in range(1, len(names) + 1)]
        cells.append([MISSING if estimate is None else decimals(estimate.ratio, 3) for estimate in estimates])
    across, down = (names, works) if len(works) >= len(names) else (works, names)
    rows = cells if down is works else [list(row) for row in zip(*cells, strict=True)]
    lines = [[name, *row] for name, row in zip(down, rows, strict=True)]
    title = f"{compared_metric_title(trial)} relative to {printable(request.subjects[0].name)}"
    for fitting in range(len(across), 0, -1):  # the largest number of columns that fits
        rows_drawn = tables.table((title, *across[:fitting]), [row[: fitting + 1] for row in lines], right=across)
        if max(map(cell_len, rows_drawn)) <= width:
            break
    yield from rows_drawn
    if fitting < len(across):
        yield f"and {count(len(across) - fitting, 'further column')}"
