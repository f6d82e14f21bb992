"""Rounds: two builds that run at the same time, on real builds and with real servers."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installed_servers import BUILDERS
from labs import bench_lab, lab_of, measure, runs, skipped, warnings, workload_of
from perfbisect.core.domain.events import LabEvent, PairingChosen, RunStarted
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.orders import Measure, Purpose, Share
from perfbisect.errors import BuildChanged
from perfbisect.host.facts import ask, cpu_numbers
from perfbisect.host.local import LocalHost
from perfbisect.lab.build import build_store
from perfbisect.lab.build.links import LayoutSeeds
from perfbisect.lab.host_lab import Earlier, HostLab
from perfbisect.lab.measure.rounds import MEMORY, TurnsAdvised, check_memory, invalid, shared_cores
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.inventory import HostEntry
from repos import Repo

pytestmark = pytest.mark.tools

LOOP = "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done"


def together(lab: HostLab, rounds: int = 1, *, fresh: bool = False) -> list[LabEvent]:
    plan = (Share(0, rounds), Share(1, rounds))
    return list(lab.measure(Measure(plan, Purpose.SEARCH, fresh=fresh, together=True)))


def refused(events: list[LabEvent]) -> str:
    """Why builds are measured in turns from here on."""
    assert isinstance(events[-1], PairingChosen), events
    assert not events[-1].together
    return events[-1].why


def built(git: Repo, *programs: str) -> tuple[str, ...]:
    """Commits whose build installs these programs, which say where they are and what they see."""
    return tuple(
        git.commit({"bench": f"#!/bin/sh\n{text}\necho ops/s: 100\n", "bench.mode": str(n)})
        for n, text in enumerate(programs)
    )


def open_lab(host: LocalHost, git: Repo, *programs: str, **keys: Any) -> HostLab:
    return bench_lab(host, git.path, *built(git, *programs), command=["./bench"], build="chmod +x bench", **keys)


def test_both_run_at_the_same_time_on_the_same_core(host: LocalHost, git: Repo, tmp_path: Path) -> None:
    say = f"taskset -pc $$ >>{tmp_path}/cores; pwd >>{tmp_path}/places"
    lab = open_lab(host, git, f"{say}; {LOOP}", f"{say}; {LOOP}; {LOOP}")
    events = together(lab, 2)
    one, two, *others = runs(events)
    assert not warnings(events)
    assert len(others) == 2
    assert one.round == two.round != others[0].round == others[1].round
    assert one.started < two.started + two.seconds and two.started < one.started + one.seconds
    cores = {line.split(": ")[1] for line in (tmp_path / "cores").read_text().splitlines()}
    assert len(cores) == 1
    assert len(cpu_numbers(cores.pop())) == 1
    assert [event.number for event in events if isinstance(event, RunStarted)] == [1, 2]
    places = set((tmp_path / "places").read_text().split())
    assert len(places) == 2
    assert len({len(place) for place in places}) == 1


CORES = os.sched_getaffinity(0)


@pytest.mark.slow
@pytest.mark.skipif(len(CORES) < 2, reason="one core only")
def test_a_program_gets_as_many_cores_as_it_used_in_turns(host: LocalHost, git: Repo, tmp_path: Path) -> None:
    say = f"taskset -pc $$ >>{tmp_path}/cores; {LOOP}"
    lab = open_lab(host, git, say, say)
    lab.earlier = Earlier(busiest=1.7)
    assert len(runs(together(lab))) == 2
    _, cores = (tmp_path / "cores").read_text().splitlines()
    assert len(cpu_numbers(cores.split(": ")[1])) == 2


def test_what_ends_first_keeps_as_many_threads_busy(host: LocalHost, git: Repo, tmp_path: Path) -> None:
    """Of what fills the cores for it, each is a process with its command line."""
    lines = f"ps -eo stat,args | grep '^R.*[ ]beside {host.root}/visit/one '"
    until = f"i=0; until [ $({lines} | wc -l) = 3 ] || [ $i -gt 3000 ]; do i=$((i + 1)); sleep 0.01; done"
    lab = open_lab(host, git, LOOP, f"{LOOP}; {until}; {lines} | wc -l >{tmp_path}/busy", threads=3)
    together(lab)
    assert (tmp_path / "busy").read_text() == "3\n"


@pytest.mark.slow
def test_one_core_is_enough(host: LocalHost, git: Repo) -> None:
    os.sched_setaffinity(0, {min(CORES)})
    try:
        events = together(open_lab(host, git, LOOP, LOOP))
    finally:
        os.sched_setaffinity(0, CORES)
    assert len(runs(events)) == 2
    assert all(run.round for run in runs(events))


def test_the_second_place_leads_nowhere_else(host: LocalHost, git: Repo) -> None:
    """A build has the path of its installation in a library's search path, a file, and a link."""
    commits = tuple(git.commit({"value.c": f"int value(void) {{ return {n}; }}\n", "main.c": MAIN}) for n in (7, 8))
    lab = bench_lab(host, git.path, *commits, command=["./main"], build=BUILD)
    one, two = runs(together(lab))
    assert [one.reported, two.reported] == [7, 8], "each finds its own library"
    key = two.build_key
    assert not build_store.changes(host, build_store.folder(host, key)), "the build itself is as it was"
    work = Path(host.root, "work")
    (second,) = work.glob("*/second")
    assert b"/prefix" not in (second / "main").read_bytes()
    again = build_store.put_beside(host, second.parent.name, key)
    assert str(again) == str(second)
    (second / "main").write_text("other")
    with pytest.raises(BuildChanged, match="main"):
        build_store.put_beside(host, second.parent.name, key)
    (second / "libvalue.so").unlink()
    with pytest.raises(BuildChanged, match=r"libvalue\.so"):
        build_store.put_beside(host, second.parent.name, key)
    assert not build_store.changes(host, build_store.folder(host, key)), "only the copy has changed"


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "exit 3"])
def test_a_program_that_changes_its_second_place_has_its_build_made_again(host: LocalHost, git: Repo, end: str) -> None:
    spoil = f"case $(pwd -P) in */beside) {LOOP}; rm bench.mode; {end};; *) {LOOP};; esac"
    events = together(open_lab(host, git, LOOP, spoil), 3)
    [told, *_] = [text for text in warnings(events) if "it is made again" in text]
    assert "bench.mode" in told
    assert not any(isinstance(event, PairingChosen) for event in events)


MAIN = '#include <stdio.h>\nint value(void);\nint main(void) {\n    for (volatile long i = 0; i < 150000000; i++);\n    printf("ops/s: %d\\n", value());\n    return 0;\n}\n'
BUILD = """sh -c 'cc -shared -fPIC -o libvalue.so value.c && cc -o main main.c -L. -lvalue -Wl,-rpath,$PWD'"""


def test_a_program_that_cannot_run_twice_is_measured_in_turns(host: LocalHost, git: Repo, tmp_path: Path) -> None:
    alone = f"mkdir {tmp_path}/alone || exit 3; {LOOP}; rmdir {tmp_path}/alone"
    events = together(open_lab(host, git, alone, alone), 3)
    assert "beside another build only: it ended with status 3" in refused(events)
    assert len(runs(events)) == 1, "the one that failed was run alone"
    assert not runs(events)[0].round


def test_a_commit_that_fails_alone_as_well_is_skipped(host: LocalHost, git: Repo) -> None:
    events = together(open_lab(host, git, LOOP, "exit 4"), 3)
    assert "it ended with status 4" in skipped(events).reason
    assert not runs(events)


@pytest.mark.slow
def test_fresh_layouts_are_those_of_both(host: LocalHost, git: Repo) -> None:
    program = '#include <stdio.h>\nint own(int x) { return x + %d; }\nint main(void) {\n    for (volatile long i = 0; i < 150000000; i++);\n    printf("ops/s: %%d\\n", own(1));\n    return 0;\n}\n'
    commits = tuple(git.commit({"bench.c": program % n}) for n in (1, 2))
    lab = bench_lab(host, git.path, *commits, command=["./bench"], build="{compiler} {cflags} -o bench bench.c")
    lab.seeds = LayoutSeeds()
    lab.seeds.used[commits[1]] = 4
    assert [(run.layout, run.reported) for run in runs(together(lab, 2, fresh=True))] == [
        (5, 2),
        (5, 3),
        (6, 2),
        (6, 3),
    ]


def test_without_memory_for_two_it_goes_on_in_turns(host: LocalHost) -> None:
    """The first server has taken as much as the machine has."""
    now, total = ask(host, MEMORY) or (0, 0)
    with pytest.raises(
        TurnsAdvised, match=r"two servers need more memory than there is: [\d.]+ GiB for the second, [\d.]+ left"
    ):
        check_memory(host, now + 2 * total)
    check_memory(host, 0)


@pytest.mark.slow
def test_without_space_for_two_it_goes_on_in_turns(git: Repo, tmp_path: Path) -> None:
    """There is room for the data and a copy of it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "none", disk], check=False).returncode
    ):
        pytest.skip("a small file system cannot be mounted here")
    try:
        prepare = [["sh", "-c", "head -c 40M /dev/zero >{data}/rows"]]
        lab = open_lab(LocalHost("here", PurePosixPath(disk)), git, LOOP, LOOP, prepare_commands=prepare)
        assert "two cannot be started at the same time: no space left on host here" in refused(together(lab))
        assert len(runs(measure(lab, Share(0, 1), Share(1, 1)))) == 2
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture
def short_root() -> Iterator[Path]:
    """For the sake of the socket."""
    with tempfile.TemporaryDirectory(prefix="lab") as root:
        yield Path(root)


@pytest.mark.slow
@pytest.mark.dbms
@pytest.mark.parametrize("builder", BUILDERS)
def test_two_servers_live_side_by_side(builder: Builder, git: Repo, short_root: Path) -> None:
    host = LocalHost("here", PurePosixPath(short_root))
    commits = tuple(git.commit({"some.conf": f"{n}\n"}) for n in range(2))
    workload = workload_of(
        driver=builder.driver, prepare="create table t (id int primary key, k int); insert into t values (1, 1)",
        statement="select k from t where id = 1", operation="query", warmup=0.1, time=1.0,
    )  # fmt: skip
    events = together(lab_of(host, builder, workload, git.path, commits), 2)
    assert not warnings(events)
    found = runs(events)
    assert len(found) == 4
    assert len({run.visit for run in found}) == 2, "one start of each server"
    assert all(run.qps > 10 for run in found)
    assert not subprocess.run(["pgrep", "-f", str(host.root)], capture_output=True, check=False).stdout


def facts(seconds: float, cpu: float | None, started: float = 0.0) -> RunFacts:
    return RunFacts("a" * 40, "k", "v", "h", started, seconds, 1, {}, (), {"task-clock": cpu}, {})


@pytest.mark.parametrize(
    ("one", "two", "why"),
    [
        (facts(2.0, 1000.0), facts(2.1, 1050.0), ""),
        (facts(2.0, None), facts(2.1, None), ""),
        (facts(2.0, 1200.0), facts(2.0, 600.0), "got 60 % of the time of a core, the other 30 %"),
        (facts(2.0, 300.0), facts(2.0, 100.0), ""),  # both wait for something else
        (facts(2.0, 1000.0), facts(2.0, 1000.0, started=1.0), "did not last long enough"),
    ],
)
def test_a_round_that_does_not_count(one: RunFacts, two: RunFacts, why: str) -> None:
    assert bool(why) is bool(invalid(one, two))
    assert why in invalid(one, two)


@pytest.mark.parametrize(
    ("entry", "threads", "server", "expected"),
    [
        ({}, 1, False, ("", "7")),
        ({}, 4, False, ("", "4,5,6,7")),
        ({"client_cpus": "0-3"}, 2, False, ("", "2,3")),
        ({}, 1, True, ("7", "6")),
        ({}, 16, True, ("4,5,6,7", "0,1,2,3")),
        ({"server_cpus": "0-3", "client_cpus": "4-5"}, 2, True, ("2,3", "4,5")),
    ],
)
def test_both_want_all_cores_that_they_share(
    entry: dict[str, str], threads: int, server: bool, expected: tuple[str, str]
) -> None:
    found = shared_cores(HostEntry(name="h", **entry), "0-7", threads, server=server)
    assert (found.server_cpus, found.client_cpus) == expected
