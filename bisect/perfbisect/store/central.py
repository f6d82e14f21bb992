"""The central history: a PostgreSQL database with the sessions of many histories, in tables and views of the same names.

A session is called ORIGIN:NUMBER there, by the name of the history that it is from and its number in that; so are batches.
Entries of a log keep their numbers, which are unique within a session. JSON is of PostgreSQL's type `json`, which keeps the
text as it is.

It is read as the list of all sessions, and one of them as a history of its own, in memory. Only what is asked for is copied: of
the list its rows, of a session its log and what belongs to it (its proofs, the hunts for its drops, its batch). The copy is
read as any history is, as one of sessions that were imported from their origins.

``pushes`` is the one table that no other history has: of each session the last entry of its log that is here, a digest of
what can change beside the log, and when a process that works on it was last heard of (null: none does).
"""

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.process import this_process
from perfbisect.store import schema
from perfbisect.store.connection import default_place
from perfbisect.store.history import History
from perfbisect.store.listing import KINDS, SessionSummary, damaged
from perfbisect.store.query import WRITES, QueryResult
from perfbisect.store.schema import (
    INDEXES,
    LAST_MOMENT,
    TABLES,
    VERSION,
    VIEWS,
    candidates,
    column_type,
    create_table,
    keys,
)

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

SCHEMA = "perfbisect"
# What the client library would read otherwise than it was meant, such as a password with an @, it would print.
ADDRESS = re.compile(r"postgres(ql)?://((%[\da-fA-F]{2}|[^%@/\s])*@)?(%[\da-fA-F]{2}|[^%@\s])*")
ORIGIN = re.compile(r"[\w.@-]{1,64}", re.ASCII)
SESSION = re.compile(rf"({ORIGIN.pattern}):([cpnb]?)(\d{{1,15}})", re.ASCII)  # or a batch
NAMED = ("session_id", "hunt_id", "about", "batch_id")
OF_LOG = ("events", "builds", "skips", "runs")  # tables whose rows belong to entries of a log
DOCUMENTS = {("events", "body"), ("sessions", "settings"), ("sessions", "request"), ("ranges", "candidates"), ("hosts", "tools"), ("hosts", "settings"), ("batch_hunts", "arguments"), ("batch_hunts", "hosts")}  # fmt: skip
TYPES = {int: "bigint", str: "text"}
TIMES = ("at", "started", "ended", "first_seen")
TIMEOUTS: Mapping[str, Any] = {"connect_timeout": 10, "keepalives_idle": 20, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}  # fmt: skip

# Where SQLite and PostgreSQL differ. Runs have the same number in several sessions: views of them say of which each is.
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
    + candidates("(body #>> '{{facts,{}}}')"),
}

GRANTS = "Whoever may grant: GRANT perfbisect_append TO USER; to read only: GRANT perfbisect_read TO USER"
RIGHTS = f"""
DO $$ BEGIN CREATE ROLE perfbisect_read; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
DO $$ BEGIN CREATE ROLE perfbisect_append; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
GRANT USAGE ON SCHEMA {SCHEMA} TO perfbisect_read;
GRANT SELECT ON ALL TABLES IN SCHEMA {SCHEMA} TO perfbisect_read;
GRANT perfbisect_read TO perfbisect_append;
GRANT INSERT ON {", ".join([*TABLES, "pushes"])} TO perfbisect_append;
GRANT UPDATE ON sessions, sittings, batches, batch_hunts, pushes TO perfbisect_append;
GRANT DELETE ON verdicts, suspects TO perfbisect_append;
"""


HEARD = 180  # seconds since a process was last heard of, within which it counts as running
ELSEWHERE = "central 0 0"  # in place of a process that works on a session no more
PROCESS = {"process": f"CASE WHEN seen > extract(epoch FROM now()) - {HEARD} THEN %(here)s ELSE '{ELSEWHERE}' END"}
NUMBERED = {"id": "row_number() OVER ()"}  # since rows of several histories may have the same number

LISTED = "Write ORIGIN:NUMBER, or the name of a hunt. `bisect history --from central` (or its address) lists all."
OF_QUERIES = f"Ids of sessions are texts there: hunt_id = 'ORIGIN:12'. Tables and views: select table_name from information_schema.tables where table_schema = '{SCHEMA}'"
Selected = tuple[str, Mapping[str, str]]  # what follows FROM, and what stands for a column

OPEN = "(SELECT id FROM sessions WHERE ended IS NULL)"
ONCE = "CASE kind WHEN 'HuntStarted' THEN id END"  # of each other kind the latest
OF_LIST: Mapping[str, Selected] = {  # what the list needs of each table; documents are large, and most of them are not needed
    "sessions": ("sessions", {
        "settings": "json_build_object('name', settings ->> 'name')",
        "request": "CASE WHEN kind != 'hunt' THEN request END",
    }),
    "verdicts": ("verdicts", {}),
    "suspects": ("suspects WHERE rank = 0", {}),
    "commits": ("commits WHERE commit_hash IN (SELECT commit_hash FROM suspects WHERE rank = 0)", {}),
    "sittings": ("(SELECT DISTINCT ON (session_id) * FROM sittings ORDER BY session_id, id DESC) AS t LEFT JOIN pushes USING (session_id)", {**PROCESS, **NUMBERED}),
    "ranges": (f"ranges WHERE session_id IN {OPEN}", {}),
    # The latest decision, and what was compared then.
    "events": (f"(SELECT DISTINCT ON (session_id, {ONCE}) * FROM events WHERE kind IN ('Decided', 'HuntStarted') AND session_id IN {OPEN} ORDER BY session_id, {ONCE}, id DESC) AS t", {
        "id": "row_number() OVER (ORDER BY session_id, id)",
    }),
}  # fmt: skip
IN_BATCH = "SELECT hunt_id FROM batch_hunts WHERE batch_id = %(name)s AND hunt_id IS NOT NULL"
# A session of that kind, those that are about it, and the one that it is about.
RELATED = """
SELECT related.id FROM sessions JOIN sessions AS related
  ON related.id IN (sessions.id, sessions.about) OR related.about = sessions.id
WHERE sessions.id = %(name)s AND left(sessions.kind, 1) = %(kind)s
"""
LATEST = "SELECT id FROM sessions WHERE kind = 'hunt' AND coalesce(settings ->> 'name' = %(name)s, %(name)s IS NULL) ORDER BY started DESC LIMIT 1"
ITS_BATCHES = "(SELECT batch_id FROM batch_hunts WHERE hunt_id = ANY(%(names)s))"
OF_SESSIONS: Mapping[str, Selected] = {  # what is read of the sessions with these names
    "sessions": ("sessions WHERE id = ANY(%(names)s)", {}),
    "hosts": ("hosts WHERE id IN (SELECT host_id FROM sessions WHERE id = ANY(%(names)s))", {}),
    "sittings": ("sittings LEFT JOIN pushes USING (session_id) WHERE session_id = ANY(%(names)s)", PROCESS),
    "commits": ("commits WHERE commit_hash IN (SELECT commit_hash FROM suspects WHERE session_id = ANY(%(names)s))", {}),
    "batches": (f"batches WHERE id IN {ITS_BATCHES}", {}),
    "batch_hunts": (f"batch_hunts WHERE batch_id IN {ITS_BATCHES}", {}),
    **{table: (f"{table} WHERE session_id = ANY(%(names)s)", {}) for table in ("ranges", "events", "verdicts", "suspects")},
}  # fmt: skip


class CentralFailure(EnvironmentFailure):
    """The central history cannot be reached, or has failed."""


def key_of(table: str) -> tuple[str, ...]:
    """The primary key of a table of the central history."""
    own = keys(table)
    return ("session_id", *own) if table in (*OF_LOG, "sittings") else own


def is_name(table: str, column: str) -> bool:
    """Whether a column has names of sessions or batches: ORIGIN:NUMBER."""
    return column in NAMED or (column == "id" and table in ("sessions", "batches"))


def sql_type(table: str, column: str) -> str:
    """The type of a column in PostgreSQL. A session that is deleted takes its rows along."""
    if column == "session_id":
        return "text REFERENCES sessions ON DELETE CASCADE"
    if is_name(table, column):
        return f"text CHECK ({column} ~ '^[A-Za-z0-9_.@-]{{1,64}}:[0-9]{{1,15}}$')"
    if (table, column) == ("sessions", "kind"):
        return f"text CHECK (kind IN {KINDS})"
    if column in TIMES:
        return f"double precision CHECK ({column} BETWEEN 0 AND {LAST_MOMENT})"
    if column_type(table, column) is float:
        return f"double precision CHECK ({column} <= 'Infinity')"  # which NaN is above
    return "json" if (table, column) in DOCUMENTS else TYPES[int if column_type(table, column) is int else str]


def definition() -> Iterator[str]:
    """The SQL that makes an empty central history, with the roles of those who append and of those who only read."""
    yield f"BEGIN;\nCREATE SCHEMA {SCHEMA};\nCOMMENT ON SCHEMA {SCHEMA} IS '{VERSION}';\nSET search_path = {SCHEMA};"
    yield from (f"{create_table(table, key_of(table), sql_type)};" for table in TABLES)
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
def connected(address: str, *, pushes: bool = False) -> "Iterator[Connection]":
    """A connection to a central history, each statement a transaction of its own. Raises UsageError where there is none,
    CentralFailure where it cannot be reached: what ``pushes`` loses nothing then.
    """
    if not ADDRESS.fullmatch(address):
        advice = (
            "Write: postgresql://HOST/DATABASE; the password is in ~/.pgpass, or after the user with its signs as %40."
        )
        raise UsageError(f"{address} is no address of a central history.", advice)
    try:
        import psycopg
        from psycopg.types.string import TextLoader
    except ImportError:
        raise UsageError("psycopg is not installed.", "Install it: pip install 'perfbisect[central]'") from None
    how: Mapping[str, Any] = {"application_name": "perfbisect", "options": f"-c search_path={SCHEMA}", **TIMEOUTS}
    with explained(address, pushes=pushes), psycopg.connect(address, autocommit=True, **how) as connection:
        connection.adapters.register_loader("json", TextLoader)
        space = f"to_regnamespace('{SCHEMA}')"
        select = f"SELECT obj_description({space}, 'pg_namespace'), has_schema_privilege({space}, 'USAGE')"
        found, allowed = connection.execute(select).fetchone() or (None, False)
        if found is None:
            raise UsageError(f"{address} has no central history.", "Make one, once: bisect push --sql | psql ADDRESS")
        if not allowed:
            raise UsageError(f"The central history {address} may not be read by this user.", GRANTS)
        if found != str(VERSION):
            raise UsageError(
                f"The central history {address} has form {found}; this perfbisect writes and reads form {VERSION}.",
                "Use the version of perfbisect that made it, or make another database.",
            )
        yield connection


@contextmanager
def explained(address: str, *, pushes: bool = False) -> Iterator[None]:
    """Translate errors of PostgreSQL and of the way to it into sentences for the user."""
    import psycopg
    from psycopg import errors

    try:
        yield
    except errors.InsufficientPrivilege as failure:
        raise UsageError(f"The central history {address} refuses this: {sentence(failure)}.", GRANTS) from failure
    except (psycopg.OperationalError, psycopg.InterfaceError) as failure:
        raise CentralFailure(
            f"The central history {address} cannot be reached: {sentence(failure)}.",
            f"Check the address, the network and ~/.pgpass.{' Nothing is lost: all is in the local history.' * pushes}",
        ) from failure
    except psycopg.Error as failure:
        raise CentralFailure(f"The central history {address} has failed: {sentence(failure)}.") from failure


def sentence(failure: Exception) -> str:
    """The first line of an error."""
    return str(failure).strip().partition("\n")[0].rstrip(".")


@dataclass(frozen=True, slots=True)
class Central:
    """A central history that is read."""

    address: str
    connection: "Connection"

    def listing(self) -> list[SessionSummary]:
        """All hunts and trials with their origins, oldest first."""
        numbers: dict[str, int] = {}  # of all origins together
        with closing(self._copied(OF_LIST, lambda name: numbers.setdefault(name, len(numbers) + 1))) as history:
            found = history.listing()
        names, listed = {number: name for name, number in numbers.items()}, []
        for one in found:
            origin, number = names[one.number].partition(":")[0], number_of(names[one.number])
            if number is None:
                listed.append(damaged(0, "hunt", f"{names[one.number]!r} is no ORIGIN:NUMBER", names[one.number]))
            else:
                here = number if one.kind == "hunt" else f"{str(one.id)[0]}{number}"
                listed.append(replace(one, id=here, origin=origin))
        return listed

    @contextmanager
    def session(self, name: str | None = None) -> "Iterator[tuple[History, int | str, str]]":
        """A history with one session (None: the latest hunt) or batch, its id there (12, c3, b2), and ORIGIN:ID.

        ``name`` may also be the name that a hunt was given: the latest of those that have it. Raises UsageError when there is none of that name.
        """
        found = SESSION.fullmatch(name or "")
        if not found:
            latest = self._rows(LATEST, {"name": name})
            found = SESSION.fullmatch(latest[0][0]) if latest else None
        missing = UsageError(f"There is no {name or 'hunt'} in the central history {self.address}.", LISTED)
        if not found:
            raise missing
        origin, kind, number = found.groups()
        wanted = {"name": f"{origin}:{number}", "kind": kind or "h"}
        related = self._rows(IN_BATCH if kind == "b" else RELATED, wanted)
        names = [each for (each,) in related if SESSION.fullmatch(each) and each.startswith(f"{origin}:")]
        if not names:
            raise missing
        with closing(self._copied(OF_SESSIONS, number_of, names)) as history:
            yield history, f"{kind}{number}" if kind else int(number), found[0]

    def query(self, sql: str) -> QueryResult:
        """The result of a user's SQL, which PostgreSQL executes with the rights of those who only read."""
        import psycopg
        from psycopg import errors
        from psycopg.types.numeric import FloatLoader

        self.connection.adapters.register_loader("numeric", FloatLoader)
        self.connection.execute("SET default_transaction_read_only = on")
        self.connection.execute("SET ROLE perfbisect_read")
        try:
            cursor = self.connection.execute(sql.encode())  # the user's text, as it is
        except psycopg.Error as failure:
            if self.connection.broken:
                raise
            if isinstance(failure, errors.ReadOnlySqlTransaction | errors.ObjectNotInPrerequisiteState):
                raise UsageError(WRITES, "Use SELECT.") from failure
            raise UsageError(f"PostgreSQL refuses the query: {sentence(failure)}.", OF_QUERIES) from failure
        if cursor.description is None:
            raise UsageError("The query is empty.", "Try: bisect query 'select * from culprits'")
        return QueryResult(tuple(column.name for column in cursor.description), (row for row in cursor))

    def _rows(self, sql: str, values: Mapping[str, object] | None = None) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql.encode(), values).fetchall()

    def _copied(
        self, wanted: Mapping[str, Selected], number: Callable[[str], int | None], names: list[str] | None = None
    ) -> History:
        """A history in memory with what is wanted; ``number`` is that of a session or a batch there."""
        memory = sqlite3.connect(":memory:", isolation_level=None)
        # what others have written may be anything; each row is checked when it is read
        memory.executescript(";\n".join(schema.definition()).replace(" NOT NULL,\n", ",\n"))
        with self.connection.transaction():
            self.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")  # all of one moment
            for table, (source, instead) in wanted.items():
                columns = TABLES[table].split()
                select = f"SELECT {', '.join(instead.get(column, column) for column in columns)} FROM {source}"
                insert = f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(columns))})"
                numbered = [is_name(table, column) for column in columns]
                for row in self._rows(select, {"here": this_process(), "names": names}):
                    given = zip(row, numbered, strict=True)
                    memory.execute(insert, [number(value) if name and value else value for value, name in given])
        copied = History(default_place(), memory, None)
        copied.shown = self.address
        return copied


def number_of(name: str) -> int | None:
    """The number of a session or a batch in its history; None for what is no ORIGIN:NUMBER."""
    found = SESSION.fullmatch(name)
    return int(found[3]) if found else None
