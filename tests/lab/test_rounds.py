"""Paired runs, and runs in randomized layouts, with real builds."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from labs import bench_lab, finished, measure, runs, skipped, warnings
from machine import here
from perfbisect.core.domain.events import (
    BuildFinished,
    CandidateSkipped,
    LabEvent,
    PairingChosen,
    RunFinished,
    RunStarted,
)
from perfbisect.core.domain.facts import BuildFacts, RunFacts
from perfbisect.core.domain.orders import Measure, PlannedRuns, Purpose
from perfbisect.errors import BuildFilesChanged, ConnectionLost
from perfbisect.host.facts import cpu_numbers, read_fact
from perfbisect.host.local import LocalHost
from perfbisect.host.protocol import Command, Result
from perfbisect.lab.building import build_store
from perfbisect.lab.building.candidates import BuildRegistry, LabHost
from perfbisect.lab.building.links import LayoutSeeds
from perfbisect.lab.host_lab import EarlierAttempts, HostLab
from perfbisect.lab.measure.rounds import (
    MEMORY,
    PairingImpossible,
    check_room_for_second_server,
    why_round_invalid,
    with_cores_for_both_builds,
)
from perfbisect.lab.upkeep import removable_items, remove_items
from perfbisect.recipes.inventory import HostEntry
from program import executable
from repos import Repo

pytestmark = pytest.mark.tools

OpenLayouts = Callable[..., HostLab]
LOOP = "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done"


def together(lab: HostLab, rounds: int = 1, *, fresh: bool = False) -> list[LabEvent]:
    plan = (PlannedRuns(0, rounds), PlannedRuns(1, rounds))
    return list(lab.measure(Measure(plan, Purpose.SEARCH, fresh=fresh, together=True)))


def refused(events: list[LabEvent]) -> str:
    """The reason why runs are interleaved from here on."""
    assert isinstance(events[-1], PairingChosen), events
    assert not events[-1].together
    return events[-1].why


def open_lab(host: LocalHost, git: Repo, *programs: str, **keys: Any) -> HostLab:
    """A lab for commits whose builds install these shell scripts."""
    texts = enumerate(f"#!/bin/sh\n{text}\necho ops/s: 100\n" for text in programs)
    commits = [git.commit({"bench": text, "bench.mode": str(n)}) for n, text in texts]
    return bench_lab(host, git.path, *commits, command=["./bench"], build="chmod +x bench", **keys)


@pytest.mark.slow
def test_paired_runs_use_the_same_core_at_the_same_time(host: LocalHost, git: Repo, tmp_path: Path) -> None:
    say = f"taskset -pc $$ >>{tmp_path}/cores; pwd >>{tmp_path}/places"
    events = together(open_lab(host, git, f"{say}; {LOOP}", f"{say}; {LOOP}; {LOOP}"), 2)
    one, two, *others = runs(events)
    assert not warnings(events)
    assert one.round == two.round != others[0].round == others[1].round
    assert one.started < two.started + two.seconds and two.started < one.started + one.seconds
    [core] = {line.split(": ")[1] for line in (tmp_path / "cores").read_text().splitlines()}
    assert len(cpu_numbers(core)) == 1
    assert [event.number for event in events if isinstance(event, RunStarted)] == [1, 2]
    first, second = set((tmp_path / "places").read_text().split())
    assert len(first) == len(second)


CORES = os.sched_getaffinity(0)


@pytest.mark.slow
@pytest.mark.skipif(len(CORES) < 2, reason="one core only")
def test_paired_runs_get_as_many_cores_as_interleaved_runs_used(host: LocalHost, git: Repo, tmp_path: Path) -> None:
    lab = open_lab(host, git, *[f"taskset -pc $$ >>{tmp_path}/cores; {LOOP}"] * 2)
    lab.earlier = EarlierAttempts(busiest=1.7)
    assert len(runs(together(lab))) == 2
    assert len(cpu_numbers((tmp_path / "cores").read_text().split()[-1])) == 2


@pytest.mark.slow
def test_build_that_ends_first_keeps_as_many_threads_busy(host: LocalHost, git: Repo, tmp_path: Path) -> None:
    """Processes with the command line of the build replace its threads."""
    lines = f"ps -eo stat,args | grep '^R.*[ ]beside {host.root}/visit/one '"
    until = f"i=0; until [ $({lines} | wc -l) = 3 ] || [ $i -gt 3000 ]; do i=$((i + 1)); sleep 0.01; done"
    lab = open_lab(host, git, LOOP, f"{LOOP}; {until}; {lines} | wc -l >{tmp_path}/busy", threads=3)
    together(lab)
    assert (tmp_path / "busy").read_text() == "3\n"


def test_copy_of_a_build_has_only_its_own_paths(host: LocalHost, git: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build has the path of its installation in its search path for libraries."""
    monkeypatch.setattr(
        "perfbisect.lab.measure.rounds.why_round_invalid", lambda *_: ""
    )  # how they share the core is not asked
    commits = git.history({"value.c": f"int value(void) {{ return {n}; }}\n", "main.c": MAIN} for n in (7, 8))
    one, two = runs(together(bench_lab(host, git.path, *commits, command=["./main"], build=BUILD)))
    assert [one.reported, two.reported] == [7, 8], "each finds its own library"
    build = build_store.build_folder(host, two.build_key)
    assert not build_store.changed_files(host, build), "the build itself is unchanged"
    (second,) = Path(host.root, "work").glob("*/second")
    assert b"/prefix" not in (second / "main").read_bytes()
    assert str(build_store.symlink_build_copy(host, second.parent.name, two.build_key)) == str(second)
    for name, damage in (("main", lambda file: file.write_text("other")), ("libvalue.so", Path.unlink)):
        damage(second / name)
        with pytest.raises(BuildFilesChanged, match=re.escape(name)):
            build_store.symlink_build_copy(host, second.parent.name, two.build_key)
    assert not build_store.changed_files(host, build), "only the copy has changed"


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "exit 3"])
def test_build_is_made_again_if_a_program_changes_its_copy(host: LocalHost, git: Repo, end: str) -> None:
    spoil = f"case $(pwd -P) in */beside) {LOOP}; rm bench.mode; {end};; *) {LOOP};; esac"
    events = together(open_lab(host, git, LOOP, spoil), 3)
    [told, *_] = [text for text in warnings(events) if "the build is made again" in text]
    assert "bench.mode" in told
    assert not any(isinstance(event, PairingChosen) for event in events)


MAIN = """\
#include <stdio.h>
int value(void);
int main(void) { for (volatile long i = 0; i < 150000000; i++); printf("ops/s: %d\\n", value()); return 0; }
"""
BUILD = """sh -c 'cc -shared -fPIC -o libvalue.so value.c && cc -o main main.c -L. -lvalue -Wl,-rpath,$PWD'"""


@pytest.mark.slow
def test_program_that_cannot_run_twice_is_measured_interleaved(host: LocalHost, git: Repo, tmp_path: Path) -> None:
    """A build that fails in a pair is run alone. If the build also fails alone, its commit is skipped."""
    alone = f"mkdir {tmp_path}/alone || exit 3; {LOOP}; rmdir {tmp_path}/alone"
    events = together(open_lab(host, git, alone, alone), 3)
    assert "only while another build runs: the command ended with status 3" in refused(events)
    assert [run.round for run in runs(events)] == [""]
    events = together(open_lab(host, git, LOOP, "exit 4"), 3)
    assert "the command ended with status 4" in skipped(events).reason
    assert not runs(events)


@pytest.mark.slow
def test_runs_of_a_pair_have_the_same_layout(host: LocalHost, git: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "perfbisect.lab.measure.rounds.why_round_invalid", lambda *_: ""
    )  # how they share the core is not asked
    commits = git.history({"bench.c": f"int value(void) {{ return {n}; }}\n{MAIN}"} for n in (2, 3))
    lab = bench_lab(host, git.path, *commits, command=["./bench"], build="{compiler} {cflags} -o bench bench.c")
    lab.seeds = LayoutSeeds()
    lab.seeds.used[commits[1]] = 4
    found = [(run.layout, run.reported) for run in runs(together(lab, 2, fresh=True))]
    assert found == [(5, 2), (5, 3), (6, 2), (6, 3)]


@pytest.mark.slow
def test_runs_become_interleaved_without_disk_space_for_two_servers(git: Repo, tmp_path: Path) -> None:
    """The disk has room for the data and one copy of the data."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=100m", "none", disk]
    if os.geteuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        prepare = [["sh", "-c", "head -c 40M /dev/zero >{data}/rows"]]
        lab = open_lab(LocalHost("here", PurePosixPath(disk)), git, LOOP, LOOP, prepare_commands=prepare)
        assert "two servers cannot run at the same time: the disk of host here is full" in refused(together(lab))
        assert len(runs(measure(lab, PlannedRuns(0, 1), PlannedRuns(1, 1)))) == 2
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def facts(seconds: float, cpu: float | None, started: float = 0.0) -> RunFacts:
    return RunFacts("a" * 40, "k", "v", "h", started, seconds, 1, {}, (), {"task-clock": cpu}, {})


def test_paired_runs_are_refused_without_memory_for_two_servers(host: LocalHost) -> None:
    """The first server has used more memory than the machine has."""
    now, total = read_fact(host, MEMORY) or (0, 0)
    check_room_for_second_server(host, 0)
    with pytest.raises(
        PairingImpossible, match=r"the memory is too small for two servers: the second server needs [\d.]+ GiB, "
    ):
        check_room_for_second_server(host, now + 2 * total)


def test_pair_with_unequal_cpu_time_or_little_overlap_is_invalid() -> None:
    for one, two, why in (
        (facts(2.0, 1000.0), facts(2.1, 1050.0), ""),
        (facts(2.0, None), facts(2.1, None), ""),
        (facts(2.0, 1200.0), facts(2.0, 600.0), "one build got 60 % of the time of a core, the other build 30 %"),
        (facts(2.0, 300.0), facts(2.0, 100.0), ""),  # both wait for something else
        (facts(2.0, 1000.0), facts(2.0, 1000.0, started=1.0), "did not overlap long enough"),
    ):
        assert bool(why) is bool(why_round_invalid(one, two))
        assert why in why_round_invalid(one, two)


def test_builds_of_a_pair_are_pinned_to_shared_cores() -> None:
    for entry, threads, server, expected in (
        ({}, 1, False, ("", "7")),
        ({}, 4, False, ("", "4,5,6,7")),
        ({"client_cpus": "0-3"}, 2, False, ("", "2,3")),
        ({}, 1, True, ("7", "6")),
        ({}, 16, True, ("4,5,6,7", "0,1,2,3")),
        ({"server_cpus": "0-3", "client_cpus": "4-5"}, 2, True, ("2,3", "4,5")),
    ):
        found = with_cores_for_both_builds(HostEntry(name="h", **entry), "0-7", threads, server=server)
        assert (found.server_cpus, found.client_cpus) == expected
    alone = with_cores_for_both_builds(HostEntry(name="h"), "3", 2, server=True)
    assert alone.server_cpus == alone.client_cpus == "3", "one core is enough"


OWN = "".join(f"__attribute__((noinline)) int own{n}(int x) {{ return x - {n} * x; }}\n" for n in range(9))
CALLS = "".join(f"    sum ^= own{n}(sum);\n" for n in range(9))
PRINTS = '    printf("ops/s: 100\\n%d\\n", sum & 1);\n    return 0;\n'
OF_MANY_FUNCTIONS = f"#include <stdio.h>\n{OWN}int main(int sum, char **words) {{\n{CALLS}{PRINTS}}}\n"
# The measured command appends the order of the functions to a file.
SHOWING_ORDER = ["sh", "-c", 'nm -n bench | grep -o "own.*" | paste -s -d " " >>../../../orders && exec ./bench']


@pytest.fixture
def open_layouts(git: Repo, tmp_path: Path) -> Callable[..., HostLab]:
    texts = OF_MANY_FUNCTIONS, OF_MANY_FUNCTIONS.replace("- 3 *", "- 30 *")
    commits = git.history({"bench.c": text} for text in texts)

    def layouts(host: LocalHost, build: str = "{compiler} {cflags} -o bench bench.c") -> HostLab:
        lab = bench_lab(host, git.path, *commits, command=SHOWING_ORDER, build=build)
        lab.seeds = LayoutSeeds()
        return lab

    return layouts


@pytest.fixture
def lab(host: LocalHost, open_layouts: OpenLayouts) -> HostLab:
    return open_layouts(host)


def layout_events(lab: HostLab, *plan: PlannedRuns, fresh: bool = True) -> list[LabEvent]:
    return list(lab.measure(Measure(plan, Purpose.CONFIRM, fresh=fresh)))


def layouts(events: list[LabEvent], candidate: int) -> list[int]:
    return [facts.layout for each, facts in finished(events) if each == candidate]


def built_of(events: list[LabEvent]) -> list[BuildFacts]:
    """The builds among the events, none of which skips its commit."""
    assert not [event for event in events if isinstance(event, CandidateSkipped)]
    return [event.facts for event in events if isinstance(event, BuildFinished)]


def test_each_run_in_randomized_layouts_has_a_layout_of_its_own(host: LocalHost, lab: HostLab) -> None:
    usual = layout_events(lab, PlannedRuns(0, 1), PlannedRuns(1, 1), fresh=False)
    assert (layouts(usual, 0), layouts(usual, 1)) == ([0], [0])
    built = built_of(usual)
    assert all(facts.linker and not facts.fixed for facts in built)
    kept = sorted(Path(host.root, "builds").iterdir())
    fresh = layout_events(lab, PlannedRuns(1, 2), PlannedRuns(0, 2))
    assert (layouts(fresh, 0), layouts(fresh, 1)) == ([1, 2], [1, 2])
    assert len({facts.visit for facts in runs(fresh)}) == 4
    assert {facts.build_key for facts in runs(fresh)} == {each.key for each in built}
    assert sorted(Path(host.root, "builds").iterdir()) == kept, "no files of a layout stay"
    assert layouts(layout_events(lab, PlannedRuns(0, 1), fresh=False), 0) == [0]
    first, second, *new, last = Path(host.root, "orders").read_text().splitlines()
    assert first == second == last  # as they were linked
    assert len(new) == 4 and len({first, *new}) > 2
    assert {tuple(sorted(order.split())) for order in new} == {tuple(f"own{n}" for n in range(9))}


class Leaving(LocalHost):
    """A host that is out of reach once its folder has been moved away."""

    def execute(self, command: Command) -> Result:
        if not Path(self.root).exists():
            raise ConnectionLost(f"the connection to host {self.name} is lost")
        return super().execute(command)


@pytest.mark.slow
def test_build_is_made_again_if_its_links_are_lost_with_their_host(tmp_path: Path, lab: HostLab) -> None:
    makers = [Leaving(name, here(tmp_path / name).root) for name in ("b1", "b2")]
    lab.build_places = tuple(LabHost(each, HostEntry(name=each.name)) for each in makers)
    lab.made = BuildRegistry(lab.candidates)
    [first] = [
        event for event in layout_events(lab, PlannedRuns(0, 1), fresh=False) if isinstance(event, BuildFinished)
    ]
    (tmp_path / first.host).rename(tmp_path / "away")
    assert f"cannot be copied from host {first.host}" in warnings(layout_events(lab, PlannedRuns(0, 1)))[-1]
    fresh = layout_events(lab, PlannedRuns(0, 1))
    assert {first.host, *(event.host for event in fresh if isinstance(event, BuildFinished))} == {"b1", "b2"}
    assert layouts(fresh, 0) == [1]


def test_two_hosts_have_no_layout_in_common() -> None:
    """Nor do two attempts, because the second attempt knows the runs of the first."""
    hosts = [LayoutSeeds(first, 3) for first in (1, 2, 3)]
    taken = [[next(seeds) for _ in range(4)] for seeds in (each.next_seeds("abc") for each in hosts)]
    assert sorted(seed for each in taken for seed in each) == list(range(1, 13))
    later = LayoutSeeds()
    for layout in (1, 2):
        later.note_used_seed(replace(facts(1.0, 1.0), layout=layout))
    assert next(later.next_seeds("a" * 40)) == 3


@pytest.mark.slow
def test_removed_layouts_of_another_host_keep_measured_layouts_unchanged(
    host: LocalHost, tmp_path: Path, open_layouts: OpenLayouts
) -> None:
    """A host measures layouts of a build, and builds for another host. The layouts share files, whose times change."""
    lab, theirs = (open_layouts(each) for each in (host, here(tmp_path / "other", "other")))
    theirs.build_places = (LabHost(host, HostEntry(name=host.name)),)
    for first, each in enumerate((lab, theirs), 1):
        each.seeds = LayoutSeeds(first, 2)
        layout_events(each, PlannedRuns(0, 1), fresh=False)
    order = Measure((PlannedRuns(0, 2),), Purpose.CONFIRM, fresh=True)
    events, others = lab.measure(order), theirs.measure(order)
    assert any(isinstance(event, RunStarted) for event in others)
    assert any(isinstance(event, RunFinished) for event in events)
    assert layouts(list(others), 0) == [2, 4], "and they are removed"
    rest = list(events)
    assert (layouts(rest, 0), warnings(rest)) == ([3], [])


@pytest.mark.slow
def test_runs_in_layouts_read_no_shared_files(tmp_path: Path, lab: HostLab, monkeypatch: pytest.MonkeyPatch) -> None:
    layout_events(lab, PlannedRuns(0, 1), fresh=False)
    counting = f'#!/bin/sh\necho "$@" >>{tmp_path}/read\nexec {shutil.which("sha256sum")} "$@"\n'
    executable(tmp_path / "bin" / "sha256sum", counting)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for _ in range(2):
        layout_events(lab, PlannedRuns(0, 2))
    assert set((tmp_path / "read").read_text().splitlines()) == {"-z -- ./bench"}


@pytest.mark.slow
def test_build_that_cannot_be_linked_again_has_no_layout_runs(host: LocalHost, open_layouts: OpenLayouts) -> None:
    lab = open_layouts(host, "gcc -O1 -o bench bench.c")
    usual, fresh = (
        layout_events(lab, PlannedRuns(0, 1), PlannedRuns(1, 1), fresh=False),
        layout_events(lab, PlannedRuns(0, 1)),
    )
    [sentence] = [text for text in warnings(usual) if "Randomized layouts are not available" in text]
    [again] = built_of(fresh)
    assert all("not in separate sections" in text for text in (sentence, again.fixed))
    assert (len(layouts(usual, 0)), layouts(fresh, 0)) == (1, [])


@pytest.mark.slow
def test_files_of_a_killed_link_are_replaced(host: LocalHost, lab: HostLab) -> None:
    layout_events(lab, PlannedRuns(0, 1), fresh=False)
    made = lab.builds.relink(0, 1)
    place = Path(host.root, "builds", made)
    part, program = place.with_name(f"{made}.part"), place / "prefix" / "bench"
    binary = program.read_bytes()
    place.rename(part)
    (part / "prefix" / "bench").unlink()
    assert layouts(layout_events(lab, PlannedRuns(0, 1)), 0) == [1]
    assert lab.builds.relink(0, 1) == made
    assert program.read_bytes() == binary


@pytest.mark.slow
def test_build_is_made_again_if_its_link_records_were_removed(host: LocalHost, open_layouts: OpenLayouts) -> None:
    layout_events(open_layouts(host), PlannedRuns(0, 1), fresh=False)
    remove_items(host, [item for item in removable_items(host) if item.is_link_record])
    later = layout_events(open_layouts(host), PlannedRuns(0, 1))
    [built] = built_of(later)
    assert built.linker and not built.reused and not built.fixed
    assert layouts(later, 0) == [1]


@pytest.mark.parametrize("lost", ["option", pytest.param("links", marks=pytest.mark.slow)])
def test_build_that_fails_only_in_layouts_is_not_skipped(host: LocalHost, lab: HostLab, lost: str) -> None:
    """The hunt continues without layouts, also if link records are removed meanwhile."""
    layout_events(lab, PlannedRuns(0, 1), fresh=False)
    [recorded] = Path(host.root, "builds").glob("*/links/*/argv")
    recorded.write_text("--no-such-option\n")
    if lost == "links":
        remove_items(host, [item for item in removable_items(host) if item.is_link_record])
    fresh = layout_events(lab, PlannedRuns(0, 1))
    assert layouts(fresh, 0) == []
    [again] = built_of(fresh)
    assert ("the recorded links were removed" if lost == "links" else "cannot be linked") in again.fixed
    assert again.fixed in warnings(fresh)[0]
    assert layouts(layout_events(lab, PlannedRuns(0, 1), fresh=False), 0) == [0]
