"""What this user has leased, noted in files before it is leased, so that nothing is kept for a session that was killed.

The state folder has one file for each job: its name is the job's, which is chosen at random before a scheduler hears of it
and by which the job is released. Whoever leases locks the file as long as it lives, also when it is killed: a file
that can be locked is one that nobody uses. Where the file system has no such locks, the process is looked for. Neither
tells of a session on another machine with the same home: its job is left alone until it is old.
"""

import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from perfbisect.folders import state_folder

OLD = timedelta(days=7)  # after which a session on another machine may be taken for ended


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """A job that was given to a scheduler, or is about to be."""

    job: str
    kind: str  # "slurm:quiet"
    count: int  # machines
    since: str  # ISO 8601, UTC
    pid: int  # of the session, for messages
    machine: str  # the session's
    release: list[str]  # the command that gives it back
    purpose: str = ""

    def __str__(self) -> str:
        what = self.kind if self.count == 1 else f"{self.kind}*{self.count}"
        return f"{what} (job {self.job}, since {self.since}, of process {self.pid} on {self.machine})"


def folder() -> Path:
    """Where the files are."""
    return state_folder() / "leases"


@dataclass
class Note:
    """A record as its session sees it."""

    released: bool = False  # whether the job is given back: otherwise the record stays, for the next session


@contextmanager
def noted(record: Record) -> Iterator[Note]:
    """Keep a record while a job may exist."""
    folder().mkdir(parents=True, exist_ok=True)
    path = folder() / f"{record.job}.json"
    new = path.with_suffix(".new")
    file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        with open(file, "wb", closefd=False) as stream:
            stream.write(msgspec.json.encode(record))
        os.fsync(file)
        new.rename(path)  # locked before anyone looks for it
        place = os.open(path.parent, os.O_RDONLY)
        os.fsync(place)
        os.close(place)
        note = Note()
        try:
            yield note
        finally:
            if note.released:
                path.unlink(missing_ok=True)
    finally:
        os.close(file)


def all_records() -> list[tuple[Record, bool]]:
    """All that is noted, and whether the session that noted it still runs."""
    found = []
    for path in sorted(folder().glob("*.json")):
        with _opened(path) as (record, abandoned):
            if record:
                found.append((record, not abandoned))
    return found


@contextmanager
def abandoned(record: Record) -> Iterator[Note | None]:
    """The record of a session that has ended, else None. Until the end of the block no other process is told so."""
    path = folder() / f"{record.job}.json"
    with _opened(path) as (found, free):
        note = Note() if found is not None and free else None
        yield note
        if note and note.released:
            path.unlink(missing_ok=True)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Record | None, bool]]:
    """The record in a file, and whether its session has ended."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None, False
        return
    try:
        locked: bool | None = False  # None: nothing is known
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            locked = True
        except OSError:
            locked = None
        record: Record | None = None
        with suppress(msgspec.DecodeError), open(file, "rb", closefd=False) as stream:
            record = msgspec.json.decode(stream.read(), type=Record)
        # Another process may have released it just now
        yield record, record is not None and not locked and path.exists() and _ended(record, locked is None)
    finally:
        os.close(file)


def _ended(record: Record, without_locks: bool) -> bool:
    """Whether the session of a record that is not locked has ended."""
    if record.machine == platform.node():
        return not (without_locks and _runs(record.pid))
    try:
        since = datetime.fromisoformat(record.since)
    except ValueError:
        return False
    return datetime.now(UTC) - (since if since.tzinfo else since.replace(tzinfo=UTC)) > OLD


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
