"""`bisect gc`: the files that it removes, the files that it keeps, and the reasons."""

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import sample_hunt as sample
from perfbisect.core.domain.events import BuildFinished
from perfbisect.host import jobs
from perfbisect.host.leases import LeaseJobRecord, store_record
from perfbisect.host.lock import hold_lock
from perfbisect.host.registry import connect
from perfbisect.process import machine_identity as this_boot
from perfbisect.recipes.inventory import load_host
from perfbisect.store.connection import default_history_path
from perfbisect.store.history import History
from program import exits

pytestmark = pytest.mark.tools

KEYS = [f"b{number}" * 16 for number in range(3)]
JOB = "20200101-000000-run-abcdef"
ALL = ["gc", "--keep", "0"]
LISTED = [*ALL, "--dry-run", "--json"]


def fill(folder: Path) -> None:
    """Create a folder with a file of 1 MB."""
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(bytes(1_000_000))


@pytest.fixture
def root() -> Path:
    """The root folder of the local host, with a job and three builds of 1 MB, the least recently used build first."""
    root = Path(connect(load_host("local")).root)
    for number, path in enumerate((*(root / "builds" / key for key in KEYS), root / "jobs" / JOB)):
        fill(path)
        used = time.time() - 1000 + number
        for each in (path / "file", path):
            os.utime(each, (used, used))
    return root


def left(root: Path) -> list[str]:
    return sorted(path.name for kind in ("builds", "jobs") for path in (root / kind).iterdir())


def listed(*words: str) -> Sequence[str]:
    """The names of the files and folders that a dry run lists."""
    report = json.loads(exits(0, *LISTED, *words))
    assert not report["removed"]
    return [Path(item["path"]).name for item in report["items"]]


def written(path: Path, host: str, key: str) -> list[str]:
    """The option for a history with an unfinished hunt on ``host`` that has made the build ``key``."""
    with closing(History.open(path)) as history:
        now = time.time()
        hunt = sample.begin(history, replace(sample.SETTINGS, host=host), at=now)
        history.append(hunt, BuildFinished(1, replace(sample.build(1), key=key), None), now)
    return ["--history", str(path)]


def test_gc_removes_the_oldest_and_a_dry_run_only_lists(root: Path, tmp_path: Path) -> None:
    with hold_lock(connect(load_host("local")), "a hunt of another session"):
        said = exits(0, *ALL, "--dry-run")
        assert "a hunt of another session" in exits(4, *ALL)
    assert "4.0 MB would be freed" in said and "jobs/ (1 item)" in said
    assert listed()[0] == KEYS[0]
    typo = tmp_path / "typo.db"
    assert "typo.db" in exits(3, *ALL, "--history", str(typo)) and not typo.exists()
    assert left(root) == [JOB, *KEYS]
    said = exits(0, "gc", "--keep", "2.2M")
    assert f"builds/{KEYS[0]}" in said and "2.0 MB were freed on host local" in said
    assert "Nothing had to be freed" in exits(0, "gc", "--history", str(default_history_path()))
    assert left(root) == [JOB, KEYS[2]]


def test_gc_keeps_what_an_unfinished_hunt_needs(root: Path, tmp_path: Path) -> None:
    """A dry run reads, but does not change, the history and the write-ahead log that a killed hunt has left."""
    path, killed = tmp_path / "history.db", tmp_path / "killed" / "history.db"
    written(path, "local", "")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("UPDATE sessions SET ended = NULL, started = ?", [time.time()])
        connection.execute("UPDATE builds SET build_key = ?", [KEYS[0]])
        killed.parent.mkdir()
        for file in tmp_path.glob("history.db*"):
            shutil.copy(file, killed.parent)
    before = killed.read_bytes()
    assert {*listed("--history", str(killed))} == {*left(root)} - {KEYS[0]}
    assert killed.read_bytes() == before
    assert "because hunts without a verdict" in exits(0, *ALL, "--history", str(killed))
    assert left(root) == [KEYS[0]]


@pytest.mark.parametrize("name", ["one", "link"])
def test_gc_keeps_builds_of_an_unfinished_hunt_for_all_names_of_a_root(tmp_path: Path, name: str) -> None:
    """Host ``one`` is the build host of ``two``, on which the hunt runs."""
    hosts = tmp_path / "hosts.toml"
    one, link, two = (f'[hosts.{each}]\nroot = "{tmp_path}/{each}"\n' for each in ("one", "link", "two"))
    hosts.write_text(f'{one}{link}{two}build_hosts = ["one"]\n')
    (tmp_path / "link").symlink_to("one")
    connect(load_host("one", str(hosts)))
    for key in KEYS[:2]:
        fill(tmp_path / "one/builds" / key)
    exits(0, "gc", name, *ALL[1:], *written(tmp_path / "history.db", "two", KEYS[1]), "--hosts", str(hosts))
    assert [build.name for build in (tmp_path / "one/builds").iterdir()] == [KEYS[1]]


def test_gc_keeps_folders_that_running_jobs_use(root: Path) -> None:
    """The folders of jobs, visits and builds."""
    host, used = connect(load_host("local")), (root / "visit/data", root / "work/demo/build")
    for path in used:
        fill(path)
    job = jobs.start(host, ["sleep", "100"], name="build-demo-key", timeout=100)
    try:
        assert job.id not in listed()
        exits(0, *ALL)
        assert all((path / "file").exists() for path in used)
    finally:
        jobs.kill(host, job)
    assert job.id in listed()
    said = exits(0, *ALL)
    assert "visit" in said and "work/demo" in said
    assert not any(path.parent.exists() for path in used)


def test_gc_exits_with_status_4_if_a_lease_cannot_be_released(root: Path, tmp_path: Path) -> None:
    shut = tmp_path / "shut"
    shut.touch()
    record = LeaseJobRecord("j1", "pool:quiet", 1, "now", f"{this_boot()} 1 0", "here", ["test", "!", "-e", str(shut)])
    store_record(record)
    assert "could not be released" in exits(4, "gc")
    exits(0, "gc", "--dry-run")  # releases no lease
    shut.unlink()
    assert "is released" in exits(0, "gc")
    exits(0, "gc")
