"""Makes tables for a terminal, whose columns are aligned also for texts with wide characters (such as Chinese), and
rows of CSV and TSV for spreadsheets."""

import csv
import io
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size

GAP = "  "
LEAST = 16  # fewest characters of the last column; with fewer, other columns are left out


def cut(text: str, width: int) -> str:
    """``text``, cut to at most ``width`` columns of the terminal. If the text is too wide, its end is replaced by the
    character "…"."""
    if cell_len(text) <= width:
        return text
    return f"{set_cell_size(text, width - 1).rstrip()}…" if width > 0 else ""


def in_width(text: str, width: int, *, right: bool) -> str:
    """``text`` in exactly ``width`` columns of the terminal: padded with blanks, or cut."""
    shown = cut(text, width)
    space = " " * (width - cell_len(shown))
    return space + shown if right else shown + space


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
    """The lines of a table.

    Columns that are named in ``right`` are right-aligned. ``width`` is the width of the terminal in characters. If
    fewer than LEAST characters remain for the last column, the columns named in ``drop`` are left out one after the
    other, until enough characters remain. If the last column is still too wide, its texts are cut.
    """
    layout = Layout.fit(header, rows, right=right, width=width, drop=drop)
    return [layout.line(row) for row in (header, *rows)]


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a table that are shown, and the width of each column."""

    columns: tuple[tuple[int, int, bool], ...]  # index in a row, width, whether the column is right-aligned
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
        """The layout of a table with these rows; see the function ``table`` for the parameters."""
        widths = [max(cell_len(row[column]) for row in (header, *rows)) for column in range(len(header))]
        shown_columns = list(range(len(header)))
        if width is not None:
            for title in drop:
                if _width_of_last(widths, shown_columns, width) < min(LEAST, widths[-1]):
                    shown_columns.remove(header.index(title))
            widths[-1] = min(widths[-1], max(_width_of_last(widths, shown_columns, width), 1))
        return cls(tuple((column, widths[column], header[column] in right) for column in shown_columns), width)

    def line(self, row: Sequence[str], *, wide_cells: bool = False) -> str:
        """The line of a row.

        If ``wide_cells`` is true, cells that are wider than their column are not cut; only the line is cut at the width
        of the terminal.
        """
        cells = (
            row[column] if wide_cells and cell_len(row[column]) > size else in_width(row[column], size, right=right)
            for column, size, right in self.columns
        )
        line = GAP.join(cells).rstrip()
        return line if self.cut_at is None or not wide_cells else cut(line, self.cut_at)


def _width_of_last(widths: Sequence[int], shown_columns: Sequence[int], width: int) -> int:
    """The number of characters that remain for the last column of a table, if the whole table is ``width`` characters
    wide."""
    return width - sum(widths[column] + len(GAP) for column in shown_columns[:-1])


FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def _csv_field(value: Any) -> Any:
    """A value as a field of CSV.

    If a spreadsheet would interpret the text as a formula, the field begins with an apostrophe.
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def delimited_line(values: Iterable[Any], delimiter: str = ",") -> str:
    """The line of a row in CSV, or in TSV if ``delimiter`` is a tab, without a line end."""
    written = io.StringIO()
    csv.writer(written, delimiter=delimiter, lineterminator="\n").writerow(map(_csv_field, values))
    return written.getvalue().removesuffix("\n")
