"""`bisect gc`: what goes, what stays, and for whose sake."""

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
    """Make it a folder with a file of 1 MB."""
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(bytes(1_000_000))


@pytest.fixture
def root() -> Path:
    """The root of the local host with three builds of 1 MB, the first the longest unused, and a job."""
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
    """The names of what a dry run lists."""
    report = json.loads(exits(0, *LISTED, *words))
    assert not report["removed"]
    return [Path(item["path"]).name for item in report["items"]]


def written(path: Path, host: str, key: str) -> list[str]:
    """The option for a history with a hunt that has begun on that host, and has built that."""
    with closing(History.open(path)) as history:
        now = time.time()
        hunt = sample.begin(history, replace(sample.SETTINGS, host=host), at=now)
        history.append(hunt, BuildFinished(1, replace(sample.build(1), key=key), None), now)
    return ["--history", str(path)]


def test_the_oldest_go_and_a_dry_run_only_lists(root: Path, tmp_path: Path) -> None:
    with hold_lock(connect(load_host("local")), "a hunt of another session"):
        said = exits(0, *ALL, "--dry-run")
        assert "a hunt of another session" in exits(4, *ALL)
    assert "4.0 MB would be freed" in said and "1 in jobs" in said
    assert listed()[0] == KEYS[0]
    typo = tmp_path / "typo.db"
    assert "typo.db" in exits(3, *ALL, "--history", str(typo)) and not typo.exists()
    assert left(root) == [JOB, *KEYS]
    said = exits(0, "gc", "--keep", "2.2M")
    assert f"builds/{KEYS[0]}" in said and "2.0 MB were freed on host local" in said
    assert "Nothing had to be freed" in exits(0, "gc", "--history", str(default_history_path()))
    assert left(root) == [JOB, KEYS[2]]


def test_what_an_unfinished_hunt_needs_stays(root: Path, tmp_path: Path) -> None:
    """A dry run leaves the history as it is, also what a killed hunt has left in the log beside it, which counts."""
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
def test_what_an_unfinished_hunt_has_built_stays_for_every_name_of_its_root(tmp_path: Path, name: str) -> None:
    """For another host, too."""
    hosts = tmp_path / "hosts.toml"
    one, link, two = (f'[hosts.{each}]\nroot = "{tmp_path}/{each}"\n' for each in ("one", "link", "two"))
    hosts.write_text(f'{one}{link}{two}build_hosts = ["one"]\n')
    (tmp_path / "link").symlink_to("one")
    connect(load_host("one", str(hosts)))
    for key in KEYS[:2]:
        fill(tmp_path / "one/builds" / key)
    exits(0, "gc", name, *ALL[1:], *written(tmp_path / "history.db", "two", KEYS[1]), "--hosts", str(hosts))
    assert [build.name for build in (tmp_path / "one/builds").iterdir()] == [KEYS[1]]


def test_jobs_that_still_run_keep_what_they_use(root: Path) -> None:
    """Their folders, and those of visits and builds that may go on."""
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


def test_the_status_tells_what_could_not_be_given_back(root: Path, tmp_path: Path) -> None:
    shut = tmp_path / "shut"
    shut.touch()
    record = LeaseJobRecord("j1", "pool:quiet", 1, "now", f"{this_boot()} 1 0", "here", ["test", "!", "-e", str(shut)])
    store_record(record)
    assert "could not be released" in exits(4, "gc")
    exits(0, "gc", "--dry-run")  # gives nothing back
    shut.unlink()
    assert "is released" in exits(0, "gc")
    exits(0, "gc")
