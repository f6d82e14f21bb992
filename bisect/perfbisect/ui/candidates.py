"""The candidates of a range: as a line, with how probable each is and where was tested; and a table of those tested."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.text import Text

from perfbisect.core.domain.events import Commit
from perfbisect.core.domain.metrics import comparable, shown, unit
from perfbisect.core.inference.hunt_state import Classification, Tested, classify
from perfbisect.ui.view_model import Building, ViewModel
from perfbisect.wording.glyphs import Glyphs
from perfbisect.wording.quantities import between, chance, clock, duration, figure, middle
from perfbisect.wording.table import GAP, aligned
from perfbisect.wording.text import printable
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
WIDEST = 3  # columns for one candidate
NEGLIGIBLE = 0.0005


def strip(view: ViewModel, width: int, glyphs: Glyphs) -> list[Text]:
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


def marks(view: ViewModel, size: int, columns: int, glyphs: Glyphs) -> Text:
    """The axis with a sign where something was tested."""
    found: dict[int, Classification] = {}
    half = (columns // size - 1) // 2 if columns >= size else 0
    for candidate in view.rows:
        what = view.classification(candidate)
        place = candidate * columns // size + half
        if what is not None and (place not in found or RANK.index(what) > RANK.index(found[place])):
            found[place] = what
    signs = (sign(found.get(place), glyphs) for place in range(columns))
    line = Text("".join(signs), "dim")
    for place, what in found.items():
        line.stylize(f"not dim {STYLES[what]}", place, place + 1)
    return line


def sign(what: Classification | None, glyphs: Glyphs) -> str:
    """The sign of a classification on the axis."""
    return str(getattr(glyphs, MARKS[what][1] if what else "line"))


def names(view: ViewModel, columns: int, width: int, glyphs: Glyphs) -> Text:
    """The ends under their ends of the axis, and the legend between or behind them where there is room."""
    if view.hunt is None:
        return Text()
    good, bad = printable(view.hunt.good), printable(view.hunt.bad)
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


SUBJECT_MOST = 44
SUBJECT_FAIR = 18  # further columns that a subject gets before the rate does


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its least width and how a cell is written."""

    title: str
    width: int
    cell: Callable[[ViewModel, int, Tested], str]
    right: bool = False


def ratio_cell(view: ViewModel, candidate: int, row: Tested) -> str:
    """The ratio to the baseline in three decimals, or its bound."""
    found = view.ratio(candidate)
    if found is not None:
        return middle(found)
    return "1.000" if view.is_baseline(candidate) and row.runs else ""


def interval_cell(view: ViewModel, candidate: int, row: Tested) -> str:
    """The 95 % interval of that ratio."""
    found = view.ratio(candidate)
    if found is not None:
        return between(found)
    return "baseline" if view.is_baseline(candidate) and row.runs else ""


def build_cell(view: ViewModel, candidate: int, row: Tested) -> str:
    """How long its builds took."""
    if len(row.made) > 1:
        return f"{len(row.made)}: {brief(row.build_seconds)}"
    if row.shared:
        return f"shared: {brief(row.build_seconds)}"
    return "kept" if row.reused else brief(row.build_seconds) if row.build_seconds else ""


def rate_cell(view: ViewModel, candidate: int, row: Tested) -> str:
    """The median of its runs."""
    found = [shown(run, view.metric) for run in row.runs if comparable(run, view.metric)]
    return figure(median(found)) if found else ""


def brief(seconds: float) -> str:
    """A length of time in a narrow column: 0.4 s, 12 s, 3:25."""
    return duration(seconds) if seconds < 59.5 else clock(seconds)


def chance_cell(view: ViewModel, candidate: int, row: Tested) -> str:
    """How probable it is to be the culprit; nothing where that is next to nothing, or the ends may be alike."""
    belief = view.state.belief
    culprit = belief.culprit if belief is not None and view.ends_differ else ()
    share = float(culprit[candidate]) if candidate < len(culprit) else 0.0
    return chance(share) if share >= 0.005 else ""


def state_cell(view: ViewModel, candidate: int, row: Tested) -> str:
    """Its classification, or what is done with it now."""
    if activity := view.activity(candidate):
        return "building" if isinstance(activity, Building) else "measuring"
    if row.skip is not None:
        return f"skipped, {row.skip.stage}: {printable(row.skip.reason)}"
    name = classification_name(classify(view.state, view.sha(candidate), view.ratios))
    return f"{name}, same as {Commit(row.same_as).short}" if row.same_as else name


COMMIT = Column("commit", 10, lambda view, candidate, row: row.commit.short)
DATE = Column("date", 10, lambda view, candidate, row: view.commit(candidate).date[:10])
SUBJECT = Column("subject", 14, lambda view, candidate, row: view.commit(candidate).subject)
RATE = Column("QPS", 9, rate_cell, right=True)
RATIO = Column("rQPS", 5, ratio_cell, right=True)
INTERVAL = Column("95 % interval", 13, interval_cell)
BUILD = Column("build", 6, build_cell, right=True)
RUNS = Column("runs", 4, lambda view, candidate, row: str(len(row.runs) or ""), right=True)
CHANCE = Column("culprit", 7, chance_cell, right=True)
STATE = Column("state", 9, state_cell)

SHOWN = (COMMIT, DATE, SUBJECT, RATE, RATIO, INTERVAL, BUILD, RUNS, CHANCE, STATE)
NEEDED = (COMMIT, RATIO, INTERVAL, STATE, RUNS, CHANCE, BUILD, SUBJECT, DATE, RATE)  # what is left out last comes first


def table(view: ViewModel, width: int, rows: int) -> list[Text]:
    """A header and at most ``rows`` further lines of at most ``width`` columns."""
    if not view.rows:
        return []
    widths = chosen(width)
    titles = (aligned(title(view, column), size, right=column.right) for column, size in widths.items())
    lines = [Text(GAP.join(titles).rstrip(), "dim")]
    candidates = sorted(view.rows)
    hidden = 0
    if len(candidates) > rows:
        kept = most_relevant(view, max(1, rows - 1))
        hidden, candidates = len(candidates) - len(kept), kept
    lines += [line(view, candidate, widths) for candidate in candidates]
    if hidden and rows > 1:
        lines.append(Text(f"and {hidden} more", "dim"))
    return lines


def title(view: ViewModel, column: Column) -> str:
    """The title of a column."""
    return view.ratio_title if column is RATIO else unit(view.metric) if column is RATE else column.title


def chosen(width: int) -> dict[Column, int]:
    """The columns that fit, with their widths; what room is left goes to the subject, then to the state."""
    fitting: list[Column] = []
    used = -len(GAP)
    for column in NEEDED:
        more = SUBJECT_FAIR if column is RATE else 0
        if used + len(GAP) + column.width + more <= width or not fitting:
            fitting.append(column)
            used += len(GAP) + column.width
    spare = max(0, width - used)
    widths = {column: column.width for column in SHOWN if column in fitting}
    if SUBJECT in widths:
        more = min(SUBJECT_MOST - SUBJECT.width, spare)
        widths[SUBJECT] += more
        spare -= more
    if STATE in widths:
        widths[STATE] += spare
    return widths


def most_relevant(view: ViewModel, rows: int) -> list[int]:
    """The rows to show where there is no room for all: what is in progress, the ends, and those near the leader."""
    leader = int(view.state.belief.culprit.argmax()) if view.state.belief is not None else 0
    ends = (0, len(view.state.commits) - 1)

    def rank(candidate: int) -> tuple[bool, bool, bool, int]:
        skipped = view.rows[candidate].skip is not None
        return view.activity(candidate) is None, candidate not in ends, skipped, abs(candidate - leader)

    return sorted(sorted(view.rows, key=rank)[:rows])


def line(view: ViewModel, candidate: int, widths: dict[Column, int]) -> Text:
    """One row."""
    row = view.rows[candidate]
    what = view.classification(candidate)
    text = Text()
    for place, (column, size) in enumerate(widths.items()):
        style = STYLES[what] if what is not None and column in (STATE, RATIO) else ""
        text.append(GAP if place else "")
        cell = column.cell(view, candidate, row)
        if column is STATE and cell_len(cell) > size:
            cell = cell.partition(",")[0]
        text.append(aligned(cell, size, right=column.right), style)
    text.rstrip()
    return text
