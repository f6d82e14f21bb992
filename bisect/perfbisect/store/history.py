"""The history of all hunts, one SQLite file.

The log is the state. The table ``events`` is append-only and contains every event of a hunt, as JSON with its time, in
order. A hunt that was killed is resumed by reading its log and calling the search again, and every report is made from
the log. All other tables repeat the log in columns, for queries in SQL; they are written in the transaction that appends
the event, so that they always agree with it. An event is on disk before ``append`` returns. Events of progress are not
stored.

One process writes a hunt. Other processes may write other hunts at the same time (they wait for each other for
milliseconds), and any number may read (write-ahead log).

This module is fast to import: what decodes events (msgspec, numpy) or migrates (sqlite-utils) is imported when used.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perfbisect.core.domain.settings import Settings
from perfbisect.errors import UsageError
from perfbisect.masking import masked, masked_fields
from perfbisect.process import this_process
from perfbisect.store.connection import SHARED, default_place, explained, intact, open_reader, open_writer, version
from perfbisect.store.listing import Listed, ListedTrial, read_hunts, read_trials
from perfbisect.store.query import Answer, ask

if TYPE_CHECKING:
    import sqlite3

    import sqlite_utils

    from perfbisect.core.domain.events import Commit, Event, HuntStarted
    from perfbisect.core.domain.facts import HostFacts
    from perfbisect.core.domain.settings import TrialRequest
    from perfbisect.core.domain.trials import Trial, TrialRun, TrialSkip
    from perfbisect.core.inference.from_log import Logged
    from perfbisect.core.stats.noise import Noise

OF_SETTINGS = (
    "good", "bad", "good_commit", "bad_commit", "repository", "builder", "variant", "workload", "host", "metric",
)  # fmt: skip


LARGEST_ID = 2**63 - 1  # of a row in SQLite


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log."""

    id: int  # increases along the log
    at: float  # seconds since the epoch
    event: "Event"


class History:
    """All hunts. Opened for writing, or read-only: then the file is never created or changed."""

    def __init__(self, path: Path, connection: "sqlite3.Connection", db: "sqlite_utils.Database | None") -> None:
        self.path = path
        self.connection = connection
        self.writer = db
        self.working: set[int] = set()  # hunts for which this process has a row in sessions
        self.ranges: dict[int, tuple[str, ...]] = {}
        self.nodes: dict[int, dict[str, int]] = {}

    @classmethod
    def open(cls, path: Path | None = None, *, read_only: bool = False) -> "History":
        """The history at ``path`` (None: in the user's state folder); for writing it is created if it does not exist.

        Raises UsageError when it does not exist (read-only), is not a history, or is too new; EnvironmentFailure
        for an error of the file system.
        """
        path = path or default_place()
        if read_only:
            return cls(path, open_reader(path), None)
        import sqlite_utils

        from perfbisect.store.migrations import migrate

        connection = open_writer(path)
        try:
            db = sqlite_utils.Database(connection, execute_plugins=False)
            with explained(path):
                migrate(db)
        except BaseException:
            connection.close()
            raise
        return cls(path, connection, db)

    def close(self) -> None:
        """Close the file. Everything has been written before."""
        self.connection.close()

    # Writing

    def begin(self, settings: Settings, host: "HostFacts", started: "HuntStarted", at: float) -> int:
        """Enter a new hunt and return its id; the range is that of ``started``, whose ``hunt`` is ignored.

        Its settings are stored as they are, since `resume` needs its commands. Where they contain a password, only the
        user can read the history from then on.
        """
        from perfbisect.core.domain.codec import builtins
        from perfbisect.store.fact_tables import host_row
        from perfbisect.store.rows import insert, new_uid

        if masked_fields(settings) is not settings:
            make_private(self.path)
        with self.transaction() as db:
            row = {
                "uid": new_uid(),
                "started": at,
                **{column: getattr(settings, column) for column in OF_SETTINGS},
                "base_commit": started.candidates[0],
                "host_id": host_row(db, host, at),
                "settings": json.dumps(builtins(settings), allow_nan=False, separators=(",", ":")),
                "commits": started.commits,
                "candidates": started.choices + 1,
                "merges": started.merges,
            }
            hunt = insert(db, "hunts", row)
            insert(db, "ranges", {"hunt_id": hunt, "candidates": json.dumps(started.candidates)})
            self.enter(db, hunt, at)
        self.working.add(hunt)
        return hunt

    def append(self, hunt: int, event: "Event", at: float) -> None:
        """Append ``event`` to the log of a hunt, and its rows to the other tables. It is durable when this returns."""
        from perfbisect.store.codec import PASSING
        from perfbisect.store.fact_tables import enter_event

        if isinstance(event, PASSING):
            return
        event = masked_fields(event)
        candidates = self.candidates(hunt)
        with self.transaction() as db:
            if hunt not in self.working:
                self.enter(db, hunt, at)
            enter_event(db, hunt, event, at, str(self.column(hunt, "host")), candidates, self.nodes[hunt])
        self.working.add(hunt)

    @contextmanager
    def transaction(self) -> "Iterator[sqlite_utils.Database]":
        """A transaction, durable at the end. It is exclusive from its first statement on, so that writers never conflict."""
        assert self.writer is not None, "this history was opened read-only"
        if self.connection.in_transaction:  # of ``together``
            yield self.writer
            return
        with explained(self.path):
            self.writer.execute("BEGIN IMMEDIATE")
            try:
                yield self.writer
                self.writer.commit()
            except BaseException:
                self.writer.rollback()
                raise

    @contextmanager
    def together(self) -> Iterator[None]:
        """Everything that is written within is one transaction: all of it is kept, or nothing."""
        with self.transaction():
            yield

    def enter(self, db: "sqlite_utils.Database", hunt: int, at: float) -> None:
        """Enter that this process works on a hunt."""
        from perfbisect.store.rows import insert

        insert(db, "sessions", {"hunt_id": hunt, "started": at, "process": this_process()})

    def fail(self, hunt: int, failure: str, at: float) -> None:
        """Enter why this process could not continue a hunt. Another process may resume it."""
        with self.transaction() as db:
            if hunt not in self.working:
                self.enter(db, hunt, at)
            db.execute(
                "UPDATE sessions SET failure = ? WHERE id = (SELECT max(id) FROM sessions WHERE hunt_id = ?)",
                [masked(failure), hunt],
            )
        self.working.add(hunt)

    # Builds measured without a search

    def begin_trial(
        self, request: "TrialRequest", host: "HostFacts", commits: "Sequence[Commit]", at: float
    ) -> "Trial":
        """Enter a new trial; ``commits`` has date, author and subject of those among its builds."""
        from perfbisect.core.domain.trials import Trial
        from perfbisect.store.trials import enter_trial

        if masked_fields(request) is not request:
            make_private(self.path)
        with self.transaction() as db:
            return Trial(enter_trial(db, request, host, commits, at), request, host, at)

    def resume_trial(self, request: "TrialRequest", host: "HostFacts") -> "Trial | None":
        """The newest unfinished trial of the same settings on the same machine, entered as continued by this process; or None."""
        from perfbisect.store.trials import stored_series, unfinished

        with self.transaction() as db:
            if trial := unfinished(self.connection, request, host, self.path):
                series = stored_series(request)  # its commands name the metric
                values = [this_process(), request.metric, request.rounds, series, trial.id]
                changes = "failure = NULL, process = ?, metric = ?, visits = ?, series = ?"
                db.execute(f"UPDATE trials SET {changes} WHERE id = ?", values)
            return trial

    def add_to_trial(self, trial: int, run: "TrialRun") -> None:
        """Add a run. It is durable when this returns."""
        from perfbisect.store.trials import enter_run

        with self.transaction() as db:
            enter_run(db, trial, run)

    def skip_in_trial(self, trial: int, skip: "TrialSkip") -> None:
        """Enter that a build fails in a workload."""
        from perfbisect.store.trials import enter_skip

        with self.transaction() as db:
            enter_skip(db, trial, masked_fields(skip))

    def end_trial(self, trial: int, at: float | None, failure: str = "") -> None:
        """Enter that everything was measured; or why that cannot be done, with None for ``at`` if it may be later."""
        with self.transaction() as db:
            db.execute("UPDATE trials SET ended = ?, failure = ? WHERE id = ?", [at, masked(failure) or None, trial])

    def trial(self, name: str) -> "Trial":
        """The trial of that name, as c3. Raises UsageError when none exists."""
        from perfbisect.store.trials import read_trial

        with explained(self.path):
            found = read_trial(self.connection, int(name[1:]), self.path)
        if found is None or found.name != name:
            raise UsageError(f"There is no {name} in the history {self.path}.", "`bisect history` lists all.")
        return found

    def trials(self) -> Sequence[ListedTrial]:
        """All trials, oldest first."""
        with explained(self.path):
            return read_trials(self.connection)

    def proofs(self, hunt: int) -> "list[Trial]":
        """The proofs of a hunt's verdict, oldest first; damaged ones are left out."""
        from perfbisect.store.trials import read_proofs

        with explained(self.path):
            return read_proofs(self.connection, hunt, self.path)

    def record_noise(self, trial: int, noise: "Noise") -> None:
        """Enter the noise estimated from the runs of an A/A so far."""
        values = [noise.between, noise.within, noise.run, trial]
        with self.transaction() as db:
            db.execute("UPDATE trials SET between_visits = ?, within_visits = ?, noise = ? WHERE id = ?", values)

    # Reading one hunt

    def events(self, hunt: int, after: int = 0) -> Iterator[Entry]:
        """The log of a hunt, in order: the entries after the id ``after``."""
        from perfbisect.store.codec import decode

        candidates = self.candidates(hunt)
        with explained(self.path):
            rows = self.connection.execute(
                "SELECT id, at, CAST(kind AS BLOB), CAST(body AS BLOB) FROM events"
                " WHERE hunt_id = ? AND id > ? ORDER BY id",
                [hunt, after],
            )
            for entry, at, kind, body in rows:
                with intact(self.path, f"hunt {hunt}, table events, row {entry},"):
                    event = decode(kind.decode(), body, candidates)
                    at = float(at)
                yield Entry(entry, at, event)

    def log(self, hunt: int) -> "list[tuple[float, Logged]]":
        """The input of the search: builds, skips and runs as they were appended, with their times."""
        from perfbisect.core.domain.events import BuildFinished, CandidateSkipped, RunFinished

        facts = (BuildFinished, CandidateSkipped, RunFinished)
        return [(entry.at, entry.event) for entry in self.events(hunt) if isinstance(entry.event, facts)]

    def settings(self, hunt: int) -> Settings:
        """The settings of a hunt."""
        import msgspec

        stored = self.column(hunt, "CAST(settings AS BLOB)")
        with intact(self.path, f"hunt {hunt}, table hunts, row {hunt}, column settings,"):
            assert isinstance(stored, bytes)
            request: Settings = msgspec.convert(json.loads(stored), Settings)
        return request

    def update_recipe_hash(self, hunt: int, build_hash: str) -> None:
        """Store the hash of a changed recipe: later build failures of the hunt belong to it."""
        with self.transaction() as db:
            db.execute(
                "UPDATE hunts SET settings = json_set(settings, '$.build_hash', ?) WHERE id = ?", [build_hash, hunt]
            )

    def update_settings(self, hunt: int, settings: Settings) -> None:
        """Store settings that a hunt has chosen itself."""
        from perfbisect.core.domain.codec import builtins

        stored = json.dumps(builtins(settings), allow_nan=False, separators=(",", ":"))
        with self.transaction() as db:
            db.execute("UPDATE hunts SET settings = ?, metric = ? WHERE id = ?", [stored, settings.metric, hunt])

    def began(self, hunt: int) -> float:
        """The start of a hunt, in seconds since the epoch."""
        return float(str(self.column(hunt, "started")))

    def sessions(self, hunt: int) -> list[float]:
        """The starts of the sessions of a hunt, in order, in seconds since the epoch."""
        with explained(self.path):
            rows = self.connection.execute("SELECT started FROM sessions WHERE hunt_id = ? ORDER BY id", [hunt])
            return [started for (started,) in rows]

    def candidates(self, hunt: int) -> tuple[str, ...]:
        """The commit of each node of a hunt's range, oldest first."""
        if hunt not in self.ranges:
            self.column(hunt, "id")
            with explained(self.path):
                rows = self.connection.execute("SELECT CAST(candidates AS BLOB) FROM ranges WHERE hunt_id = ?", [hunt])
                row = rows.fetchone()
            with intact(self.path, f"hunt {hunt}, table ranges,"):
                self.ranges[hunt] = read_range(row[0])
            self.nodes[hunt] = {commit: node for node, commit in enumerate(self.ranges[hunt])}
        return self.ranges[hunt]

    def column(self, hunt: int, name: str) -> object:
        """One column of a hunt. Raises UsageError when there is no such hunt."""
        with explained(self.path):
            bound = hunt if abs(hunt) <= LARGEST_ID else None  # which no row has
            row = self.connection.execute(f"SELECT {name} FROM hunts WHERE id = ?", [bound]).fetchone()
        if row is None:
            raise UsageError(f"There is no hunt {hunt} in the history {self.path}.", "`bisect history` lists them.")
        return row[0]

    # Reading all hunts

    def hunts(self) -> Sequence[Listed]:
        """All hunts, oldest first."""
        with explained(self.path):
            return read_hunts(self.connection)

    def listed(self, hunt: int) -> Listed:
        """One hunt in its present state."""
        self.column(hunt, "id")
        with explained(self.path):
            return read_hunts(self.connection, hunt)[0]

    def origin(self, hunt: int) -> str:
        """Whose an imported hunt is; "" for an own one."""
        imported = version(self.connection) >= SHARED
        return str(self.column(hunt, "coalesce(origin, '')" if imported else "''"))

    def latest(self) -> int:
        """The newest own hunt, or without one the newest. Raises UsageError when none exists."""
        with explained(self.path):
            own = "iif(origin IS NULL, id, NULL)" if version(self.connection) >= SHARED else "id"
            [newest] = self.connection.execute(f"SELECT coalesce(max({own}), max(id)) FROM hunts").fetchone()
        if newest is None:
            raise UsageError(f"There are no hunts yet in {self.path}.", "Begin one with `bisect run`.")
        return int(newest)

    def query(self, sql: str) -> Answer:
        """The result of a user's SQL. Raises UsageError for a mistake in it, and for a statement that would write."""
        return ask(self.connection, sql, self.path)


def read_range(stored: bytes) -> tuple[str, ...]:
    """The commits of a range from their stored form."""
    commits = json.loads(stored)
    if not isinstance(commits, list) or not all(isinstance(commit, str) for commit in commits):
        raise TypeError("it is no list of commits")
    return tuple(commits)


def make_private(path: Path) -> None:
    """Deny others the history and its write-ahead log."""
    with explained(path):
        for each in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            if each.exists():
                each.chmod(0o600)
