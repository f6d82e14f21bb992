"""Whole hunts on several hosts: root folders of this machine, machines that measure or build, and shared builds."""

import json
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from machine import PLACE, Machine
from program import Process, bisect, bisect_until, bisect_watched, run_first
from small_hunt import Hunt

pytestmark = [pytest.mark.e2e, pytest.mark.tools]

Make = Callable[..., Machine]
BOTH = ["--host", "one", "--host", "two"]


def running(*roots: Path | str) -> list[str]:
    """The jobs without a status below these root folders."""
    jobs = (path for root in roots for path in Path(root).glob("jobs/*/status"))
    return [str(status) for status in jobs if not status.read_text().strip()]


def events(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.splitlines() if line.startswith("{")]


def two_places(folder: Path, pause: float = 0.0) -> Hunt:
    """A hunt on two hosts, which are root folders of this machine."""
    entries = [f'[hosts.{name}]\nroot = "{folder}/{name}"\njobs = 1\nclass = "pair"\n' for name in ("one", "two")]
    return Hunt(folder, "".join(entries), pause=pause)


@pytest.mark.slow
def test_hunt_on_two_hosts_resumes_after_kill_and_interruption(tmp_path: Path) -> None:
    """No run is lost or counted twice. Ctrl-C leaves no job running on either host."""
    hunt = two_places(tmp_path, pause=0.3)
    killed = bisect_until(hunt.words(*BOTH, "--json"), '"BuildProgress"', signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    assert bisect_until(hunt.resumed(), '"RunStarted"', signal.SIGINT).returncode == 130
    assert not running(tmp_path / "one", tmp_path / "two")
    hunt.check(bisect(*hunt.resumed("--plain")))
    assert hunt.ask("select distinct host from builds order by 1") == [("one",), ("two",)]
    shown = bisect("show", *hunt.kept(), "--json")
    assert [host["name"] for host in json.loads(shown.stdout)["hosts"]] == ["one", "two"]


@pytest.mark.slow
def test_hunt_continues_after_a_host_vanishes(tmp_path: Path) -> None:
    """The root folder of a host is moved away during the hunt. The other host finds the culprit alone."""
    hunt, gone = two_places(tmp_path), tmp_path / "gone"

    def see(line: str, _: Process) -> None:
        if '"RunFinished"' in line and '"host":"two"' in line and not gone.exists():
            (tmp_path / "two").rename(gone)

    ended = bisect_watched(hunt.words(*BOTH, "--json"), see)
    hunt.check(ended)
    assert any("no further part" in str(each["text"]) for each in events(ended.stdout) if each["event"] == "Warned")


def entry(name: str, machine: Machine, more: str = "", root: str = PLACE) -> str:
    return f'[hosts.{name}]\naddress = "{machine.address}"\nroot = "{root}"\njobs = 1\n{more}\n'


COMPILES = "echo 'int x;' | gcc -x c -c -o /dev/null - && echo yes"


@pytest.mark.slow
def test_one_machine_builds_and_the_other_measures(make_machine: Make, tmp_path: Path) -> None:
    """The builds are sent as tar streams to the machine that measures, which cannot compile."""
    cc1 = subprocess.run(["gcc", "-print-prog-name=cc1"], capture_output=True, text=True, check=True).stdout.strip()
    a, b = make_machine(), make_machine(Path(cc1).parent)
    assert [machine.inside(COMPILES) for machine in (a, b)] == ["yes\n", ""]
    hunt = Hunt(tmp_path, entry("a", a, root=a.root) + entry("b", b, 'build_hosts = ["a"]', b.root))
    hunt.check(bisect(*hunt.words("--host", "b", "--plain")))
    assert hunt.ask("select distinct host from runs") == [("b",)]
    names = [{path.name for path in Path(machine.root, "builds").glob("*")} for machine in (a, b)]
    assert names[1] and names[1] <= names[0]
    assert not [*Path(b.root).glob("work/*/source")]


SLEEP = "sleep 2"  # before each build, so that a build takes 2 s or more


class Ahead(Hunt):
    """A longer hunt with build hosts."""

    def __init__(self, folder: Path, machines: list[Machine], *, only: bool = False) -> None:
        """If ``only``, the last machine measures and does not build; else this machine measures."""
        names = ["b1", "quiet"] if only else ["b1", "b2"]
        more = f"build_hosts = {json.dumps(names[: -1 if only else None])}\n"
        entries = [] if "quiet" in names else [f'[hosts.quiet]\nroot = "{folder}/quiet"\n{more}']
        entries += [
            entry(name, machine, more if name == "quiet" else "")
            for name, machine in zip(names, machines, strict=False)
        ]
        super().__init__(folder, "".join(entries), commits=24, culprit=15, pause=0.3, builds=(SLEEP, "make"))
        self.begin = self.words("--host", "quiet")

    def builds(self) -> list[tuple[str, float, float]]:
        """The host, start and end of each new build in the log."""
        found = self.ask("select host, at - seconds, at from builds where not reused order by at")
        return [(str(host), float(began), float(ended)) for host, began, ended in found]

    def beside_a_run(self, build: Sequence[float]) -> bool:
        return any(overlap(build, run) for run in self.ask("select started, started + seconds from runs"))


def overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


@pytest.fixture
def machines(make_machine: Make) -> list[Machine]:
    """Two build hosts."""
    return [make_machine(), make_machine()]


@pytest.mark.slow
def test_build_hosts_build_during_runs(machines: list[Machine], tmp_path: Path) -> None:
    hunt = Ahead(tmp_path, machines)
    ended = bisect(*hunt.begin, "--plain")
    hunt.check(ended)
    builds = hunt.builds()
    assert {host for host, _, _ in builds} == {"b1", "b2"}
    at_once = [one for one in builds for other in builds if one[0] != other[0] and overlap(one[1:], other[1:])]
    assert at_once, "both machines build at once"
    assert any(hunt.beside_a_run(build[1:]) for build in builds), "and while a run goes on"
    assert {host for (host,) in hunt.ask("select distinct host from runs")} == {"quiet"}
    assert not [*(tmp_path / "quiet").glob("work/*/source")], "nothing is built on the measuring host"
    for line in ("building  b1  ", "building  b2  ", "ran       quiet  ", "on quiet, built on b1 and b2"):
        assert line in ended.stdout
    shown = bisect("show", *hunt.kept()).stdout
    assert "Built ahead: " in shown
    assert "builds on b1, " in shown
    assert hunt.culprit[:10] in bisect("replay", *hunt.kept()).stdout


@pytest.mark.slow
def test_running_builds_are_completed_after_kill_and_interruption(machines: list[Machine], tmp_path: Path) -> None:
    """At the end, no job runs on any host."""
    hunt, roots = Ahead(tmp_path, machines), [machine.root for machine in machines]
    ahead: set[str] = set()

    def kill(line: str, process: Process) -> None:
        for event in events(line):
            if event["event"] == "BuildProgress" and event["stage"] == "compile":
                ahead.add(str(event["host"]))
        if ahead == {"b1", "b2"}:
            process.send_signal(signal.SIGKILL)

    assert bisect_watched([*hunt.begin, "--json"], kill).returncode == -signal.SIGKILL
    assert running(*roots), "builds outlive the program"
    assert bisect_until(hunt.resumed(), '"RunFinished"', signal.SIGINT).returncode == 130
    assert not running(*roots)
    hunt.check(bisect(*hunt.resumed("--plain")))
    made = hunt.ask("select commit_hash, count(*) from builds where not reused group by 1 having count(*) > 1")
    assert made == [], "no build was made twice"
    assert not running(*roots)


@pytest.mark.slow
def test_measuring_host_builds_while_the_only_build_host_is_lost(
    machines: list[Machine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine of the build host is switched off during the hunt, and switched on later."""
    shorter = "lock.BEAT, labs.BUILD_HOST_PATIENCE = 1, 3"
    run_first(f"from perfbisect.host import lock; from perfbisect.hunt import labs; {shorter}", monkeypatch)
    hunt = Ahead(tmp_path, machines, only=True)
    course: list[str] = []

    def is_new_build_of_quiet(event: dict[str, Any]) -> bool:
        """Whether the event is the end of a build on the measuring host. A build that was sent to it is reused."""
        is_build = event["event"] == "BuildFinished" and event.get("host", "quiet") == "quiet"
        return is_build and not event["facts"]["reused"]

    def see(line: str, _: Process) -> None:
        for event in events(line):
            if event["event"] == "RunFinished" and not course:
                machines[0].power_off()
                course.append("off")
            elif is_new_build_of_quiet(event) and course == ["off"]:
                machines[0].power_on()
                course.append("on")

    ended = bisect_watched([*hunt.begin, "--json"], see)
    hunt.check(ended)
    assert course == ["off", "on"]
    told = [str(event["text"]) for event in events(ended.stdout) if event["event"] == "Warned"]
    lost, back = (
        next(n for n, text in enumerate(told) if f"b1 is {what}" in text) for what in ("out of reach", "back")
    )
    assert lost < back
    makers = [host for host, _, _ in hunt.builds()]
    assert makers[0] == makers[-1] == "b1" and "quiet" in makers
    assert not running(machines[1].root)


class Alone(Hunt):
    """One hunt after the other, each on an empty host and in a history of its own."""

    def hunt(self, name: str) -> tuple[set[str], set[str]]:
        """Run a hunt. Returns the commits that were built, and the commits whose builds were fetched."""
        with (self.folder / "hosts.toml").open("a") as file:
            file.write(f'[hosts.{name}]\nroot = "{self.folder}/root-{name}"\n')
        self.check(bisect(*self.words("--host", name, "--plain", history=name)), name)
        found = self.ask("select commit_hash, reused from builds", name)
        made, fetched = ({str(sha) for sha, reused in found if reused == how} for how in (0, 2))
        return made, fetched


@pytest.mark.slow
@pytest.mark.own_ccache
def test_second_hunt_fetches_builds_and_third_replaces_damaged_builds(seal: Path, tmp_path: Path) -> None:
    hunts, store, key = Alone(tmp_path), tmp_path / "store", tmp_path / "key"
    store.mkdir()
    key.write_text("0123456789abcdef0123456789abcdef\n")
    key.chmod(0o600)
    config = seal / ".config" / "perfbisect" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'[shared]\nbuilds = "{store}"\nkey_file = "{key}"\n')
    known, fetched = hunts.hunt("one")
    assert len(known) > 2
    assert not fetched
    assert len(list(store.iterdir())) == len(known)
    made, fetched = hunts.hunt("two")  # on a busy machine, it may test other commits
    assert len(fetched) > 2
    assert fetched <= known and not made & known
    shown = bisect("show", *hunts.kept("two"))
    assert f"{len(made)} builds and {len(fetched)} from the shared builds in " in shown.stdout.replace(
        "1 build ", "1 builds "
    )
    for file in store.iterdir():
        data = bytearray(file.read_bytes())
        data[-50] ^= 1
        file.write_bytes(data)
    again, fetched = hunts.hunt("three")
    assert not fetched
    refused = "select count(*) from events where kind = 'Warned' and body like '%is not trusted%'"
    assert hunts.ask(refused, "three") == [(len(again & (known | made)),)]
    assert not hunts.hunt("four")[0] & again, "the damaged builds were replaced"
