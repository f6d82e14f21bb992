"""What the machine refuses is no bug of ours; and what is one never goes unreported."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from perfbisect.cli import main
from program import PROGRAM, SCRIPT, exits, run


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status, _, said = run("demo", "--folder", str(tmp_path / "file" / "demo"))
    assert (status, said) == (4, f"Error: {tmp_path}/file/demo: Not a directory\n")


@pytest.mark.tools
def test_a_cache_that_cannot_be_written(
    script: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = script("echo rate 100")
    recipe = Path("builders/script/builder.toml")
    recipe.write_text(f'repository = "file://{tmp_path}/repo"\n{recipe.read_text()}')
    Path("file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    said = exits(4, "run", commit, "main", "--builder", "script", "--workload", "one")
    assert f"\nError: {tmp_path}/file/perfbisect" in said
    assert said.endswith(": Not a directory\n")


@pytest.mark.tools
def test_a_pattern_that_finds_nothing_is_shown_what_was_printed(script: Callable[[str], str]) -> None:
    good, bad = (script(f"echo begin; echo rate {rate}") for rate in (100, 80))
    said = exits(
        3, "run", f"{good}..{bad}", "--repo", "repo", "--run", "sh run.sh", "--rate", "tps: ([0-9]+)", "--plain"
    )
    assert f"because the bad end, {bad[:10]}, has no result: it printed no metric" in said
    assert "Its last lines are:\nbegin\nrate 80\nBegin again with a pattern that fits." in said
    assert "resume" not in said


@pytest.mark.tools
def test_one_number_in_every_run_is_said_to_be_a_constant(script: Callable[[str], str]) -> None:
    good, bad = (script(f"echo rate 7; : {number}") for number in range(2))
    how = ["--run", "sh run.sh", "--rate", "rate ([0-9]+)", "--metric", "rate", "--max-runs", "6"]
    _, told, _ = run("run", good, bad, "--repo", "repo", *how, "--no-explain", "--plain")
    assert told.count("every run has printed the same number, 7") == 1
    assert "Does the pattern of --rate or --cost find a constant?" in told


def fail(*_: object, **__: object) -> int:
    raise ZeroDivisionError("of ours")


@pytest.mark.parametrize("broken", [False, True])
def test_a_bug_is_written_down(seal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    """In the state folder, or where temporary files are."""
    monkeypatch.setattr(main.bisect, "main", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if broken:
        monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    status, _, said = run("history")
    path = Path(said.removeprefix("Error: this is a bug of perfbisect; please report it with ").strip())
    assert status == 70
    assert "ZeroDivisionError: of ours" in path.read_text()
    assert path.parent == (tmp_path if broken else seal / ".local" / "state" / "perfbisect")


def test_a_bug_is_reported_where_it_cannot_be_written_down(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["bisect", "\udcff"])
    monkeypatch.setattr(main.bisect, "main", fail)
    monkeypatch.setattr("tempfile.tempdir", "/dev/null")
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    with pytest.raises(SystemExit) as leave:
        main.main()
    assert leave.value.code == 70
    assert "ZeroDivisionError: of ours" in capsys.readouterr().err


def program(stdout: int | IO[str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run it, with its standard output there."""
    return subprocess.run([*PROGRAM, *words], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe whose reader is gone."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def test_a_full_disk_takes_no_output() -> None:
    with Path("/dev/full").open("w") as full:
        done = program(full, "builders")
    assert (done.returncode, done.stderr) == (
        4,
        "Error: Standard output cannot be written: No space left on device\nWrite it where there is space.\n",
    )


@pytest.mark.tools
def test_too_little_memory_is_not_nothing_to_find(ends: tuple[str, str]) -> None:
    """A library that gets none would end the program with status 1."""
    argv = ["sh", "-c", 'ulimit -v 150000 && exec "$@"', "limited", *PROGRAM, "run", *ends, *SCRIPT]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert "Error: this process gets no more memory" in done.stderr


def test_a_list_that_nobody_reads_any_more_is_no_failure(unread: int) -> None:
    done = program(unread, "workloads")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.tools
def test_a_hunt_on_a_full_disk_says_how_to_go_on(ends: tuple[str, str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = program(full, "run", *ends, *SCRIPT, "--json")
    assert done.returncode == 4
    assert "Error: Standard output cannot be written: No space left on device\n" in done.stderr
    assert done.stderr.endswith("go on with: bisect resume 1\n")
    assert "Standard output cannot be written" in exits(0, "history")


@pytest.mark.tools
def test_a_hunt_that_nobody_reads_any_more_is_interrupted(ends: tuple[str, str], unread: int) -> None:
    done = program(unread, "run", *ends, *SCRIPT, "--plain")
    assert done.returncode == 130
    assert done.stderr.endswith("go on with: bisect resume 1\n")
