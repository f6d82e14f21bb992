"""What the machine refuses is no bug of ours; what is one never goes unreported; and what a pattern finds or does not.

Runs that never end, whatever they are told: the limit of time ends them, and so does the end of the program.
"""

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
def test_a_read_only_folder(script: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a demo, or of a cache."""
    Path("file").touch()
    assert exits(4, "demo", "--folder", f"{tmp_path}/file/demo") == f"Error: {tmp_path}/file/demo: Not a directory\n"
    commit, recipe = script("echo rate 100"), Path("builders/script/builder.toml")
    recipe.write_text(f'repository = "file://{tmp_path}/repo"\n{recipe.read_text()}')
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    said = exits(4, "run", commit, "main", "--builder", "script", "--workload", "one")
    assert f"\nError: {tmp_path}/file/perfbisect" in said and said.endswith(": Not a directory\n")


@pytest.mark.tools
def test_what_a_pattern_finds(script: Callable[[str], str]) -> None:
    """Nothing: what was printed is shown. One number in every run: it is said to be a constant."""
    good, bad = (script(f"echo begin; echo rate 7; : {number}") for number in range(2))
    how = ["run", good, bad, "--repo", "repo", "--run", "sh run.sh", "--plain", "--rate"]
    said = exits(3, *how, "tps: ([0-9]+)")
    assert f"because the bad end, {bad[:10]}, has no result: the output has no metric" in said
    assert (
        "The last lines of the output are:\nbegin\nrate 7\nRun the command again with a pattern that matches." in said
    )
    assert "resume" not in said
    _, told, _ = run(*how, "rate ([0-9]+)", "--metric", "rate", "--max-runs", "6", "--no-explain")
    assert told.count("every run has printed the same number, 7") == 1
    assert "Check that the pattern of --rate or --cost does not find a constant." in told


def test_a_bug_is_written_down_or_reported(seal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the state folder, or where temporary files are; else on standard error."""
    monkeypatch.setattr(main.bisect, "main", Mock(side_effect=ZeroDivisionError("of ours")))
    state = seal / ".local" / "state"
    for home, scratch, folder in ((state, "", state / "perfbisect"), ("/dev/null", tmp_path, tmp_path)):
        monkeypatch.setenv("XDG_STATE_HOME", str(home))
        monkeypatch.setattr("tempfile.tempdir", str(scratch))
        path = Path(
            exits(70, "history").removeprefix("Error: this is a bug of perfbisect; please report it with ").strip()
        )
        assert path.parent == folder and "ZeroDivisionError: of ours" in path.read_text()
    monkeypatch.setattr("tempfile.tempdir", "/dev/null")
    assert "ZeroDivisionError: of ours" in run("\udcff").err


def program(place: str, *words: str) -> tuple[int, str]:
    """The status and the errors of the program, with its standard output there; a pipe has no reader."""
    reading, writing = os.pipe() if place == "pipe" else (os.open(os.devnull, os.O_RDONLY), os.open(place, os.O_WRONLY))
    os.close(reading)
    done = subprocess.run([*PROGRAM, *words], stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    return done.returncode, done.stderr


FULL = "Error: Standard output cannot be written: No space left on device\n"


@pytest.mark.tools
def test_a_hunt_whose_output_nobody_takes_says_how_to_go_on(ends: tuple[str, str]) -> None:
    assert program("/dev/full", "builders") == (4, f"{FULL}Redirect the output to a disk with free space.\n")
    status, said = program("/dev/full", "run", *ends, *SCRIPT, "--json")
    assert status == 4 and FULL in said and said.endswith("to continue: bisect resume 1\n")
    assert "Standard output cannot be written" in exits(0, "history")
    status, said = program("pipe", "run", *ends, *SCRIPT, "--plain")
    assert status == 130 and said.endswith("to continue: bisect resume 2\n")


@pytest.mark.tools
def test_too_little_memory_is_not_nothing_to_find(ends: tuple[str, str]) -> None:
    """A library that gets none would end the program with status 1."""
    argv = ["sh", "-c", 'ulimit -v 150000 && exec "$@"', "limited", *PROGRAM, "run", *ends, *SCRIPT]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert "Error: the system refuses this process more memory" in done.stderr


# Each tenth of a second is a beat. It ends by itself, so that a hunt that waits for it fails in the end.
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
def test_limit_and_signal_end_what_runs(crew: str, script: Callable[[str], str], tmp_path: Path, seal: Path) -> None:
    """The hunt ends as one whose time is spent, and does so again whenever its log is decided again. A signal ends it soon:
    the run goes on for less than half of the ten seconds that a command has which exceeds its own time.
    """
    good, bad = (script(f"{ENDLESS.format(beats=tmp_path / 'beats')}# {number}") for number in range(2))
    Path("hosts.toml").write_text("".join(f'[hosts.{name}]\nroot = "{tmp_path}/{name}"\n' for name in "ab"))
    hunt = ["run", good, bad, *SCRIPT, "--no-explain", "--hosts", "hosts.toml", *CREWS[crew]]

    def running() -> bool:
        """Whether a job on either host has no status."""
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
    told: list[int] = []

    def see(line: str, process: Process) -> None:
        if not told and '"RunStarted"' in line:
            until(count)
            told.append(count())
            process.send_signal(signal.SIGTERM)

    ended = bisect_watched([*hunt, "--json"], see)
    assert ended.returncode == 130, ended.stdout + ended.stderr
    assert count() - told[0] < 50 and not running()
