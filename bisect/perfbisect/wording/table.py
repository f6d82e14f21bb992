"""Tables: columns of text that line up on a terminal, in any script; and rows of CSV and TSV, which are opened in spreadsheets."""

import csv
import io
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

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
    layout = Layout.fit(header, rows, right=right, width=width, drop=drop)
    return [layout.line(row) for row in (header, *rows)]


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns of a table are shown, and how wide."""

    columns: tuple[tuple[int, int, bool], ...]  # place in a row, width, aligned at the right
    cut_at: int | None  # the width of the terminal

    @classmethod
    def fit(
        cls,
        header: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        right: Collection[str] = (),
        width: int | None = None,
        drop: Sequence[str] = (),
    ) -> "Layout":
        """The layout that suits these rows; see ``table``."""
        wide = [max(cell_len(row[place]) for row in (header, *rows)) for place in range(len(header))]
        shown = list(range(len(header)))
        if width is not None:
            for title in drop:
                if _room(wide, shown, width) < min(LEAST, wide[-1]):
                    shown.remove(header.index(title))
            wide[-1] = min(wide[-1], max(_room(wide, shown, width), 1))
        return cls(tuple((place, wide[place], header[place] in right) for place in shown), width)

    def line(self, row: Sequence[str], *, whole: bool = False) -> str:
        """The line of a row. With ``whole`` wider cells than those of the layout are not cut, but for the terminal."""
        cells = (
            row[place] if whole and cell_len(row[place]) > size else aligned(row[place], size, right=right)
            for place, size, right in self.columns
        )
        line = GAP.join(cells).rstrip()
        return line if self.cut_at is None or not whole else cut(line, self.cut_at)


def _room(wide: Sequence[int], shown: Sequence[int], width: int) -> int:
    """The columns of ``width`` that are left for the last column of the table."""
    return width - sum(wide[place] + len(GAP) for place in shown[:-1])


FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def _field(value: Any) -> Any:
    """A value for a field. A text that a spreadsheet would take for a formula begins with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def separated(values: Iterable[Any], delimiter: str = ",") -> str:
    """One row, without the end of its line."""
    written = io.StringIO()
    csv.writer(written, delimiter=delimiter, lineterminator="\n").writerow(map(_field, values))
    return written.getvalue().removesuffix("\n")
