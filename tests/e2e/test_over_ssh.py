"""Whole hunts on another machine, whatever happens to the way there."""

import json
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from machine import Machine
from perfbisect.host.registry import MARKER
from program import Process, bisect, bisect_watched, rows

pytestmark = [pytest.mark.e2e, pytest.mark.tools]


@dataclass
class Hunt:
    """A demo hunt on the host "far", with its history."""

    folder: Path

    @property
    def history(self) -> Path:
        return self.folder / "history.db"

    def begin(self, *options: str) -> list[str]:
        planted = ["demo", "--seed", "3", "--drop", "60%", "--folder", str(self.folder / "demo")]
        return [*planted, "--host", "far", "--json", *(options or ["--no-explain"]), *self.kept()]

    def resume(self) -> list[str]:
        return ["resume", "--json", *self.kept()]

    def kept(self) -> Sequence[str]:
        return ["--history", str(self.history)]

    def run(self, argv: list[str], then: Callable[[str, Process], None] | None = None) -> int:
        """Run the program; ``then`` is called with the type of every event and the process."""

        def see(line: str, process: Process) -> None:
            if then and line.startswith("{"):
                then(json.loads(line)["event"], process)

        return bisect_watched(argv, see).returncode

    def check(self) -> None:
        """The planted commit is named, nothing was skipped for a lost connection, no run was counted twice."""
        answer = json.loads((self.folder / "demo" / "answer.json").read_text())
        assert rows(self.history, "select culprit from culprits") == [(answer["commit"],)]
        skipped = {commit for (commit,) in rows(self.history, "select commit_hash from skips")}
        assert skipped <= set(answer["broken"])
        assert rows(self.history, "select started, count(*) from runs group by started having count(*) > 1") == []
        twice = "select commit_hash from builds where not reused group by 1 having count(*) > 1"
        assert rows(self.history, twice) == []


@pytest.fixture
def far(machine: Machine, tmp_path: Path) -> Hunt:
    return Hunt(tmp_path)


class Weather:
    """Does something at the ``number``-th event of a type, for each (type, number, action)."""

    def __init__(self, *events: tuple[str, int, Callable[[], None]]) -> None:
        self.left = list(events)
        self.seen: dict[str, int] = {}

    def __call__(self, kind: str, _: Process) -> None:
        self.seen[kind] = self.seen.get(kind, 0) + 1
        for event in list(self.left):
            if event[:2] == (kind, self.seen[kind]):
                self.left.remove(event)
                event[2]()


@pytest.mark.slow
def test_a_hunt_survives_a_cut_link_and_a_restart_of_sshd(far: Hunt, machine: Machine) -> None:
    def cut() -> None:
        machine.link("down")
        time.sleep(1)
        machine.link("up")

    weather = Weather(
        ("BuildStarted", 1, cut), ("RunStarted", 1, cut),
        ("BuildStarted", 2, machine.kill_sshd), ("RunStarted", 2, machine.kill_sshd),
    )  # fmt: skip
    assert far.run(far.begin(), weather) == 0
    far.check()
    assert not weather.left


@pytest.mark.slow
def test_a_hunt_survives_restarts_of_the_host(far: Hunt, machine: Machine) -> None:
    def restart() -> None:
        machine.power_off()
        machine.power_on()

    weather = Weather(("BuildProgress", 1, restart), ("RunStarted", 2, restart))
    assert far.run(far.begin("--explain"), weather) == 0
    far.check()
    measured = "select distinct json_extract(body, '$.facts.host') from events where kind in ('Counted', 'Profiled')"
    assert rows(far.history, measured) == [("far",)], "the reason is measured there, too"
    assert not weather.left


class Killed:
    """Kills the controller at the ``number``-th event of a type."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind, self.left = kind, number

    def __call__(self, kind: str, process: Process) -> None:
        self.left -= kind == self.kind
        if self.left == 0:
            process.send_signal(signal.SIGKILL)


@pytest.mark.slow
def test_a_controller_that_is_killed_again_and_again_goes_on(far: Hunt, machine: Machine) -> None:
    argv = far.begin()
    for kind, number in (("BuildProgress", 2), ("RunStarted", 1), ("RunFinished", 3), ("BuildStarted", 1)):
        assert far.run(argv, Killed(kind, number)) == -signal.SIGKILL
        argv = far.resume()
    assert far.run(argv) == 0
    far.check()
    assert "sysbench" not in machine.inside("ps -e -o args=")


SERVED = """
summary = "a server of the tests"
driver = "kv"
build = { compile = [["make"]], install = [["make", "install"]], artifacts = [] }
[server]
initialise = [["{recipe}/init", "{data}"]]
start = ["{prefix}/kvd", "{socket}"]
ready = ["{prefix}/kv", "{socket}", "ping"]
"""


def test_a_dry_run_tells_the_paths_of_that_machine_and_leaves_it_alone(
    machine: Machine, tmp_path: Path, git: Callable[..., str]
) -> None:
    for name in ("one", "two"):
        git("commit", "-q", "--allow-empty", "-m", name)
    recipe = tmp_path / "builders" / "kv" / "builder.toml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text(SERVED)
    words = ["run", "HEAD~1", "HEAD", "--builder", "kv", "--builders", str(tmp_path / "builders"), "--host", "far"]
    words += ["--repo", str(tmp_path / "repo"), "--run", "kvbench {socket}", "--dry-run"]
    done = bisect(*words)
    assert done.returncode == 0, done.stderr
    for path in ("visit/socket ping", "visit/data", "work/kv/prefix/kvd", "recipes/"):
        assert f"{machine.root}/{path}" in done.stdout
    assert "perfbisect-" not in done.stdout, "the scratch folder"
    assert [path.name for path in Path(machine.root).iterdir()] == [MARKER]
