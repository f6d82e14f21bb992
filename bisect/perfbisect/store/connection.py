"""Opens the file of a history (the SQLite database of all sessions), and translates errors of SQLite into sentences for
the user.

Reading a history needs only Python's sqlite3 module, so that `bisect history` starts fast.
"""

import fcntl
import os
import re
import shlex
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from perfbisect.errors import EnvironmentFailure, PerfBisectError, UsageError
from perfbisect.folders import state_folder
from perfbisect.process import owner_if_other_user
from perfbisect.store.schema import APPLICATION, VERSION, create_schema, foreign_object, replace_outdated_views

LARGEST_ID = 2**63 - 1  # a number above the ids of all rows in SQLite


# SQL condition: the session {0} is not imported, and the user made the session. (In a history file that several persons
# use, the last attempt of a session shows who made the session.)
OWN = (
    "{0}.origin IS NULL AND"
    " whose((SELECT CAST(process AS BLOB) FROM attempts WHERE session_id = {0}.id ORDER BY id DESC LIMIT 1)) = ''"
)


OTHER_FILE = "Give another file with --history."
BEGIN_OR_OTHER = "`bisect run` begins a hunt. If you have another history, give its file with --history."


class NoHistory(UsageError):
    """The file is empty or is not a history."""


PROGRESS_STEPS = 100_000  # instructions of SQLite's virtual machine between two checks for Ctrl-C
WAIT = 30.0  # seconds that a writer waits for another writer
SHARED_SYSTEMS = re.compile(r"(nfs4?|cifs|smb3?|9p|virtiofs|ceph|lustre|gpfs|beegfs|afs|gfs2|ocfs2|vboxsf|fuse\.\S+) ")


def default_history_path() -> Path:
    """The path of the user's history, in the state folder."""
    return state_folder() / "history.db"


def history_option(history: Path | None) -> list[str]:
    """The option --history with its value, as words of a command; empty if ``history`` is None or the default
    history.
    """
    return [] if history is None or is_default_history(history) else ["--history", str(history)]


def with_history(command: str, history: Path | None) -> str:
    """``command`` for a message to the user, with the option --history if ``history`` is not the default history."""
    return " ".join([command, *map(shlex.quote, history_option(history))])


def not_found_error(name: str, label: str, history: Path) -> UsageError:
    """The error that a history contains no session or batch with the id ``name``; the message calls the history
    ``label``.
    """
    from perfbisect.core.domain.settings import TrialType

    is_trial = name[1:].isdecimal()
    kind = next((f"{kind.trial_noun} " for kind in TrialType if is_trial and name.startswith(kind[0])), "")
    command = with_history("bisect history", history)
    return UsageError(f"There is no {kind}{name} in the history {label}.", f"To list all ids: {command}")


@lru_cache
def is_default_history(path: Path) -> bool:
    """Whether ``path`` is the user's history in the state folder."""
    with suppress(EnvironmentFailure):  # raised if there is no home folder
        return path.absolute() == default_history_path()
    return False


class RetryingReadConnection(sqlite3.Connection):
    """A read-only connection, whose statements wait while the first writer makes the index of the write-ahead log.

    Without this class, SQLite would not wait for the index, and would report an error immediately.
    """

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Run a statement."""
        execute = super().execute
        return _retried_statement(lambda: execute(sql, parameters), sqlite3.SQLITE_READONLY_RECOVERY)


class WalKeepingConnection(sqlite3.Connection):
    """A connection for writing. Closing the connection keeps an empty write-ahead log, because readers who cannot write
    to the folder need the log.

    Without this class, SQLite would remove the write-ahead log when the last connection that can write is closed.
    """

    def close(self) -> None:
        """Close the history."""
        with suppress(sqlite3.Error):
            _, _, file = self.execute("PRAGMA database_list").fetchone()
            with closing(sqlite3.connect(_read_only_uri(Path(file)), uri=True)) as last:
                last.execute("PRAGMA user_version")
                self.execute("PRAGMA busy_timeout = 0")
                self.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                super().close()
        super().close()


def open_reader(path: Path) -> sqlite3.Connection:
    """A read-only connection to an existing history. Raises UsageError if the file is missing or is not a history."""
    if not path.exists():
        raise UsageError(f"There are no hunts yet: the history {path} does not exist.", BEGIN_OR_OTHER)
    with sqlite_errors_explained(path), ExitStack() as unless_opened:
        _check_regular_file(path)
        connection = sqlite3.connect(_read_only_uri(path), uri=True, timeout=WAIT, factory=RetryingReadConnection)
        unless_opened.callback(connection.close)
        if not prepare_and_check_schema(connection, path):
            raise NoHistory(f"The history {path} is empty: it has no hunts yet.", "`bisect run` begins a hunt.")
        replace_outdated_views(connection, read_only=True)
        connection.execute("PRAGMA query_only = 1")
        if connection.execute("PRAGMA journal_mode").fetchone() == ("wal",) and (where := shared_file_system(path)):
            raise UsageError(
                f"The history {path} is on {where}. There, its write-ahead log can be read only on the host that wrote it.",
                "Run `bisect history export FILE` on that host. Afterwards all hosts can read the history.",
            )
        unless_opened.pop_all()
    return connection


def open_writer(path: Path) -> sqlite3.Connection:
    """A connection that writes durably. The history is created if the file does not exist.

    With ``synchronous = FULL``, every commit to the database waits some milliseconds for the disk, which is short
    compared with the seconds of a run and the minutes or hours of a build. The database commits nothing during a run,
    because events are stored between runs. On a file system that several hosts mount, SQLite uses a rollback journal,
    and each commit waits for readers. On a file system that several hosts mount, a write-ahead log cannot be used,
    because its index is in memory, and hosts do not share memory.
    """
    with sqlite_errors_explained(path), ExitStack() as unless_opened:
        _check_regular_file(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_empty_file(path)
        connection = sqlite3.connect(path, timeout=WAIT, isolation_level=None, factory=WalKeepingConnection)
        unless_opened.callback(connection.close)
        if exists := prepare_and_check_schema(connection, path):
            replace_outdated_views(connection)
        statement = f"PRAGMA journal_mode = {'DELETE' if shared_file_system(path) else 'WAL'}"
        _retried_statement(lambda: connection.execute(statement), sqlite3.SQLITE_BUSY)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        if not exists:
            create_schema(connection)
        unless_opened.pop_all()
    return connection


def _check_regular_file(path: Path) -> None:
    """Raise UsageError if ``path`` exists and is not a regular file. Opening a FIFO would block, and would not react
    to signals.
    """
    if path.exists() and not path.is_file():
        raise UsageError(f"The history {path} cannot be opened: it is not a regular file.", OTHER_FILE)


def _make_empty_file(path: Path) -> None:
    """Make an empty file at ``path`` if no file exists there. Before the file is made, the write-ahead log and the
    index of a history that a user moved from ``path`` to another place are removed.

    Another process may still write to the moved history. If the index of the moved history stayed beside ``path``, that
    process and the new history would use the same log, and the two histories would damage each other.
    """
    if path.exists():
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # NFS may refuse the lock, but histories on NFS have no index
            fcntl.flock(folder, fcntl.LOCK_EX)
        if not path.exists():
            for end in ("-shm", "-wal"):
                path.with_name(path.name + end).unlink(missing_ok=True)
            path.touch()
    finally:
        os.close(folder)


def shared_file_system(path: Path) -> str:
    """The type of the file system of a history if several hosts can mount it, such as nfs4; "" for a local file
    system.
    """
    device = (path if path.exists() else path.parent).stat().st_dev
    for mount in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        mounted, _, system = mount.partition(" - ")
        if mounted.split()[2] == f"{os.major(device)}:{os.minor(device)}" and SHARED_SYSTEMS.match(system):
            return system.split()[0]
    return ""


def device_and_inode(path: Path) -> tuple[int, int] | None:
    """The device and the inode of the file at a path, which identify the file; None if there is no file."""
    with suppress(OSError):
        return (status := path.stat()).st_dev, status.st_ino
    return None


def _read_only_uri(path: Path) -> str:
    """The URI by which a history is opened read-only."""
    return f"{path.absolute().as_uri()}?mode=ro"


def _retried_statement(run_statement: Callable[[], sqlite3.Cursor], retried_code: int) -> sqlite3.Cursor:
    """The result of a statement, repeated for up to WAIT seconds while SQLite's error code is ``retried_code``.

    SQLite itself repeats a statement while the database is locked, but does not repeat statements that fail with
    ``retried_code``.
    """
    deadline = time.monotonic() + WAIT
    while True:
        try:
            return run_statement()
        except sqlite3.OperationalError as failure:
            if failure.sqlite_errorcode != retried_code or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def decoded_text(stored: bytes) -> str:
    """A text that is stored in the history, decoded from its bytes. Bytes that are not UTF-8 become surrogates, which
    are shown as escapes.
    """
    return stored.decode("utf-8", "surrogateescape")


def prepare_and_check_schema(connection: sqlite3.Connection, path: Path) -> bool:
    """Set up a connection: let Ctrl-C interrupt a statement, set how texts are decoded, define the SQL function
    ``whose``. Returns whether the file has tables.

    Raises UsageError for a file that is not a history, or is of another version. Raises EnvironmentFailure if the file
    contains a trigger or another SQL object that perfbisect has not made.
    """
    # Python handles signals such as Ctrl-C during a query only in callbacks of SQLite, so an empty callback is set.
    connection.set_progress_handler(lambda: 0, PROGRESS_STEPS)
    connection.text_factory = decoded_text
    mine = is_default_history(path)  # the user owns all sessions of the default history
    connection.create_function(
        "whose", 1, lambda process: "" if mine else owner_if_other_user(decoded_text(process or b""))
    )
    # The tables are read before the version, because another process may be creating the tables, and then the version.
    [tables] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    [application] = connection.execute("PRAGMA application_id").fetchone()
    [version] = connection.execute("PRAGMA user_version").fetchone()
    if tables and application != APPLICATION:
        raise NoHistory(f"{path} is an SQLite database, but not a history of perfbisect.", OTHER_FILE)
    if tables and version != VERSION:
        raise UsageError(
            f"The history {path} was written by {'a newer' if version > VERSION else 'an older'} version of perfbisect.",
            "Use that version, or another history. To begin a new history, move this file away.",
        )
    if tables and (name := foreign_object(connection)):
        raise EnvironmentFailure(
            f"{path} is not a history that perfbisect has made: its table, view, index or trigger {name} differs.",
            "Do not use this file: it could execute SQL of its author.",
        )
    return bool(tables)


@contextmanager
def sqlite_errors_explained(path: Path) -> Iterator[None]:
    """A context in which errors of SQLite and of the file system are translated into errors with sentences for the
    user.
    """
    try:
        yield
    except sqlite3.Error as failure:
        raise error_for_user(failure, path) from failure
    except OSError as failure:
        raise EnvironmentFailure(f"The history {path} cannot be opened: {failure.strerror}.", OTHER_FILE) from failure


@contextmanager
def damage_explained(history_name: str, damaged_item: str) -> Iterator[None]:
    """Translate any error that occurs while a stored value is read into an EnvironmentFailure, which says that the
    history is damaged.

    ``damaged_item`` names the hunt, table and row of the value; ``history_name`` is the path or address of the
    history.
    """
    try:
        yield
    except PerfBisectError:  # the message names the damaged item already
        raise
    except Exception as failure:  # no list of errors is complete: a damaged row can have any value
        raise EnvironmentFailure(
            f"The history {history_name} is damaged: {damaged_item} cannot be read ({type(failure).__name__}: {failure}).",
            "All other hunts and comparisons in this file can be read. To repair the file, replace it with an earlier copy.",
        ) from failure


FULL = ("The disk of the history {path} is full.", "Free disk space. All events that were saved before are kept.")
DAMAGED = (
    "The history {path} is damaged: {failure}.",
    "To copy the readable part to a new file: sqlite3 {path} .recover | sqlite3 NEW.db",
)
LOCKED = (
    f"Another process has locked the history {{path}} for more than {WAIT:.0f} seconds.",
    "Wait for the end of that process, or give another file with --history.",
)
NO_LOG = (
    "The history {path} cannot be opened: it has no write-ahead log, and you cannot write to its folder.",
    "Ask a user who can write there to run `bisect history` on it, or copy the history to your own folder.",
)
REFUSED = (
    "The history {path} cannot be opened or written: {failure}.",
    "Check the permissions of the file and of its folder.",
)
OTHER = "The history {path} cannot be read or written: {failure}.", "Check the disk and its free space."
SENTENCES = {  # error code of SQLite → what happened, and advice
    sqlite3.SQLITE_FULL: FULL, sqlite3.SQLITE_CORRUPT: DAMAGED, sqlite3.SQLITE_BUSY: LOCKED, sqlite3.SQLITE_LOCKED: LOCKED,
    sqlite3.SQLITE_READONLY: REFUSED, sqlite3.SQLITE_CANTOPEN: REFUSED, sqlite3.SQLITE_PERM: REFUSED,
}  # fmt: skip


def error_for_user(failure: sqlite3.Error, path: Path) -> PerfBisectError:
    """The error that explains an error of SQLite to the user in a sentence. An interrupt raises KeyboardInterrupt."""
    code = (getattr(failure, "sqlite_errorcode", None) or sqlite3.SQLITE_ERROR) & 0xFF
    if code == sqlite3.SQLITE_INTERRUPT:
        raise KeyboardInterrupt
    if code == sqlite3.SQLITE_NOTADB:
        return NoHistory(f"{path} is not a history: it is not an SQLite database.", OTHER_FILE)
    message = SENTENCES.get(code, OTHER)
    if message is REFUSED and not path.with_name(f"{path.name}-wal").exists():
        readable = os.access(path, os.R_OK, effective_ids=True)
        makes_log = os.access(path.parent, os.W_OK, effective_ids=True)
        message = NO_LOG if readable and not makes_log else message
    return EnvironmentFailure(*(text.format(path=path, failure=failure) for text in message))
