"""Writes rows. Every run is tens of them, so the statements are SQLite's own: sqlite-utils reads the schema for each."""

import math
import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite_utils


Row = dict[str, Any]
COUNTS = frozenset({
    "bases", "cache_hits", "cache_misses", "candidate", "candidates", "choices", "commits", "cores", "cost", "events",
    "memory_mib", "merges", "operations", "parents", "remote_hits", "round", "runs", "same_as", "samples", "seconds",
})  # fmt: skip


def new_uid() -> str:
    """A name for a hunt or a trial that no other has, in any history."""
    return secrets.token_hex(16)


def number(value: object) -> float:
    """A number of a row. Raises ValueError for anything else: columns of SQLite hold values of any type."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("it is no number")
    return float(value)


def check_counts(value: object, name: str = "") -> None:
    """Raise ValueError for a number below zero, or none, in a field, at any depth, that is a count, a duration or a position."""
    match value:
        case dict():
            for key, part in value.items():
                check_counts(part, key)
        case list() | tuple():
            for part in value:
                check_counts(part, name)
        case int() | float() if name in COUNTS and not 0 <= value < math.inf:
            raise ValueError(f"{name} is {value:g}, as no count or duration is")


def clean(row: Row) -> Row:
    """The row with valid UTF-8: names in old commits and in file systems may be invalid."""
    return {
        column: value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
        for column, value in row.items()
    }


def insert(db: "sqlite_utils.Database", table: str, row: Row) -> int:
    """Insert a row and return its id."""
    row = clean(row)
    number = db.execute(statement("INSERT", table, row), [*row.values()]).lastrowid
    assert isinstance(number, int)
    return number


def insert_new(db: "sqlite_utils.Database", table: str, row: Row) -> None:
    """Insert a row, unless there is one with its key."""
    row = clean(row)
    db.execute(statement("INSERT OR IGNORE", table, row), [*row.values()])


def insert_all(db: "sqlite_utils.Database", table: str, rows: Iterable[Row]) -> None:
    """Insert rows, all with the same columns."""
    cleaned = [clean(row) for row in rows]
    if cleaned:
        db.conn.executemany(statement("INSERT", table, cleaned[0]), [[*row.values()] for row in cleaned])


def statement(verb: str, table: str, row: Row) -> str:
    """The statement that inserts a row with these columns, whose names are our own."""
    return f"{verb} INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
