"""Runs in fresh layouts, on real builds: each is of a binary that was linked again."""

import os
import shutil
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from labs import bench_lab
from perfbisect.core.domain.events import BuildFinished, CandidateSkipped, LabEvent, RunFinished, RunStarted, Warned
from perfbisect.core.domain.orders import Measure, Purpose, Share
from perfbisect.errors import ConnectionLost
from perfbisect.host.local import LocalHost
from perfbisect.host.protocol import Command, Result
from perfbisect.lab.build.candidates import BuildsMade, LabHost
from perfbisect.lab.build.links import LayoutSeeds
from perfbisect.lab.host_lab import HostLab
from perfbisect.lab.upkeep import items, remove
from perfbisect.recipes.inventory import HostEntry
from program import executable
from repos import Repo
from waiting import finish

pytestmark = pytest.mark.tools

PROGRAM = (
    "#include <stdio.h>\n"
    + "".join(f"__attribute__((noinline)) int own{n}(int x) {{ return x - {n} * x; }}\n" for n in range(9))
    + "int main(int count, char **words) {\n    int sum = count;\n"
    + "".join(f"    sum ^= own{n}(sum);\n" for n in range(9))
    + '    printf("ops/s: 100\\n%d\\n", sum & 1);\n    return 0;\n}\n'
)
# The order of the functions goes to a file, by the program that is measured.
COMMAND = ["sh", "-c", 'nm -n bench | grep -o "own.*" | paste -s -d " " >>../../../orders && exec ./bench']


@pytest.fixture
def commits(git: Repo) -> tuple[str, ...]:
    return tuple(git.commit({"bench.c": text}) for text in (PROGRAM, PROGRAM.replace("- 3 *", "- 30 *")))


def open_lab(
    host: LocalHost, repo: Path, commits: tuple[str, ...], *, build: str = "{compiler} {cflags} -o bench bench.c"
) -> HostLab:
    lab = bench_lab(host, repo, *commits, command=COMMAND, build=build)
    lab.seeds = LayoutSeeds()
    return lab


@pytest.fixture
def lab(host: LocalHost, git: Repo, commits: tuple[str, ...]) -> HostLab:
    return open_lab(host, git.path, commits)


def measure(lab: HostLab, *plan: Share, fresh: bool = True) -> list[LabEvent]:
    return finish(lab.measure(Measure(plan, Purpose.CONFIRM, fresh=fresh)))[0]


def layouts(events: list[LabEvent], candidate: int) -> list[int]:
    return [each.facts.layout for each in events if isinstance(each, RunFinished) and each.candidate == candidate]


def test_each_run_of_a_fresh_order_has_a_layout_of_its_own(host: LocalHost, lab: HostLab) -> None:
    usual = measure(lab, Share(0, 1), Share(1, 1), fresh=False)
    assert (layouts(usual, 0), layouts(usual, 1)) == ([0], [0])
    built = [event.facts for event in usual if isinstance(event, BuildFinished)]
    assert all(facts.linker and not facts.fixed for facts in built)
    kept = sorted(path.name for path in Path(host.root, "builds").iterdir())
    fresh = measure(lab, Share(1, 2), Share(0, 2))
    assert (layouts(fresh, 0), layouts(fresh, 1)) == ([1, 2], [1, 2])
    assert layouts(measure(lab, Share(1, 1)), 1) == [3]
    visits = [event.facts.visit for event in fresh if isinstance(event, RunFinished)]
    assert len(set(visits)) == 4
    assert {event.facts.build_key for event in fresh if isinstance(event, RunFinished)} == {each.key for each in built}
    orders = Path(host.root, "orders").read_text().splitlines()
    assert len(orders) == 7
    assert orders[0] == orders[1]  # both as they were linked
    assert len(set(orders)) > 3
    assert {tuple(sorted(order.split())) for order in orders} == {tuple(f"own{n}" for n in range(9))}
    assert sorted(path.name for path in Path(host.root, "builds").iterdir()) == kept  # nothing of a layout stays
    assert layouts(measure(lab, Share(0, 1), fresh=False), 0) == [0]
    assert Path(host.root, "orders").read_text().splitlines()[-1] == orders[0]


class Leaving(LocalHost):
    """A host that is out of reach once its folder has been moved away."""

    def execute(self, command: Command) -> Result:
        if not Path(self.root).exists():
            raise ConnectionLost(f"the connection to host {self.name} is lost")
        return super().execute(command)


@pytest.mark.slow
def test_a_build_whose_links_are_lost_with_their_host_is_built_again(
    host: LocalHost, tmp_path: Path, lab: HostLab
) -> None:
    makers = [Leaving(name, PurePosixPath(tmp_path / name)) for name in ("b1", "b2")]
    lab.build_places = tuple(LabHost(each, HostEntry(name=each.name)) for each in makers)
    lab.made = BuildsMade(lab.candidates)
    for each in makers:
        Path(each.root).mkdir()
    [first] = [event for event in measure(lab, Share(0, 1), fresh=False) if isinstance(event, BuildFinished)]
    (tmp_path / first.host).rename(tmp_path / "away")
    [*_, warned] = measure(lab, Share(0, 1))
    assert isinstance(warned, Warned) and f"cannot be brought from host {first.host}" in warned.text
    fresh = measure(lab, Share(0, 1))
    assert {first.host, *(event.host for event in fresh if isinstance(event, BuildFinished))} == {"b1", "b2"}
    assert layouts(fresh, 0) == [1]


def test_a_later_session_continues_with_further_layouts(
    host: LocalHost, tmp_path: Path, commits: tuple[str, ...]
) -> None:
    first = measure(open_lab(host, tmp_path / "repo", commits), Share(0, 2))
    later = open_lab(host, tmp_path / "repo", commits)
    assert later.seeds
    for event in first:
        if isinstance(event, RunFinished):
            later.seeds.take(event.facts)
    assert layouts(measure(later, Share(0, 2)), 0) == [3, 4]


def test_two_hosts_share_no_layout() -> None:
    hosts = [LayoutSeeds(first, 3) for first in (1, 2, 3)]
    taken = [[next(seeds) for _ in range(4)] for seeds in (each.following("abc") for each in hosts)]
    assert sorted(seed for each in taken for seed in each) == list(range(1, 13))


@pytest.mark.slow
def test_the_layouts_that_another_host_removes_leave_those_that_are_measured_as_they_were(
    host: LocalHost, tmp_path: Path, commits: tuple[str, ...]
) -> None:
    """A host builds for another while it measures layouts of the same build: they share files, whose times change."""
    (tmp_path / "other").mkdir()
    other = LocalHost("other", PurePosixPath(tmp_path / "other"))
    lab, theirs = (open_lab(each, tmp_path / "repo", commits) for each in (host, other))
    lab.seeds, theirs.seeds = LayoutSeeds(1, 2), LayoutSeeds(2, 2)
    theirs.build_places = (LabHost(host, HostEntry(name=host.name)),)
    for each in (lab, theirs):
        measure(each, Share(0, 1), fresh=False)
    order = Measure((Share(0, 2),), Purpose.CONFIRM, fresh=True)
    events, others = lab.measure(order), theirs.measure(order)
    assert any(isinstance(event, RunStarted) for event in others)
    assert any(isinstance(event, RunFinished) for event in events)
    assert layouts(list(others), 0) == [2, 4]  # and they are removed
    rest = list(events)
    assert (layouts(rest, 0), [event.text for event in rest if isinstance(event, Warned)]) == ([3], [])


@pytest.mark.slow
def test_measuring_layouts_never_reads_what_they_share_with_their_build(
    tmp_path: Path, lab: HostLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(lab, Share(0, 1), fresh=False)
    counting = f'#!/bin/sh\necho "$@" >>{tmp_path}/read\nexec {shutil.which("sha256sum")} "$@"\n'
    executable(tmp_path / "bin" / "sha256sum", counting)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for _ in range(2):
        measure(lab, Share(0, 2))
    assert set((tmp_path / "read").read_text().splitlines()) == {"-z -- ./bench"}


def test_a_build_that_cannot_be_linked_again_is_reported_and_never_measured_as_if_it_were(
    host: LocalHost, tmp_path: Path, commits: tuple[str, ...]
) -> None:
    lab = open_lab(host, tmp_path / "repo", commits, build="gcc -O1 -o bench bench.c")
    usual = measure(lab, Share(0, 1), Share(1, 1), fresh=False)
    warned = [str(event.text) for event in usual if isinstance(event, Warned)]
    [sentence] = [text for text in warned if "Layouts are not available" in text]
    assert "in no sections of their own" in sentence
    assert len(layouts(usual, 0)) == 1
    fresh = measure(lab, Share(0, 1))
    assert layouts(fresh, 0) == []
    assert not [event for event in fresh if isinstance(event, CandidateSkipped)]  # it runs as it is linked
    [again] = [event.facts for event in fresh if isinstance(event, BuildFinished)]
    assert "in no sections of their own" in again.fixed


@pytest.mark.slow
def test_what_a_killed_link_left_is_no_obstacle(host: LocalHost, lab: HostLab) -> None:
    measure(lab, Share(0, 1), fresh=False)
    made = lab.builds.link(0, 1)
    place = Path(host.root, "builds", made)
    binary = (place / "prefix" / "bench").read_bytes()
    subprocess.run(["mv", place, f"{place}.part"], check=True)
    (Path(f"{place}.part") / "prefix" / "bench").unlink()
    assert layouts(measure(lab, Share(0, 1)), 0) == [1]
    assert lab.builds.link(0, 1) == made
    assert (place / "prefix" / "bench").read_bytes() == binary


@pytest.mark.slow
def test_a_build_whose_links_were_freed_is_built_again(
    host: LocalHost, tmp_path: Path, commits: tuple[str, ...]
) -> None:
    measure(open_lab(host, tmp_path / "repo", commits), Share(0, 1), fresh=False)
    remove(host, [item for item in items(host) if item.links])
    later = measure(open_lab(host, tmp_path / "repo", commits), Share(0, 1))
    [built] = [event.facts for event in later if isinstance(event, BuildFinished)]
    assert built.linker and not built.reused and not built.fixed
    assert layouts(later, 0) == [1]


@pytest.mark.parametrize("lost", ["option", pytest.param("links", marks=pytest.mark.slow)])
def test_a_build_that_fails_in_a_fresh_layout_alone_is_not_skipped(host: LocalHost, lab: HostLab, lost: str) -> None:
    """The hunt goes on without layouts, also where links are removed meanwhile."""
    measure(lab, Share(0, 1), fresh=False)
    [recorded] = Path(host.root, "builds").glob("*/links/*/argv")
    if lost == "links":
        remove(host, [item for item in items(host) if item.links])
    else:
        recorded.write_text("--no-such-option\n")
    fresh = measure(lab, Share(0, 1))
    assert layouts(fresh, 0) == []
    assert not [event for event in fresh if isinstance(event, CandidateSkipped)]
    [again] = [event.facts for event in fresh if isinstance(event, BuildFinished)]
    assert ("its links were removed" if lost == "links" else "cannot be linked") in again.fixed
    assert again.fixed in next(event.text for event in fresh if isinstance(event, Warned))
    assert layouts(measure(lab, Share(0, 1), fresh=False), 0) == [0]
