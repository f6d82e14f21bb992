"""Opening a history: each problem with the file has its own error, and reading neither changes nor creates files."""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import sample_hunt as sample
from perfbisect.core.domain.events import Warned
from perfbisect.errors import EnvironmentFailure, PerfBisectError, UsageError
from perfbisect.store import connection
from perfbisect.store.history import History
from perfbisect.store.schema import VERSION, VIEWS


def read(path: Path) -> History:
    """Open a history read-only."""
    return History.open(path, read_only=True)


def test_default_history_is_in_the_users_state_folder(seal: Path) -> None:
    History.open().close()
    assert (seal / ".local" / "state" / "perfbisect" / "history.db").exists()


def test_reading_never_creates_or_writes_a_history(path: Path) -> None:
    with pytest.raises(UsageError, match="no hunts yet"):
        read(path)
    assert not path.parent.exists()
    with closing(History.open(path)) as history:
        hunt = sample.begin(history)
        with closing(read(path)) as reader:  # while it is written
            history.append(hunt, Warned("x"), 5.0)
            assert [entry.event for entry in reader.events(hunt)] == [Warned("x")]
    before = path.read_bytes()
    with closing(read(path)) as history:
        with pytest.raises(AssertionError, match="read-only"):
            history.append(1, Warned("x"), 5.0)
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            history.connection.execute("delete from events")
    assert path.read_bytes() == before


def test_history_file_may_have_any_name(tmp_path: Path) -> None:
    for odd in ("a b", "100%", "x?mode=rwc", "#", "ä"):
        path = tmp_path / odd / f"{odd}.db"
        with closing(History.open(path)) as history:
            sample.begin(history)
        with closing(read(path)) as history:
            assert history.latest_hunt() == 1
        assert {file.name.split(".db")[0] for file in path.parent.iterdir()} == {odd}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that any user may enter, with a closed history."""
    folder = Path(tempfile.mkdtemp())
    with closing(History.open(folder / "history.db")) as history:
        sample.begin(history)
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """In this context, the process cannot write to a folder. Root becomes the user nobody."""
    folder.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o755)


def test_history_in_a_read_only_folder_is_read_if_its_log_exists(folder: Path) -> None:
    """Without a write-ahead log (after an earlier version or SQLite's shell), the error says who can open the file."""
    path = folder / "history.db"
    for kind in ("wal", "shm"):
        path.with_name(f"history.db-{kind}").unlink()
    with unwritable(folder), pytest.raises(EnvironmentFailure, match="you cannot write to its folder") as wrong:
        read(path)
    assert "`bisect history` on it" in wrong.value.advice
    read(path).close()
    with unwritable(folder):
        with closing(read(path)) as history:
            assert len(history.hunts()) == 1
        assert {file.name for file in folder.iterdir()} == {path.name, f"{path.name}-shm", f"{path.name}-wal"}
        with pytest.raises(EnvironmentFailure, match="cannot be opened or written"), closing(History.open(path)) as own:
            sample.begin(own)


READER = """
import sys
from pathlib import Path
from perfbisect.store.history import History

history = History.open(Path(sys.argv[1]), read_only=True)
print("open", flush=True)
queries = 0
while len(history.hunts()) < 6 or queries < 1000:
    queries += 1
    if queries % 10 == 0:
        History.open(history.path, read_only=True).close()
"""


@pytest.mark.tools
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write what its own reader cannot")
def test_reader_without_write_permission_sees_new_hunts(folder: Path) -> None:
    path, without = folder / "history.db", "-dac_override,-dac_read_search"
    for each in (*folder.iterdir(), folder):
        each.chmod(0o555)
    argv = ["setpriv", f"--bounding-set={without}", f"--inh-caps={without}", sys.executable, "-c", READER, str(path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout and reader.stdout.readline() == "open\n"
        for _ in range(5):
            with closing(History.open(path)) as history:
                sample.write(history)
        assert reader.wait(120) == 0


def test_reader_waits_while_the_first_writer_makes_the_log_index(folder: Path) -> None:
    """Between two system calls of the writer, a reader without write permission finds an empty index."""
    writer = """
import fcntl, sqlite3, sys, time
with open(sys.argv[1] + "-shm", "r+b") as index:
    index.truncate(3)
    fcntl.lockf(index, fcntl.LOCK_SH, 1, 128)
    print("made", flush=True)
    time.sleep(0.3)
    connection = sqlite3.connect(sys.argv[1])
    connection.execute("pragma user_version").fetchone()
    sys.stdin.read()
"""
    path = folder / "history.db"
    argv = [sys.executable, "-c", writer, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "made\n"
        with unwritable(folder), closing(read(path)) as history:
            assert len(history.hunts()) == 1
        process.communicate("")


def test_shared_file_system_has_no_write_ahead_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    History.open(path).close()
    assert connection.shared_file_system(path) == ""
    monkeypatch.setattr(connection, "SHARED_SYSTEMS", re.compile(r"\S+ "))  # as if the tests' disk were shared
    assert connection.shared_file_system(path)
    with pytest.raises(UsageError, match="can be read only on the host that wrote it") as wrong:
        read(path)
    assert "bisect history export" in wrong.value.advice
    with closing(History.open(path)) as history, closing(read(path)) as reader:
        sample.write(history)
        assert len(reader.hunts()) == 1
    assert [each.name for each in path.parent.iterdir()] == ["history.db"]


def spoiled(path: Path, sql: str) -> None:
    """Make a history, and execute SQL on it."""
    History.open(path).close()
    with closing(sqlite3.connect(path)) as db:
        db.executescript(f"PRAGMA foreign_keys = OFF; {sql}")


def damaged(path: Path) -> None:
    with closing(History.open(path)) as history:
        for _ in range(30):
            sample.begin(history)
    data = bytearray(path.read_bytes())
    data[4096 : len(data) // 2] = b"\xff" * (len(data) // 2 - 4096)
    path.write_bytes(data)


def another(path: Path) -> None:
    """A database that is no history."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript("create table x (y)")


ENDLESS = "WITH RECURSIVE r(id) AS (SELECT 1 UNION ALL SELECT id FROM r)"
SPOILS: dict[str | Callable[[Path], object], str] = {
    (lambda path: path.write_text("hello, " * 300)): "not an SQLite database",
    another: "not a history of perfbisect",
    Path.mkdir: "not a regular file",
    damaged: "damaged",
    "pragma user_version = 999": "newer version of perfbisect",
    "pragma user_version = 1": "older version of perfbisect",
    f"drop table attempts; create view attempts as {ENDLESS} select id from r": "its table, view, index or trigger attempts differs",
    "drop view hunts; create table hunts (id)": "its table, view, index or trigger hunts differs",
    "alter table sessions add column odd as (abs(id))": "its table, view, index or trigger sessions differs",
    "drop table commits; create virtual table commits using fts5(date)": "its table, view, index or trigger commits differs",
    "create trigger t after insert on events begin delete from runs; end": "its table, view, index or trigger t differs",
}


@pytest.mark.parametrize("opening", [History.open, read])
@pytest.mark.parametrize("spoil", SPOILS)
def test_bad_file_fails(path: Path, opening: Callable[[Path], History], spoil: str | Callable[[Path], object]) -> None:
    path.parent.mkdir()
    spoiled(path, spoil) if isinstance(spoil, str) else spoil(path)
    before = path.is_file() and path.read_bytes()
    with pytest.raises(PerfBisectError, match=SPOILS[spoil]) as wrong, closing(opening(path)) as history:
        history.hunts()
    assert str(path) in str(wrong.value) and wrong.value.advice
    assert (path.is_file() and path.read_bytes()) == before


def test_views_of_an_earlier_version_are_replaced(tmp_path: Path) -> None:
    path, select = tmp_path / "history.db", "select rqps from candidates"
    with closing(History.open(path)) as history:
        sample.write_ways(history)
        now = history.select(select)
    older = f"create view datasets as {ENDLESS}, runs as (select 1 from r){VIEWS['datasets']}"
    candidates = "drop view candidates; create view candidates as select 5 as rqps; drop view rqps"
    spoiled(path, f"{candidates}; drop view datasets; {older}")
    before = path.read_bytes()
    for opening in (read, History.open):
        assert path.read_bytes() == before
        with closing(opening(path)) as history:
            assert history.select(select) == history.select("select rqps from rqps") == now
            assert history.select("select count(*) from datasets") == [(1,)]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute(select).fetchall() == now


def test_empty_file_has_no_hunts_and_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.touch()
    with pytest.raises(UsageError, match="no hunts yet"):
        read(path)
    assert path.stat().st_size == 0
    with pytest.raises(EnvironmentFailure, match="cannot be opened"):
        History.open(path / "history.db")
    with closing(History.open(path)) as history:
        assert sample.begin(history) == 1


def test_full_disk_is_reported_and_loses_no_stored_event(history: History) -> None:
    """A limit of the number of pages has the same effect as a full disk."""
    hunt = sample.begin(history)
    [(pages,)] = history.query("select page_count from pragma_page_count").rows
    history.connection.execute(f"pragma max_page_count = {pages}")
    with pytest.raises(EnvironmentFailure, match="is full"):
        for number in range(100):
            history.append(hunt, Warned("x" * 1000), float(number))
    kept = len(list(history.events(hunt)))
    history.connection.execute("pragma max_page_count = 100000")
    history.append(hunt, Warned("there is space again"), 2.0)
    assert len(list(history.events(hunt))) == kept + 1
    assert history.connection.execute("pragma integrity_check").fetchall() == [("ok",)]


def test_writer_reports_that_it_waited_too_long(history: History, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hunt = sample.begin(history)
    history.connection.execute("pragma busy_timeout = 50")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(EnvironmentFailure, match="Another process"):
            history.append(hunt, Warned("x"), 1.0)
        other.execute("rollback")
    history.append(hunt, Warned("x"), 1.0)


def test_history_that_is_made_during_opening_is_valid(path: Path) -> None:
    class Interrupted(sqlite3.Connection):
        """Another process makes the history after the first statement."""

        def execute(self, sql: str, *_: object) -> sqlite3.Cursor:
            found = super().execute(sql).fetchone()
            History.open(path).close()
            return super().execute("SELECT ?", found)

    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, factory=Interrupted)) as opened:
        assert not connection.prepare_and_check_schema(opened, path)


def test_new_history_can_be_made_by_several_threads_at_once(path: Path) -> None:
    gate = threading.Barrier(4)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: (gate.wait(), History.open(path).close()), range(4)))
    with closing(read(path)) as history:
        assert history.connection.execute("pragma user_version").fetchone() == (VERSION,)
