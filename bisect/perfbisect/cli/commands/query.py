"""`bisect query`: query the history in SQL."""

import json
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import click

from perfbisect.cli.options.common import history_option, output_width, say
from perfbisect.errors import UsageError
from perfbisect.store.history import History
from perfbisect.store.query import Answer

EPILOG = """\b
Examples:
  bisect query 'select * from culprits'
  bisect query 'select commit_hash, date, runs, rqps from candidates where hunt_id = 12'
  bisect query 'select * from build_costs' --csv
  bisect query "select name, sql from sqlite_master where type = 'table'" --json

\b
Useful views: culprits, candidates, rqps, build_costs. rqps is of QPS, whatever the metric of the hunt.
Tables: hunts, events, hosts, commits, builds, skips, datasets, visits, runs, counters, samples, verdicts, suspects.
"""


@click.command(epilog=EPILOG)
@click.argument("sql")
@click.option("--json", "as_json", is_flag=True, help="A JSON array of objects.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values with a header.")
@history_option
def query(sql: str, history: Path | None, as_json: bool, as_csv: bool) -> None:
    """Print the rows of one SQL query."""
    if as_json and as_csv:
        raise click.UsageError("Choose one of --json and --csv.")
    lines = json_lines if as_json else csv_lines if as_csv else table_lines
    with closing(History.open(history, read_only=True)) as opened:
        for line in lines(opened.query(sql)):
            say(line)


def plain(value: Any) -> Any:
    """A value of SQLite for JSON and tables: bytes become hexadecimal."""
    return value.hex() if isinstance(value, bytes) else value


def json_lines(answer: Answer) -> Iterator[str]:
    """An array with one object a line. Raises UsageError where two columns have the same name."""
    if twice := [name for name in answer.columns if answer.columns.count(name) > 1]:
        raise UsageError(f"Several columns are called {twice[0]}; keys of JSON are unique.", "Name them with AS.")
    objects = (
        json.dumps(dict(zip(answer.columns, map(plain, row), strict=True)), ensure_ascii=False) for row in answer.rows
    )
    latest = next(objects, "")
    opening = "["
    for each in objects:
        yield f"{opening}{latest},"
        latest, opening = each, " "
    yield f"{opening}{latest}]"


def csv_lines(answer: Answer) -> Iterator[str]:
    """A header, then a line for each row."""
    import csv
    import io

    for row in chain([answer.columns], answer.rows):
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(plain(value) for value in row)
        yield line.getvalue()


def table_lines(answer: Answer) -> Iterator[str]:
    """Columns that line up, numbers on the right."""
    from perfbisect.wording.table import table
    from perfbisect.wording.text import printable

    rows = list(answer.rows)
    numbers = [
        name
        for place, name in enumerate(answer.columns)
        if any(isinstance(row[place], int | float) for row in rows)
        and not any(isinstance(row[place], str | bytes) for row in rows)
    ]
    cells = [["" if value is None else printable(str(plain(value))) for value in row] for row in rows]
    yield from table(answer.columns, cells, right=numbers, width=output_width())
