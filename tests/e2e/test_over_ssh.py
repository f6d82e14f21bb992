"""Hunts and comparisons over ssh, with failures of the network and of the host; and a hunt that fills a disk."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from machine import Machine
from perfbisect.demo.history import write_history
from perfbisect.host.registry import MARKER
from program import Process, bisect, bisect_until, bisect_watched
from small_hunt import Hunt

pytestmark = [pytest.mark.e2e, pytest.mark.tools, pytest.mark.slow]

See = Callable[[str, Process], object]


@pytest.fixture
def hunt(machine: Machine, tmp_path: Path) -> Hunt:
    """A hunt over ssh on the machine of the fixture ``machine``."""
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
    """For each (type, number, action): at the event ``number`` of a type, call the action, or send it as a signal."""

    def __init__(self, *events: tuple[str, int, Callable[[], None] | signal.Signals]) -> None:
        self.left = list(events)
        self.seen: dict[str, int] = {}

    def __call__(self, kind: str, process: Process) -> None:
        self.seen[kind] = self.seen.get(kind, 0) + 1
        for event in list(self.left):
            if event[:2] == (kind, self.seen[kind]):
                self.left.remove(event)
                process.send_signal(event[2]) if isinstance(event[2], signal.Signals) else event[2]()


def test_hunt_survives_a_cut_network_and_a_restart_of_sshd(hunt: Hunt, machine: Machine) -> None:
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


def test_hunt_survives_restarts_of_the_host(hunt: Hunt, machine: Machine) -> None:
    def restart() -> None:
        machine.power_off()
        machine.power_on()

    weather = Weather(("BuildProgress", 1, restart), ("RunStarted", 2, restart))
    hunt.check(watched(begin(hunt, "--explain"), weather))
    measured = "select distinct json_extract(body, '$.facts.host') from events where kind in ('Counted', 'Profiled')"
    assert hunt.ask(measured) == [("far",)], "the reason is measured there, too"
    assert hunt.ask("select * from skips") == []
    assert not weather.left


def test_hunt_resumes_after_repeated_kills_of_the_controller(hunt: Hunt, machine: Machine) -> None:
    """With paired runs; tests/e2e/test_several_hosts.py has the test with interleaved runs."""
    words = begin(hunt, "--pairing", "paired")
    for kind, number in (("BuildProgress", 2), ("RunStarted", 1), ("RunFinished", 3), ("BuildStarted", 1)):
        killed = watched(words, Weather((kind, number, signal.SIGKILL)))
        assert killed.returncode == -signal.SIGKILL
        words = hunt.resumed()
    hunt.check(bisect(*words))
    assert hunt.ask("select * from skips") == []
    assert "bench" not in machine.inside("ps -e -o args=")
    of_rounds = "select json_extract(body, '$.facts.round') as round, count(*) from events where kind = 'RunFinished' group by 1"
    rounds = hunt.ask(of_rounds)
    assert all(rounds)
    assert {runs for _, runs in rounds} <= {1, 2}
    assert sum(runs == 1 for _, runs in rounds) <= 1, "a round that was cut short is lost, and it alone"


SERVED = (Path(__file__).parent / "programs" / "served.toml").read_text()


def test_dry_run_changes_nothing_on_the_host(machine: Machine, tmp_path: Path, git: Callable[..., str]) -> None:
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


MAKE = "git -C {repo} checkout -q {tag} && make -s -f {repo}/Makefile install PREFIX={prefix} CC=gcc CFLAGS=-O2"


def test_compare_over_ssh_takes_commits_a_tarball_and_a_folder(machine: Machine, tmp_path: Path) -> None:
    """Commits are built on the host, the tarball is copied to the host, and the folder is on the host."""
    repo, there = tmp_path / "repo", machine.folder / "opt"
    write_history(repo, 6)
    for tag, prefix in (("v1.0", tmp_path / "demo-1.0"), ("v1.1", there / "demo-1.1")):
        build = tmp_path / f"build-{tag}"
        build.mkdir()
        subprocess.run(["sh", "-c", MAKE.format(repo=repo, tag=tag, prefix=prefix)], cwd=build, check=True)
    subprocess.run(["tar", "-C", str(tmp_path), "-czf", "demo.tar.gz", "demo-1.0"], cwd=tmp_path, check=True)
    builds = [f"old={tmp_path / 'demo.tar.gz'}", f"new={there / 'demo-1.1'}"]
    words = ["compare", "v1.1", *builds, "v1.0", "--repo", str(repo), "--builder", "demo", "--host", "far"]
    words += ["--workload", "update-index"]
    asked = ["--visits", "2", "--runs", "1", "--warmup", "0.1", "--metric", "cpu/o", "--json"]
    done = bisect(*words, *asked)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    [row] = told["workloads"]
    old, new, built = (ratio["ratio"] for ratio in row["ratios"])
    assert max(old, built) < 0.85 < new, "relative to the slow one"
    assert told["host"]["name"] == "far"
    kept = Path(machine.root, "builds", told["settings"]["subjects"][1]["key"], "prefix", "lib", "libdemo.so")
    assert kept.is_file()

    words[3] = "new=relative"
    refused = bisect(*words, *asked)
    assert refused.returncode == 3
    assert "does not begin with /" in refused.stderr
    words[3] = "new=/opt/nothing-there"
    refused = bisect(*words, *asked)
    assert refused.returncode == 3
    assert "/opt/nothing-there does not exist on host far" in refused.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root, to mount a small file system")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(folder)], check=False)
    if done.returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.slow
def test_full_disk_stops_the_hunt_which_resumes_with_free_space(tmp_path: Path, small_disk: Path) -> None:
    hunt = Hunt(tmp_path, f'[hosts.local]\nroot = "{small_disk}/root"\n', pause=0.2)
    ballast = small_disk / "ballast"

    def fill(_process: Process) -> None:
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 200 << 20)

    ended = bisect_until(hunt.words("--plain"), "  ran ", fill)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 4, said
    assert "the disk of host local is full" in said
    assert "bisect gc local" in said
    assert "To continue: bisect resume 1" in said
    assert hunt.ask("select count(*) from skips") == [(0,)]
    ballast.unlink()
    hunt.check(bisect(*hunt.resumed("--plain")))
