"""The range as a line of commits, oldest at the left: how probable each is, and where it was tested."""

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from perfbisect.core.inference.hunt_state import Classification
from perfbisect.ui.view_model import ViewModel
from perfbisect.wording.glyphs import Glyphs
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
