"""Reads the central history: the list of all sessions, and one of them as a history of its own, in memory.

Only what is asked for is copied: of the list its rows, of a session its log and what belongs to it (its proofs, the hunts for
its drops, its batch). The copy is read as any history is, as one of sessions that were imported from their origins.
"""

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from perfbisect.errors import UsageError
from perfbisect.masking import masked
from perfbisect.process import this_process
from perfbisect.store.central import NAMED, ORIGIN, SCHEMA, connected, explained, sentence
from perfbisect.store.connection import default_place
from perfbisect.store.history import History
from perfbisect.store.listing import Listed, ListedTrial
from perfbisect.store.query import WRITES, Answer
from perfbisect.store.schema import INDEXES, TABLES, VIEWS, column_type

if TYPE_CHECKING:
    from perfbisect.store.central import Connection

NAME = re.compile(rf"({ORIGIN.pattern}):([cpnb]?)(\d{{1,15}})", re.ASCII)
HEARD = 180  # seconds since a process was last heard of, within which it counts as running
ELSEWHERE = "central 0 0"  # in place of a process that works on a session no more
PROCESS = {"process": f"CASE WHEN seen > extract(epoch FROM now()) - {HEARD} THEN %(here)s ELSE '{ELSEWHERE}' END"}
TYPES = {int: "INTEGER", float: "REAL", str: "TEXT"}

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
    "sittings": ("(SELECT DISTINCT ON (session_id) * FROM sittings ORDER BY session_id, id DESC) AS t LEFT JOIN pushes USING (session_id)", PROCESS),
    "ranges": (f"ranges WHERE session_id IN {OPEN}", {}),
    "events": (f"(SELECT DISTINCT ON (session_id) * FROM events WHERE kind = 'Decided' AND session_id IN {OPEN} ORDER BY session_id, id DESC) AS t", {}),
}  # fmt: skip
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

    def listing(self) -> list[Listed | ListedTrial]:
        """All hunts and trials with their origins, oldest first."""
        numbers: dict[str, int] = {}  # of all origins together
        with closing(self._copied(OF_LIST, lambda name: numbers.setdefault(name, len(numbers) + 1))) as history:
            names = {number: name.partition(":")[2] for name, number in numbers.items()}
            hunts = [replace(one, id=int(names[one.id])) for one in history.hunts()]
            trials = [replace(one, id=f"{one.id[0]}{names[int(one.id[1:])]}") for one in history.trials()]
        return sorted([*hunts, *trials], key=lambda one: one.started)

    @contextmanager
    def session(self, name: str | None = None) -> "Iterator[tuple[History, int | str]]":
        """A history with one session (None: the latest hunt) or batch, and its id there: 12, c3, b2.

        Raises UsageError when there is none of that name.
        """
        if name is None:
            latest = self._rows("SELECT id FROM sessions WHERE kind = 'hunt' ORDER BY started DESC LIMIT 1")
            if not latest:
                raise UsageError(f"There are no hunts yet in {masked(self.address)}.", "Push some: bisect push")
            name = str(latest[0][0])
        found = NAME.fullmatch(name)
        if not found:
            raise UsageError(
                f"{name} names nothing in a central history.",
                "Write ORIGIN:NUMBER, as `bisect history --from` lists them.",
            )
        origin, kind, number = found.groups()
        stored = f"{origin}:{number}"
        if kind == "b":
            select = "SELECT hunt_id FROM batch_hunts WHERE batch_id = %s AND hunt_id IS NOT NULL"
            values: list[str] = [stored]
        else:
            select = (
                "SELECT id FROM sessions WHERE id = %s OR about = %s OR id = (SELECT about FROM sessions WHERE id = %s)"
            )
            values = [stored] * 3
        names = [each for (each,) in self._rows(select, values)]
        if not names or (kind != "b" and stored not in names):
            raise UsageError(
                f"There is no {name} in the central history {masked(self.address)}.",
                "`bisect history --from` lists all.",
            )
        with closing(self._copied(OF_SESSIONS, lambda name: int(name.rpartition(":")[2]), names)) as history:
            yield history, f"{kind}{number}" if kind else int(number)

    def query(self, sql: str) -> Answer:
        """The result of a user's SQL, which PostgreSQL executes with the rights of those who only read."""
        import psycopg
        from psycopg import errors
        from psycopg.types.numeric import FloatLoader

        self.connection.adapters.register_loader("numeric", FloatLoader)
        with explained(self.address):
            self.connection.execute("SET default_transaction_read_only = on")
            self.connection.execute("SET ROLE perfbisect_read")
            try:
                cursor = self.connection.execute(sql.encode())  # the user's text, as it is
            except psycopg.Error as failure:
                if self.connection.broken or isinstance(failure, errors.InsufficientPrivilege):
                    raise
                if isinstance(failure, errors.ReadOnlySqlTransaction | errors.ObjectNotInPrerequisiteState):
                    raise UsageError(WRITES, "Use SELECT.") from failure
                advice = f"Tables and views: select table_name from information_schema.tables where table_schema = '{SCHEMA}'"
                raise UsageError(f"The query is wrong: {sentence(failure)}.", advice) from failure
        if cursor.description is None:
            raise UsageError("The query is empty.", "Try: bisect query 'select * from culprits'")
        return Answer(tuple(column.name for column in cursor.description), (row for row in cursor))

    def _rows(self, sql: str, values: Sequence[str] | Mapping[str, object] | None = None) -> list[tuple[Any, ...]]:
        with explained(self.address):
            return self.connection.execute(sql.encode(), values).fetchall()

    def _copied(
        self, wanted: Mapping[str, Selected], number: Callable[[str], int], names: list[str] | None = None
    ) -> History:
        """A history in memory with what is wanted; ``number`` is that of a session or a batch there."""
        memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        for table, named in TABLES.items():
            typed = [f"{column} {TYPES[column_type(table, column)]}" for column in named.split()]
            memory.execute(
                f"CREATE TABLE {table} ({typed[0]} {'PRIMARY KEY' * typed[0].startswith('id ')}, {', '.join(typed[1:])})"
            )
        for table, (source, instead) in wanted.items():
            columns = TABLES[table].split()
            select = f"SELECT {', '.join(instead.get(column, column) for column in columns)} FROM {source}"
            order = " ORDER BY session_id, id" if table in ("events", "sittings") else ""
            rows = self._rows(f"{select}{order}", {"here": this_process(), "names": names})
            own = {
                place
                for place, column in enumerate(columns)
                if column in NAMED or (column == "id" and table in ("sessions", "batches"))
            }
            # entries of several histories may have the same number, of which the list needs none
            renumbered = count(1) if names is None and table in ("events", "sittings") else None
            memory.executemany(
                f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})",
                (
                    [
                        number(value)
                        if place in own and value is not None
                        else next(renumbered)
                        if renumbered and not place
                        else value
                        for place, value in enumerate(row)
                    ]
                    for row in rows
                ),
            )
        for of, *indexed in INDEXES:
            memory.execute(f"CREATE INDEX {of}_{'_'.join(indexed)} ON {of} ({', '.join(indexed)})")
        for view, sql in VIEWS.items():
            memory.execute(f"CREATE VIEW {view} AS {sql}")
        return History(default_place(), memory, None)


@contextmanager
def reading(address: str) -> Iterator[Central]:
    """The central history at an address, to be read."""
    with connected(address) as connection:
        yield Central(address, connection)
