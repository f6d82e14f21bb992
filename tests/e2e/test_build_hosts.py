"""A hunt that builds on two machines while a third measures, each machine at the end of a link of its own."""

import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import program
from machine import PLACE, Machine
from program import Process, bisect, bisect_until, bisect_watched, rows

pytestmark = [pytest.mark.e2e, pytest.mark.tools, pytest.mark.slow]

COMMITS, CULPRIT = 24, 15
BENCH = r"""
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include "work.h"

int main(void) {
    struct timespec from, to;
    volatile unsigned long sum = 1;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    for (long i = 0; i < 20000; i++)
        for (long j = 0; j < WORK; j++) sum = sum * 31 + j;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    double seconds = (to.tv_sec - from.tv_sec) + (to.tv_nsec - from.tv_nsec) / 1e9;
    usleep(300000);
    printf("rate: %.1f\n", 20000 / seconds);
    return 0;
}
"""
SLEEP = "sleep 4"  # before each build: it takes as long on a machine that others use


@pytest.fixture
def machines(make_machine: Callable[..., Machine]) -> list[Machine]:
    """Two machines that build."""
    return [make_machine(), make_machine()]


@pytest.fixture
def commits(git: Callable[..., str], tmp_path: Path) -> list[str]:
    """A benchmark in C: from one commit on its loop takes three times as long."""
    repo, hashes = tmp_path / "repo", []
    (repo / "bench.c").write_text(BENCH)
    (repo / "Makefile").write_text("bench: bench.c work.h\n\t$(CC) -O1 -o $@ bench.c\n")
    for number in range(COMMITS):
        (repo / "work.h").write_text(
            f"/* {number} */\n#define WORK {(3000 if number >= CULPRIT else 1000) + number % 2}\n"
        )
        git("add", "-A")
        git("commit", "-qm", f"change {number}")
        git("tag", f"v{number}")
        hashes.append(git("rev-parse", "HEAD"))
    return hashes


class Hunt:
    """A hunt on this machine, which the machines build for."""

    def __init__(
        self, folder: Path, machines: list[Machine], *, between: bool = False, only_measures: bool = False
    ) -> None:
        """The last machine measures, and builds ``between`` its runs; or it ``only_measures``. Else this one does."""
        self.folder, self.history, self.machines = folder, folder / "history.db", machines
        names = [f"b{number}" for number in range(1, len(machines) + 1)]
        names[-1:] = ["quiet"] if between or only_measures else names[-1:]
        makers = f"build_hosts = {json.dumps(names[: -1 if only_measures else None])}\n"
        entries = [] if "quiet" in names else [f'[hosts.quiet]\nroot = "{folder}/quiet"\n{makers}']
        for name, machine in zip(names, machines, strict=True):
            more = makers if name == "quiet" else ""
            entries.append(f'[hosts.{name}]\naddress = "{machine.address}"\nroot = "{PLACE}"\njobs = 1\n{more}')
        (folder / "hosts.toml").write_text("\n".join(entries))
        self.kept = ["--history", str(self.history)]
        self.words = [
            "run", "v0", f"v{COMMITS - 1}", "--repo", str(folder / "repo"), "--build", SLEEP, "--build", "make", "--run", "./bench", "--rate", r"rate: ([\d.]+)",
            "--host", "quiet", "--hosts", str(folder / "hosts.toml"), "--no-explain", *self.kept,
        ]  # fmt: skip

    def ask(self, sql: str) -> list[tuple[object, ...]]:
        return rows(self.history, sql)

    def builds(self) -> list[tuple[str, float, float]]:
        """Host, beginning and end of each build that was made, by the stored log."""
        found = self.ask("select host, at - seconds, at from builds where not reused order by at")
        return [(str(host), float(began), float(ended)) for host, began, ended in found]  # type: ignore[arg-type]

    def running(self, machine: Machine) -> list[str]:
        """The jobs of a machine that have no status."""
        return [str(status) for status in Path(machine.root).glob("jobs/*/status") if not status.read_text().strip()]

    def runs(self) -> list[tuple[float, float]]:
        found = self.ask("select started, started + seconds from runs")
        return [(float(began), float(ended)) for began, ended in found]  # type: ignore[arg-type]


def overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def test_builds_go_on_beside_runs(machines: list[Machine], commits: list[str], tmp_path: Path) -> None:
    hunt = Hunt(tmp_path, machines)
    ended = bisect(*hunt.words, "--plain")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert hunt.ask("select culprit from culprits") == [(commits[CULPRIT],)]
    builds = hunt.builds()
    assert {host for host, _, _ in builds} == {"b1", "b2"}
    assert any(one[0] != other[0] and overlap(one[1:], other[1:]) for one in builds for other in builds), (
        "both machines build at once"
    )
    assert any(overlap(build[1:], run) for build in builds for run in hunt.runs()), "and while a run goes on"
    assert {host for (host,) in hunt.ask("select distinct host from runs")} == {"quiet"}
    assert not (tmp_path / "quiet" / "work" / "quick" / "source").exists(), "nothing is built where it is measured"
    for line in ("building  b1  ", "building  b2  ", "ran       quiet  ", "on quiet, built on b1 and b2"):
        assert line in ended.stdout
    shown = bisect("show", *hunt.kept).stdout
    assert "Built ahead: " in shown
    assert "builds on b1, " in shown
    again = bisect("replay", *hunt.kept)
    assert commits[CULPRIT][:10] in again.stdout


def test_a_host_that_measures_builds_between_its_runs(
    machines: list[Machine], commits: list[str], tmp_path: Path
) -> None:
    hunt = Hunt(tmp_path, machines, between=True)
    ended = bisect(*hunt.words, "--plain")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert hunt.ask("select culprit from culprits") == [(commits[CULPRIT],)]
    builds = hunt.builds()
    assert {host for host, _, _ in builds} == {"b1", "quiet"}
    assert any(overlap(build, run) for host, *build in builds for run in hunt.runs() if host == "b1")
    assert not any(overlap(build, run) for host, *build in builds for run in hunt.runs() if host == "quiet")


def test_killed_and_interrupted_and_gone_on_with(machines: list[Machine], commits: list[str], tmp_path: Path) -> None:
    """Builds that were in flight are made again or followed to their end; nothing is left running anywhere."""
    hunt = Hunt(tmp_path, machines)
    resume = ["resume", *hunt.kept, "--json"]
    ahead: set[str] = set()

    def kill(line: str, process: Process) -> None:
        event = json.loads(line) if line.startswith("{") else {"event": ""}
        if event["event"] == "BuildProgress" and event["stage"] == "compile":
            ahead.add(event["host"])
        if ahead == {"b1", "b2"}:
            process.send_signal(signal.SIGKILL)

    assert bisect_watched([*hunt.words, "--json"], kill).returncode == -signal.SIGKILL
    assert any(hunt.running(machine) for machine in machines), "builds outlive the program"
    assert bisect_until(resume, '"RunFinished"', signal.SIGINT).returncode == 130
    assert not any(hunt.running(machine) for machine in machines)

    ended = bisect("resume", *hunt.kept, "--plain")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert hunt.ask("select culprit from culprits") == [(commits[CULPRIT],)]
    made = hunt.ask("select commit_hash, count(*) from builds where not reused group by 1 having count(*) > 1")
    assert made == [], "no build was made twice"
    assert not any(hunt.running(machine) for machine in machines)


def test_a_build_host_that_vanishes(machines: list[Machine], commits: list[str], tmp_path: Path) -> None:
    """Its disk goes in the middle of the hunt, with all that it has built: the other one builds what is missing."""
    hunt = Hunt(tmp_path, machines)
    gone: list[str] = []

    def see(line: str, _: Process) -> None:
        if '"RunFinished"' in line and not gone:
            gone.append(machines[1].inside(f"mount -t tmpfs -o ro none {PLACE}"))

    ended = bisect_watched([*hunt.words, "--json"], see)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert hunt.ask("select culprit from culprits") == [(commits[CULPRIT],)]
    assert "build host b2 takes no further part" in ended.stdout
    told = next(
        event["at"] for event in map(json.loads, ended.stdout.splitlines()) if "no further" in event.get("text", "")
    )
    assert {host for host, _, at in hunt.builds() if at > told} == {"b1"}


def test_the_host_that_measures_stands_in_for_the_only_build_host(
    machines: list[Machine], commits: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as that is out of reach, whose machine loses its power in the middle of the hunt."""
    quick = "from perfbisect.host import lock; from perfbisect.hunt import labs; lock.BEAT, labs.STAND_IN = 1, 3; "
    monkeypatch.setattr(program, "PROGRAM", [sys.executable, "-c", quick + program.PROGRAM[-1]])
    hunt = Hunt(tmp_path, machines, only_measures=True)
    course: list[str] = []

    def see(line: str, _: Process) -> None:
        event = json.loads(line) if line.startswith("{") else {"event": ""}
        if event["event"] == "RunFinished" and not course:
            machines[0].power_off()
            course.append("off")
        elif event["event"] == "BuildFinished" and event.get("host", "quiet") == "quiet" and course == ["off"]:
            machines[0].power_on()
            course.append("on")

    ended = bisect_watched([*hunt.words, "--json"], see)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert hunt.ask("select culprit from culprits") == [(commits[CULPRIT],)]
    assert course == ["off", "on"]
    told = [event["text"] for event in map(json.loads, ended.stdout.splitlines()) if event["event"] == "Warned"]
    lost, back = (
        next(n for n, text in enumerate(told) if sign in text) for sign in ("b1 is out of reach", "b1 is back")
    )
    assert lost < back
    makers = [host for host, _, _ in hunt.builds()]
    assert makers[0] == makers[-1] == "b1" and "quiet" in makers
    assert not hunt.running(machines[1])
