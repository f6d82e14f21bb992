"""Runs that never end, whatever they are told: the limit of time ends them, and so does the end of the program."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from program import Process, bisect_watched, exits, rows, run
from waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.tools]

HISTORY = ".local/state/perfbisect/history.db"
# Each tenth of a second is a beat. It ends by itself, so that a hunt that waits for it fails in the end.
ENDLESS = """\
trap '' TERM
echo rate 1
for beat in $(seq 600); do echo >>{beats}.$$; sleep 0.1; done
"""
OPTIONS = ["--builder", "script", "--repo", "repo", "--no-explain", "--hosts", "hosts.toml"]
CREWS = {
    "one host": ["--workload", "one", "--host", "a"],
    "two hosts": ["--workload", "one", "--host", "a", "--host", "b"],
    "two workloads": ["--workload", "one,two", "--host", "a"],
}


@pytest.fixture(params=CREWS)
def hunt(request: pytest.FixtureRequest, script: Callable[[str], str], tmp_path: Path) -> list[str]:
    """The words of a hunt whose runs do not end."""
    good, bad = (script(f"{ENDLESS.format(beats=tmp_path / 'beats')}# {number}") for number in range(2))
    Path("hosts.toml").write_text("".join(f'[hosts.{name}]\nroot = "{tmp_path}/{name}"\n' for name in "ab"))
    return ["run", good, bad, *OPTIONS, *CREWS[request.param]]


def running(folder: Path) -> list[Path]:
    """Jobs on either host that have no status."""
    return [status for status in folder.glob("[ab]/jobs/*/status") if not status.read_text().strip()]


def test_the_limit_of_time_ends_what_is_under_way(hunt: list[str], tmp_path: Path, seal: Path) -> None:
    """The hunt ends as one whose time is spent, and does so again whenever its log is decided again."""
    assert "the budget of 3 s is used up" in exits(2, *hunt, "--plain", "--max-time", "3s")
    assert rows(seal / HISTORY, "select count(*) from runs") == [(0,)]
    until(lambda: not running(tmp_path))
    assert "the budget of 3 s is used up" in exits(2, "replay", "1")
    assert run("resume").status in (2, 3)  # 3: all hunts of a batch have a verdict


def test_a_signal_ends_a_run_that_ignores_it(hunt: list[str], tmp_path: Path) -> None:
    """Soon: the run goes on for less than half of the ten seconds that a command has which exceeds its own time."""
    told: list[int] = []

    def count() -> int:
        return max((path.stat().st_size for path in tmp_path.glob("beats.*")), default=0)

    def see(line: str, process: Process) -> None:
        if not told and '"RunStarted"' in line:
            until(count)
            told.append(count())
            process.send_signal(signal.SIGTERM)

    ended = bisect_watched([*hunt, "--json"], see)
    assert ended.returncode == 130, ended.stdout + ended.stderr
    assert count() - told[0] < 50
    assert not running(tmp_path)
