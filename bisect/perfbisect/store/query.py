"""SQL of users, read only."""

import sqlite3
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.store.connection import sentence

LONGEST = 64 << 20  # bytes of a value: the largest of a history is far smaller
WRITES = "The query does more than `bisect query` is for, which only reads the history."

READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
PRAGMAS = {
    "table_list", "table_info", "table_xinfo", "index_list", "index_info", "index_xinfo", "foreign_key_list",
    "foreign_key_check", "integrity_check", "quick_check", "database_list", "page_count", "page_size", "user_version", "application_id",
    "function_list", "module_list", "pragma_list", "collation_list", "compile_options",
}  # fmt: skip


DAMAGED = """
WITH named AS (SELECT id, iif(kind = 'hunt', 'hunt ', substr(kind, 1, 1)) || id || ', table ' AS name, kind, settings, request FROM sessions)
SELECT name || 'sessions, row ' || id || ', column settings,' FROM named WHERE NOT json_valid(settings)
UNION ALL SELECT name || 'sessions, row ' || id || ', column request,' FROM named WHERE kind != 'hunt' AND NOT json_valid(request)
UNION ALL SELECT name || 'events, row ' || events.id || ',' FROM events JOIN named ON named.id = session_id WHERE NOT json_valid(body)
UNION ALL SELECT name || 'ranges,' FROM ranges JOIN named ON id = session_id WHERE NOT json_valid(candidates)
UNION ALL SELECT 'table hosts, row ' || id || ',' FROM hosts WHERE NOT json_valid(tools) OR NOT json_valid(settings)
LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The rows of a query, read lazily."""

    columns: tuple[str, ...]
    rows: Generator[tuple[Any, ...]]


def ask(connection: sqlite3.Connection, sql: str, path: Path) -> QueryResult:
    """Run one statement that only reads. Raises UsageError for a mistake in it, and for anything that would write."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
    connection.set_authorizer(only_reading)
    try:
        with mistakes_explained(connection, path):
            cursor = connection.execute(sql)
    finally:
        connection.set_authorizer(None)
    if cursor.description is None:
        raise UsageError("The query is empty.", "Try: bisect query 'select * from culprits'")
    return QueryResult(tuple(column[0] for column in cursor.description), rows(cursor, path))


def rows(cursor: sqlite3.Cursor, path: Path) -> Generator[tuple[Any, ...]]:
    """The rows of a cursor; a statement can fail while it is read."""
    with mistakes_explained(cursor.connection, path):
        yield from cursor


def no_json(connection: sqlite3.Connection) -> str:
    """The first damaged value: its hunt or trial, table and row; "" without one."""
    found = connection.execute(DAMAGED).fetchone()
    return str(found[0]) if found else ""


def only_reading(action: int, first: str | None, second: str | None, _database: str | None, _by: str | None) -> int:
    """The authorizer of SQLite: allows actions that read."""
    allowed = (
        action in READS
        or (action == sqlite3.SQLITE_PRAGMA and first in PRAGMAS)
        # SQLite asks this for table-valued functions such as json_each; it refuses the statement itself
        or (action == sqlite3.SQLITE_UPDATE and first == "sqlite_master")
    )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


@contextmanager
def mistakes_explained(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Translate mistakes in a statement into sentences for the user."""
    try:
        yield
    except (
        sqlite3.Warning,
        sqlite3.ProgrammingError,
    ) as failure:  # several statements, by Python 3.11 and earlier or later; ?
        raise UsageError(f"The query is wrong: {failure}", "Give one statement, without parameters.") from failure
    except UnicodeError as failure:
        raise UsageError("The query is wrong: it is not valid UTF-8.") from failure
    except sqlite3.Error as failure:
        match getattr(failure, "sqlite_errorcode", None):
            case sqlite3.SQLITE_INTERRUPT:
                raise KeyboardInterrupt from None
            case code if code in (sqlite3.SQLITE_AUTH, sqlite3.SQLITE_READONLY) or "it is a view" in str(failure):
                raise UsageError(WRITES, "Use SELECT.") from failure
            case sqlite3.SQLITE_ERROR if "JSON" in str(failure) and (where := no_json(connection)):
                raise EnvironmentFailure(
                    f"The history {path} is damaged: {where} is no JSON.", "Leave it out with WHERE json_valid(…)."
                ) from failure
            case None | sqlite3.SQLITE_ERROR | sqlite3.SQLITE_MISMATCH | sqlite3.SQLITE_TOOBIG | sqlite3.SQLITE_RANGE:
                raise UsageError(
                    f"The query is wrong: {failure}.",
                    "Tables and views: bisect query 'select type, name from sqlite_master'",
                ) from failure
            case _:
                raise sentence(failure, path) from failure
