"""Columns of text that line up on a terminal, in any script."""

from collections.abc import Collection, Sequence

from rich.cells import cell_len, set_cell_size

GAP = "  "
LEAST = 16  # columns that the last column gets before others are left out for it


def cut(text: str, width: int) -> str:
    """``text`` in at most ``width`` columns of the terminal; where it does not fit, its end is replaced by …"""
    if cell_len(text) <= width:
        return text
    return f"{set_cell_size(text, width - 1).rstrip()}…" if width > 0 else ""


def aligned(text: str, width: int, *, right: bool) -> str:
    """``text`` in exactly ``width`` columns of the terminal."""
    kept = cut(text, width)
    space = " " * (width - cell_len(kept))
    return space + kept if right else kept + space


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table without a header."""
    return table(rows[0], rows[1:]) if rows else []


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    width: int | None = None,
    drop: Sequence[str] = (),
) -> list[str]:
    """The lines of a table. Columns named in ``right`` are aligned at their right ends.

    Where ``width`` leaves the last column less than LEAST, the columns named in ``drop`` are left out in that order;
    then the last one is cut.
    """
    cells = [list(header), *(list(row) for row in rows)]
    wide = [max(cell_len(row[place]) for row in cells) for place in range(len(header))]
    shown = list(range(len(header)))
    if width is not None:
        for title in drop:
            if _room(wide, shown, width) < min(LEAST, wide[-1]):
                shown.remove(header.index(title))
        wide[-1] = min(wide[-1], max(_room(wide, shown, width), 1))
    return [
        GAP.join(aligned(row[place], wide[place], right=header[place] in right) for place in shown).rstrip()
        for row in cells
    ]


def _room(wide: Sequence[int], shown: Sequence[int], width: int) -> int:
    """The columns of ``width`` that are left for the last column of the table."""
    return width - sum(wide[place] + len(GAP) for place in shown[:-1])
