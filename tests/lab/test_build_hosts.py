"""Build hosts: real builds in several root folders of this machine."""

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec import structs

from labs import BROKEN, BUILDER, FAST, SLOW, measure, warnings, workload
from machine import here
from perfbisect.core.domain.events import (
    BuildCancelled,
    BuildFinished,
    BuildProgress,
    BuildStarted,
    Commit,
    LabEvent,
)
from perfbisect.core.domain.orders import BuildOrder, PlannedRuns
from perfbisect.errors import ConnectionLost, EnvironmentFailure, HostUnreachable, PerfBisectError, RangeEndFailed
from perfbisect.host import jobs
from perfbisect.host.local import LocalHost
from perfbisect.host.lock import HostLock, hold_lock
from perfbisect.host.protocol import Command, Result, StoppableHost
from perfbisect.hunt.loop import OrderEnded
from perfbisect.hunt.session_hosts import HostLocks
from perfbisect.hunt.workers import BuildWorker, ThreadWorkers
from perfbisect.lab.building import build_store
from perfbisect.lab.building.candidates import BuildRegistry, Candidates
from perfbisect.lab.builds import BuildSite
from perfbisect.lab.host_lab import HostLab
from perfbisect.process import seconds_since_boot
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.repository.discovery import open_repository

pytestmark = pytest.mark.tools


AWAY: dict[str, float] = {}  # host → the number of commands for which the host is out of reach


class Unsteady(LocalHost):
    """A host that can be out of reach."""

    def execute(self, command: Command) -> Result:
        if AWAY.get(self.name, 0) > 0:
            AWAY[self.name] -= 1
            raise ConnectionLost(f"the connection to host {self.name} is lost")
        return super().execute(command)


class Farm:
    """A host "quiet" that measures, and b1 and b2 that build for it."""

    def __init__(self, folder: Path, commits: tuple[str, ...], builder: Builder = BUILDER) -> None:
        self.folder, self.commits, self.builder = folder, commits, builder
        self.quiet = here(folder / "quiet", "quiet")
        self.hosts: dict[str, LocalHost] = {name: Unsteady(name, here(folder / name).root) for name in ("b1", "b2")}
        self.stops = {name: threading.Event() for name in self.hosts}
        free: Any = SimpleNamespace(check_held=lambda: None, check_root=lambda: None)
        self.held: dict[str, HostLock] = dict.fromkeys(self.hosts, free)
        self.made: BuildRegistry | None = None
        self.begin()

    def begin(self, *, builds: bool = False, is_range: bool = False) -> None:
        """Begin an attempt, which knows the builds of earlier attempts."""
        earlier, keys, places = self.made, {}, {}
        if earlier:
            keys = {built.facts.commit: built.facts.key for built in earlier.built.values()}
            places = {self.commits[candidate]: name for candidate, name in earlier.places.items()}
        self.candidates = Candidates(open_repository(self.folder / "repo"), self.commits, Commit, is_range=is_range)
        self.made = BuildRegistry(self.candidates, keys, places)
        locks = HostLocks(self.held, self.hosts)
        place = locks.lab_host(self.quiet, HostEntry(name="quiet"))
        builders = [locks.lab_host(host, HostEntry(name=name)) for name, host in self.hosts.items()]
        all_builders = (*builders, *([place] if builds else []))
        given = (place, self.builder, "", workload(), self.candidates)
        self.lab = HostLab(*given, build_places=all_builders, made=self.made)
        self.labs = {name: self.site(each) for name, each in zip(self.hosts, builders, strict=True)}

    def site(self, place: Any) -> BuildSite:
        stoppable = replace(place, host=StoppableHost(place.host, self.stops[place.host.name]))
        return BuildSite(stoppable, self.builder, "", self.candidates, self.made, names_host=True)

    def workers(self) -> ThreadWorkers:
        members = (BuildWorker(name, lab.build_ahead, self.stops[name], self.commit) for name, lab in self.labs.items())
        return ThreadWorkers(build_workers=[*members])

    def commit(self, candidate: int) -> Commit:
        return Commit(self.commits[candidate])

    def stored(self, name: str) -> set[str]:
        return {path.name for path in (self.folder / name / "builds").glob("*")}


@pytest.fixture
def farm(tmp_path: Path, commits: tuple[str, ...]) -> Iterator[Farm]:
    yield Farm(tmp_path, commits)
    AWAY.clear()


def finished(events: list[LabEvent]) -> list[tuple[int, str, bool, int | None]]:
    built = [event for event in events if isinstance(event, BuildFinished)]
    return [(event.candidate, event.host, event.facts.reused, event.same_as) for event in built]


def until_ended(crew: ThreadWorkers, builds: int = 1) -> list[LabEvent]:
    """The events until this number of builds has ended."""
    told: list[LabEvent] = []
    while builds:
        _, event = crew.next()
        builds -= isinstance(event, OrderEnded)
        told += [] if isinstance(event, OrderEnded) else [event]
    return told


def test_two_hosts_build_at_once_and_their_builds_are_sent(farm: Farm) -> None:
    crew = farm.workers()
    crew.begin(BuildOrder(FAST, 0))
    crew.begin(BuildOrder(SLOW, 1))
    told = until_ended(crew, 2)
    crew.stop()
    assert sorted(finished(told)) == [(FAST, "b1", False, None), (SLOW, "b2", False, None)]
    assert {event.host for event in told if isinstance(event, BuildStarted | BuildProgress)} == {"b1", "b2"}
    assert not farm.stored("quiet"), "no build is sent before it is needed, which would disturb a run"
    brought = measure(farm.lab, PlannedRuns(FAST, 0), PlannedRuns(SLOW, 0))
    assert finished(brought) == []
    shipped = {(event.candidate, event.stage) for event in brought if isinstance(event, BuildProgress)}
    assert shipped == {(FAST, "ship"), (SLOW, "ship")}
    assert farm.stored("quiet") == farm.stored("b1") | farm.stored("b2")
    assert not (farm.folder / "quiet" / "work").exists()
    assert measure(farm.lab, PlannedRuns(FAST, 0)) == [], "it is there already"


def test_host_whose_root_folder_was_removed_stops_building(farm: Farm) -> None:
    """A build that fails for this reason does not skip its commit."""
    with hold_lock(farm.hosts["b1"], "a hunt") as farm.held["b1"]:
        farm.begin()
        list(farm.labs["b1"].build_ahead(BuildOrder(FAST, 0)))
        shutil.rmtree(farm.folder / "b1")
        with pytest.raises(EnvironmentFailure, match=r"root folder .* of host b1 was removed"):
            list(farm.labs["b1"].build_ahead(BuildOrder(SLOW, 0)))
        assert "b1" in farm.made.lost
        farm.made.lost.clear()
        events = measure(farm.lab, PlannedRuns(SLOW, 0))
        assert [host for _, host, _, _ in finished(events)] == ["b2"]
        assert any("host b1 does not build any more: the root folder" in text for text in warnings(events))


def test_failed_build_of_an_end_ends_the_hunt_and_not_the_host(farm: Farm) -> None:
    farm.commits = (farm.commits[BROKEN], farm.commits[FAST])
    farm.begin(is_range=True)
    with pytest.raises(PerfBisectError, match=r"because an end of the range, .* cannot be built: ") as caught:
        list(farm.labs["b1"].build_ahead(BuildOrder(0, 0)))
    assert not isinstance(caught.value, EnvironmentFailure), "which would leave the end to the next host"
    assert "b1" not in farm.made.lost
    with pytest.raises(RangeEndFailed):
        measure(farm.lab, PlannedRuns(0, 0))
    assert not farm.stored("quiet")


def test_build_of_an_earlier_attempt_is_found_on_its_host(farm: Farm) -> None:
    """The measuring host builds, too, if it may build between runs."""
    list(farm.labs["b2"].build_ahead(BuildOrder(FAST, 0)))
    farm.begin(builds=True)
    assert finished(measure(farm.lab, PlannedRuns(FAST, 0))) == [(FAST, "b2", True, None)]
    assert farm.stored("quiet") == farm.stored("b2")
    farm.made = BuildRegistry(farm.candidates)
    farm.begin(builds=True)
    assert finished(measure(farm.lab, PlannedRuns(SLOW, 0))) == [(SLOW, "", False, None)], "on the measuring host"


@pytest.mark.parametrize("commands", [1, inf])
def test_build_of_a_lost_host_is_made_again(farm: Farm, commands: float) -> None:
    """The host may be back before the next command."""
    list(farm.labs["b1"].build_ahead(BuildOrder(FAST, 0)))
    AWAY["b1"] = commands
    again = measure(farm.lab, PlannedRuns(FAST, 0))
    assert finished(again) == [(FAST, "b2", False, None)]
    [warned] = warnings(again)
    assert warned.startswith(f"the build of {farm.commits[FAST][:10]} cannot be copied from host b1: ")
    assert "b1" in farm.made.lost
    assert farm.stored("quiet") == farm.stored("b2")


@pytest.mark.slow
def test_replaced_build_host_is_back_after_its_next_heartbeat(farm: Farm) -> None:
    lock: Any = SimpleNamespace(check_held=lambda: None, seen=seconds_since_boot(), lost=False)
    lab = farm.labs["b1"]
    lab.lab_host, lab.stood_in = replace(lab.lab_host, host_lock=lock), True
    AWAY["b1"] = inf
    with pytest.raises(HostUnreachable, match="is lost") as caught:
        list(lab.build_ahead(BuildOrder(FAST, 0)))
    assert not caught.value.is_back()
    lock.seen = seconds_since_boot()
    assert caught.value.is_back()
    lock.lost = True
    assert not caught.value.is_back(), "another session builds there"


def test_build_that_replaces_another_build_is_sent(farm: Farm) -> None:
    """A clean build replaces an incremental build; or an incremental build has the same key and another binary."""
    list(farm.labs["b1"].build_ahead(BuildOrder(FAST, 0)))
    measure(farm.lab, PlannedRuns(FAST, 0))
    list(farm.labs["b1"].build_ahead(BuildOrder(SLOW, 0)))
    farm.made.built[FAST] = farm.made.built[SLOW]
    assert measure(farm.lab, PlannedRuns(FAST, 0))
    assert farm.stored("quiet") == farm.stored("b1")
    key = farm.made.built[SLOW].facts.key
    for name, binary in (("b1", "one"), ("quiet", "other")):
        record = farm.folder / name / "builds" / key / "build.json"
        known = msgspec.json.decode(record.read_bytes())
        known["facts"] |= {"incremental": True, "binary": binary}
        record.write_bytes(msgspec.json.encode(known))
    build_store.ship_build(farm.hosts["b1"], BUILDER.work_name, key, farm.quiet)
    assert b'"one"' in record.read_bytes()


def test_host_that_would_build_differently_is_refused(farm: Farm) -> None:
    list(farm.labs["b1"].build_ahead(BuildOrder(FAST, 0)))
    farm.labs["b2"].builder = structs.replace(BUILDER, name="other", home="small")
    with pytest.raises(EnvironmentFailure, match=r"hosts b2 and b1 would build .* differently"):
        list(farm.labs["b2"].build_ahead(BuildOrder(SLOW, 0)))


@pytest.mark.parametrize("everything", [pytest.param(False, marks=pytest.mark.slow), True])
def test_cancelled_builds_leave_no_running_jobs(tmp_path: Path, commits: tuple[str, ...], *, everything: bool) -> None:
    """One build is cancelled, and its host makes another build; or all builds are cancelled, as by Ctrl-C."""
    build = structs.replace(BUILDER.build, compile=[["sleep", "600"]]) if BUILDER.build else None
    farm = Farm(tmp_path, commits, structs.replace(BUILDER, build=build))
    crew, busy = farm.workers(), list(farm.hosts.values())[: 1 + everything]
    for number, _ in enumerate(busy):
        crew.begin(BuildOrder(number, number))
    while not all(jobs.running_jobs(host) for host in busy):
        assert not isinstance(crew.next()[1], OrderEnded)
    crew.stop() if everything else crew.cancel(0)
    if not everything:
        told = until_ended(crew)[-1]
        assert isinstance(told, BuildCancelled)
        assert (told.candidate, told.commit.sha, told.host) == (FAST, commits[FAST], "b1")
        assert told.seconds > 0
    assert not any(jobs.running_jobs(host) for host in busy)
    if not everything:
        farm.labs["b1"].builder = BUILDER
        farm.made.contexts.clear()
        farm.made._first = None
        crew.begin(BuildOrder(FAST, 0))
        assert not warnings(until_ended(crew))
        crew.stop()
        assert len(farm.stored("b1")) == 1


@pytest.mark.slow
def test_build_host_without_its_builds_makes_the_builds_again(farm: Farm) -> None:
    list(farm.labs["b1"].build_ahead(BuildOrder(FAST, 0)))
    shutil.rmtree(farm.folder / "b1" / "builds")
    again = measure(farm.lab, PlannedRuns(FAST, 0))
    assert [candidate for candidate, _, _, _ in finished(again)] == [FAST]
    assert len(farm.stored("quiet")) == 1
