"""Reads the central history: the list of all sessions, and one of them as a history of its own, in memory.

Only what is asked for is copied: of the list its rows, of a session its log and what belongs to it (its proofs, the hunts for
its drops, its batch). The copy is read as any history is, as one of sessions that were imported from their origins.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perfbisect.errors import UsageError
from perfbisect.process import this_process
from perfbisect.store.central import SCHEMA, SESSION, connected, is_name, sentence
from perfbisect.store.connection import default_place
from perfbisect.store.history import History
from perfbisect.store.listing import SessionSummary, damaged
from perfbisect.store.query import WRITES, QueryResult
from perfbisect.store.schema import TABLES, definition

if TYPE_CHECKING:
    from perfbisect.store.central import Connection

HEARD = 180  # seconds since a process was last heard of, within which it counts as running
ELSEWHERE = "central 0 0"  # in place of a process that works on a session no more
PROCESS = {"process": f"CASE WHEN seen > extract(epoch FROM now()) - {HEARD} THEN %(here)s ELSE '{ELSEWHERE}' END"}
NUMBERED = {"id": "row_number() OVER ()"}  # since rows of several histories may have the same number

LISTED = "Write ORIGIN:NUMBER, or the name of a hunt. `bisect history --from central` (or its address) lists all."
OF_QUERIES = f"Ids of sessions are texts there: hunt_id = 'ORIGIN:12'. Tables and views: select table_name from information_schema.tables where table_schema = '{SCHEMA}'"
Selected = tuple[str, Mapping[str, str]]  # what follows FROM, and what stands for a column

OPEN = "(SELECT id FROM sessions WHERE ended IS NULL)"
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
    "events": (f"(SELECT DISTINCT ON (session_id) * FROM events WHERE kind = 'Decided' AND session_id IN {OPEN} ORDER BY session_id, id DESC) AS t", NUMBERED),
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
        names = {number: name for name, number in numbers.items()}
        return [renamed(one, names[one.number]) for one in found]

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
        memory.executescript(";\n".join(definition()).replace(" NOT NULL,\n", ",\n"))
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


def renamed(one: SessionSummary, name: str) -> SessionSummary:
    """A session with its number in its own history."""
    if (number := number_of(name)) is None:
        return damaged(0, "hunt", f"{name!r} is no ORIGIN:NUMBER", name)
    here = number if one.kind == "hunt" else f"{str(one.id)[0]}{number}"
    return replace(one, id=here, origin=name.partition(":")[0])


@contextmanager
def reading(address: str) -> Iterator[Central]:
    """The central history at an address, to be read."""
    with connected(address) as connection:
        yield Central(address, connection)
