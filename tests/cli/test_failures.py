"""Failures of the machine, bugs, patterns that match nothing useful, and runs that never end."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from perfbisect.cli import main
from program import PROGRAM, SCRIPT, Process, bisect_watched, exits, rows, run
from waiting import until


@pytest.mark.tools
def test_uncreatable_folder_is_an_error(
    script: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a demo, and the cache folder."""
    Path("file").touch()
    unusable = f"Error: {tmp_path}/file/demo cannot be used: Not a directory\n"
    assert exits(4, "demo", "--folder", f"{tmp_path}/file/demo") == unusable
    commit, recipe = script("echo rate 100"), Path("builders/script/builder.toml")
    recipe.write_text(f'repository = "file://{tmp_path}/repo"\n{recipe.read_text()}')
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    errors = exits(4, "run", commit, "main", "--builder", "script", "--workload", "one")
    assert f"\nError: {tmp_path}/file/perfbisect" in errors and errors.endswith(": Not a directory\n")


@pytest.mark.tools
def test_pattern_without_match_or_with_constant_number_is_reported(script: Callable[[str], str]) -> None:
    """Without a match, the error shows the output of the command."""
    good, bad = (script(f"echo begin; echo rate 7; : {number}") for number in range(2))
    how = ["run", good, bad, "--repo", "repo", "--run", "sh run.sh", "--plain", "--rate"]
    errors = exits(3, *how, "tps: ([0-9]+)")
    assert f"because the bad revision, {bad[:10]}, has no result: the output has no metric" in errors
    assert (
        "The last lines of the output are:\n  begin\n  rate 7\nRun the command again with a pattern that matches."
        in errors
    )
    assert "resume" not in errors
    _, output, _ = run(*how, "rate ([0-9]+)", "--metric", "rate", "--max-runs", "6", "--no-explain")
    assert output.count("every run has printed the same number, 7") == 1
    assert "Check that the pattern of --rate or --cost does not find a constant." in output


def test_bug_is_logged_in_a_file_or_on_stderr(seal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The traceback goes to the state folder, else to the temporary folder, else to standard error."""
    monkeypatch.setattr(main.bisect, "main", Mock(side_effect=ZeroDivisionError("of ours")))
    state = seal / ".local" / "state"
    for home, scratch, folder in ((state, "", state / "perfbisect"), ("/dev/null", tmp_path, tmp_path)):
        monkeypatch.setenv("XDG_STATE_HOME", str(home))
        monkeypatch.setattr("tempfile.tempdir", str(scratch))
        path = Path(
            exits(70, "history").removeprefix("Error: this is a bug of perfbisect. Please report the bug with ").strip()
        )
        assert path.parent == folder and "ZeroDivisionError: of ours" in path.read_text()
    monkeypatch.setattr("tempfile.tempdir", "/dev/null")
    assert "ZeroDivisionError: of ours" in run("\udcff").err


def program(place: str, *words: str) -> tuple[int, str]:
    """Run the program with its output at ``place``; "pipe" is a pipe without a reader. Return status and errors."""
    reading, writing = os.pipe() if place == "pipe" else (os.open(os.devnull, os.O_RDONLY), os.open(place, os.O_WRONLY))
    os.close(reading)
    done = subprocess.run([*PROGRAM, *words], stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    return done.returncode, done.stderr


FULL = "Error: Standard output cannot be written: No space left on device\n"


@pytest.mark.tools
def test_hunt_with_unwritable_output_prints_the_resume_command(ends: tuple[str, str]) -> None:
    assert program("/dev/full", "builders") == (4, f"{FULL}Redirect the output to a disk with free space.\n")
    status, errors = program("/dev/full", "run", *ends, *SCRIPT, "--json")
    assert status == 4 and FULL in errors and errors.endswith("To continue: bisect resume 1\n")
    assert "Standard output cannot be written" in exits(0, "history")
    status, errors = program("pipe", "run", *ends, *SCRIPT, "--plain")
    assert status == 130 and errors.endswith("To continue: bisect resume 2\n")


@pytest.mark.tools
def test_memory_limit_ends_a_hunt_with_the_status_of_an_error(ends: tuple[str, str]) -> None:
    """A library without memory would exit with status 1, which means that no change was found."""
    argv = ["sh", "-c", 'ulimit -v 150000 && exec "$@"', "limited", *PROGRAM, "run", *ends, *SCRIPT]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert "Error: the system refuses this process more memory" in done.stderr


# Writes a line to a file every 0.1 s. Ends after 60 s, so that a hunt that waits for the script fails in the end.
ENDLESS = """\
trap '' TERM
echo rate 1
for beat in $(seq 600); do echo >>{beats}.$$; sleep 0.1; done
"""
CREWS = {
    "one host": ["--workload", "one", "--host", "a"],
    "two hosts": ["--workload", "one", "--host", "a", "--host", "b"],
    "two workloads": ["--workload", "one,two", "--host", "a"],
}


@pytest.mark.slow
@pytest.mark.tools
@pytest.mark.parametrize("crew", CREWS)
def test_time_limit_and_signal_end_jobs(crew: str, script: Callable[[str], str], tmp_path: Path, seal: Path) -> None:
    """A hunt that reaches --max-time has the verdict of a spent budget, also in a replay. After a signal, the run must
    end in less than 5 s, half of the 10 s that a command may take to end after its own time limit.
    """
    good, bad = (script(f"{ENDLESS.format(beats=tmp_path / 'beats')}# {number}") for number in range(2))
    Path("hosts.toml").write_text("".join(f'[hosts.{name}]\nroot = "{tmp_path}/{name}"\n' for name in "ab"))
    hunt = ["run", good, bad, *SCRIPT, "--no-explain", "--hosts", "hosts.toml", *CREWS[crew]]

    def running() -> bool:
        """Whether a job of a host has no status."""
        return any(not status.read_text().strip() for status in tmp_path.glob("[ab]/jobs/*/status"))

    def count() -> int:
        return max((path.stat().st_size for path in tmp_path.glob("beats.*")), default=0)

    spent = "the limit of 3 s (--max-time) is reached"
    assert spent in exits(2, *hunt, "--plain", "--max-time", "3s")
    assert rows(seal / ".local/state/perfbisect/history.db", "select count(*) from runs") == [(0,)]
    until(lambda: not running())
    assert spent in exits(2, "replay", "1")
    assert run("resume").status in (2, 3)  # 3: all hunts of a batch have a verdict

    for path in tmp_path.glob("beats.*"):
        path.unlink()
    at_signal: list[int] = []

    def see(line: str, process: Process) -> None:
        if not at_signal and '"RunStarted"' in line:
            until(count)
            at_signal.append(count())
            process.send_signal(signal.SIGTERM)

    ended = bisect_watched([*hunt, "--json"], see)
    assert ended.returncode == 130, ended.stdout + ended.stderr
    assert count() - at_signal[0] < 50 and not running()
