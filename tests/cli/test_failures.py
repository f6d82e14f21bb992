"""What the machine refuses is no bug of ours; and what is one never goes unreported."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfbisect.cli import main
from program import PROGRAM

Invoke = Callable[..., tuple[int, str, str]]
Exits = Callable[..., str]


def test_a_folder_that_cannot_be_written(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status, _, said = invoke("demo", "--folder", str(tmp_path / "file" / "demo"))
    assert (status, said) == (4, f"Error: {tmp_path}/file/demo: Not a directory\n")


@pytest.mark.tools
def test_a_cache_that_cannot_be_written(
    exits: Exits, script: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = script("echo rate 100")
    recipe = Path("builders/script/builder.toml")
    recipe.write_text(f'repository = "file://{tmp_path}/repo"\n{recipe.read_text()}')
    Path("file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    said = exits(4, "run", commit, "main", "--builder", "script", "--workload", "one")
    assert f"\nError: {tmp_path}/file/perfbisect" in said
    assert said.endswith(": Not a directory\n")


def fail(*_: object, **__: object) -> int:
    raise ZeroDivisionError("of ours")


@pytest.mark.parametrize("broken", [False, True])
def test_a_bug_is_written_down(
    invoke: Invoke, seal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    """In the state folder, or where temporary files are."""
    monkeypatch.setattr(main.bisect, "main", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if broken:
        (seal / ".local").touch()
    status, _, said = invoke("history")
    path = Path(said.removeprefix("Error: this is a bug of perfbisect; please report it with ").strip())
    assert status == 70
    assert "ZeroDivisionError: of ours" in path.read_text()
    assert path.parent == (tmp_path if broken else seal / ".local" / "state" / "perfbisect")


def test_a_bug_is_reported_where_it_cannot_be_written_down(
    seal: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["bisect", "\udcff"])
    monkeypatch.setattr(main.bisect, "main", fail)
    monkeypatch.setattr("tempfile.tempdir", "/dev/null")
    (seal / ".local").touch()
    with pytest.raises(SystemExit) as leave:
        main.main()
    assert leave.value.code == 70
    assert "ZeroDivisionError: of ours" in capsys.readouterr().err


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe whose reader is gone."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def test_a_full_disk_takes_no_output() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*PROGRAM, "builders"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        4,
        "Error: Standard output cannot be written: No space left on device\n",
    )


def test_a_list_that_nobody_reads_any_more_is_no_failure(unread: int) -> None:
    done = subprocess.run([*PROGRAM, "workloads"], stdout=unread, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.tools
@pytest.mark.parametrize("form", ["--plain", "--json"])
def test_a_hunt_on_a_full_disk_says_how_to_go_on(script: Callable[[str], str], form: str) -> None:
    good, bad = script("echo rate 100"), script("echo rate 10")
    hunt = ["run", good, bad, "--builder", "script", "--workload", "one", "--repo", "repo", form]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*PROGRAM, *hunt], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 4
    assert "Error: Standard output cannot be written: No space left on device\n" in done.stderr
    assert done.stderr.endswith("go on with: bisect resume 1\n")
    listed = subprocess.run([*PROGRAM, "history"], capture_output=True, text=True, check=False).stdout
    assert "Standard output cannot be written" in listed


@pytest.mark.tools
def test_a_hunt_that_nobody_reads_any_more_is_interrupted(script: Callable[[str], str], unread: int) -> None:
    good, bad = script("echo rate 100"), script("echo rate 10")
    hunt = ["run", good, bad, "--builder", "script", "--workload", "one", "--repo", "repo", "--plain"]
    done = subprocess.run([*PROGRAM, *hunt], stdout=unread, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr.endswith("go on with: bisect resume 1\n")
