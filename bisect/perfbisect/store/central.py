"""The central history: a PostgreSQL database that contains the sessions of the local histories of many users.

The tables and views have the same names as in a local history. The name of a session is ORIGIN:NUMBER: the name of the
local history, and the number of the session in this history. The name of a batch also has the form ORIGIN:NUMBER. The
entries of a log keep the numbers that they have in the local history, so in a central history these numbers are unique
only within a session. Columns with JSON have PostgreSQL's type `json` (not `jsonb`), which stores the text unchanged.

To read a central history, perfbisect copies rows into an SQLite history in memory: for a list of sessions, the rows
that the list needs; for a report, the log of the session, of its proofs, of the hunts for its drops, and of its batch.
perfbisect then reads this copy like a local history with imported sessions.

Only a central history has the table ``pushes``. For each session, the table stores the number of the last pushed log
entry, and a digest of the data outside of the log, because these data can change. The column ``seen`` has the time at
which a process that works on the session last sent data; it is null if no process works on the session.
"""

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.process import this_process_identity
from perfbisect.store import schema
from perfbisect.store.connection import default_history_path
from perfbisect.store.history import History
from perfbisect.store.listing import KINDS, SessionSummary, damaged_summary
from perfbisect.store.query import WRITES, QueryResult
from perfbisect.store.schema import (
    INDEXES,
    LAST_MOMENT,
    TABLES,
    VERSION,
    VIEWS,
    candidates_view_query,
    column_type,
    create_table_sql,
    primary_key,
)

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

SCHEMA = "perfbisect"
# The client library would print an address that it misreads, such as an address with an @ in the password.
ADDRESS = re.compile(r"postgres(ql)?://((%[\da-fA-F]{2}|[^%@/\s])*@)?(%[\da-fA-F]{2}|[^%@\s])*")
ORIGIN = re.compile(r"[\w.@-]{1,64}", re.ASCII)
SESSION = re.compile(rf"({ORIGIN.pattern}):([cpnb]?)(\d{{1,15}})", re.ASCII)  # central id of a session or a batch
NAMED = ("session_id", "hunt_id", "about", "batch_id")
OF_LOG = ("events", "builds", "skips", "runs")  # tables whose rows belong to entries of a log
DOCUMENTS = {("events", "body"), ("sessions", "settings"), ("sessions", "request"), ("ranges", "candidates"), ("hosts", "tools"), ("hosts", "settings"), ("batch_hunts", "arguments"), ("batch_hunts", "hosts")}  # fmt: skip
TYPES = {int: "bigint", str: "text"}
TIMES = ("at", "started", "ended", "first_seen")
TIMEOUTS: Mapping[str, Any] = {"connect_timeout": 10, "keepalives_idle": 20, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}  # fmt: skip

# Views whose SQL differs in PostgreSQL. Views of runs have a column for the session, because runs of different sessions
# may have equal numbers.
OWN_VIEWS = {
    "trials": VIEWS["trials"].replace("substr(kind, 1, 1) || id", "regexp_replace(id, ':', ':' || substr(kind, 1, 1))"),
    "trial_readings": """
SELECT sessions.id AS trial_id, event_id, round, request -> 'works' -> runs.workload::int ->> 'name' AS workload,
  request -> 'subjects' -> node::int ->> 'name' AS build, runs.started, seconds, qps
FROM runs JOIN sessions ON sessions.id = session_id AND kind != 'hunt'
""",
    "counters": """
SELECT events.id AS run_id, source, name, value, events.session_id
FROM events CROSS JOIN LATERAL (SELECT body -> 'facts' AS facts) AS run CROSS JOIN LATERAL (
  SELECT 'perf' AS source, key AS name, value::double precision FROM json_each_text(facts -> 'counters')
  UNION ALL SELECT 'system', key, value::double precision FROM json_each_text(facts -> 'system')
  UNION ALL SELECT 'command', 'reported', (facts ->> 'reported')::double precision WHERE facts ->> 'reported' IS NOT NULL
  UNION ALL SELECT 'counted', facts ->> 'counted', (facts ->> 'events')::double precision WHERE facts ->> 'counted' != ''
  UNION ALL SELECT 'limit', 'slower_than', (facts ->> 'slower_than')::double precision WHERE (facts ->> 'slower_than')::double precision != 0
) AS item
WHERE events.kind = 'RunFinished'
""",
    "build_phases": """
SELECT builds.event_id, builds.session_id, builds.commit_hash, builds.node, builds.host, item.key AS phase, item.value::double precision AS seconds
FROM builds JOIN events ON events.id = builds.event_id AND events.session_id = builds.session_id
CROSS JOIN LATERAL json_each_text(body #> '{facts,phases}') AS item
""",
    "samples": """
SELECT events.id AS run_id, number - 1 AS number, qps::double precision, events.session_id
FROM events CROSS JOIN LATERAL json_array_elements_text(body #> '{facts,samples}') WITH ORDINALITY AS item (qps, number)
WHERE events.kind = 'RunFinished'
""",
    "candidates": """
WITH touched AS (
  SELECT hunts.id AS hunt_id, hunts.base_commit, node, commit_hash, each.host
  FROM hunts JOIN (
    SELECT session_id, node, commit_hash, host FROM builds UNION SELECT session_id, node, commit_hash, host FROM skips
    UNION SELECT session_id, node, commit_hash, host FROM runs
  ) AS each ON session_id = hunts.id
)
"""
    + candidates_view_query("(body #>> '{{facts,{}}}')"),
}

GRANTS = (
    "An administrator can grant access: GRANT perfbisect_append TO USER; to read only: GRANT perfbisect_read TO USER"
)
RIGHTS = f"""
DO $$ BEGIN CREATE ROLE perfbisect_read; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
DO $$ BEGIN CREATE ROLE perfbisect_append; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
GRANT USAGE ON SCHEMA {SCHEMA} TO perfbisect_read;
GRANT SELECT ON ALL TABLES IN SCHEMA {SCHEMA} TO perfbisect_read;
GRANT perfbisect_read TO perfbisect_append;
GRANT INSERT ON {", ".join([*TABLES, "pushes"])} TO perfbisect_append;
GRANT UPDATE ON sessions, attempts, batches, batch_hunts, pushes TO perfbisect_append;
GRANT DELETE ON verdicts, suspects TO perfbisect_append;
"""


HEARD = 180  # a process counts as running for this number of seconds after it last sent data
ELSEWHERE = "central 0 0"  # in place of a process that no longer works on a session
PROCESS = {"process": f"CASE WHEN seen > extract(epoch FROM now()) - {HEARD} THEN %(here)s ELSE '{ELSEWHERE}' END"}
NUMBERED = {"id": "row_number() OVER ()"}  # new numbers, because rows of several histories may have equal numbers

LISTED = "Write ORIGIN:NUMBER, or the name of a hunt. `bisect history --from central` lists all sessions."
OF_QUERIES = f"In a central history, ids of sessions are texts: hunt_id = 'ORIGIN:12'. Tables and views: select table_name from information_schema.tables where table_schema = '{SCHEMA}'"
TableSelection = tuple[str, Mapping[str, str]]  # text after FROM, and expressions that replace columns

OPEN = "(SELECT id FROM sessions WHERE ended IS NULL)"
ONCE = "CASE kind WHEN 'HuntStarted' THEN id END"  # all HuntStarted events, and the latest event of any other kind
OF_LIST: Mapping[str, TableSelection] = {  # the parts of each table that the list needs; documents are large, and most are not needed
    "sessions": ("sessions", {
        "settings": "json_build_object('name', settings ->> 'name')",
        "request": "CASE WHEN kind != 'hunt' THEN request END",
    }),
    "verdicts": ("verdicts", {}),
    "suspects": ("suspects WHERE rank = 0", {}),
    "commits": ("commits WHERE commit_hash IN (SELECT commit_hash FROM suspects WHERE rank = 0)", {}),
    "attempts": ("(SELECT DISTINCT ON (session_id) * FROM attempts ORDER BY session_id, id DESC) AS t LEFT JOIN pushes USING (session_id)", {**PROCESS, **NUMBERED}),
    "ranges": (f"ranges WHERE session_id IN {OPEN}", {}),
    # The latest decision, and the metric at that time.
    "events": (f"(SELECT DISTINCT ON (session_id, {ONCE}) * FROM events WHERE kind IN ('Decided', 'HuntStarted') AND session_id IN {OPEN} ORDER BY session_id, {ONCE}, id DESC) AS t", {
        "id": "row_number() OVER (ORDER BY session_id, id)",
    }),
}  # fmt: skip
IN_BATCH = "SELECT hunt_id FROM batch_hunts WHERE batch_id = %(name)s AND hunt_id IS NOT NULL"
# The requested session, the sessions that are about this session, and the session that this session is about.
RELATED = """
SELECT related.id FROM sessions JOIN sessions AS related
  ON related.id IN (sessions.id, sessions.about) OR related.about = sessions.id
WHERE sessions.id = %(name)s AND left(sessions.kind, 1) = %(kind)s
"""
LATEST = "SELECT id FROM sessions WHERE kind = 'hunt' AND coalesce(settings ->> 'name' = %(name)s, %(name)s IS NULL) ORDER BY started DESC LIMIT 1"
ITS_BATCHES = "(SELECT batch_id FROM batch_hunts WHERE hunt_id = ANY(%(names)s))"
OF_SESSIONS: Mapping[str, TableSelection] = {  # rows of the sessions with these names
    "sessions": ("sessions WHERE id = ANY(%(names)s)", {}),
    "hosts": ("hosts WHERE id IN (SELECT host_id FROM sessions WHERE id = ANY(%(names)s))", {}),
    "attempts": ("attempts LEFT JOIN pushes USING (session_id) WHERE session_id = ANY(%(names)s)", PROCESS),
    "commits": ("commits WHERE commit_hash IN (SELECT commit_hash FROM suspects WHERE session_id = ANY(%(names)s))", {}),
    "batches": (f"batches WHERE id IN {ITS_BATCHES}", {}),
    "batch_hunts": (f"batch_hunts WHERE batch_id IN {ITS_BATCHES}", {}),
    **{table: (f"{table} WHERE session_id = ANY(%(names)s)", {}) for table in ("ranges", "events", "verdicts", "suspects")},
}  # fmt: skip


class CentralFailure(EnvironmentFailure):
    """Raised if the central history cannot be reached, or if it reports a failure."""


def central_primary_key(table: str) -> tuple[str, ...]:
    """The names of the columns that are the primary key of a table of the central history."""
    columns = primary_key(table)
    return ("session_id", *columns) if table in (*OF_LOG, "attempts") else columns


def has_session_names(table: str, column: str) -> bool:
    """Whether a column contains names of sessions or batches, which have the form ORIGIN:NUMBER."""
    return column in NAMED or (column == "id" and table in ("sessions", "batches"))


def postgres_column_sql(table: str, column: str) -> str:
    """The type of a column in PostgreSQL, and its constraints. If a session is deleted, the constraint of
    ``session_id`` also deletes the rows of this session in other tables."""
    if column == "session_id":
        return "text REFERENCES sessions ON DELETE CASCADE"
    if has_session_names(table, column):
        return f"text CHECK ({column} ~ '^[A-Za-z0-9_.@-]{{1,64}}:[0-9]{{1,15}}$')"
    if (table, column) == ("sessions", "kind"):
        return f"text CHECK (kind IN {KINDS})"
    if column in TIMES:
        return f"double precision CHECK ({column} BETWEEN 0 AND {LAST_MOMENT})"
    if column_type(table, column) is float:
        return f"double precision CHECK ({column} <= 'Infinity')"  # false for NaN, which is above
    return "json" if (table, column) in DOCUMENTS else TYPES[int if column_type(table, column) is int else str]


def central_schema_sql() -> Iterator[str]:
    """The SQL that makes an empty central history, and two roles: a role that may append data, and a role that may only
    read."""
    yield f"BEGIN;\nCREATE SCHEMA {SCHEMA};\nCOMMENT ON SCHEMA {SCHEMA} IS '{VERSION}';\nSET search_path = {SCHEMA};"
    yield from (f"{create_table_sql(table, central_primary_key(table), postgres_column_sql)};" for table in TABLES)
    yield (
        "CREATE TABLE pushes (\n  session_id text PRIMARY KEY REFERENCES sessions ON DELETE CASCADE,\n"
        "  entry bigint NOT NULL,\n  digest text NOT NULL,\n  seen double precision\n);"
    )
    yield "CREATE INDEX ON sessions (origin);"
    yield from (
        f"CREATE INDEX ON {table} ({', '.join(columns)});" for table, *columns in INDEXES if columns != ["session_id"]
    )
    yield from (f"CREATE OR REPLACE VIEW {name} AS {OWN_VIEWS.get(name, sql).strip()};" for name, sql in VIEWS.items())
    yield f"{RIGHTS.strip()}\nCOMMIT;"


@contextmanager
def central_connection(address: str, *, is_push: bool = False) -> "Iterator[Connection]":
    """A connection to a central history, in autocommit mode.

    Raises UsageError if there is no central history at the address, and CentralFailure if the address cannot be
    reached. If ``is_push`` is true, the advice of CentralFailure also tells the user that the local history has all
    sessions.
    """
    if not ADDRESS.fullmatch(address):
        advice = "Write postgresql://HOST/DATABASE. Put the password into ~/.pgpass, or write it after the user, with special signs as %40."
        raise UsageError(f"{address} is not an address of a central history.", advice)
    try:
        import psycopg
        from psycopg.types.string import TextLoader
    except ImportError:
        raise UsageError(
            "The Python package psycopg is not installed.", "Install it: pip install 'perfbisect[central]'"
        ) from None
    how: Mapping[str, Any] = {"application_name": "perfbisect", "options": f"-c search_path={SCHEMA}", **TIMEOUTS}
    with (
        postgres_errors_explained(address, is_push=is_push),
        psycopg.connect(address, autocommit=True, **how) as connection,
    ):
        connection.adapters.register_loader("json", TextLoader)
        space = f"to_regnamespace('{SCHEMA}')"
        select = f"SELECT obj_description({space}, 'pg_namespace'), has_schema_privilege({space}, 'USAGE')"
        form, allowed = connection.execute(select).fetchone() or (None, False)
        if form is None:
            raise UsageError(
                f"The database {address} has no central history.",
                "To create a central history: bisect push --sql | psql ADDRESS",
            )
        if not allowed:
            raise UsageError(f"Your user may not read the central history {address}.", GRANTS)
        if form != str(VERSION):
            raise UsageError(
                f"The central history {address} has schema version {form}, but this perfbisect needs version {VERSION}.",
                "Use the version of perfbisect that created the central history, or create another database.",
            )
        yield connection


@contextmanager
def postgres_errors_explained(address: str, *, is_push: bool = False) -> Iterator[None]:
    """Within the ``with`` block, errors of PostgreSQL and of the connection are raised as UsageError or CentralFailure,
    with a message for the user."""
    import psycopg
    from psycopg import errors

    try:
        yield
    except errors.InsufficientPrivilege as failure:
        raise UsageError(
            f"The central history {address} refuses the operation: {first_line_of_error(failure)}.", GRANTS
        ) from failure
    except (psycopg.OperationalError, psycopg.InterfaceError) as failure:
        raise CentralFailure(
            f"The central history {address} cannot be reached: {first_line_of_error(failure)}.",
            f"Check the address, the network and ~/.pgpass.{' The local history has all sessions.' * is_push}",
        ) from failure
    except psycopg.Error as failure:
        raise CentralFailure(f"The central history {address} failed: {first_line_of_error(failure)}.") from failure


def first_line_of_error(failure: Exception) -> str:
    """The first line of the text of an error, without the period at its end."""
    return str(failure).strip().partition("\n")[0].rstrip(".")


class CentralCopyInMemory(NamedTuple):
    """A session or a batch of a central history, which was copied into the database ``history`` in memory."""

    history: History
    id: int | str  # in ``history``: 12, c3, b2
    central_name: str  # ORIGIN:ID


@dataclass(frozen=True, slots=True)
class CentralReader:
    """Reads a central history through an open connection."""

    address: str
    connection: "Connection"

    def hunts_and_trials(self) -> list[SessionSummary]:
        """The summaries of all hunts and trials, oldest first, each with the name of the local history from which it
        came. Fitness checks are left out."""
        numbers: dict[str, int] = {}  # name of a session → a number that is unique over all origins
        with closing(
            self._copied_to_memory(OF_LIST, lambda name: numbers.setdefault(name, len(numbers) + 1))
        ) as history:
            summaries = history.hunts_and_trials()
        names, listed = {number: name for name, number in numbers.items()}, []
        for summary in summaries:
            name = names[summary.number]
            origin, number = name.partition(":")[0], number_in_central_name(name)
            if number is None:
                listed.append(damaged_summary(0, "hunt", f"{name!r} is not ORIGIN:NUMBER", name))
            else:
                number_here = number if summary.kind == "hunt" else f"{str(summary.id)[0]}{number}"
                listed.append(replace(summary, id=number_here, origin=origin))
        return listed

    @contextmanager
    def session_copy(self, name: str | None = None) -> "Iterator[CentralCopyInMemory]":
        """A copy, in memory, of a session or a batch, and of its related sessions. If ``name`` is None, the latest hunt
        is copied.

        ``name`` has the form ORIGIN:ID, or is a name that a user has given to one or several hunts. If several hunts
        have this name, the latest of them is copied. Raises UsageError if no session matches.
        """
        match = SESSION.fullmatch(name or "")
        if not match:
            latest = self._select(LATEST, {"name": name})
            match = SESSION.fullmatch(latest[0][0]) if latest else None
        missing = UsageError(f"There is no {name or 'hunt'} in the central history {self.address}.", LISTED)
        if not match:
            raise missing
        origin, kind, number = match.groups()
        values = {"name": f"{origin}:{number}", "kind": kind or "h"}
        related = self._select(IN_BATCH if kind == "b" else RELATED, values)
        names = [member for (member,) in related if SESSION.fullmatch(member) and member.startswith(f"{origin}:")]
        if not names:
            raise missing
        with closing(self._copied_to_memory(OF_SESSIONS, number_in_central_name, names)) as history:
            yield CentralCopyInMemory(history, f"{kind}{number}" if kind else int(number), match[0])

    def query(self, sql: str) -> QueryResult:
        """The result of an SQL query of the user. PostgreSQL executes the query with the rights of the role that may
        only read."""
        import psycopg
        from psycopg import errors
        from psycopg.types.numeric import FloatLoader

        self.connection.adapters.register_loader("numeric", FloatLoader)
        self.connection.execute("SET default_transaction_read_only = on")
        self.connection.execute("SET ROLE perfbisect_read")
        try:
            cursor = self.connection.execute(sql.encode())  # the user's text, unchanged
        except psycopg.Error as failure:
            if self.connection.broken:
                raise
            if isinstance(failure, errors.ReadOnlySqlTransaction | errors.ObjectNotInPrerequisiteState):
                raise UsageError(WRITES, "Use SELECT.") from failure
            raise UsageError(f"PostgreSQL refuses the query: {first_line_of_error(failure)}.", OF_QUERIES) from failure
        if cursor.description is None:
            raise UsageError("The query is empty.", "An example: bisect query 'select * from culprits'")
        return QueryResult(tuple(column.name for column in cursor.description), (row for row in cursor))

    def _select(self, sql: str, values: Mapping[str, object] | None = None) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql.encode(), values).fetchall()

    def _copied_to_memory(
        self,
        selection: Mapping[str, TableSelection],
        number_of_name: Callable[[str], int | None],
        session_names: list[str] | None = None,
    ) -> History:
        """A history in memory, into which rows of the central history are copied. ``selection`` maps the name of each
        table to the query that returns the rows to copy.

        ``number_of_name`` returns the number that a session or a batch with a given name has in the copy.
        """
        memory = sqlite3.connect(":memory:", isolation_level=None)
        # Without NOT NULL: rows by other persons may have any content, and each row is checked when it is read.
        memory.executescript(";\n".join(schema.schema_statements()).replace(" NOT NULL,\n", ",\n"))
        with self.connection.transaction():
            self.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")  # reads of one state
            for table, (source, instead) in selection.items():
                columns = TABLES[table].split()
                select = f"SELECT {', '.join(instead.get(column, column) for column in columns)} FROM {source}"
                insert = f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(columns))})"
                numbered = [has_session_names(table, column) for column in columns]
                for row in self._select(select, {"here": this_process_identity(), "names": session_names}):
                    cells = zip(row, numbered, strict=True)
                    values = [number_of_name(value) if name and value else value for value, name in cells]
                    memory.execute(insert, values)
        copied = History(default_history_path(), memory, None)
        copied.label = self.address
        return copied


def number_in_central_name(name: str) -> int | None:
    """The number of the session or batch whose name has the form ORIGIN:NUMBER; None if ``name`` has another form."""
    match = SESSION.fullmatch(name)
    return int(match[3]) if match else None
