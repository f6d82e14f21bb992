"""The history of all sessions, one SQLite file. A session is a hunt, or a trial: a comparison, a proof, or an A/A.

The log is the state. The table ``events`` is append-only and contains every event of a session, as JSON with its time, in
order. A hunt that was killed is resumed by reading its log and calling the search again, a trial by folding its log, and every
report is made from the log. All other tables repeat the log in columns, for queries in SQL; they are written in the transaction
that appends the event, so that they always agree with it. An event is on disk before ``append`` returns. Events of progress are
not stored.

One process writes a session. Other processes may write other sessions at the same time (they wait for each other for
milliseconds), and any number may read (write-ahead log).

This module is fast to import: what decodes events (msgspec, numpy) or writes (sqlite-utils) is imported when used.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.masking import masked, masked_fields
from perfbisect.process import is_running
from perfbisect.store.connection import (
    LARGEST_ID,
    OWN,
    default_place,
    explained,
    file_of,
    in_usual_place,
    intact,
    lost,
    make_private,
    open_reader,
    open_writer,
    save_beside,
)
from perfbisect.store.listing import (
    Listed,
    ListedTrial,
    called,
    check_value,
    read_hunts,
    read_trial,
    read_trials,
    undamaged,
)
from perfbisect.store.maker import whose, worker
from perfbisect.store.query import Answer, ask

if TYPE_CHECKING:
    import sqlite3

    import sqlite_utils

    from perfbisect.core.domain.events import Event, HuntStarted
    from perfbisect.core.domain.facts import HostFacts
    from perfbisect.core.domain.settings import Settings, TrialRequest
    from perfbisect.core.domain.trials import Trial
    from perfbisect.store.log import SessionLog

OF_SETTINGS = (
    "good", "bad", "good_commit", "bad_commit", "repository", "builder", "variant", "workload", "host", "metric",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log."""

    id: int  # increases along the log
    at: float  # seconds since the epoch
    event: "Event"


class History:
    """All sessions. Opened for writing, or read-only: then the file is never created or changed."""

    def __init__(self, path: Path, connection: "sqlite3.Connection", db: "sqlite_utils.Database | None") -> None:
        self.path = path
        self.shown = str(path)  # in errors; of a copy from a central history, its address
        self.connection = connection
        self.writer = db
        self.file = file_of(path)
        self.working: set[int] = set()  # sessions for which this process has a row in sittings
        self.ranges: dict[int, tuple[str, ...]] = {}
        self.logs: dict[int, SessionLog] = {}

    @classmethod
    def open(cls, path: Path | None = None, *, read_only: bool = False) -> "History":
        """The history at ``path`` (None: in the user's state folder); for writing it is created if it does not exist.

        Raises UsageError when it does not exist (read-only), is not a history, or is of another version; EnvironmentFailure
        for an error of the file system.
        """
        path = path or default_place()
        if read_only:
            return cls(path, open_reader(path), None)
        import sqlite_utils

        from perfbisect.store.schema import create

        connection, exists = open_writer(path)
        try:
            db = sqlite_utils.Database(connection, execute_plugins=False)
            if not exists:
                with explained(path):
                    create(db)
        except BaseException:
            connection.close()
            raise
        return cls(path, connection, db)

    def close(self) -> None:
        """Close the file. Everything has been written before."""
        self.connection.close()

    def begin(self, settings: "Settings", host: "HostFacts", started: "HuntStarted", at: float) -> int:
        """Enter a new hunt and return its number; the range is that of ``started``, whose ``hunt`` is ignored.

        Its settings are stored as they are, since `resume` needs its commands. Where they contain a password, only the
        user can read the history from then on.
        """
        with self.transaction():
            span = started.candidates, started.commits, started.choices, started.merges
            hunt = self.enter_hunt(settings, host, *span, at)
            self.sit(hunt, at)
        return hunt

    def begin_trial(self, settings: "Settings", request: "TrialRequest", host: "HostFacts", at: float) -> int:
        """Enter a new trial and return its number; its name is the first letter of its kind and that."""
        with self.transaction():
            trial = self.enter_trial(settings, request, host, at)
            self.sit(trial, at)
        return trial

    def enter_hunt(
        self, settings: "Settings", host: "HostFacts", candidates: tuple[str, ...], commits: int, choices: int, merges: int, at: float
    ) -> int:  # fmt: skip
        """Enter a hunt, on which no process works yet."""
        row = {column: getattr(settings, column) for column in OF_SETTINGS}
        size = {"commits": commits, "candidates": choices + 1, "merges": merges, "base_commit": candidates[0]}
        with self.transaction() as db:
            hunt = self.enter("hunt", settings, host, at, row | size)
            db.table("ranges").insert({"session_id": hunt, "candidates": json.dumps(candidates)})
        return hunt

    def enter_trial(self, settings: "Settings", request: "TrialRequest", host: "HostFacts", at: float) -> int:
        """Enter a trial, on which no process works yet."""
        from perfbisect.store.log import compact

        row = {column: getattr(request, column) for column in ("builder", "variant", "host", "metric")}
        row["workload"] = ", ".join(work.name for work in request.works)
        row["about"] = request.reverts.hunt if request.reverts else None
        return self.enter(request.kind, settings, host, at, row | {"request": compact(masked_fields(request))})

    def enter(self, kind: str, settings: "Settings", host: "HostFacts", at: float, row: dict[str, Any]) -> int:
        """Enter a session with the columns of ``row``, too."""
        import secrets

        from perfbisect.store.log import compact, host_row, insert

        if masked_fields(settings) is not settings:
            make_private(self.path)
        with self.transaction() as db:
            row |= {"uid": secrets.token_hex(16), "kind": kind, "started": at, "settings": compact(settings)}
            return insert(db, "sessions", row | {"host_id": host_row(db, host, at)})

    def append(self, session: int, event: "Event", at: float) -> None:
        """Append ``event`` to the log of a session, and its rows to the other tables. It is durable when this returns."""
        from perfbisect.core.domain.events import PASSING

        if isinstance(event, PASSING):
            return
        log = self.session_log(session)
        with self.transaction():
            self.sit(session, at)
            log.append(masked_fields(event), at)

    def session_log(self, session: int) -> "SessionLog":
        """What appends to the log of a session."""
        from perfbisect.store.log import SessionLog

        assert self.writer is not None, "this history was opened read-only"
        if session not in self.logs:
            kind, host = self.columns(session, "kind", "host")
            span = self.candidates(session) if kind == "hunt" else ()
            nodes = {commit: node for node, commit in enumerate(span)} if kind == "hunt" else None
            self.logs[session] = SessionLog(self.writer, session, host, span, nodes)
        return self.logs[session]

    @contextmanager
    def transaction(self) -> "Iterator[sqlite_utils.Database]":
        """A transaction, durable at the end. It is exclusive from its first statement on, so that writers never conflict."""
        assert self.writer is not None, "this history was opened read-only"
        if self.connection.in_transaction:  # within another, which keeps all or nothing
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
        """Write all of a history whose file is gone into one beside it, which is this history from then on. Raises EnvironmentFailure."""
        import sqlite_utils

        gone, saved = self.path, save_beside(self.connection, self.path)
        self.connection.close()
        self.path, self.shown, self.file = saved, str(saved), file_of(saved)
        self.connection, _ = open_writer(saved)
        self.writer = sqlite_utils.Database(self.connection, execute_plugins=False)
        self.working.clear()
        self.logs.clear()
        raise lost(gone, saved)

    def sit(self, session: int, at: float) -> None:
        """Enter that this process works on a session, unless it does already."""
        from perfbisect.store.log import insert

        if session not in self.working:
            with self.transaction() as db:
                insert(db, "sittings", {"session_id": session, "started": at, "process": worker()})
            self.working.add(session)

    def fail(self, session: int, failure: str, at: float) -> None:
        """Enter why this process could not continue a session. Another process may resume it."""
        with self.transaction() as db:
            self.sit(session, at)
            [sitting] = db.execute("SELECT max(id) FROM sittings WHERE session_id = ?", [session]).fetchone()
            db.table("sittings").update(sitting, {"failure": masked(failure)})

    def update_settings(self, session: int, settings: "Settings") -> None:
        """Store settings that a session has chosen itself."""
        from perfbisect.store.log import compact

        with self.transaction() as db:
            [metric] = self.columns(session, "metric")
            db.table("sessions").update(session, {"settings": compact(settings), "metric": settings.metric})
            if metric != settings.metric:
                self.session_log(session).change_metric()

    def enter_drop_hunt(self, trial: int, drop: tuple[int, int, int] | None, hunt: int) -> None:
        """Enter that a hunt is for a drop of a comparison: workload, the build before it, the build after it.

        None: of the line of a watched branch, between tips that this night has not compared.
        """
        with self.transaction() as db:
            db.table("sessions").update(hunt, {"about": trial, "drop_between": json.dumps(drop) if drop else None})

    def select(self, sql: str, values: Sequence[object] | Mapping[str, object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with explained(self.path):
            return self.connection.execute(sql, values).fetchall()

    def events(self, session: int, after: int = 0) -> Iterator[Entry]:
        """The log of a session, in order: the entries after the id ``after``."""
        from perfbisect.store.log import decode

        [kind] = self.columns(session, "kind")
        candidates = self.candidates(session) if kind == "hunt" else ()
        name = called(kind, session)
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
                yield Entry(entry, at, event)

    def settings(self, session: int) -> "Settings":
        """The settings of a session."""
        import msgspec

        from perfbisect.core.domain.settings import Settings

        kind, stored = self.columns(session, "kind", "CAST(settings AS BLOB)")
        with intact(self.shown, f"{called(kind, session)}, table sessions, row {session}, column settings,"):
            return msgspec.json.decode(stored, type=Settings)

    def began(self, session: int) -> float:
        """The start of a session, in seconds since the epoch."""
        return float(self.columns(session, "started")[0])

    def sittings(self, session: int) -> list[float]:
        """The starts of the sittings of a session, in order, in seconds since the epoch."""
        rows = self.select("SELECT started FROM sittings WHERE session_id = ? ORDER BY id", [session])
        with intact(self.shown, f"table sittings of session {session}"):
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
        """Columns of a session. Raises UsageError when there is no such session, or with ``hunts`` no such hunt."""
        select = f"SELECT {', '.join(names)} FROM {'hunts' if hunts else 'sessions'} WHERE id = ?"
        rows = self.select(select, [min(session, LARGEST_ID)])
        if not rows:
            raise UsageError(f"There is no hunt {session} in the history {self.shown}.", "`bisect history` lists them.")
        return rows[0]

    def origin(self, session: int) -> str:
        """Whose a session is that was imported, or that someone else has made; "" for an own one."""
        process = f"(SELECT process FROM sittings WHERE session_id = {int(session)} ORDER BY id DESC LIMIT 1)"
        return self.whose(*self.columns(session, "coalesce(origin, '')", process))

    def whose(self, origin: str, process: str | None) -> str:
        """The same by two of its columns. What is in the user's state folder is the user's, whoever wrote it."""
        return str(origin or ("" if in_usual_place(self.path) else whose(process)))

    def trial(self, name: str) -> "Trial":
        """The trial of that name, as c3. Raises UsageError when none exists."""
        return self.read_trial(self.number_of_trial(name))

    def number_of_trial(self, name: str) -> int:
        """The number of the trial of that name. Raises UsageError when none exists."""
        number = int(name[1:])
        with suppress(UsageError):
            if called(self.columns(number, "kind")[0], number) == name:
                return number
        raise UsageError(f"There is no {name} in the history {self.shown}.", "`bisect history` lists all.")

    def read_trial(self, number: int) -> "Trial":
        """A trial with all its runs: its log, folded. Raises EnvironmentFailure for a damaged one."""
        return read_trial(self, number)

    def intact_trials(self, where: str, values: Sequence[object] | Mapping[str, object]) -> "Iterator[Trial]":
        """The trials for which a condition of SQL holds, newest first, as they are wanted.

        Damaged ones, which `bisect show` reports, are left out.
        """
        select = f"SELECT id FROM sessions WHERE kind != 'hunt' AND {where} ORDER BY id DESC"
        for (number,) in self.select(select, values):
            with suppress(EnvironmentFailure):
                yield self.read_trial(number)

    def proofs(self, hunt: int) -> "list[Trial]":
        """The proofs of a hunt's verdict, oldest first; damaged ones are left out."""
        return [*self.intact_trials("kind = 'prove' AND about = ?", [hunt])][::-1]

    def hunts(self) -> Sequence[Listed]:
        """All hunts, oldest first."""
        return read_hunts(self)

    def trials(self) -> Sequence[ListedTrial]:
        """All trials, oldest first."""
        return read_trials(self)

    def listing(self) -> Sequence[Listed | ListedTrial]:
        """All hunts and trials, oldest first."""
        return sorted([*self.hunts(), *self.trials()], key=lambda one: one.started)

    def listed(self, hunt: int) -> Listed:
        """One hunt in its present state."""
        self.columns(hunt, "id", hunts=True)
        return undamaged(self, read_hunts(self, hunt)[0])

    def listed_session(self, session: int) -> Listed | ListedTrial:
        """One hunt or trial in its present state."""
        if self.columns(session, "kind") == ("hunt",):
            return self.listed(session)
        return undamaged(self, read_trials(self, session)[0])

    def is_carried_out(self, session: int) -> bool:
        """Whether a process of this machine works on it."""
        latest = "SELECT process FROM sittings WHERE session_id = ? ORDER BY id DESC LIMIT 1"
        return any(process and is_running(process) for (process,) in self.select(latest, [session]))

    def latest(self) -> int:
        """The newest own hunt, or without one the newest. Raises UsageError when none exists."""
        [(newest,)] = self.select(f"SELECT coalesce(max(iif({OWN.format('hunts')}, id, NULL)), max(id)) FROM hunts")
        if newest is None:
            raise UsageError(f"There are no hunts yet in {self.path}.", "Begin one with `bisect run`.")
        return int(newest)

    def query(self, sql: str) -> Answer:
        """The result of a user's SQL. Raises UsageError for a mistake in it, and for a statement that would write."""
        return ask(self.connection, sql, self.path)
