"""Carries the sessions of a history to the central one: what each log has beyond what is there, by the order of the log.

The last entry that is there is kept with the session (``pushes``) and changes in the transaction that adds entries, which only
one process at a time adds to a session. So a push that is cut off anywhere loses nothing and doubles nothing: the next one goes
on from there. Rows that a session changes (its own, sittings, batches) are written again where they differ.

Imported sessions are not pushed: whoever they are of pushes them.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfbisect.errors import UsageError
from perfbisect.masking import masked, masked_fields
from perfbisect.process import worker
from perfbisect.store.central import DOCUMENTS, OF_LOG, is_name, key_of, sentence
from perfbisect.store.history import History
from perfbisect.store.listing import unfinished
from perfbisect.store.schema import TABLES

if TYPE_CHECKING:
    from perfbisect.store.central import Connection

OTHER_NAME = 'Give this history another name: origin = "NAME" in [central] of config.toml.'
ENTRIES = 2000  # of a log in one transaction
KNOWN = """
SELECT id, entry, digest, seen IS NOT NULL FROM sessions JOIN pushes ON session_id = id
WHERE origin = %s AND coalesce(%s, id) = id
"""
OF_HISTORIES = (
    "SELECT id, uid FROM sessions WHERE origin IN (SELECT origin FROM sessions WHERE origin = %s OR uid = ANY(%s))"
)
THERE = "SELECT uid, entry FROM sessions JOIN pushes ON session_id = id WHERE id = %s"
OWN = """
SELECT sessions.id, uid, ended, (SELECT max(id) FROM events WHERE session_id = sessions.id), process, failure, states, sessions.*
FROM sessions LEFT JOIN sittings ON sittings.id = (SELECT max(id) FROM sittings WHERE session_id = sessions.id)
  LEFT JOIN (SELECT hunt_id, json_group_array(json_array(status, failure, job, ended)) AS states
    FROM batch_hunts JOIN batches ON batches.id = batch_id GROUP BY hunt_id) AS batched ON batched.hunt_id = sessions.id
WHERE origin IS NULL AND coalesce(:only, sessions.id) = sessions.id ORDER BY sessions.id
"""

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
    uid: str
    name: str  # ORIGIN:NUMBER
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

    ``running`` says whether a process works on it; None: whether another process does, as the history knows. ``said`` is
    called with how many of how many are done. Sessions that are there under the name of another history are left out. Raises
    what ``central.explained`` translates, and UsageError where the name is another history's, or this one has another name.
    """
    from psycopg.errors import DataError, IntegrityError

    wanted = None if only is None else f"{origin}:{only}"
    known = {name: rest for name, *rest in central.execute(KNOWN, [origin, wanted])}
    due, refused = list[Due](), list[str]()
    for session, uid, ended, last, process, failure, *row in history.select(OWN, {"only": only}):
        name = f"{origin}:{session}"
        works = process != worker() and unfinished(process, failure) == "running" if running is None else running
        runs = ended is None and works
        digest = hashlib.sha256(repr((process, failure, row)).encode(errors="replace")).hexdigest()
        entry, former, seen = known.get(name, (0, "", False))
        if (entry, former) != (last or 0, digest) or runs or seen:
            due.append(Due(session, uid, name, last or 0, digest, runs))
    if any(each.name not in known for each in due):
        others = under_other_names(history, central, origin)
        due = [each for each in due if each.uid not in others]
    added = sessions = 0
    for number, each in enumerate(due, 1):
        try:
            new = push_session(history, central, origin, each)
            added, sessions = added + new, sessions + (new > 0 or each.name not in known)
        except (DataError, IntegrityError, ValueError) as trouble:
            refused.append(f"{each.name}: it is damaged: {sentence(trouble)}")
        said(number, len(due))
    return Pushed(sessions, added, tuple(refused))


def under_other_names(history: History, central: "Connection", origin: str) -> set[str]:
    """The uids of sessions that are there under the names of other histories. Raises UsageError as ``push`` does."""
    own = history.select("SELECT id, uid FROM sessions WHERE origin IS NULL")
    there: dict[str, str] = dict(central.execute(OF_HISTORIES, [origin, [uid for _, uid in own]]).fetchall())
    for name in {each.partition(":")[0] for each in there}:
        same = {there[f"{name}:{number}"] == uid for number, uid in own if f"{name}:{number}" in there}
        if name == origin and False in same:
            raise UsageError(f"{origin} is the name of another history there.", OTHER_NAME)
        if name != origin and same == {True}:
            advice = f'Write origin = "{name}" in [central] of config.toml. To rename it, remove it there first.'
            raise UsageError(f"This history is there as {name}, not as {origin}.", advice)
    return {uid for each, uid in there.items() if not each.startswith(f"{origin}:")}


def push_session(history: History, central: "Connection", origin: str, due: Due) -> int:
    """Push one session; returns how many entries of its log were added. Raises UsageError where another has its name there."""
    added, last = 0, -1
    new_entries = "SELECT id FROM events WHERE session_id = ? AND id > ? AND id <= ? ORDER BY id LIMIT ?"
    while last < due.entries:
        with central.transaction():
            central.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [due.name])
            there, entry = central.execute(THERE, [due.name]).fetchone() or (due.uid, 0)
            if there != due.uid:
                raise UsageError(f"{due.name} is another session there, of another history.", OTHER_NAME)
            new = history.select(new_entries, [due.session, entry, due.entries, ENTRIES])
            last = new[-1][0] if new else entry
            write(history, central, origin, due, entry, last)
            keep = "INSERT INTO pushes VALUES (%s, %s, %s, CASE WHEN %s THEN extract(epoch FROM now()) END)"
            change = "entry = excluded.entry, digest = excluded.digest, seen = excluded.seen"
            central.execute(
                f"{keep} ON CONFLICT (session_id) DO UPDATE SET {change}", [due.name, last, due.digest, due.runs]
            )
        added += len(new)
    return added


def write(history: History, central: "Connection", origin: str, due: Due, entry: int, last: int) -> None:
    """Write what belongs to a session as it is now, and the entries of its log after ``entry`` up to ``last``."""

    def rows_of(table: str, where: str, *values: object) -> list[Row]:
        rows = history.select(f"SELECT {', '.join(TABLES[table].split())} FROM {table} WHERE {where}", values)
        return [converted(origin, table, row) for row in rows]

    def put(table: str, where: str, *values: object, changes: bool = False) -> None:
        """Insert rows; of those that are there, they replace what is there only where such rows change."""
        columns, key = TABLES[table].split(), key_of(table)
        changed = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key) if changes else ""
        then = f"({', '.join(key)}) DO {f'UPDATE SET {changed}' if changed else 'NOTHING'}"
        insert = (
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(['%s'] * len(columns))}) ON CONFLICT {then}"
        )
        if rows := rows_of(table, where, *values):
            central.cursor().executemany(insert, rows)

    put("sessions", "id = ?", due.session, changes=True)
    put("sittings", "session_id = ?", due.session, changes=True)
    its_batches = "(SELECT batch_id FROM batch_hunts WHERE hunt_id = ?)"
    put("batches", f"id IN {its_batches}", due.session, changes=True)
    put("batch_hunts", f"batch_id IN {its_batches}", due.session, changes=True)
    if not entry:
        put("ranges", "session_id = ?", due.session)
    if last == entry:
        return
    put("hosts", "true")
    built = "commit_hash IN (SELECT commit_hash FROM events WHERE session_id = ? AND id > ? AND id <= ?)"
    put("commits", built, due.session, entry, last)
    for table in OF_LOG:
        key = key_of(table)[1]
        new = f"session_id = ? AND {key} > ? AND {key} <= ? ORDER BY {key}"
        with central.cursor().copy(f"COPY {table} ({', '.join(TABLES[table].split())}) FROM STDIN") as copy:
            for row in rows_of(table, new, due.session, entry, last):
                copy.write_row(row)
    for table in ("suspects", "verdicts"):  # a later verdict replaces an earlier one
        central.execute(f"DELETE FROM {table} WHERE session_id = %s", [due.name])
        put(table, "session_id = ?", due.session)


def converted(origin: str, table: str, row: Row) -> Row:
    """A row of a local history as it stands in the central one: with the names of sessions, and without passwords."""
    return tuple(
        origin if column == "origin"
        else value if value is None
        else f"{origin}:{value}" if is_name(table, column)
        else value.partition(" ")[2] if column == "process"  # without the secret of the maker
        else without_passwords(value, document=(table, column) in DOCUMENTS) if isinstance(value, str)
        else value
        for column, value in zip(TABLES[table].split(), row, strict=True)
    )  # fmt: skip


def without_passwords(text: str, *, document: bool) -> str:
    """A text, or the texts in JSON, masked; what has none is returned as it is."""
    if not document or ("://" not in text and ":\\/\\/" not in text):
        return masked(text)
    value = json.loads(text)
    hidden = masked_fields(value)
    return text if hidden is value else json.dumps(hidden, separators=(",", ":"))
