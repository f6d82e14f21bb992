"""The candidates of a range: as a line, with how probable each is and where was tested; and a table of those tested.

Of a trial the table of its builds.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.text import Text

from perfbisect.core.domain.events import Commit
from perfbisect.core.domain.facts import RunFacts, pairs_of
from perfbisect.core.domain.metrics import comparable, shown, unit, values_of
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.inference.classification import Classification, classify
from perfbisect.core.stats.paired_comparison import levels, paired
from perfbisect.ui.session_view import ActiveBuild, SessionView
from perfbisect.wording import table as tables
from perfbisect.wording.glyphs import Glyphs, dumbbell
from perfbisect.wording.quantities import (
    MISSING,
    builds,
    chance,
    clock,
    compared,
    count,
    decimals,
    duration,
    factor,
    figure,
)
from perfbisect.wording.table import GAP, aligned, cut
from perfbisect.wording.text import metric_title, printable
from perfbisect.wording.trials import relative_metric
from perfbisect.wording.verdicts import classification_name

MARKS = {  # style, and name of the sign; where one column has several candidates, the last of these is shown
    Classification.BUILT: ("default", "line"),
    Classification.SKIPPED: ("yellow", "skipped"),
    Classification.UNCLEAR: ("yellow", "unclear"),
    Classification.GOOD: ("green", "good"),
    Classification.BASELINE: ("green", "good"),
    Classification.BAD: ("red", "bad"),
    Classification.CULPRIT: ("bold red", "bad"),
    Classification.NOW: ("bold cyan", "now"),
}
STYLES = {what: style for what, (style, _) in MARKS.items()}
RANK = list(MARKS)
LEGEND = (Classification.GOOD, Classification.BAD, Classification.UNCLEAR, Classification.SKIPPED, Classification.NOW)
LONGEST = 30  # columns for an end of the range
WIDEST = 3  # columns for one candidate
NEGLIGIBLE = 0.0005


def strip(view: SessionView, width: int, glyphs: Glyphs) -> list[Text]:
    """Three lines: probability, tested points, and the names of the ends with the meaning of the signs."""
    size = len(view.state.commits)
    if size == 0:
        return []
    each = max(1, min(WIDEST, width // size))
    columns = min(width, size * each)
    belief = view.state.belief
    share = np.zeros(size) if belief is None or len(belief.culprit) != size else belief.culprit
    return [
        Text(blocks(share, columns, each, glyphs), style="cyan"),
        marks(view, size, columns, glyphs),
        names(view, columns, width, glyphs),
    ]


def blocks(share: NDArray[np.float64], columns: int, each: int, glyphs: Glyphs) -> str:
    """One block a column. Heights grow with the root of the probability, so that small chances can be seen too."""
    places = np.arange(len(share)) * columns // len(share)
    heights = np.bincount(places, weights=share, minlength=columns)
    if each > 1:
        heights = np.repeat(share, each)
    levels = np.clip(np.ceil(np.sqrt(heights) * len(glyphs.blocks)), 1, len(glyphs.blocks)).astype(int)
    return "".join(
        glyphs.blocks[level - 1] if height >= NEGLIGIBLE else " "
        for level, height in zip(levels, heights, strict=True)
    )  # fmt: skip


def marks(view: SessionView, size: int, columns: int, glyphs: Glyphs) -> Text:
    """The axis with a sign where something was tested."""
    found: dict[int, Classification] = {}
    half = (columns // size - 1) // 2 if columns >= size else 0
    for candidate in view.rows:
        what = view.classification(candidate)
        place = candidate * columns // size + half
        if what is not None and (place not in found or RANK.index(what) > RANK.index(found[place])):
            found[place] = what
    line = Text("".join(sign(found.get(place), glyphs) for place in range(columns)), "dim")
    for place, what in found.items():
        line.stylize(f"not dim {STYLES[what]}", place, place + 1)
    return line


def sign(what: Classification | None, glyphs: Glyphs) -> str:
    """The sign of a classification on the axis."""
    return str(getattr(glyphs, MARKS[what][1] if what else "line"))


def names(view: SessionView, columns: int, width: int, glyphs: Glyphs) -> Text:
    """The ends under their ends of the axis, and the legend between or behind them where there is room."""
    if view.hunt is None:
        return Text()
    good, bad = end_of_range(view.hunt.good), end_of_range(view.hunt.bad)
    legend = Text()
    for what in LEGEND:
        legend.append(f"{sign(what, glyphs)} ", STYLES[what])
        legend.append(f"{classification_name(what)}  ", "dim")
    legend.rstrip()
    line = Text(good)
    room = columns - len(good) - len(bad)
    if room >= len(legend) + 6:
        line.append(" " * ((room - len(legend)) // 2)).append_text(legend)
    line.append(" " * max(2, columns - len(line) - len(bad))).append(bad)
    if room < len(legend) + 6 and len(line) + len(legend) + 4 <= width:
        line.append("    ").append_text(legend)
    return line


def end_of_range(written: str) -> str:
    """An end of the range in short, as it was written."""
    return Commit(written).short if re.fullmatch("[0-9a-f]{40}", written) else cut(printable(written), LONGEST)


PAIRS = 4  # the latest rounds, each on a line
RECENT = 400  # entries of a log, among which pairs are looked for


def pairs(runs: Sequence[RunFacts], metric: str, name: Callable[[str], str], room: int, glyphs: Glyphs) -> list[Text]:
    """The latest pairs of the two builds that are measured at the same time, newest first; none while runs are in turns.

    ``name`` gives that of the build of a commit.
    """
    made = [*pairs_of(runs)]
    if not made or not runs[-1].round:
        return []
    both = [run.commit for run in made[-1]]
    known = values_of((pair for pair in made if [run.commit for run in pair] == both), metric)
    if not known:
        return []
    latest = known[: -PAIRS - 1 : -1]
    behind = [f"  {factor(high / low)} {glyphs.dot} {figure(high)} beside {figure(low)}" for low, high in latest]
    size = max(5, min(60, room - max(36, *map(cell_len, behind))))
    span = min(map(min, latest)), max(map(max, latest))
    one, other = (glyphs.good, "bold"), (glyphs.bad, STYLES[Classification.NOW])
    typically = f"{factor(median(high / low for low, high in known))} in {count(len(known), 'pair')}"
    what = f", {metric_title(metric)}: {typically}"
    lines = [Text.assemble(other, f" {name(both[0])} beside ", one, f" {name(both[1])}{what}")]
    for (low, high), values in zip(latest, behind, strict=True):
        before, drawn, after = dumbbell(low, high, span, size, glyphs)
        ends = [(sign, dict([one, other]).get(sign, "")) for sign in drawn]
        lines.append(Text.assemble((before, "dim"), *ends, (after, "dim"), values))
    return lines


SUBJECT_MOST = 44
SUBJECT_FAIR = 18  # further columns that a subject gets before the rate does
COLUMNS = {  # in their order on the line, the least width of each, so that they seldom move
    "commit": 10, "date": 10, "subject": 14, "rate": 9, "ratio": 5, "95 % interval": 13, "build": 6, "runs": 4,
    "culprit": 7, "state": 9,
}  # fmt: skip
RIGHT = ("rate", "ratio", "build", "runs", "culprit")
TEXTS = ("subject", "state")  # which may be cut; numbers are not
MINOR = ("rate", "date", "build", "subject", "culprit", "runs", "state", "95 % interval", "ratio")  # the first go first


def cells(view: SessionView, candidate: int) -> dict[str, str]:
    """What each column says of a candidate: its commit, its runs and builds, and what is done with it now.

    How probable it is to be the culprit is left out where that is next to nothing, or the ends may be alike.
    """
    row, commit, activity = view.rows[candidate], view.commit(candidate), view.activity(candidate)
    good = view.rows[0].runs if 0 in view.rows else ()
    rates = [shown(run, view.metric) for run in alike(row.runs, good) if comparable(run, view.metric)]
    ratio, interval = compared(view.ratio(candidate), baseline=bool(row.runs) and view.is_baseline(candidate))
    belief = view.state.belief
    culprit = belief.culprit if belief is not None and view.ends_differ else ()
    share = float(culprit[candidate]) if candidate < len(culprit) else 0.0
    if activity:
        state = "building" if isinstance(activity, ActiveBuild) else "measuring"
    elif row.skip is not None:
        state = f"skipped, {row.skip.stage}: {printable(row.skip.reason)}"
    else:
        state = classification_name(classify(view.state, view.sha(candidate), view.ratios))
        state += f", same as {Commit(row.same_as).short}" if row.same_as else ""
    return {
        "commit": commit.short,
        "date": commit.date[:10],
        "subject": commit.subject,
        "rate": figure(median(rates)) if rates else "",
        "ratio": ratio,
        "95 % interval": interval,
        "build": builds(row, brief),
        "runs": str(len(row.runs) or ""),
        "culprit": chance(share) if share >= 0.005 else "",
        "state": state,
    }


def alike(runs: Sequence[RunFacts], good: Sequence[RunFacts]) -> Sequence[RunFacts]:
    """Those of the runs that were made as some of ``good``, the baseline's, in the last way if in several: its ratio is by them.

    All of them if none was. In turns and in rounds, and as they are linked and in randomized layouts, builds have other rates.
    """
    last = max({run.way for run in runs} & {run.way for run in good}, default=None)
    return [run for run in runs if last in (None, run.way)]


def brief(seconds: float) -> str:
    """A length of time in a narrow column: 0.4 s, 12 s, 3:25."""
    return duration(seconds) if seconds < 59.5 else clock(seconds)


def table(view: SessionView, width: int, rows: int) -> list[Text]:
    """A header and at most ``rows`` further lines of at most ``width`` columns."""
    if not view.rows:
        return []
    candidates = sorted(view.rows)
    if hidden := max(0, len(candidates) - max(1, rows - 1)) if len(candidates) > rows else 0:
        candidates = most_relevant(view, len(candidates) - hidden)
    any_run = next((run for row in view.rows.values() for run in row.runs), None)
    titles = {"rate": printable(unit(view.metric, any_run)), "ratio": view.ratio_title}
    shown = {candidate: cells(view, candidate) for candidate in candidates}
    widths = {
        name: least
        if name in TEXTS
        else max(least, *map(cell_len, (titles.get(name, ""), *(row[name] for row in shown.values()))))
        for name, least in COLUMNS.items()
    }
    widths = fitted(width, widths)
    lines = [line({name: titles.get(name, name) for name in widths}, widths, "")]
    lines[0].stylize("dim")
    for candidate, row in shown.items():
        what = view.classification(candidate)
        lines.append(line(row, widths, STYLES[what] if what else ""))
    return [*lines, Text(f"and {hidden} more", "dim")] if hidden and rows > 1 else lines


def fitted(width: int, widths: Mapping[str, int]) -> dict[str, int]:
    """The columns that fit, with their widths; what room is left goes to the subject, then to the state."""
    for dropped in range(len(MINOR) + 1):
        kept = {name: size for name, size in widths.items() if name not in MINOR[:dropped]}
        spare = width - sum(kept.values()) - len(GAP) * (len(kept) - 1)
        if spare >= SUBJECT_FAIR * ("rate" in kept):
            break
    for name, most in (("subject", SUBJECT_MOST), ("state", width)):
        if name in kept:
            more = max(0, min(most - kept[name], spare))
            kept[name] += more
            spare -= more
    return kept


def line(texts: Mapping[str, str], widths: Mapping[str, int], style: str) -> Text:
    """The row of a candidate, whose ratio and state have a style; a state that does not fit loses its details."""
    text = Text()
    for name, size in widths.items():
        cell = texts[name].partition(",")[0] if name == "state" and cell_len(texts[name]) > size else texts[name]
        text.append(GAP if text else "")
        text.append(aligned(cell, size, right=name in RIGHT), style if name in ("ratio", "state") else "")
    text.rstrip()
    return text


def most_relevant(view: SessionView, rows: int) -> list[int]:
    """The rows to show where there is no room for all: what is in progress, the ends, and those near the leader."""
    leader = int(view.state.belief.culprit.argmax()) if view.state.belief is not None else 0
    ends = (0, len(view.state.commits) - 1)

    def rank(candidate: int) -> tuple[bool, bool, bool, int]:
        skipped = view.rows[candidate].skip is not None
        return view.activity(candidate) is None, candidate not in ends, skipped, abs(candidate - leader)

    return sorted(sorted(view.rows, key=rank)[:rows])


def ratio_lines(trial: SessionState, room: int) -> Iterator[str]:
    """The ratios of all builds to the first in each workload, as far as rounds have both; the longer side is down."""
    request = trial.request
    if len(request.subjects) < 2 or not trial.runs:
        return
    names = [printable(build.name) for build in request.subjects[1:]]
    works = [printable(work.name) for work in request.works]
    cells = []
    for number in range(len(works)):
        rounds = levels(trial, number, request.metric)
        found = [paired(rounds.get(0, {}), rounds.get(build, {})) for build in range(1, len(names) + 1)]
        cells.append([MISSING if each is None else decimals(each.ratio, 3) for each in found])
    across, down = (names, works) if len(works) >= len(names) else (works, names)
    rows = cells if down is works else [list(row) for row in zip(*cells, strict=True)]
    lines = [[name, *row] for name, row in zip(down, rows, strict=True)]
    title = f"{relative_metric(trial)} relative to {printable(request.subjects[0].name)}"
    for fitting in range(len(across), 0, -1):  # as many columns as fit
        made = tables.table((title, *across[:fitting]), [row[: fitting + 1] for row in lines], right=across)
        if max(map(cell_len, made)) <= room:
            break
    yield from made
    if fitting < len(across):
        yield f"and {count(len(across) - fitting, 'further column')}"
