"""Values for CSV and TSV, which are opened in spreadsheets."""

import csv
import io
from collections.abc import Iterable
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def cell(value: Any) -> Any:
    """A value for a field. A text that a spreadsheet would take for a formula begins with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def line(values: Iterable[Any], delimiter: str = ",") -> str:
    """One row, without the end of its line."""
    written = io.StringIO()
    csv.writer(written, delimiter=delimiter, lineterminator="\n").writerow(map(cell, values))
    return written.getvalue().removesuffix("\n")
