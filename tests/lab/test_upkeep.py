"""Freeing disk space, and removing what killed sessions left."""

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from click.testing import CliRunner

from perfbisect.cli.main import bisect
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.host import jobs
from perfbisect.host.local import LocalHost
from perfbisect.lab import upkeep
from perfbisect.lab.building import build_store
from perfbisect.lab.upkeep import (
    INTERRUPTED,
    StoredItem,
    disk_space_warnings,
    expected_builds,
    items_to_remove,
    prune_job_folders,
    prune_shared_builds,
    removable_items,
    remove_items,
)
from perfbisect.lab.workload import dataset

MIB = 1 << 20
DAY = 86400.0
NOW = 1.6e9  # when the folders of the tests were used last
A, B, D = "a" * 32, "b" * 32, "d" * 16


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    return LocalHost("here", PurePosixPath(tmp_path))


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., None]:
    def entry(path: str, mib: float, days: float) -> None:
        folder, used = tmp_path / path, NOW - DAY * days
        (folder / "inner").mkdir(parents=True)
        (folder / "inner" / "file").write_bytes(os.urandom(int(mib * MIB)))
        for each in (folder / "inner" / "file", folder / "inner", folder):
            os.utime(each, (used, used))

    return entry


def test_leftovers_and_unused_items_are_removed_first() -> None:
    """Leftovers always. Beyond the limit: links, then what is unused for longest, then the folders of builds."""
    for paths, limit, pinned, going in (
        ("builds/b:2 builds/a:1 datasets/c:3 jobs/d:4", 40, "", ""),
        ("builds/b:2 builds/a:1 datasets/c:3 jobs/d:4", 39, "", "builds/a"),
        ("builds/b:2 builds/a:1 datasets/c:3 jobs/d:4", 15, "", "builds/a builds/b datasets/c"),
        ("builds/b:2 builds/a:1 datasets/c:3 jobs/d:4", 0, "a c", "builds/b jobs/d"),
        ("builds/a:1 builds/b.part:9", 100, "", "builds/b.part"),
        ("work/demo:1 builds/a:9 visit:9", 100, "", "visit"),
        ("work/demo:1 builds/a:9 visit:9", 0, "", "visit builds/a work/demo"),
        ("work/demo:1 builds/a:9 visit:9", 0, "visit demo", "builds/a"),
        ("builds/a:1 builds/b:5 builds/b/links:5 builds/c/links:2 builds/c:2", 45, "", "builds/c/links"),
        ("builds/a:1 builds/b:5 builds/b/links:5 builds/c/links:2", 15, "", "builds/c/links builds/b/links builds/a"),
        ("builds/a:1 builds/b:5 builds/b/links:5 builds/c/links:2 work/x:0", 0, "b c", "builds/a work/x"),
    ):
        entries = [StoredItem(path, 10, float(used)) for path, used in (each.split(":") for each in paths.split())]
        assert " ".join(item.path for item in items_to_remove(entries, limit, pinned.split())) == going


@pytest.mark.tools
def test_removable_items_have_size_and_last_use(host: LocalHost, put: Callable[..., None], tmp_path: Path) -> None:
    """The links of a build are an item that can be removed without the build."""
    assert removable_items(host) == ()
    build, links, part, data = f"builds/{A}", f"builds/{A}/links", f"builds/{B}.part", f"datasets/{D}"
    job = "jobs/20200101-000000-run-abcdef"
    for path, mib, days in (
        (f"{build}/prefix", 1, 3),
        (links, 2, 3),
        (f"{build}/prefix/links", 0, 3),
        (f"{part}/links", 1, 3),
        (data, 2, 2),
        *((path, 0, 1) for path in (job, "ccache/x", "work/demo/build", "visit")),
    ):
        put(path, mib, days)
    found = {item.path: item for item in removable_items(host)}
    stay = {build, data, "visit", "work/demo"}
    assert set(found) == {*stay, links, part, job}
    assert MIB <= found[build].size < 1.2 * MIB < 2 * MIB <= found[links].size
    assert found[data].used == NOW - 2 * DAY
    remove_items(host, [found[links], found[job], found[part]])
    assert {item.path for item in removable_items(host)} == stay
    assert (tmp_path / "ccache" / "x" / "inner" / "file").exists()


@pytest.mark.tools
def test_use_of_a_build_or_dataset_updates_its_last_use(host: LocalHost, put: Callable[..., None]) -> None:
    """A measurement uses a build, and a visit copies a dataset."""
    build, data, record = (
        Path(host.root, each) for each in (f"builds/{A}", f"datasets/{D}", f"datasets/{D}/dataset.json")
    )
    for path in (f"builds/{A}/prefix", f"datasets/{D}/data"):
        put(path, 0, 5)
    record.write_text('{"build": "", "files": 1, "bytes": 0, "answers": []}')
    for each in (build, record, data):
        os.utime(each, (NOW, NOW))
    assert all(item.used <= NOW for item in removable_items(host))
    build_store.symlink_build(host, "demo", A)
    dataset.copy_for_visit(host, D, None)
    assert all(item.used > NOW + DAY for item in removable_items(host))


@pytest.mark.tools
def test_low_disk_space_is_reported(host: LocalHost, put: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    assert [expected_builds(*of) for of in ((2, 0), (3, 0), (1000, 0), (1000, 5))] == [2, 3, 14, 5]
    for folder, mib in ((f"builds/{A}", 1), (f"builds/{B}", 1), (f"datasets/{D}", 3)):
        put(folder, mib, 1)
    monkeypatch.setattr(upkeep, "free_bytes", lambda host: 12 * MIB + (1 << 30))
    for builds, wanted, warned in (({A, B, "gone"}, 8, 0), ({A, B, "gone"}, 20, 1), (set(), 20, 0), ({"gone"}, 20, 0)):
        found = disk_space_warnings(host, builds, {D}, wanted)
        assert len(found) == warned
        assert all("20 builds" in each.text and "bisect gc here" in each.advice for each in found)


def put_of_shared_folder(folder: Path, size: int, **ages: float) -> None:
    """Write shared builds of this size, each last used ``ages`` seconds after a fixed time."""
    for name, age in ages.items():
        (folder / name).write_bytes(b"x" * size)
        os.utime(folder / name, (1e9 + age, 1e9 + age))


def test_shared_builds_unused_for_longest_are_removed_first(tmp_path: Path) -> None:
    written = {".interrupted.build.ab": 0, ".running.build.cd": INTERRUPTED}
    ages = {"old.build": 0, "used.build": 2, "older.build": -2, "notes.txt": 1 - 1e9, **written}
    put_of_shared_folder(tmp_path, 100, **ages)
    now = 1e9 + INTERRUPTED + 10
    would, left = prune_shared_builds(str(tmp_path), 250, now, dry_run=True)
    assert [entry.name for entry in would] == [".interrupted.build.ab", "older.build", "old.build"]
    assert (left, len(list(tmp_path.iterdir()))) == (200, 6)
    assert prune_shared_builds(str(tmp_path), 250, now, dry_run=False) == (would, left)
    assert sorted(file.name for file in tmp_path.iterdir()) == [".running.build.cd", "notes.txt", "used.build"]


def test_shared_builds_outside_of_a_local_folder_are_not_removed(tmp_path: Path) -> None:
    for address, kind, sentence in (
        ("", UsageError, "No folder of shared builds"),
        ("memory://user:secret@cache", UsageError, r"cannot remove shared builds in memory://\*\*\*@cache"),
        (str(tmp_path / "absent"), EnvironmentFailure, "the folder .* does not exist"),
    ):
        with pytest.raises(kind, match=sentence):
            prune_shared_builds(address, 0, 0.0, dry_run=False)


def test_gc_shared_removes_builds_beyond_the_configured_size(tmp_path: Path, seal: Path) -> None:
    folder, config = tmp_path / "store", seal / ".config" / "perfbisect" / "config.toml"
    folder.mkdir()
    config.parent.mkdir(parents=True)
    config.write_text(f'[shared]\nbuilds = "{folder}"\nkeep = "1M"\n')
    put_of_shared_folder(folder, 900_000, **{"a.build": 0, "b.build": 1})
    ended = CliRunner().invoke(bisect, ["gc", "--shared"])
    assert ended.exit_code == 0, ended.output
    assert "900.0 kB (1 shared build) were removed" in ended.output
    assert [file.name for file in folder.iterdir()] == ["b.build"]


@pytest.mark.tools
def test_only_the_newest_folders_of_ended_jobs_are_kept(host: LocalHost) -> None:
    alive = jobs.start(host, ["sleep", "60"], name="alive", timeout=60)
    names = [f"29990101-00000{number}-ended-abcdef" for number in range(5)]
    for name in names:
        Path(host.root, "jobs", name).mkdir()
    prune_job_folders(host, 2)
    assert sorted(path.name for path in Path(host.root, "jobs").iterdir()) == [alive.id, *names[3:]]
    jobs.kill(host, alive)
