"""Whole hunts on another machine, whatever happens to the way there."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from machine import Machine
from perfbisect.host.registry import MARKER
from program import Process, bisect, bisect_watched
from small_hunt import Hunt

pytestmark = [pytest.mark.e2e, pytest.mark.tools]


See = Callable[[str, Process], object]


@pytest.fixture
def hunt(machine: Machine, tmp_path: Path) -> Hunt:
    """A hunt on that machine."""
    return Hunt(tmp_path, f'[hosts.far]\naddress = "{machine.address}"\nroot = "{machine.root}"\n', pause=0.3)


def watched(words: list[str], then: See) -> CompletedProcess[str]:
    """Run the program; ``then`` is called with the type of every event and the process."""

    def see(line: str, process: Process) -> None:
        if line.startswith("{"):
            then(json.loads(line)["event"], process)

    return bisect_watched(words, see)


def begin(hunt: Hunt, *more: str) -> list[str]:
    return hunt.words("--host", "far", "--json", *more)


class Weather:
    """Does something at the ``number``-th event of a type, for each (type, number, action); a signal is for the program."""

    def __init__(self, *events: tuple[str, int, Callable[[], None] | signal.Signals]) -> None:
        self.left = list(events)
        self.seen: dict[str, int] = {}

    def __call__(self, kind: str, process: Process) -> None:
        self.seen[kind] = self.seen.get(kind, 0) + 1
        for event in list(self.left):
            if event[:2] == (kind, self.seen[kind]):
                self.left.remove(event)
                process.send_signal(event[2]) if isinstance(event[2], signal.Signals) else event[2]()


@pytest.mark.slow
def test_a_hunt_survives_a_cut_link_and_a_restart_of_sshd(hunt: Hunt, machine: Machine) -> None:
    def cut() -> None:
        machine.link("down")
        time.sleep(1)
        machine.link("up")

    weather = Weather(
        ("BuildStarted", 1, cut), ("RunStarted", 1, cut),
        ("BuildStarted", 2, machine.kill_sshd), ("RunStarted", 2, machine.kill_sshd),
    )  # fmt: skip
    hunt.check(watched(begin(hunt), weather))
    assert hunt.ask("select * from skips") == []
    assert not weather.left


@pytest.mark.slow
def test_a_hunt_survives_restarts_of_the_host(hunt: Hunt, machine: Machine) -> None:
    def restart() -> None:
        machine.power_off()
        machine.power_on()

    weather = Weather(("BuildProgress", 1, restart), ("RunStarted", 2, restart))
    hunt.check(watched(begin(hunt, "--explain"), weather))
    measured = "select distinct json_extract(body, '$.facts.host') from events where kind in ('Counted', 'Profiled')"
    assert hunt.ask(measured) == [("far",)], "the reason is measured there, too"
    assert hunt.ask("select * from skips") == []
    assert not weather.left


@pytest.mark.slow
@pytest.mark.parametrize("pairing", ["turns", "together"])
def test_a_controller_that_is_killed_again_and_again_goes_on(hunt: Hunt, machine: Machine, pairing: str) -> None:
    words = begin(hunt, "--pairing", pairing)
    for kind, number in (("BuildProgress", 2), ("RunStarted", 1), ("RunFinished", 3), ("BuildStarted", 1)):
        killed = watched(words, Weather((kind, number, signal.SIGKILL)))
        assert killed.returncode == -signal.SIGKILL
        words = hunt.resumed()
    hunt.check(bisect(*words))
    assert hunt.ask("select * from skips") == []
    assert "bench" not in machine.inside("ps -e -o args=")
    of_rounds = "select json_extract(body, '$.facts.round') as round, count(*) from events where kind = 'RunFinished' group by 1"
    rounds = hunt.ask(of_rounds)
    if pairing == "turns":
        assert [number for number, _ in rounds] in ([None], [""])
    else:
        assert all(rounds)
        assert {runs for _, runs in rounds} <= {1, 2}
        assert sum(runs == 1 for _, runs in rounds) <= 1, "a round that was cut short is lost, and it alone"


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
        (tmp_path / "repo" / "kv.c").write_text(name)
        git("add", "-A")
        git("commit", "-q", "-m", name)
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
