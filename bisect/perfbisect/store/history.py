"""The history of all sessions, one SQLite file. A session is a hunt or a trial (a comparison, a proof, or an A/A test).

The append-only table ``events`` is the log: every event of a session in order, as JSON with its time. The state of a
session is computed from the log: to resume a hunt, perfbisect calls the search with the log. Every report is made from
the log. All other tables contain the data of the log in columns, for SQL queries. An event and its rows in these tables
are written in one transaction. ``append`` returns after the event is on disk. Events that only report progress are not
stored.

Only one process writes a session. Several processes may write different sessions at the same time, and wait for each
other for milliseconds. Any number of processes can read the history at the same time, because SQLite uses a write-ahead
log. The module is fast to import, because slow modules (msgspec, numpy, sqlite-utils) are imported by methods.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.masking import mask_credentials, mask_credentials_in_fields
from perfbisect.process import is_running, owner_if_other_user, this_process_with_owner
from perfbisect.store.connection import (
    LARGEST_ID,
    OWN,
    damage_explained,
    default_history_path,
    device_and_inode,
    is_default_history,
    not_found_error,
    open_reader,
    open_writer,
    sqlite_errors_explained,
)
from perfbisect.store.listing import (
    ACCEPTED_CHECK,
    DAMAGED,
    DROPS,
    FITNESS_CHECK,
    NAME,
    SessionSummary,
    checked_value,
    read_summaries,
    session_name,
)
from perfbisect.store.query import QueryResult, run_read_only_query

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
    """The history in a file. A history that is opened read-only never creates or changes the file."""

    def __init__(self, path: Path, connection: "sqlite3.Connection", writer: "sqlite_utils.Database | None") -> None:
        self.path = path
        self.label = str(path)  # name of the history in errors; the address, if this is a copy of a central history
        self.connection = connection
        self.writer = writer  # None if opened read-only
        self.file_identity = device_and_inode(path)
        self.sessions_of_process: set[int] = set()  # sessions with a row in ``attempts`` for this process
        self.cached_ranges: dict[int, tuple[str, ...]] = {}
        self.cached_logs: dict[int, SessionLog] = {}

    @classmethod
    def open(cls, path: Path | None = None, *, read_only: bool = False) -> "History":
        """The history at ``path`` (None: in the user's state folder). A missing file is created, unless ``read_only``.

        Raises UsageError if the file is no history, has another version, or is missing although ``read_only`` is true;
        raises EnvironmentFailure for an error of the file system.
        """
        path = path or default_history_path()
        if read_only:
            return cls(path, open_reader(path), None)
        import sqlite_utils

        connection = open_writer(path)
        return cls(path, connection, sqlite_utils.Database(connection, execute_plugins=False))

    def close(self) -> None:
        """Close the file. Closing writes nothing, because every event is on disk already."""
        self.connection.close()

    def begin_session(self, settings: "Settings", start_event: "SessionStarted", at: float) -> int:
        """Store a new session of this process. Returns its number; ``start_event.session`` is not used."""
        with self.transaction():
            session = self.insert_session(settings, start_event, at)
            self.begin_attempt(session, at)
        return session

    def insert_session(self, settings: "Settings", start_event: "SessionStarted", at: float, **columns: object) -> int:
        """Store a session on which no process works yet; ``columns`` are further values of its row. Returns its number.

        Passwords in settings are stored, because `bisect resume` needs them; then only the owner may read the file.
        """
        import secrets

        from perfbisect.store.log import compact_json, insert_host, insert_row, session_row

        if mask_credentials_in_fields(settings) is not settings:
            with sqlite_errors_explained(self.path):
                for file in (self.path, *(self.path.with_name(f"{self.path.name}-{end}") for end in ("wal", "shm"))):
                    if file.exists():
                        file.chmod(0o600)
        with self.transaction() as db:
            unique = {"uid": secrets.token_hex(16), "started": at, "settings": compact_json(settings)}
            host = {"host_id": insert_host(db, start_event.host, at)}
            row = session_row(settings, start_event) | unique | host | columns
            candidates = row.pop("range", None)
            session = insert_row(db, "sessions", row)
            if candidates:
                insert_row(db, "ranges", {"session_id": session, "candidates": candidates})
        return session

    def append(self, session: int, event: "Event", at: float) -> None:
        """Append ``event`` to a session's log, and its rows to other tables; return after all rows are on disk."""
        from perfbisect.core.domain.events import LIVE_ONLY

        if isinstance(event, LIVE_ONLY):
            return
        log = self.session_log(session)
        with self.transaction():
            self.begin_attempt(session, at)
            log.append(mask_credentials_in_fields(event), at)

    def session_log(self, session: int, state: "SessionState | None" = None) -> "SessionLog":
        """The object that writes a session's log, and adds each event to ``state``, the state of the session."""
        from perfbisect.core.domain.session_state import fold
        from perfbisect.store.log import SessionLog

        assert self.writer is not None, "this history was opened read-only"
        if state or session not in self.cached_logs:
            kind, host = self.columns(session, "kind", "host")
            span = self.candidates(session) if kind == "hunt" else ()
            nodes = {commit: node for node, commit in enumerate(span)} if kind == "hunt" else None
            state = state or fold((entry.at, entry.event) for entry in self.events(session))
            self.cached_logs[session] = SessionLog(self.writer, session, host, state, span, nodes)
        return self.cached_logs[session]

    @contextmanager
    def transaction(self) -> "Iterator[sqlite_utils.Database]":
        """A transaction that takes SQLite's write lock when it begins, so that two writers never conflict."""
        assert self.writer is not None, "this history was opened read-only"
        if self.connection.in_transaction:  # the open outer transaction makes all writes atomic
            yield self.writer
            return
        if self.file_identity != device_and_inode(self.path):
            self.save_lost_history_and_raise()
        with sqlite_errors_explained(self.path):
            self.writer.execute("BEGIN IMMEDIATE")
            try:
                yield self.writer
                self.writer.commit()
            except BaseException:
                self.writer.rollback()
                self.sessions_of_process.clear()
                self.cached_logs.clear()
                raise

    def save_lost_history_and_raise(self) -> NoReturn:
        """Save the history, whose file was deleted or moved, as a new file; then raise EnvironmentFailure.

        The new file has another name, because the write-ahead log of the old file may still exist, and would damage a
        new file with the old name.
        """
        import sqlite_utils

        old_path = self.path
        saved = old_path.with_name(f"{old_path.stem}-saved-{os.getpid()}-{time.time_ns()}.db")
        with sqlite_errors_explained(saved):
            saved.parent.mkdir(parents=True, exist_ok=True)
            saved.touch(0o600)
            self.connection.execute("VACUUM INTO ?", [str(saved)])
        self.connection.close()
        self.path, self.label, self.file_identity = saved, str(saved), device_and_inode(saved)
        self.connection = open_writer(saved)
        self.writer = sqlite_utils.Database(self.connection, execute_plugins=False)
        self.sessions_of_process.clear()
        self.cached_logs.clear()
        amount = "The readable part" if old_path.exists() else "All"  # a new file there has taken the write-ahead log
        raise EnvironmentFailure(
            f"The history {old_path} was deleted or moved during the session. {amount} of the history is now in {saved}.",
            "Do not move or delete the history while a session runs.",
        )

    def begin_attempt(self, session: int, at: float) -> None:
        """Store that this process works on a session (an attempt). A second call for the session does nothing."""
        from perfbisect.store.log import insert_row

        if session not in self.sessions_of_process:
            with self.transaction() as db:
                insert_row(db, "attempts", {"session_id": session, "started": at, "process": this_process_with_owner()})
            self.sessions_of_process.add(session)

    def enter_failure(self, session: int, failure: str, at: float) -> None:
        """Store the reason why this process cannot continue a session, which another process may resume later."""
        with self.transaction() as db:
            self.begin_attempt(session, at)
            [attempt] = db.execute("SELECT max(id) FROM attempts WHERE session_id = ?", [session]).fetchone()
            db.table("attempts").update(attempt, {"failure": mask_credentials(failure)})

    def store_range_of_round(self, session: int, start_event: "SessionStarted") -> None:
        """Store a new range of a hunt, for example of a subrange; later events number candidates by this range."""
        self.cached_logs[session] = self.session_log(session).replace_stored_range(start_event)
        self.cached_ranges[session] = start_event.candidates

    def update_settings(self, session: int, settings: "Settings") -> None:
        """Store settings that a session has chosen itself, for example the metric of `--metric auto`."""
        from perfbisect.store.log import compact_json

        with self.transaction() as db:
            [metric] = self.columns(session, "metric")
            db.table("sessions").update(session, {"settings": compact_json(settings), "metric": settings.metric})
            if metric != settings.metric:
                self.session_log(session).recompute_metric_values()

    def enter_drop_hunt(self, comparison: int, workload_and_builds: tuple[int, int, int] | None, hunt: int) -> None:
        """Store that a hunt searches for a drop that a comparison showed.

        ``workload_and_builds``: numbers of the workload and of the two builds; None if ``comparison`` lacks the builds.
        """
        drop_between = json.dumps(workload_and_builds) if workload_and_builds else None
        with self.transaction() as db:
            db.table("sessions").update(hunt, {"about": comparison, "drop_between": drop_between})

    def select(self, sql: str, parameters: Sequence[object] | Mapping[str, object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with sqlite_errors_explained(self.path):
            return self.connection.execute(sql, parameters).fetchall()

    def events(self, session: int, after_id: int = 0) -> Iterator[LogEntry]:
        """The entries of a session's log with ids above ``after_id``. Raises EnvironmentFailure for a damaged entry."""
        from perfbisect.store.log import decode

        [kind] = self.columns(session, "kind")
        candidates = self.candidates(session) if kind == "hunt" else ()
        name = session_name(kind, session)
        with sqlite_errors_explained(self.path):
            columns = "id, at, CAST(kind AS BLOB), CAST(body AS BLOB)"
            select = f"SELECT {columns} FROM events WHERE session_id = ? AND id > ? ORDER BY id"
            rows = self.connection.execute(select, [session, after_id])
            for entry, at, type_, body in rows:
                with damage_explained(self.label, f"{name}, table events, row {entry},"):
                    event = decode(type_.decode(), body, candidates)
                    checked_value("at", at, float)
                yield LogEntry(entry, at, event)

    def settings(self, session: int) -> "Settings":
        """The settings of a session."""
        import msgspec

        from perfbisect.core.domain.settings import Settings

        kind, stored = self.columns(session, "kind", "CAST(settings AS BLOB)")
        name = session_name(kind, session)
        with damage_explained(self.label, f"{name}, table sessions, row {session}, column settings,"):
            return msgspec.json.decode(stored, type=Settings)

    def start_time(self, session: int) -> float:
        """The start time of a session, in seconds since the epoch."""
        return float(self.columns(session, "started")[0])

    def attempt_starts(self, session: int) -> list[float]:
        """The start times of the attempts at a session, in order, in seconds since the epoch."""
        rows = self.select("SELECT started FROM attempts WHERE session_id = ? ORDER BY id", [session])
        with damage_explained(self.label, f"table attempts of session {session}"):
            return [checked_value("started", started, float) for (started,) in rows]

    def candidates(self, hunt: int) -> tuple[str, ...]:
        """The commit of each node of a hunt's range, oldest first."""
        if hunt not in self.cached_ranges:
            import msgspec

            self.columns(hunt, "id", hunts_only=True)
            rows = self.select("SELECT CAST(candidates AS BLOB) FROM ranges WHERE session_id = ?", [hunt])
            with damage_explained(self.label, f"hunt {hunt}, table ranges,"):
                self.cached_ranges[hunt] = msgspec.json.decode(rows[0][0], type=tuple[str, ...])
        return self.cached_ranges[hunt]

    def columns(self, session: int, *names: str, hunts_only: bool = False) -> tuple[Any, ...]:
        """Values of columns of a session. Raises UsageError if no session (``hunts_only``: no hunt) has the number."""
        select = f"SELECT {', '.join(names)} FROM {'hunts' if hunts_only else 'sessions'} WHERE id = ?"
        rows = self.select(select, [min(session, LARGEST_ID)])
        if not rows:
            raise not_found_error(f"hunt {session}", self.label, self.path)
        return rows[0]

    def origin(self, session: int) -> str:
        """The owner of a session that was imported or that another user made; "" for a session of the present user."""
        process = f"(SELECT process FROM attempts WHERE session_id = {int(session)} ORDER BY id DESC LIMIT 1)"
        return self.other_owner(*self.columns(session, "coalesce(origin, '')", process))

    def other_owner(self, origin: str, process: str | None) -> str:
        """The owner of a session, by its ``origin`` or the process of its last attempt; "" for the present user."""
        return str(origin or ("" if is_default_history(self.path) else owner_if_other_user(process)))

    def trial(self, name: str) -> "SessionState":
        """The trial with a name such as c3. Raises UsageError if the history has no such trial."""
        return self.read_trial(self.trial_number(name))

    def trial_number(self, name: str) -> int:
        """The number of the trial with a name such as c3. Raises UsageError if the history has no such trial."""
        number = int(name[1:])
        with suppress(UsageError):
            if session_name(self.columns(number, "kind")[0], number) == name:
                return number
        raise not_found_error(name, self.label, self.path)

    def read_trial(self, number: int) -> "SessionState":
        """A trial with all runs, computed from the log. Raises EnvironmentFailure if the trial is damaged."""
        import msgspec

        from perfbisect.core.domain.session_state import SessionState
        from perfbisect.core.domain.settings import TrialRequest
        from perfbisect.store.log import read_host

        listed = self.session_summary(number)
        host, stored = self.columns(number, "host_id", "CAST(request AS BLOB)")
        with damage_explained(self.label, f"{listed.id}, table sessions, row {number}, column request,"):
            request = msgspec.json.decode(stored, type=TrialRequest)
        with damage_explained(self.label, f"table hosts, row {host},"):
            facts = read_host(self.connection, host)
        drops = self.select(DROPS, [number])
        drop_hunts = ((drop, read_summaries(self, "sessions.id = ?", hunt)) for *drop, hunt in drops)
        hunts = tuple(hunt.as_drop_hunt(*drop) for drop, sessions in drop_hunts for hunt in sessions)
        trial = SessionState.of_trial(number, request, facts, listed.started, origin=listed.origin, hunts=hunts)
        for entry in self.events(number):
            trial.add(entry.at, entry.event)
        trial.state, trial.failure = listed.state, listed.failure
        return trial

    def intact_trials(
        self, condition: str, parameters: Sequence[object] | Mapping[str, object]
    ) -> "Iterator[SessionState]":
        """The undamaged trials that satisfy an SQL condition, newest first; each trial is read when it is needed."""
        select = f"SELECT id FROM sessions WHERE kind != 'hunt' AND {condition} ORDER BY id DESC"
        for (number,) in self.select(select, parameters):
            with suppress(EnvironmentFailure):
                yield self.read_trial(number)

    def proofs(self, hunt: int) -> "list[SessionState]":
        """The proofs of a hunt's verdict, oldest first, except damaged proofs."""
        return [*self.intact_trials("kind = 'prove' AND about = ?", [hunt])][::-1]

    def hunts(self) -> list[SessionSummary]:
        """All hunts, in the order of their numbers."""
        return [*read_summaries(self, "sessions.kind = 'hunt'")]

    def trials_except_fitness_checks(self) -> list[SessionSummary]:
        """All trials in the order of their numbers, except fitness checks (short trials that only test a host)."""
        condition = f"sessions.kind != 'hunt' AND {NAME} NOT IN (?, ?)"
        return [*read_summaries(self, condition, FITNESS_CHECK, ACCEPTED_CHECK)]

    def hunts_and_trials(self) -> list[SessionSummary]:
        """All hunts, and all trials except fitness checks, oldest first."""
        return sorted([*self.hunts(), *self.trials_except_fitness_checks()], key=lambda session: session.started)

    def session_summary(self, session: int) -> SessionSummary:
        """A session's summary. Raises UsageError for an unknown number, EnvironmentFailure for a damaged session."""
        self.columns(session, "id")
        [listed] = read_summaries(self, "sessions.id = ?", session)
        if listed.state == DAMAGED:
            with damage_explained(self.label, f"table sessions, row {session},"):
                raise ValueError(listed.failure)
        return listed

    def has_running_process(self, session: int) -> bool:
        """Whether a process of this machine works on a session."""
        latest = "SELECT process FROM attempts WHERE session_id = ? ORDER BY id DESC LIMIT 1"
        return any(process and is_running(process) for (process,) in self.select(latest, [session]))

    def latest_hunt(self) -> int:
        """The user's newest hunt; if the user has no hunt, the newest hunt. Raises UsageError if there is no hunt."""
        [(newest,)] = self.select(f"SELECT coalesce(max(iif({OWN.format('hunts')}, id, NULL)), max(id)) FROM hunts")
        if newest is None:
            raise UsageError(f"The history {self.path} has no hunts yet.", "`bisect run` begins a hunt.")
        return int(newest)

    def query(self, sql: str) -> QueryResult:
        """The rows of a user's SQL query. Raises UsageError for a mistake in the SQL, and for statements that write."""
        return run_read_only_query(self.connection, sql, self.path)
