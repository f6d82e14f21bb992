"""The central history: a PostgreSQL database with the sessions of many histories, in tables and views of the same names.

A session is called ORIGIN:NUMBER there, by the name of the history that it is from and its number in that; so are batches.
Entries of a log keep their numbers, which are unique within a session. JSON is of PostgreSQL's type `json`, which keeps the
text as it is.

``pushes`` is the one table that no other history has: of each session the last entry of its log that is here, a digest of
what can change beside the log, and when a process that works on it was last heard of (null: none does).
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from perfbisect.errors import EnvironmentFailure, UsageError
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
        return "text CHECK (kind IN ('hunt', 'compare', 'noise', 'prove'))"
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
