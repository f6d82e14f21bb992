"""`bisect query`: query the history in SQL."""

import json
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import chain
from typing import Any

import click

from perfbisect.cli.options.common import (
    CommandOptions,
    history_option,
    json_option,
    options_command,
    output_width,
    print_and_exit_option,
    say,
    say_json,
)
from perfbisect.cli.options.stored import from_option, opened_history
from perfbisect.errors import UsageError
from perfbisect.store.query import QueryResult
from perfbisect.store.schema import LAST_MOMENT
from perfbisect.wording.table import Layout, delimited_line
from perfbisect.wording.text import printable

QUERIES = """\
# the culprits of all hunts, the latest hunt first
bisect query 'select hunt_id, builder, workload, culprit, ratio, subject from culprits order by hunt_id desc'
# the commits of the latest hunt, with the mean of the hunted metric
bisect query 'select node, commit_hash, date, runs, metric_value, rqps, skipped from candidates where hunt_id = (select max(id) from hunts)'
# each run of the latest hunt
bisect query 'select started, host, commit_hash, metric_value from runs where session_id = (select max(id) from hunts) order by started'
"""


FIRST_ROWS = 1000  # the widths of a table depend on these rows, or on the rows that arrive within FIRST_SECONDS
FIRST_SECONDS = 0.3
TIMES = ("at", "started", "ended", "first_seen", "first_used", "last_used")  # columns of seconds since the epoch


@options_command()
@click.argument("sql")
@click.option("--examples", help="Print useful queries.", **print_and_exit_option(lambda _: say(QUERIES.rstrip())))
@json_option("Print a JSON array of objects.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values with a header.")
@from_option
@history_option
def query(given: CommandOptions) -> None:
    """Run an SQL query on the history, and print its rows.

    \b
    Examples:
      bisect query --examples                          print further queries
      bisect query 'select * from culprits'            all culprits
      bisect query 'select * from build_costs' --csv   the durations of builds, as CSV
      bisect query "select * from culprits where hunt_id like 'ORIGIN:%'" --from central   of one origin
      bisect query "select name, sql from sqlite_master where type = 'table'" --json   all tables

    \b
    Useful views: culprits, candidates, rqps, build_costs. The column metric_value, in candidates and runs, has the
    values of the hunt's metric. The column rqps is the QPS divided by the QPS of good, even if the hunt has another
    metric. The column rqps is empty if good has no runs of the same kind (interleaved or paired). A table prints times
    as local dates; --json and --csv print seconds since 1970.
    Tables and views: sessions (hunts, comparisons, proofs, …), attempts (processes that worked on a session), hunts,
    trials, events, hosts, commits, builds, skips, datasets, visits, runs, trial_readings, counters, samples, verdicts,
    suspects.
    """
    if given.as_json and given.as_csv:
        raise click.UsageError("--json and --csv exclude each other. Omit one of them.")
    with opened_history(given.history, given.central) as opened:
        answer = opened.query(given.sql)
        with closing(answer.rows):
            if given.as_csv:
                for row in chain([answer.columns], answer.rows):
                    say(delimited_line(map(json_value, row)))
            elif given.as_json:
                write_json(answer)
            else:
                write_table(answer)


def json_value(value: Any) -> Any:
    """A database value for JSON and tables: bytes become hexadecimal, and values of types that JSON lacks become text."""
    return value.hex() if isinstance(value, bytes) else value if isinstance(value, int | float | None) else str(value)


def write_json(answer: QueryResult) -> None:
    """Write rows as a JSON array with one object on each line. Raises UsageError if two columns have the same name."""
    from perfbisect.core.domain.codec import clamp_infinity

    if twice := [name for name in answer.columns if answer.columns.count(name) > 1]:
        text = f"Two columns have the name {twice[0]}, but JSON needs unique names."
        raise UsageError(text, "Rename one of the columns with AS.")
    separator = "["
    for row in answer.rows:
        values = clamp_infinity(dict(zip(answer.columns, map(json_value, row), strict=True)))
        say_json(f"{separator}{json.dumps(values, ensure_ascii=False, allow_nan=False)}", end="")
        separator = ",\n "
    say_json("[]" if separator == "[" else "]")


def write_table(answer: QueryResult) -> None:
    """Write aligned columns, numbers on the right. The widths of the columns are computed from the first rows."""
    begun = time.monotonic()
    first: list[tuple[Any, ...]] = []
    for row in answer.rows:
        first.append(row)
        if len(first) == FIRST_ROWS or time.monotonic() - begun > FIRST_SECONDS:
            break
    head = [*map(printable, answer.columns)]
    types = [{type(value) for value in values} for values in zip(*first, strict=True)]
    numbers = [
        name
        for name, types_of_column in zip(head, types, strict=False)
        if types_of_column & {int, float} and not types_of_column & {str, bytes} and name not in TIMES
    ]
    layout = Layout.fit(head, [row_cells(row, answer.columns) for row in first], right=numbers, width=output_width())
    say(layout.line(head))
    for index, row in enumerate(chain(first, answer.rows)):
        say(layout.line(row_cells(row, answer.columns), wide_cells=index >= len(first)))


def row_cells(row: tuple[Any, ...], columns: Sequence[str]) -> list[str]:
    """The cells of a row of a table. In the columns TIMES, seconds since the epoch become local dates and times."""
    from perfbisect.wording.quantities import moment, time_of_day

    def cell(name: str, value: Any) -> str:
        if name in TIMES and isinstance(value, float) and 0 < value < LAST_MOMENT:
            return f"{moment(value)[:10]} {time_of_day(value)}"
        return "" if value is None else printable(str(json_value(value)))

    return [cell(name, value) for name, value in zip(columns, row, strict=True)]
