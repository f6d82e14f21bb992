"""Columns that line up, for text that may hold any script."""

from collections.abc import Collection, Sequence
from unicodedata import combining, east_asian_width

GAP = "  "
LEAST = 16  # columns that the last one gets before others stay


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in text)


def cut(text: str, width: int) -> str:
    """``text`` in at most ``width`` columns, its end replaced by … where it does not fit."""
    if columns_of(text) <= width:
        return text
    kept = ""
    for sign in text:
        if columns_of(kept + sign) > width - 1:
            break
        kept += sign
    return f"{kept}…" if width > 0 else ""


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    width: int | None = None,
    drop: Sequence[str] = (),
) -> list[str]:
    """The lines of a table. Columns named in ``right`` end together.

    Where ``width`` leaves the last column less than LEAST, those named in ``drop`` are left out, the first first;
    then the last one is cut.
    """
    cells = [list(header), *(list(row) for row in rows)]
    wide = [max(columns_of(row[place]) for row in cells) for place in range(len(header))]
    shown = list(range(len(header)))
    if width is not None:
        for title in drop:
            if room(wide, shown, width) < min(LEAST, wide[-1]):
                shown.remove(header.index(title))
        wide[-1] = min(wide[-1], max(room(wide, shown, width), 1))
    return [
        GAP.join(aligned(row[place], wide[place], right=header[place] in right) for place in shown).rstrip()
        for row in cells
    ]


def room(wide: Sequence[int], shown: Sequence[int], width: int) -> int:
    """What is left of ``width`` for the last column."""
    return width - sum(wide[place] + len(GAP) for place in shown[:-1])


def aligned(text: str, width: int, *, right: bool) -> str:
    """``text`` in exactly ``width`` columns."""
    kept = cut(text, width)
    space = " " * (width - columns_of(kept))
    return space + kept if right else kept + space
