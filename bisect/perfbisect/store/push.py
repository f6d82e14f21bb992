"""Pushes the sessions of a local history to the central history. A push appends the entries of a session's log that the
central history lacks, in the sequence of the log.

The transaction that adds entries also stores, in the table ``pushes``, the number of the last pushed entry. Two
processes never add entries to the same session at the same time. Therefore an interrupted push loses no entry and
duplicates no entry, and the next push continues after the last pushed entry. The rows of a session, its attempts and
its batches can change. If these rows differ from the rows in the central history, the push writes them again.

Imported sessions are not pushed, because their owner pushes them.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfbisect.errors import UsageError
from perfbisect.masking import mask_credentials, mask_credentials_in_fields
from perfbisect.process import this_process_with_owner
from perfbisect.store.central import DOCUMENTS, OF_LOG, central_primary_key, first_line_of_error, has_session_names
from perfbisect.store.history import History
from perfbisect.store.listing import unfinished_state
from perfbisect.store.schema import TABLES

if TYPE_CHECKING:
    from perfbisect.store.central import Connection

OTHER_NAME = 'Give this history another name: origin = "NAME" in [central] of config.toml.'
ENTRIES = 2000  # entries of a log in one transaction
PUSHED = """
SELECT id, entry, digest, seen IS NOT NULL FROM sessions JOIN pushes ON session_id = id
WHERE origin = %s AND coalesce(%s, id) = id
"""
OF_HISTORIES = (
    "SELECT id, uid FROM sessions WHERE origin IN (SELECT origin FROM sessions WHERE origin = %s OR uid = ANY(%s))"
)
CENTRAL_STATE = "SELECT uid, entry FROM sessions JOIN pushes ON session_id = id WHERE id = %s"
OWN_SESSIONS = """
SELECT sessions.id, uid, ended, (SELECT max(id) FROM events WHERE session_id = sessions.id), process, failure, states, sessions.*
FROM sessions LEFT JOIN attempts ON attempts.id = (SELECT max(id) FROM attempts WHERE session_id = sessions.id)
  LEFT JOIN (SELECT hunt_id, json_group_array(json_array(status, failure, job, ended)) AS states
    FROM batch_hunts JOIN batches ON batches.id = batch_id GROUP BY hunt_id) AS batched ON batched.hunt_id = sessions.id
WHERE origin IS NULL AND coalesce(:only, sessions.id) = sessions.id ORDER BY sessions.id
"""

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class PushResult:
    """The numbers of sessions and log entries that a push added, and the sessions that could not be pushed."""

    sessions: int  # sessions to which entries were added
    entries: int  # number of entries that were added to the logs of these sessions
    refused: tuple[str, ...] = ()  # sentences about sessions that could not be pushed


@dataclass(frozen=True, slots=True)
class SessionToPush:
    """A session whose log or state differs from the copy in the central history."""

    session: int
    uid: str
    name: str  # ORIGIN:NUMBER
    last_entry: int  # id of the last entry of the session's log
    digest: str
    is_running: bool


def push(
    history: History,
    central: "Connection",
    origin: str,
    only_session: int | None = None,
    is_running: bool | None = None,
    report_progress: Callable[[int, int], None] = lambda *_: None,
) -> PushResult:
    """Push all sessions that were recorded in this history, not imported; or only ``only_session``. In the central
    history, the names of the pushed sessions begin with ``origin``.

    ``is_running`` says whether a process works on the pushed sessions. If ``is_running`` is None, a session is running
    if, according to the history, another process works on the session. ``report_progress`` is called with the number of
    sessions that are pushed so far, and the number of all sessions to push. Sessions that the central history already
    has under the name of another local history are not pushed. Raises the errors of
    ``central.postgres_errors_explained``. Raises UsageError if another local history was pushed with the name
    ``origin``, or if this history was pushed with another name.
    """
    from psycopg.errors import DataError, IntegrityError

    session_name = None if only_session is None else f"{origin}:{only_session}"
    pushed = {name: state for name, *state in central.execute(PUSHED, [origin, session_name])}
    due, refused = list[SessionToPush](), list[str]()
    for session, uid, ended, last, process, failure, *row in history.select(OWN_SESSIONS, {"only": only_session}):
        name = f"{origin}:{session}"
        in_other_process = process != this_process_with_owner() and unfinished_state(process, failure) == "running"
        runs = ended is None and (in_other_process if is_running is None else is_running)
        digest = hashlib.sha256(repr((process, failure, row)).encode(errors="replace")).hexdigest()
        entry, former, was_running = pushed.get(name, (0, "", False))
        if (entry, former) != (last or 0, digest) or runs or was_running:
            due.append(SessionToPush(session, uid, name, last or 0, digest, runs))
    if any(item.name not in pushed for item in due):
        elsewhere = uids_under_other_names(history, central, origin)
        due = [item for item in due if item.uid not in elsewhere]
    added = sessions = 0
    for number, item in enumerate(due, 1):
        try:
            new = push_session(history, central, origin, item)
            added, sessions = added + new, sessions + (new > 0 or item.name not in pushed)
        except (DataError, IntegrityError, ValueError) as trouble:
            refused.append(f"{item.name} is damaged: {first_line_of_error(trouble)}")
        report_progress(number, len(due))
    return PushResult(sessions, added, tuple(refused))


def uids_under_other_names(history: History, central: "Connection", origin: str) -> set[str]:
    """The uids of those sessions of this history that the central history has under other names. Raises UsageError in
    the same cases as ``push``."""
    own_sessions = history.select("SELECT id, uid FROM sessions WHERE origin IS NULL")
    uids = [uid for _, uid in own_sessions]
    central_uids: dict[str, str] = dict(central.execute(OF_HISTORIES, [origin, uids]).fetchall())
    for name in {central_name.partition(":")[0] for central_name in central_uids}:
        renamed = {f"{name}:{number}": uid for number, uid in own_sessions}
        matches = {central_uids[session] == uid for session, uid in renamed.items() if session in central_uids}
        if name == origin and False in matches:
            raise UsageError(f"The central history already has another history with the name {origin}.", OTHER_NAME)
        if name != origin and matches == {True}:
            advice = f'Write origin = "{name}" in [central] of config.toml. To rename it, first remove it from the central history.'
            raise UsageError(f"This history was pushed before with the name {name}, not {origin}.", advice)
    return {uid for central_name, uid in central_uids.items() if not central_name.startswith(f"{origin}:")}


def push_session(history: History, central: "Connection", origin: str, session_to_push: SessionToPush) -> int:
    """Push a session. Returns the number of added log entries. Raises UsageError if the central history has another
    session with this name."""
    added, last, name = 0, -1, session_to_push.name
    new_entries = "SELECT id FROM events WHERE session_id = ? AND id > ? AND id <= ? ORDER BY id LIMIT ?"
    while last < session_to_push.last_entry:
        with central.transaction():
            central.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [name])
            state = central.execute(CENTRAL_STATE, [name]).fetchone()
            central_uid, entry = state or (session_to_push.uid, 0)
            if central_uid != session_to_push.uid:
                raise UsageError(f"the central history has another session with the id {name}", OTHER_NAME)
            new = history.select(new_entries, [session_to_push.session, entry, session_to_push.last_entry, ENTRIES])
            last = new[-1][0] if new else entry
            write_rows_and_entries(history, central, origin, session_to_push, entry, last)
            keep = "INSERT INTO pushes VALUES (%s, %s, %s, CASE WHEN %s THEN extract(epoch FROM now()) END)"
            change = "entry = excluded.entry, digest = excluded.digest, seen = excluded.seen"
            values = [name, last, session_to_push.digest, session_to_push.is_running]
            central.execute(f"{keep} ON CONFLICT (session_id) DO UPDATE SET {change}", values)
        added += len(new)
    return added


def write_rows_and_entries(
    history: History,
    central: "Connection",
    origin: str,
    session_to_push: SessionToPush,
    after_entry: int,
    last_entry: int,
) -> None:
    """Write the present rows of a session, and the entries of its log with numbers above ``after_entry`` and at most
    ``last_entry``."""

    def rows_of(table: str, where: str, *values: object) -> list[Row]:
        rows = history.select(f"SELECT {', '.join(TABLES[table].split())} FROM {table} WHERE {where}", values)
        return [central_row(origin, table, row) for row in rows]

    def push_rows(table: str, where: str, *values: object, replace: bool = False) -> None:
        """Copy rows of a table to the central history. If ``replace`` is true, existing rows with the same key are
        replaced."""
        columns, key = TABLES[table].split(), central_primary_key(table)
        changed = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key) if replace else ""
        then = f"({', '.join(key)}) DO {f'UPDATE SET {changed}' if changed else 'NOTHING'}"
        places = ", ".join(["%s"] * len(columns))
        insert = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places}) ON CONFLICT {then}"
        if rows := rows_of(table, where, *values):
            central.cursor().executemany(insert, rows)

    push_rows("sessions", "id = ?", session_to_push.session, replace=True)
    push_rows("attempts", "session_id = ?", session_to_push.session, replace=True)
    its_batches = "(SELECT batch_id FROM batch_hunts WHERE hunt_id = ?)"
    push_rows("batches", f"id IN {its_batches}", session_to_push.session, replace=True)
    push_rows("batch_hunts", f"batch_id IN {its_batches}", session_to_push.session, replace=True)
    if not after_entry:
        push_rows("ranges", "session_id = ?", session_to_push.session)
    if last_entry == after_entry:
        return
    push_rows("hosts", "true")
    built = "commit_hash IN (SELECT commit_hash FROM events WHERE session_id = ? AND id > ? AND id <= ?)"
    push_rows("commits", built, session_to_push.session, after_entry, last_entry)
    for table in OF_LOG:
        key = central_primary_key(table)[1]
        new = f"session_id = ? AND {key} > ? AND {key} <= ? ORDER BY {key}"
        with central.cursor().copy(f"COPY {table} ({', '.join(TABLES[table].split())}) FROM STDIN") as copy:
            for row in rows_of(table, new, session_to_push.session, after_entry, last_entry):
                copy.write_row(row)
    for table in ("suspects", "verdicts"):  # a later verdict replaces an earlier verdict
        central.execute(f"DELETE FROM {table} WHERE session_id = %s", [session_to_push.name])
        push_rows(table, "session_id = ?", session_to_push.session)


def central_row(origin: str, table: str, row: Row) -> Row:
    """A row of the local history, changed for the central history: session numbers are replaced by names of the form
    ORIGIN:NUMBER, and passwords are masked."""
    return tuple(
        origin if column == "origin"
        else value if value is None
        else f"{origin}:{value}" if has_session_names(table, column)
        else value.partition(" ")[2] if column == "process"  # without the first word, a secret
        else without_passwords(value, is_json=(table, column) in DOCUMENTS) if isinstance(value, str)
        else value
        for column, value in zip(TABLES[table].split(), row, strict=True)
    )  # fmt: skip


def without_passwords(text: str, *, is_json: bool) -> str:
    """A text or a JSON document, in which passwords are masked. A text that contains no password is returned
    unchanged."""
    if not is_json or ("://" not in text and ":\\/\\/" not in text):
        return mask_credentials(text)
    value = json.loads(text)
    hidden = mask_credentials_in_fields(value)
    return text if hidden is value else json.dumps(hidden, separators=(",", ":"))
