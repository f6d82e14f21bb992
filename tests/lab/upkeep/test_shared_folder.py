"""The folder of shared builds is kept below a size."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfbisect.cli.main import bisect
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.lab.upkeep.shared_folder import LEFT, clean


def put(folder: Path, name: str, size: int, used: float) -> None:
    (folder / name).write_bytes(b"x" * size)
    os.utime(folder / name, (used, used))


def test_the_longest_unused_go_first(tmp_path: Path) -> None:
    put(tmp_path, "old.build", 100, 1e9)
    put(tmp_path, "used.build", 100, 1e9 + 2)
    put(tmp_path, "older.build", 100, 1e9 - 2)
    put(tmp_path, "notes.txt", 100, 1)
    put(tmp_path, ".interrupted.build.ab", 100, 1e9)
    put(tmp_path, ".running.build.cd", 100, 1e9 + LEFT)
    now = 1e9 + LEFT + 10
    would, left = clean(str(tmp_path), 250, now, dry_run=True)
    assert [entry.name for entry in would] == [".interrupted.build.ab", "older.build", "old.build"]
    assert left == 200
    assert len(list(tmp_path.iterdir())) == 6
    assert clean(str(tmp_path), 250, now, dry_run=False) == (would, left)
    assert sorted(file.name for file in tmp_path.iterdir()) == [".running.build.cd", "notes.txt", "used.build"]


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No builds are shared"):
        clean("", 0, 0.0, dry_run=False)
    with pytest.raises(UsageError, match=r"in http://\*\*\*@cache are not removed"):
        clean("http://user:secret@cache", 0, 0.0, dry_run=False)
    with pytest.raises(EnvironmentFailure, match="there is no folder"):
        clean(str(tmp_path / "absent"), 0, 0.0, dry_run=False)


def test_the_verb(tmp_path: Path, seal: Path) -> None:
    folder, config = tmp_path / "store", seal / ".config" / "perfbisect" / "config.toml"
    folder.mkdir()
    config.parent.mkdir(parents=True)
    config.write_text(f'[shared]\nbuilds = "{folder}"\nkeep = "1M"\n')
    put(folder, "a.build", 900_000, 1e9)
    put(folder, "b.build", 900_000, 1e9 + 1)
    ended = CliRunner().invoke(bisect, ["gc", "--shared"])
    assert ended.exit_code == 0, ended.output
    assert "1 shared build, 900.0 kB, were removed" in ended.output
    assert [file.name for file in folder.iterdir()] == ["b.build"]
