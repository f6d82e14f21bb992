"""Exact counts for the reason, where the processor counts nothing: on a real host under valgrind."""

import shutil

import pytest
from msgspec.structs import replace

from perfbisect.core.domain.events import Counted, ExecutionStarted, LabEvent
from perfbisect.core.domain.orders import Purpose
from perfbisect.core.explain.counters import EXACT_GROUP
from perfbisect.host.local import LocalHost
from perfbisect.lab.measure import counting
from perfbisect.lab.measure.exact_counts import ExactCounts
from perfbisect.lab.measure.runner import Turn
from perfbisect.lab.measure.visit import RunContext
from perfbisect.lab.server.installation import System
from perfbisect.lab.workload import lua
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Workload

pytestmark = pytest.mark.tools
LOOP = Workload(summary="", group="", command=["sh", "-c", "i=0; while [ $i -lt {events} ]; do i=$((i + 1)); done"])


def counted(
    host: LocalHost, workload: Workload = LOOP, builds: tuple[int, ...] = (0, 1), events: int = 0
) -> list[LabEvent]:
    """The events of one turn of each build; with ``events`` as the length that an earlier session has found."""
    system = System("a commit", "key", host.root, Builder(summary="a shell", driver="command"))
    context = RunContext(
        host, HostEntry(name="here"), workload, lua.place(host, workload), perf=True, vmstat=False, iostat=False
    )
    study = ExactCounts(context, lambda: None, events)
    found: list[LabEvent] = []
    for build in builds:
        turn = Turn(build, 1, 1, 1, Purpose.EXPLAIN, left=1)
        found += study.visit(system, "", turn)
        assert turn.left == 0
    return found


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind on this machine: apt-get install valgrind")
def test_both_builds_are_counted_with_one_length(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    version = host.run(["valgrind", "--version"]).stdout.strip()
    monkeypatch.setattr(counting, "method", lambda _: version)
    found = [event for event in counted(host) if isinstance(event, Counted)]
    assert [(event.candidate, event.group, event.facts.counted) for event in found] == [
        (0, EXACT_GROUP, version),
        (1, EXACT_GROUP, version),
    ]
    first, second = (event.facts for event in found)
    assert first.events == second.events > 1
    counts = [(facts.counters["instructions"] or 0) / facts.operations for facts in (first, second)]
    assert counts[0] == pytest.approx(counts[1], rel=1e-4)


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind on this machine: apt-get install valgrind")
def test_the_length_of_an_earlier_session_is_taken(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    version = host.run(["valgrind", "--version"]).stdout.strip()
    monkeypatch.setattr(counting, "method", lambda _: version)
    events = counted(host, builds=(1,), events=123)
    assert [event.operations for event in events if isinstance(event, ExecutionStarted)] == [123, 246]
    assert [event.facts.events for event in events if isinstance(event, Counted)] == [123]


def test_nothing_is_counted_where_perf_counts_all_that(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "method", lambda _: counting.PERF)
    assert counted(host) == []


def test_nothing_is_counted_where_it_would_not_repeat(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "method", lambda _: "valgrind-3.19.0")
    assert counted(host, replace(LOOP, threads=2)) == []
