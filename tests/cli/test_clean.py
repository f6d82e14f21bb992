"""`bisect gc`: what goes, what stays, and for whose sake."""

import json
import os
import shutil
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import sample_hunt as sample
from perfbisect.core.domain.events import BuildFinished
from perfbisect.host import jobs
from perfbisect.host.leases import Record, note
from perfbisect.host.lock import hold
from perfbisect.host.registry import connect
from perfbisect.process import machine as this_boot
from perfbisect.recipes.inventory import load_host
from perfbisect.store.connection import default_place
from perfbisect.store.history import History
from program import exits

pytestmark = pytest.mark.tools


KEYS = [f"b{number}" * 16 for number in range(3)]


@pytest.fixture
def root() -> Path:
    """The root of the local host with three builds of 1 MB, the first the longest unused, and a job."""
    root = Path(connect(load_host("local")).root)
    for number, path in enumerate((*(f"builds/{key}" for key in KEYS), "jobs/20200101-000000-run-abcdef")):
        (root / path).mkdir(parents=True)
        (root / path / "file").write_bytes(bytes(1_000_000))
        used = time.time() - 1000 + number
        for each in (root / path / "file", root / path):
            os.utime(each, (used, used))
    return root


def left(root: Path) -> list[str]:
    return sorted(path.name for kind in ("builds", "jobs") for path in (root / kind).iterdir())


def test_the_oldest_go(root: Path) -> None:
    said = exits(0, "gc", "--keep", "2.2M")
    assert left(root) == ["20200101-000000-run-abcdef", KEYS[2]]
    assert f"builds/{KEYS[0]}" in said
    assert "2.0 MB were freed on host local" in said
    said = exits(0, "gc")
    assert left(root) == ["20200101-000000-run-abcdef", KEYS[2]]
    assert "Nothing had to be freed" in said


def test_a_dry_run_only_lists(root: Path) -> None:
    with hold(connect(load_host("local")), "a hunt"):
        said = exits(0, "gc", "--keep", "0", "--dry-run")
    assert "4.0 MB would be freed" in said
    assert "1 in jobs" in said
    assert len(left(root)) == 4
    report = json.loads(exits(0, "gc", "--keep", "0", "--dry-run", "--json"))
    assert not report["removed"]
    assert report["items"][0]["path"] == f"builds/{KEYS[0]}"


def written(path: Path, host: str, key: str) -> str:
    """A history with a hunt that has begun on that host, and has built that."""
    with closing(History.open(path)) as history:
        now = time.time()
        hunt = sample.begin(history, replace(sample.SETTINGS, host=host), at=now)
        history.append(hunt, BuildFinished(1, replace(sample.build(1), key=key), None), now)
    return str(path)


def test_what_an_unfinished_hunt_needs_stays(root: Path, tmp_path: Path) -> None:
    said = exits(0, "gc", "--keep", "0", "--history", written(tmp_path / "history.db", "local", KEYS[0]))
    assert left(root) == [KEYS[0]]
    assert "belong to hunts without a verdict" in said


def test_a_dry_run_leaves_the_history_as_it_is(root: Path, tmp_path: Path) -> None:
    """Also what a killed hunt has left in the log beside it, which counts."""
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
    report = json.loads(exits(0, "gc", "--keep", "0", "--dry-run", "--json", "--history", str(killed)))
    assert killed.read_bytes() == before
    assert {Path(item["path"]).name for item in report["items"]} == {*left(root)} - {KEYS[0]}
    exits(0, "gc", "--keep", "0", "--history", str(killed))
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
        (tmp_path / "one/builds" / key).mkdir(parents=True)
        (tmp_path / "one/builds" / key / "file").write_text("a folder alone takes no space on some file systems")
    history = written(tmp_path / "history.db", "two", KEYS[1])
    exits(0, "gc", name, "--keep", "0", "--history", history, "--hosts", str(hosts))
    assert [build.name for build in (tmp_path / "one/builds").iterdir()] == [KEYS[1]]


def test_a_mistyped_history_frees_nothing(root: Path, tmp_path: Path) -> None:
    said = exits(3, "gc", "--keep", "0", "--history", str(tmp_path / "typo.db"))
    assert "typo.db" in said
    assert len(left(root)) == 4
    assert not (tmp_path / "typo.db").exists()
    exits(0, "gc", "--keep", "0", "--history", str(default_place()))


def test_nothing_is_taken_from_a_running_hunt(root: Path) -> None:
    with hold(connect(load_host("local")), "a hunt of another session"):
        said = exits(4, "gc", "--keep", "0")
    assert "a hunt of another session" in said
    assert len(left(root)) == 4


def test_jobs_that_still_run_keep_what_they_use(root: Path) -> None:
    """Their folders, and those of visits and builds that may go on."""
    host = connect(load_host("local"))
    for path in ("visit/data", "work/demo/build"):
        (root / path).mkdir(parents=True)
        (root / path / "file").write_bytes(bytes(1_000_000))
    job = jobs.start(host, ["sleep", "100"], name="build-demo-key", timeout=100)
    try:
        assert job.id not in exits(0, "gc", "--keep", "0", "--dry-run", "--json")
        exits(0, "gc", "--keep", "0")
        assert (root / "visit").exists()
        assert (root / "work/demo/build/file").exists()
    finally:
        jobs.kill(host, job)
    assert job.id in exits(0, "gc", "--keep", "0", "--dry-run", "--json")
    said = exits(0, "gc", "--keep", "0")
    assert "visit" in said and "work/demo" in said
    assert not (root / "visit").exists()
    assert not (root / "work/demo").exists()


def test_a_size_is_read_as_in_the_inventory() -> None:
    said = exits(3, "gc", "--keep", "3 G")
    assert "20G" in said


def test_the_status_tells_what_could_not_be_given_back(root: Path, tmp_path: Path) -> None:
    shut = tmp_path / "shut"
    shut.touch()
    record = Record("j1", "pool:quiet", 1, "now", f"{this_boot()} 1 0", "here", ["test", "!", "-e", str(shut)])
    note(record)
    assert "could not be released" in exits(4, "gc")
    exits(0, "gc", "--dry-run")  # gives nothing back
    shut.unlink()
    assert "is released" in exits(0, "gc")
    exits(0, "gc")
