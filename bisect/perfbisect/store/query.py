"""Runs read-only SQL queries of users; has example queries for `bisect query --examples` and `bisect serve`."""

import re
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.store.connection import error_for_user

LONGEST = 64 << 20  # most bytes of a value; the values of a history are far smaller
WRITES = "The query would change the history, but `bisect query` only reads it."

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

# Queries that Datasette shows for the history. Datasette 0.65 reads them from its metadata, 1.0 from its configuration.
# Datasette passes parameters as text. No query has the name of a table or view, because the two would have the same
# address (0.65 would show the query, 1.0 the table).
OF_HUNT = "(:hunt = '' OR hunts.id = CAST(:hunt AS INTEGER))"

QUERIES = {  # name → title and SQL
    "latest_hunts": (
        "Hunts, the latest first",
        """
SELECT hunts.id, datetime(hunts.started, 'unixepoch') AS started, builder, workload, hunts.host, good, bad, metric,
  coalesce(verdicts.kind, 'none yet') AS verdict, substr(suspects.commit_hash, 1, 10) AS culprit,
  round(100 * suspects.probability, 1) AS probability_percent, round(coalesce(suspects.ratio, verdicts.ratio), 4) AS ratio,
  build_count AS builds, run_count AS runs, coalesce(origin, '') AS imported_from,
  round((coalesce(hunts.ended, (SELECT at FROM events WHERE events.session_id = hunts.id ORDER BY id DESC LIMIT 1)) - hunts.started) / 60, 1)
    AS minutes
FROM hunts
LEFT JOIN verdicts ON verdicts.session_id = hunts.id
LEFT JOIN suspects ON suspects.session_id = hunts.id AND suspects.rank = 0
ORDER BY hunts.id DESC
""",
    ),
    "named_culprits": (
        "Commits that verdicts name",
        """
SELECT hunt_id, builder, workload, host, substr(culprit, 1, 10) AS culprit, date, author, subject,
  round(100 * probability, 1) AS probability_percent, round(ratio, 4) AS ratio, round(low, 4) AS low, round(high, 4) AS high
FROM culprits ORDER BY hunt_id DESC
""",
    ),
    "builds_of_hunt": (
        "Builds of a hunt, or of all hunts",
        f"""
SELECT hunts.id AS hunt, builder, builds.host, substr(builds.commit_hash, 1, 10) AS built, date, subject,
  round(seconds, 1) AS seconds, round(100.0 * cache_hits / nullif(cache_hits + cache_misses, 0), 1) AS ccache_percent,
  reused, substr(same_as, 1, 10) AS same_binary_as
FROM builds JOIN hunts ON hunts.id = builds.session_id LEFT JOIN commits USING (commit_hash)
WHERE {OF_HUNT} ORDER BY builds.event_id DESC
""",
    ),
    "phases_of_builds": (
        "The time of builds by phase, in a hunt, or in all hunts",
        f"""
SELECT builder, build_phases.host, phase, count(*) AS builds, round(sum(seconds), 1) AS seconds,
  round(100 * sum(seconds) / sum(sum(seconds)) OVER (PARTITION BY builder, build_phases.host), 1) AS percent
FROM build_phases JOIN hunts ON hunts.id = session_id
WHERE {OF_HUNT} GROUP BY builder, build_phases.host, phase ORDER BY builder, build_phases.host, seconds DESC
""",
    ),
    "candidates_of_hunt": (
        "Commits that a hunt built, skipped or measured",
        f"""
SELECT hunts.id AS hunt, node, substr(commit_hash, 1, 10) AS candidate, date, subject, candidates.host, builds, runs,
  round(qps, 1) AS qps, round(rqps, 4) AS rqps, skipped
FROM candidates JOIN hunts ON hunts.id = candidates.hunt_id
WHERE {OF_HUNT} ORDER BY hunts.id DESC, node
""",
    ),
    "noise_by_host": (
        "Noise of hosts by A/A tests: standard deviations in percent",
        """
SELECT host, builder, workload, metric, datetime(started, 'unixepoch') AS started, round(100 * between_visits, 2) AS between_visits,
  round(100 * within_visits, 2) AS within_visits, round(100 * noise, 2) AS one_run
FROM trials WHERE kind = 'noise' AND origin IS NULL ORDER BY host, id DESC
""",
    ),
    "spread_by_host": (
        "Noise of hosts in the latest 100 hunts: deviation of runs from the mean of their build, in percent",
        """
SELECT host, builder, workload, count(DISTINCT session_id) AS hunts, count(*) AS runs,
  round(100 * avg(abs(qps / mean - 1)), 2) AS mean_deviation, round(100 * max(abs(qps / mean - 1)), 2) AS largest
FROM (
  SELECT runs.host, builder, hunts.workload, session_id, qps, avg(qps) OVER same AS mean, count(*) OVER same AS repeated
  FROM runs JOIN hunts ON hunts.id = session_id
  WHERE qps > 0 AND hunts.id IN (SELECT id FROM hunts WHERE origin IS NULL ORDER BY id DESC LIMIT 100) WINDOW same AS (PARTITION BY session_id, runs.host, build_key)
)
WHERE repeated > 1 GROUP BY host, builder, workload ORDER BY host, builder, workload
""",
    ),
}


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The names of the columns, and the rows, of a query's result. Each row is read when it is needed."""

    columns: tuple[str, ...]
    rows: Generator[tuple[Any, ...]]


def run_read_only_query(connection: sqlite3.Connection, sql: str, history_path: Path) -> QueryResult:
    """The result of a single SQL statement, which may only read.

    Raises UsageError for a mistake in the SQL, and for a statement that writes.
    """
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
    connection.set_authorizer(authorize_reads)
    try:
        with query_errors_explained(connection, history_path, sql):
            cursor = connection.execute(sql)
    finally:
        connection.set_authorizer(None)
    if cursor.description is None:
        raise UsageError("The query is empty.", "An example: bisect query 'select * from culprits'")
    return QueryResult(tuple(column[0] for column in cursor.description), read_rows(cursor, history_path))


def read_rows(cursor: sqlite3.Cursor, history_path: Path) -> Generator[tuple[Any, ...]]:
    """The rows of a cursor. Each row is read when it is needed. Raises UsageError or EnvironmentFailure if a row cannot
    be read."""
    with query_errors_explained(cursor.connection, history_path):
        yield from cursor


def authorize_reads(
    action: int, argument: str | None, second: str | None, _database: str | None, _by: str | None
) -> int:
    """A callback with which SQLite asks whether an action is allowed: SQLITE_OK for an action that reads, otherwise
    SQLITE_DENY."""
    allowed = (
        action in READS
        or (action == sqlite3.SQLITE_PRAGMA and argument in PRAGMAS)
        # SQLite requests this permission for table-valued functions such as json_each. SQLite refuses a real update of
        # sqlite_master by itself.
        or (action == sqlite3.SQLITE_UPDATE and argument == "sqlite_master")
    )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


@contextmanager
def query_errors_explained(connection: sqlite3.Connection, history_path: Path, sql: str = "") -> Iterator[None]:
    """Within the ``with`` block, raise UsageError instead of SQLite's errors about the user's query ``sql``, and
    EnvironmentFailure instead of SQLite's errors about a damaged history."""
    try:
        yield
    # several statements (the class depends on Python's version), or a parameter
    except (sqlite3.Warning, sqlite3.ProgrammingError) as failure:
        raise UsageError(f"The query is wrong: {failure}", "Give a single statement without parameters.") from failure
    except UnicodeError as failure:
        raise UsageError("The query is not valid UTF-8.") from failure
    except sqlite3.Error as failure:
        match getattr(failure, "sqlite_errorcode", None):
            case sqlite3.SQLITE_INTERRUPT:
                raise KeyboardInterrupt from None
            case code if code in (sqlite3.SQLITE_AUTH, sqlite3.SQLITE_READONLY) or "it is a view" in str(failure):
                raise UsageError(WRITES, "Use a SELECT statement.") from failure
            case sqlite3.SQLITE_ERROR if "JSON" in str(failure) and (damage := connection.execute(DAMAGED).fetchone()):
                raise EnvironmentFailure(
                    f"The history {history_path} is damaged: {damage[0]} is not JSON.",
                    "To exclude such rows, add to the query: WHERE json_valid(COLUMN).",
                ) from failure
            case sqlite3.SQLITE_TOOBIG:
                raise UsageError(
                    f"The query failed: {failure}.", "Select shorter values: substr(COLUMN, 1, 1000)."
                ) from failure
            case None | sqlite3.SQLITE_ERROR | sqlite3.SQLITE_MISMATCH | sqlite3.SQLITE_RANGE:
                raise UsageError(f"The query is wrong: {failure}.", schema_hint(connection, sql)) from failure
            case _:
                raise error_for_user(failure, history_path) from failure


def schema_hint(connection: sqlite3.Connection, sql: str) -> str:
    """A hint after a mistake in an SQL statement: the columns of the tables and views that the statement names; if it
    names none, the names of all tables and views."""
    select = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
    names = sorted(name for (name,) in connection.execute(select))
    words = {*re.findall(r"\w+", sql.lower())}
    columns = "SELECT group_concat(name, ', ') FROM pragma_table_info(?)"
    lines = []
    for name in filter(words.__contains__, names):
        with suppress(sqlite3.Error):  # a damaged view is left out
            lines.append(f"Columns of {name}: {connection.execute(columns, [name]).fetchone()[0]}.")
    return "\n".join(lines) or f"Tables and views: {', '.join(names)}."


def datasette_arguments(database: str, datasette_major: int) -> dict[str, Any]:
    """The arguments with which Datasette of a major version serves a history under the name ``database``."""
    about = {"description": "All hunts and trials. The table events is the log. The other tables are derived from it."}
    queries = {"queries": {name: {"title": title, "sql": sql.strip()} for name, (title, sql) in QUERIES.items()}}
    title = {"title": "perfbisect"}
    if datasette_major:
        return {"config": {"databases": {database: queries}}, "metadata": {**title, "databases": {database: about}}}
    return {"metadata": {**title, "databases": {database: {**about, **queries}}}}
