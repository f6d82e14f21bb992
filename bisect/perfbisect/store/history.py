"""The history of all sessions, one SQLite file. A session is a hunt, or a trial: a comparison, a proof, or an A/A.

The log is the state. The append-only table ``events`` contains every event of a session in order, as JSON with its time.
A hunt that was killed is resumed by reading its log and calling the search again, a trial by folding its log; every
report is made from the log. All other tables repeat the log in columns, for SQL queries. They are written in the
transaction that appends the event, so that they always agree with it. An event is on disk before ``append`` returns.
Events of progress are not stored.

One process writes a session. Other processes may write other sessions at the same time (they wait for each other for
milliseconds), and any number may read (write-ahead log).

This module is fast to import: what decodes events (msgspec, numpy) or writes (sqlite-utils) is imported when used.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.masking import masked, masked_fields
from perfbisect.process import is_running, whose, worker
from perfbisect.store.connection import (
    LARGEST_ID,
    OWN,
    default_place,
    explained,
    file_of,
    in_usual_place,
    intact,
    open_reader,
    open_writer,
)
from perfbisect.store.listing import (
    ACCEPTED_CHECK,
    DAMAGED,
    DROPS,
    FITNESS_CHECK,
    NAME,
    SessionSummary,
    check_value,
    read_sessions,
    session_name,
)
from perfbisect.store.query import QueryResult, ask

if TYPE_CHECKING:
    import sqlite3

    import sqlite_utils

    from perfbisect.core.domain.events import Event, SessionStarted
    from perfbisect.core.domain.session_state import SessionState
    from perfbisect.core.domain.settings import Settings
    from perfbisect.store.log import SessionLog


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of the log."""

    id: int  # increases along the log
    at: float  # seconds since the epoch
    event: "Event"


class History:
    """All sessions. Opened for writing or read-only; a read-only file is never created or changed."""

    def __init__(self, path: Path, connection: "sqlite3.Connection", db: "sqlite_utils.Database | None") -> None:
        self.path = path
        self.shown = str(path)  # in errors; the address, if this is a copy from a central history
        self.connection = connection
        self.writer = db
        self.file = file_of(path)
        self.working: set[int] = set()  # sessions with a row in ``attempts`` for this process
        self.ranges: dict[int, tuple[str, ...]] = {}
        self.logs: dict[int, SessionLog] = {}

    @classmethod
    def open(cls, path: Path | None = None, *, read_only: bool = False) -> "History":
        """The history at ``path`` (None: in the user's state folder); for writing it is created if it does not exist.

        Raises UsageError if it does not exist (read-only), is not a history, or has another version; EnvironmentFailure
        for an error of the file system.
        """
        path = path or default_place()
        if read_only:
            return cls(path, open_reader(path), None)
        import sqlite_utils

        connection = open_writer(path)
        return cls(path, connection, sqlite_utils.Database(connection, execute_plugins=False))

    def close(self) -> None:
        """Close the file. Everything has been written already."""
        self.connection.close()

    def begin(self, settings: "Settings", plan: "SessionStarted", at: float) -> int:
        """Enter a new session of this process and return its number; the number in ``plan`` is ignored."""
        with self.transaction():
            session = self.enter(settings, plan, at)
            self.begin_attempt(session, at)
        return session

    def enter(self, settings: "Settings", plan: "SessionStarted", at: float, **further: object) -> int:
        """Enter a session that no process works on yet, with the ``further`` columns, and return its number.

        Its settings are stored unchanged, since `resume` needs its commands. If they contain a password, only the user
        can read the history from then on.
        """
        import secrets

        from perfbisect.store.log import compact, host_row, insert, session_row

        if masked_fields(settings) is not settings:
            with explained(self.path):
                for file in (self.path, *(self.path.with_name(f"{self.path.name}-{end}") for end in ("wal", "shm"))):
                    if file.exists():
                        file.chmod(0o600)
        with self.transaction() as db:
            unique = {"uid": secrets.token_hex(16), "started": at, "settings": compact(settings)}
            row = session_row(settings, plan) | unique | {"host_id": host_row(db, plan.host, at)} | further
            candidates = row.pop("range", None)
            session = insert(db, "sessions", row)
            if candidates:
                insert(db, "ranges", {"session_id": session, "candidates": candidates})
        return session

    def append(self, session: int, event: "Event", at: float) -> None:
        """Append ``event`` to the log of a session, and its rows to the other tables. It is durable when this returns."""
        from perfbisect.core.domain.events import PASSING

        if isinstance(event, PASSING):
            return
        log = self.session_log(session)
        with self.transaction():
            self.begin_attempt(session, at)
            log.append(masked_fields(event), at)

    def session_log(self, session: int, state: "SessionState | None" = None) -> "SessionLog":
        """The object that appends to the log of a session, and to ``state``, which is that log, folded."""
        from perfbisect.core.domain.session_state import fold
        from perfbisect.store.log import SessionLog

        assert self.writer is not None, "this history was opened read-only"
        if state or session not in self.logs:
            kind, host = self.columns(session, "kind", "host")
            span = self.candidates(session) if kind == "hunt" else ()
            nodes = {commit: node for node, commit in enumerate(span)} if kind == "hunt" else None
            state = state or fold((entry.at, entry.event) for entry in self.events(session))
            self.logs[session] = SessionLog(self.writer, session, host, state, span, nodes)
        return self.logs[session]

    @contextmanager
    def transaction(self) -> "Iterator[sqlite_utils.Database]":
        """A transaction, durable at its end. It is exclusive from its first statement on, so that writers never conflict."""
        assert self.writer is not None, "this history was opened read-only"
        if self.connection.in_transaction:  # within another transaction, which is atomic
            yield self.writer
            return
        if self.file != file_of(self.path):
            self.save_beside()
        with explained(self.path):
            self.writer.execute("BEGIN IMMEDIATE")
            try:
                yield self.writer
                self.writer.commit()
            except BaseException:
                self.writer.rollback()
                self.working.clear()
                self.logs.clear()
                raise

    def save_beside(self) -> None:
        """Write a history whose file is gone into a new file, continue with that file, and raise EnvironmentFailure.

        The old write-ahead log may be left behind; a new file with the old name would be damaged by it.
        """
        import sqlite_utils

        old_path = self.path
        saved = old_path.with_name(f"{old_path.stem}-saved-{os.getpid()}-{time.time_ns()}.db")
        with explained(saved):
            saved.parent.mkdir(parents=True, exist_ok=True)
            saved.touch(0o600)
            self.connection.execute("VACUUM INTO ?", [str(saved)])
        self.connection.close()
        self.path, self.shown, self.file = saved, str(saved), file_of(saved)
        self.connection = open_writer(saved)
        self.writer = sqlite_utils.Database(self.connection, execute_plugins=False)
        self.working.clear()
        self.logs.clear()
        amount = "The readable part" if old_path.exists() else "All"  # another history there has taken over the log
        raise EnvironmentFailure(
            f"The history {old_path} was deleted or moved during the session. {amount} of the history is now in {saved}.",
            "Do not move or delete the history while a session runs.",
        )

    def begin_attempt(self, session: int, at: float) -> None:
        """Enter that this process works on a session, unless it is entered already."""
        from perfbisect.store.log import insert

        if session not in self.working:
            with self.transaction() as db:
                insert(db, "attempts", {"session_id": session, "started": at, "process": worker()})
            self.working.add(session)

    def fail(self, session: int, failure: str, at: float) -> None:
        """Enter why this process could not continue a session. Another process may resume it."""
        with self.transaction() as db:
            self.begin_attempt(session, at)
            [attempt] = db.execute("SELECT max(id) FROM attempts WHERE session_id = ?", [session]).fetchone()
            db.table("attempts").update(attempt, {"failure": masked(failure)})

    def change_range(self, session: int, started: "SessionStarted") -> None:
        """Store the range of a further round, by which the candidates of a hunt are numbered from here on."""
        self.logs[session], self.ranges[session] = self.session_log(session).in_range(started), started.candidates

    def update_settings(self, session: int, settings: "Settings") -> None:
        """Store settings that a session chose itself."""
        from perfbisect.store.log import compact

        with self.transaction() as db:
            [metric] = self.columns(session, "metric")
            db.table("sessions").update(session, {"settings": compact(settings), "metric": settings.metric})
            if metric != settings.metric:
                self.session_log(session).change_metric()

    def enter_drop_hunt(self, trial: int, drop: tuple[int, int, int] | None, hunt: int) -> None:
        """Enter that a hunt is for a drop of a comparison: workload, the build before it, the build after it.

        None: a drop of a watched branch, between tips that this night did not compare.
        """
        with self.transaction() as db:
            db.table("sessions").update(hunt, {"about": trial, "drop_between": json.dumps(drop) if drop else None})

    def select(self, sql: str, values: Sequence[object] | Mapping[str, object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with explained(self.path):
            return self.connection.execute(sql, values).fetchall()

    def events(self, session: int, after: int = 0) -> Iterator[LogEntry]:
        """The log of a session, in order: the entries after the id ``after``."""
        from perfbisect.store.log import decode

        [kind] = self.columns(session, "kind")
        candidates = self.candidates(session) if kind == "hunt" else ()
        name = session_name(kind, session)
        with explained(self.path):
            rows = self.connection.execute(
                "SELECT id, at, CAST(kind AS BLOB), CAST(body AS BLOB) FROM events"
                " WHERE session_id = ? AND id > ? ORDER BY id",
                [session, after],
            )
            for entry, at, type_, body in rows:
                with intact(self.shown, f"{name}, table events, row {entry},"):
                    event = decode(type_.decode(), body, candidates)
                    check_value("at", at, float)
                yield LogEntry(entry, at, event)

    def settings(self, session: int) -> "Settings":
        """The settings of a session."""
        import msgspec

        from perfbisect.core.domain.settings import Settings

        kind, stored = self.columns(session, "kind", "CAST(settings AS BLOB)")
        with intact(self.shown, f"{session_name(kind, session)}, table sessions, row {session}, column settings,"):
            return msgspec.json.decode(stored, type=Settings)

    def began(self, session: int) -> float:
        """The start of a session, in seconds since the epoch."""
        return float(self.columns(session, "started")[0])

    def attempts(self, session: int) -> list[float]:
        """The start times of the attempts at a session, in order, in seconds since the epoch."""
        rows = self.select("SELECT started FROM attempts WHERE session_id = ? ORDER BY id", [session])
        with intact(self.shown, f"table attempts of session {session}"):
            return [check_value("started", started, float) for (started,) in rows]

    def candidates(self, hunt: int) -> tuple[str, ...]:
        """The commit of each node of a hunt's range, oldest first."""
        if hunt not in self.ranges:
            import msgspec

            self.columns(hunt, "id", hunts=True)
            rows = self.select("SELECT CAST(candidates AS BLOB) FROM ranges WHERE session_id = ?", [hunt])
            with intact(self.shown, f"hunt {hunt}, table ranges,"):
                self.ranges[hunt] = msgspec.json.decode(rows[0][0], type=tuple[str, ...])
        return self.ranges[hunt]

    def columns(self, session: int, *names: str, hunts: bool = False) -> tuple[Any, ...]:
        """Columns of a session. Raises UsageError if there is no such session, or with ``hunts`` no such hunt."""
        select = f"SELECT {', '.join(names)} FROM {'hunts' if hunts else 'sessions'} WHERE id = ?"
        rows = self.select(select, [min(session, LARGEST_ID)])
        if not rows:
            raise UsageError(f"There is no hunt {session} in the history {self.shown}.", "List hunts: bisect history")
        return rows[0]

    def origin(self, session: int) -> str:
        """The person from whom a session is: imported, or made by another person; "" for an own session."""
        process = f"(SELECT process FROM attempts WHERE session_id = {int(session)} ORDER BY id DESC LIMIT 1)"
        return self.whose(*self.columns(session, "coalesce(origin, '')", process))

    def whose(self, origin: str, process: str | None) -> str:
        """The ``origin`` by two columns. A history in the user's state folder is the user's, no matter who wrote it."""
        return str(origin or ("" if in_usual_place(self.path) else whose(process)))

    def trial(self, name: str) -> "SessionState":
        """The trial of that name, such as c3. Raises UsageError if there is none."""
        return self.read_trial(self.number_of_trial(name))

    def number_of_trial(self, name: str) -> int:
        """The number of the trial of that name. Raises UsageError if there is none."""
        number = int(name[1:])
        with suppress(UsageError):
            if session_name(self.columns(number, "kind")[0], number) == name:
                return number
        raise UsageError(f"There is no {name} in the history {self.shown}.", "List sessions: bisect history")

    def read_trial(self, number: int) -> "SessionState":
        """A trial with all its runs: its log, folded. Raises EnvironmentFailure if it is damaged."""
        import msgspec

        from perfbisect.core.domain.session_state import SessionState
        from perfbisect.core.domain.settings import TrialRequest
        from perfbisect.store.log import read_host

        listed = self.listed(number)
        host, stored = self.columns(number, "host_id", "CAST(request AS BLOB)")
        with intact(self.shown, f"{listed.id}, table sessions, row {number}, column request,"):
            request = msgspec.json.decode(stored, type=TrialRequest)
        with intact(self.shown, f"table hosts, row {host},"):
            facts = read_host(self.connection, host)
        drops = self.select(DROPS, [number])
        drop_hunts = ((drop, read_sessions(self, "sessions.id = ?", hunt)) for *drop, hunt in drops)
        hunts = tuple(hunt.for_drop(*drop) for drop, sessions in drop_hunts for hunt in sessions)
        trial = SessionState.of_trial(number, request, facts, listed.started, origin=listed.origin, hunts=hunts)
        for entry in self.events(number):
            trial.add(entry.at, entry.event)
        trial.state, trial.failure = listed.state, listed.failure
        return trial

    def intact_trials(self, where: str, values: Sequence[object] | Mapping[str, object]) -> "Iterator[SessionState]":
        """The trials that satisfy a condition of SQL, newest first, read lazily.

        Damaged trials, which `bisect show` reports, are left out.
        """
        select = f"SELECT id FROM sessions WHERE kind != 'hunt' AND {where} ORDER BY id DESC"
        for (number,) in self.select(select, values):
            with suppress(EnvironmentFailure):
                yield self.read_trial(number)

    def proofs(self, hunt: int) -> "list[SessionState]":
        """The proofs of a hunt's verdict, oldest first; damaged proofs are left out."""
        return [*self.intact_trials("kind = 'prove' AND about = ?", [hunt])][::-1]

    def hunts(self) -> list[SessionSummary]:
        """All hunts, by their numbers."""
        return [*read_sessions(self, "sessions.kind = 'hunt'")]

    def trials(self) -> list[SessionSummary]:
        """All trials by their numbers, except fitness checks, which are many and alike."""
        return [
            *read_sessions(self, f"sessions.kind != 'hunt' AND {NAME} NOT IN (?, ?)", FITNESS_CHECK, ACCEPTED_CHECK)
        ]

    def listing(self) -> list[SessionSummary]:
        """All hunts and trials, oldest first."""
        return sorted([*self.hunts(), *self.trials()], key=lambda session: session.started)

    def listed(self, session: int) -> SessionSummary:
        """A session in its present state. Raises UsageError if there is none, EnvironmentFailure if it is damaged."""
        self.columns(session, "id")
        [listed] = read_sessions(self, "sessions.id = ?", session)
        if listed.state == DAMAGED:
            with intact(self.shown, f"table sessions, row {session},"):
                raise ValueError(listed.failure)
        return listed

    def is_carried_out(self, session: int) -> bool:
        """Whether a process of this machine works on a session."""
        latest = "SELECT process FROM attempts WHERE session_id = ? ORDER BY id DESC LIMIT 1"
        return any(process and is_running(process) for (process,) in self.select(latest, [session]))

    def latest(self) -> int:
        """The newest own hunt; if there is none, the newest hunt. Raises UsageError if there are no hunts."""
        [(newest,)] = self.select(f"SELECT coalesce(max(iif({OWN.format('hunts')}, id, NULL)), max(id)) FROM hunts")
        if newest is None:
            raise UsageError(f"There are no hunts yet in {self.path}.", "`bisect run` begins a hunt.")
        return int(newest)

    def query(self, sql: str) -> QueryResult:
        """The result of a user's SQL. Raises UsageError for a mistake in it, and for a statement that would write."""
        return ask(self.connection, sql, self.path)
