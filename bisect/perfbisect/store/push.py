"""Carries the sessions of a history to the central one: what each log has beyond what is there, by the order of the log.

The last entry that is there is kept with the session (``pushes``) and changes in the transaction that adds entries, which only
one process at a time adds to a session. So a push that is cut off anywhere loses nothing and doubles nothing: the next one goes
on from there. Rows that a session changes (its own, sittings, batches) are written again where they differ.

Imported sessions are not pushed: whoever they are of pushes them.
"""

import getpass
import hashlib
import json
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfbisect.errors import UsageError
from perfbisect.masking import masked, masked_fields
from perfbisect.process import is_running
from perfbisect.store.central import DOCUMENTS, NAMED, OF_LOG, ORIGIN, key_of
from perfbisect.store.history import History
from perfbisect.store.schema import TABLES

if TYPE_CHECKING:
    from perfbisect.store.central import Connection

ENTRIES = 2000  # of a log in one transaction
KNOWN = "SELECT id, uid, coalesce(entry, 0), coalesce(digest, ''), seen IS NOT NULL FROM sessions LEFT JOIN pushes ON session_id = id WHERE origin = %s"
OWN = "SELECT *, (SELECT max(id) FROM events WHERE session_id = sessions.id) FROM sessions WHERE origin IS NULL"

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a push has done."""

    sessions: int  # to which something was added
    entries: int  # of their logs
    refused: tuple[str, ...] = ()  # sentences about sessions that could not be pushed


@dataclass(frozen=True, slots=True)
class Due:
    """A session of which something is to be pushed."""

    session: int
    name: str  # ORIGIN:NUMBER
    row: Row
    entries: int  # the last of its log
    digest: str
    runs: bool


def push(
    history: History,
    central: "Connection",
    origin: str,
    only: int | None = None,
    running: bool | None = None,
    said: Callable[[int, int], None] = lambda *_: None,
) -> Pushed:
    """Push all own sessions of a history, or ``only`` one, under the name ``origin``.

    ``running`` says whether a process works on it; None: as the history knows. ``said`` is told how many of how many are done. Raises what ``central.explained`` translates.
    """
    refused: list[str] = []
    due = [*find_due(history, central, origin, only, running, refused)]
    added = sessions = 0
    for number, each in enumerate(due):
        said(number, len(due))
        try:
            entries = push_session(history, central, origin, each)
        except Damaged as trouble:
            refused.append(f"{each.name}: {trouble}")
        else:
            added, sessions = added + entries, sessions + 1
    return Pushed(sessions, added, tuple(refused))


def origin_of(given: str | None) -> str:
    """The name of this history in a central one: the given one, or of this user and machine. Raises UsageError for no name."""
    name = given or re.sub(r"[^\w.@-]", "-", f"{getpass.getuser()}@{socket.gethostname()}", flags=re.ASCII)[:64]
    if not ORIGIN.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name for a history.", "It has at most 64 letters, digits, and signs of . _ @ -"
        )
    return name


class Damaged(Exception):
    """A row that a central history does not take."""


def find_due(
    history: History, central: "Connection", origin: str, only: int | None, running: bool | None, refused: list[str]
) -> Iterator[Due]:
    """The sessions of which the central history lacks something; ``refused`` gets sentences about those that are others there."""
    known = {name: rest for name, *rest in central.execute(KNOWN, [origin])}
    where, values = (" AND id = ?", [only]) if only is not None else ("", [])
    select = "SELECT session_id, process, failure FROM sittings WHERE id IN (SELECT max(id) FROM sittings GROUP BY session_id)"
    latest = {session: (process, failure) for session, process, failure in history.select(select)}
    states = {hunt: state for hunt, *state in history.select("SELECT hunt_id, status, failure FROM batch_hunts")}
    columns = TABLES["sessions"].split()
    uid, ended = columns.index("uid"), columns.index("ended")
    for *row, last in history.select(f"{OWN}{where} ORDER BY id", values):
        name = f"{origin}:{row[0]}"
        process, failure = latest.get(row[0], ("", None))
        works = running if running is not None else failure is None and bool(process) and is_running(process)
        runs = row[ended] is None and works
        digest = hashlib.sha256(repr((row, process, failure, states.get(row[0]))).encode(errors="replace")).hexdigest()
        there, entry, former, seen = known.get(name, (row[uid], 0, "", False))
        if there != row[uid]:
            refused.append(f"{name} is another session there, of another history: choose another name with --as.")
        elif (entry, former) != (last or 0, digest) or runs or seen:
            yield Due(row[0], name, tuple(row), last or 0, digest, runs)


def push_session(history: History, central: "Connection", origin: str, due: Due) -> int:
    """Push one session; returns how many entries of its log were added."""
    from psycopg.errors import DataError

    added, last = 0, 0
    while True:
        with central.transaction():
            central.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [due.name])
            [entry] = central.execute("SELECT entry FROM pushes WHERE session_id = %s", [due.name]).fetchone() or [0]
            [(count, newest)] = history.select(
                "SELECT count(*), max(id) FROM (SELECT id FROM events WHERE session_id = ? AND id > ? AND id <= ? ORDER BY id LIMIT ?)",
                [due.session, entry, due.entries, ENTRIES],
            )
            last = int(newest or entry)
            try:
                write(history, central, origin, due, entry, last)
            except (DataError, json.JSONDecodeError) as trouble:
                raise Damaged(f"it is damaged: {str(trouble).partition(chr(10))[0]}") from trouble
            keep = "INSERT INTO pushes VALUES (%s, %s, %s, CASE WHEN %s THEN extract(epoch FROM now()) END)"
            change = "entry = excluded.entry, digest = excluded.digest, seen = excluded.seen"
            central.execute(
                f"{keep} ON CONFLICT (session_id) DO UPDATE SET {change}", [due.name, last, due.digest, due.runs]
            )
        added += int(count)
        if last >= due.entries:
            return added


def write(history: History, central: "Connection", origin: str, due: Due, entry: int, last: int) -> None:
    """Write what belongs to a session as it is now, and the entries of its log after ``entry`` up to ``last``."""

    def of(table: str, where: str, *values: object) -> list[Row]:
        return history.select(f"SELECT {', '.join(TABLES[table].split())} FROM {table} WHERE {where}", values)

    columns = TABLES["sessions"].split()
    row = dict(zip(columns, due.row, strict=True)) | {"origin": origin}
    insert(central, origin, "sessions", [tuple(row[column] for column in columns)], changes=True)
    insert(central, origin, "sittings", of("sittings", "session_id = ?", due.session), changes=True)
    insert(central, origin, "ranges", of("ranges", "session_id = ?", due.session) if not entry else [])
    batches = [
        batch for (batch,) in history.select("SELECT batch_id FROM batch_hunts WHERE hunt_id = ?", [due.session])
    ]
    for batch in batches:
        insert(central, origin, "batches", of("batches", "id = ?", batch), changes=True)
        insert(central, origin, "batch_hunts", of("batch_hunts", "batch_id = ?", batch), changes=True)
    if last == entry:
        return
    insert(central, origin, "hosts", of("hosts", "true"))
    built = "commit_hash IN (SELECT commit_hash FROM events WHERE session_id = ? AND id > ? AND id <= ?)"
    insert(central, origin, "commits", of("commits", built, due.session, entry, last))
    for table in OF_LOG:
        key = key_of(table)[1]
        rows = of(table, f"session_id = ? AND {key} > ? AND {key} <= ? ORDER BY {key}", due.session, entry, last)
        with central.cursor().copy(f"COPY {table} ({', '.join(TABLES[table].split())}) FROM STDIN") as copy:
            for one in rows:
                copy.write_row(converted(origin, table, one))
    for table in ("suspects", "verdicts"):  # a later verdict replaces an earlier one
        central.execute(f"DELETE FROM {table} WHERE session_id = %s", [due.name])
        insert(central, origin, table, of(table, "session_id = ?", due.session))


def insert(central: "Connection", origin: str, table: str, rows: Sequence[Row], *, changes: bool = False) -> None:
    """Insert rows; of those that are there, they replace what is there only where such rows change."""
    columns, key = TABLES[table].split(), key_of(table)
    others = [column for column in columns if column not in key] if changes else []
    then = f"UPDATE SET {', '.join(f'{column} = excluded.{column}' for column in others)}" if others else "NOTHING"
    sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(['%s'] * len(columns))}) ON CONFLICT ({', '.join(key)}) DO {then}"
    if rows:
        central.cursor().executemany(sql, [converted(origin, table, row) for row in rows])


def converted(origin: str, table: str, row: Row) -> Row:
    """A row of a local history as it stands in the central one: with the names of sessions, and without passwords."""
    return tuple(
        value if value is None
        else f"{origin}:{value}" if column in NAMED or (column == "id" and table in ("sessions", "batches"))
        else without_passwords(value, document=(table, column) in DOCUMENTS) if isinstance(value, str)
        else value
        for column, value in zip(TABLES[table].split(), row, strict=True)
    )  # fmt: skip


def without_passwords(text: str, *, document: bool) -> str:
    """A text, or the texts in JSON, masked; what has none is returned as it is."""
    if "://" not in text and ":\\/\\/" not in text:
        return text
    if not document:
        return masked(text)
    value = json.loads(text)
    hidden = masked_fields(value)
    return text if hidden is value else json.dumps(hidden, separators=(",", ":"))
