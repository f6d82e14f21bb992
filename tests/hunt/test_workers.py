"""The loop of a session with scripted workers; and worker threads: orders, cancellation, turns, clean-up of hosts."""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Never

import pytest

from perfbisect.core.domain.events import LabEvent, RunProgress, Warned
from perfbisect.core.domain.orders import BuildInProgress, BuildOrder, Fleet, Measure, PlannedRuns, Purpose
from perfbisect.errors import Cancelled, ConnectionLost, EnvironmentFailure, HostUnreachable
from perfbisect.host.local import LocalHost
from perfbisect.host.lock import ABANDONED, hold_lock
from perfbisect.host.protocol import StoppableHost
from perfbisect.host.registry import connect
from perfbisect.hunt.loop import UNLIMITED, FixedPlan, NextAction, OrderEnded, Planner, Workers, run
from perfbisect.hunt.session_hosts import remove_last_visit
from perfbisect.hunt.workers import MeasuringWorker, SynchronousEventQueue, ThreadWorkers
from perfbisect.lab.building.candidates import FairLock
from perfbisect.process import CLOCK
from perfbisect.recipes.inventory import load_host
from tickets import write_ticket

ORDER = Measure((), Purpose.SEARCH)


@dataclass
class Lab:
    """A lab that carries out each order by a function."""

    work: Callable[[], Iterable[LabEvent]]

    def measure(self, order: Measure) -> Generator[LabEvent]:
        yield from self.work()


def wait_for(event: threading.Event) -> Never:
    """Work until an event, without a report."""
    assert event.wait(30)
    raise Cancelled


def test_stopped_host_raises_cancelled_once(tmp_path: Path) -> None:
    stop = threading.Event()
    host = StoppableHost(LocalHost("here", PurePosixPath(tmp_path)), stop)
    assert host.run(["echo", "before"]).stdout == "before\n"
    stop.set()
    with pytest.raises(Cancelled):
        host.run(["echo", "never"])
    assert host.run(["echo", "after"]).stdout == "after\n"


def test_cancelled_worker_cleans_up(tmp_path: Path) -> None:
    stop, tidied = threading.Event(), list[str]()
    host = StoppableHost(LocalHost("here", PurePosixPath(tmp_path)), stop)

    def work() -> Iterator[LabEvent]:
        try:
            while True:
                yield RunProgress(0, 1.0, 2.0)
        finally:
            tidied.append(host.run(["echo", "tidy"]).stdout)

    workers = ThreadWorkers(MeasuringWorker("here", Lab(work).measure, stop))
    workers.submit(ORDER)
    for _ in range(3):
        assert workers.next() == (0, RunProgress(0, 1.0, 2.0))
    workers.stop()
    assert tidied == ["tidy\n"]


def test_event_just_before_the_time_limit_is_not_lost() -> None:
    stop = threading.Event()

    def work() -> Iterator[LabEvent]:
        yield RunProgress(0, 1.0, 2.0)
        wait_for(stop)

    workers = ThreadWorkers(MeasuringWorker("here", Lab(work).measure, stop))
    workers.submit(ORDER)
    threading.Event().wait(0.1)
    workers.limit = (CLOCK.now() - 59.5, 1.0)
    assert workers.next() == (0, RunProgress(0, 1.0, 2.0))
    assert workers.next() == (0, OrderEnded())
    assert workers.minutes == 1.0


def test_closed_event_queue_releases_the_thread_of_a_lost_event() -> None:
    """Ctrl-C may interrupt the reader after the queue has removed the event and before the reader has it."""
    queue = SynchronousEventQueue[int]()

    def put() -> None:
        with pytest.raises(Cancelled):
            queue.put_and_wait(0, 1)

    thread = threading.Thread(target=put, daemon=True)
    thread.start()
    queue._arrived.get()
    queue.close_and_join([thread])
    assert not thread.is_alive()


@pytest.mark.parametrize("limited", [False, True])
def test_workers_stop_only_after_jobs_are_killed(limited: bool) -> None:
    """Otherwise, the host's lock would be free while a program that ignores TERM still runs."""
    stop, cancelled, ended = threading.Event(), threading.Event(), threading.Event()

    def kill_jobs() -> None:
        cancelled.wait(30)
        threading.Event().wait(0.5)
        ended.set()

    workers = ThreadWorkers(MeasuringWorker("here", Lab(lambda: wait_for(stop)).measure, stop, kill_jobs=kill_jobs))
    workers.submit(ORDER)
    if limited:
        workers.limit = (CLOCK.now() - 60, 0.5)
        assert workers.next() == (0, OrderEnded())
    cancelled.set()
    workers.stop()
    assert ended.is_set()


def test_job_that_starts_while_jobs_are_killed_is_killed_too() -> None:
    looks, ended = list[int](), threading.Event()

    def kill_jobs() -> None:
        looks.append(len(looks))
        if len(looks) == 2:  # the first list of jobs was too early
            ended.set()

    workers = ThreadWorkers(
        MeasuringWorker("here", Lab(lambda: wait_for(ended)).measure, threading.Event(), kill_jobs=kill_jobs)
    )
    workers.submit(ORDER)
    workers.stop()
    assert ended.is_set()


def test_fair_lock_serves_threads_in_order() -> None:
    turn, order = FairLock(), list[int]()

    def wait(number: int) -> None:
        with turn:
            order.append(number)

    workers = [threading.Thread(target=wait, args=[number]) for number in range(5)]
    with turn:
        for waiting, worker in enumerate(workers, 2):
            worker.start()
            while len(turn.waiting) < waiting:
                threading.Event().wait(0.001)
    for worker in workers:
        worker.join()
    assert order == [0, 1, 2, 3, 4]


@pytest.mark.tools
@pytest.mark.parametrize("taken", [False, True])
def test_visit_of_the_new_lock_owner_is_not_removed(taken: bool) -> None:
    host = connect(load_host("local"))
    visit = Path(host.root, "visit")
    with hold_lock(host, "a hunt") as held:
        visit.mkdir(parents=True)
        if taken:  # another session took the lock
            write_ticket()
        held.seen -= ABANDONED
        remove_last_visit(host, held, None)
        assert visit.exists() == taken


FAILS = EnvironmentFailure("the connection is lost")


def order(candidate: int, host: int = 0) -> Measure:
    return Measure((PlannedRuns(candidate, 1),), Purpose.SEARCH, host)


class Scripted:
    """Scripted hosts and build hosts, named by letters. The first report of a worker is an event, the second the end.

    ``course``: the numbers of the workers in the order of their reports, build hosts after hosts; by default, the
    oldest work ends first. Work that is named in ``failing`` ends with ``failure``.
    """

    limit, minutes = UNLIMITED, 0.0

    def __init__(
        self, hosts: str, build_hosts: str = "", course: tuple[int, ...] = (), *,
        failing: tuple[str, ...] = (), failure: EnvironmentFailure = FAILS, between: bool = False,
    ) -> None:  # fmt: skip
        self.hosts, self.build_hosts, self.builds_between = tuple(hosts), tuple(build_hosts), between
        self.course = list(course)
        self.failing, self.failure = failing, failure
        self.work: dict[int, str] = {}
        self.reported: set[int] = set()
        self.cancelled: list[int] = []
        self.began: list[BuildOrder] = []
        self.stopped = False

    def put(self, worker: int, work: str) -> None:
        assert worker not in self.work
        self.work[worker] = work

    def submit(self, order: Measure) -> None:
        self.put(order.host, f"measured {order.plan[0].candidate}")

    def begin(self, build: BuildOrder) -> None:
        self.began.append(build)
        self.put(len(self.hosts) + build.build_host, f"built {build.candidate}")

    def elapsed_seconds(self, build_host: int) -> float:
        return 10.0 * (1 + build_host)

    def cancel(self, build_host: int) -> None:
        self.cancelled.append(build_host)

    def next(self) -> tuple[int, str | OrderEnded]:
        worker = self.course.pop(0) if self.course else next(iter(self.work))
        if worker not in self.reported and worker - len(self.hosts) not in self.cancelled:
            self.reported.add(worker)
            return worker, self.work[worker]
        self.reported.discard(worker)
        return worker, OrderEnded(self.failure if self.work.pop(worker) in self.failing else None)

    def stop(self) -> None:
        self.stopped = True


class Events(list[object]):
    """A log whose ``append`` returns the number of events."""

    def append(self, event: object, workload: int | None = None) -> int:  # type: ignore[override]
        super().append(event)
        return len(self)


def carried_out(planner: Planner, workers: Scripted) -> list[object]:
    """The log of the loop, with warnings as texts. Checks that the loop yields the log's results and stops workers."""
    log, typed = Events(), workers
    try:
        assert list(run(planner, log.append, typed)) == [*range(1, len(log) + 1)]
    finally:
        assert workers.stopped
    return [event.text if isinstance(event, Warned) else event for event in log]


class FirstFree:
    """A planner that orders each candidate on a free host, then ends. ``fleets``: the fleets that the loop passed."""

    def __init__(self, *candidates: int) -> None:
        self.candidates = list(candidates)
        self.fleets: list[Fleet] = []

    def next(self, fleet: Fleet) -> NextAction:
        self.fleets.append(fleet)
        return NextAction(order(self.candidates.pop(0), fleet.next_host)) if self.candidates else NextAction(None)


@pytest.mark.parametrize(("hosts", "candidates"), [("a", (3, 1)), ("ab", (3, 1, 4, 2))])
def test_all_orders_are_carried_out_also_if_the_host_was_busy(hosts: str, candidates: tuple[int, ...]) -> None:
    log = carried_out(FixedPlan(map(order, candidates)), Scripted(hosts))
    assert log == [f"measured {candidate}" for candidate in candidates]


def test_free_hosts_get_orders_at_once_and_the_loop_waits_for_all() -> None:
    planner = FirstFree(1, 2, 3)
    assert len(carried_out(planner, Scripted("ab"))) == 3
    assert [len(fleet.busy) for fleet in planner.fleets] == [0, 1, 1, 1, 0]


def test_failed_host_gets_no_order_and_failure_of_last_host_is_raised() -> None:
    planner = FirstFree(1, 2, 3)
    log = carried_out(planner, Scripted("ab", failing=("measured 1",)))
    assert [text for text in log if "takes no" in str(text)] == [f"host a takes no further part: {FAILS}"]
    assert planner.fleets[-1].gone == (0,)
    with pytest.raises(EnvironmentFailure, match="is lost"):
        carried_out(FirstFree(1, 2), Scripted("a", failing=("measured 1",)))


def test_abandoned_loop_stops_its_workers() -> None:
    workers = Scripted("a")
    typed: Workers[str] = workers
    abandoned = run(FirstFree(1, 2), Events().append, typed)
    next(abandoned)
    abandoned.close()
    assert workers.stopped


class Steps:
    """A planner that returns the actions of a list. ``fleets``: the fleets that the loop passed."""

    def __init__(self, *steps: NextAction) -> None:
        self.steps = list(steps)
        self.fleets: list[Fleet] = []

    def next(self, fleet: Fleet) -> NextAction:
        self.fleets.append(fleet)
        return self.steps.pop(0)


def built_first(candidate: int) -> NextAction:
    """An action whose order waits for a build on the first build host."""
    return NextAction(order(candidate), builds=(BuildOrder(candidate, 0),), waits=True)


BOTH = BuildOrder(5, 0), BuildOrder(7, 1)
LOST = ("built 5",)


def test_events_of_builds_and_of_a_parallel_order_interleave() -> None:
    planner = Steps(
        NextAction(order(0), builds=BOTH), NextAction(order(0)), NextAction(None), NextAction(None), NextAction(None)
    )
    log = carried_out(planner, Scripted("m", "ab", (1, 0, 2, 1, 0, 2)))
    assert log == ["built 5", "measured 0", "built 7"]
    assert planner.fleets[0] == Fleet(hosts=1, build_hosts=2)
    after_one = planner.fleets[1]
    assert after_one.building == (BuildInProgress(7, 1, 20.0),) and after_one.busy == (order(0),)
    assert after_one.free_build_hosts == (0,) and after_one.candidates_in_build == {7}


def test_planner_is_asked_again_when_an_awaited_build_ends() -> None:
    planner = Steps(built_first(5), NextAction(order(5)), NextAction(None))
    assert carried_out(planner, Scripted("m", "a")) == ["built 5", "measured 5"]


def test_cancelled_build_occupies_its_build_host_until_the_build_ends() -> None:
    workers = Scripted("m", "ab", (0, 0, 1, 2, 2))
    cancel = NextAction(order(7), cancelled=(0,), waits=True)
    replaced = NextAction(order(7), builds=(BuildOrder(6, 0),), waits=True)
    planner = Steps(NextAction(order(0), builds=BOTH), cancel, replaced, NextAction(None))
    assert carried_out(planner, workers) == ["measured 0", "built 7"]
    assert workers.cancelled == [0]
    assert planner.fleets[2].building == (BuildInProgress(7, 1, 20.0),)
    assert workers.began[-1] == BuildOrder(6, 0)


def test_lost_build_host_gets_no_further_builds() -> None:
    planner = Steps(NextAction(order(5), builds=BOTH, waits=True), NextAction(order(7), waits=True), NextAction(None))
    log = carried_out(planner, Scripted("m", "ab", (1, 1, 2, 2), failing=LOST))
    assert log == ["built 5", f"build host a takes no further part: {FAILS}", "built 7"]
    assert planner.fleets[1].gone_build_hosts == (0,) and planner.fleets[1].has_build_host


def test_hosts_build_if_allowed_when_no_build_host_is_left() -> None:
    planner = Steps(built_first(5), NextAction(order(5)), NextAction(None))
    log = carried_out(planner, Scripted("m", "a", failing=LOST, between=True))
    assert "measured 5" in log and not planner.fleets[1].has_build_host
    with pytest.raises(EnvironmentFailure, match="is lost"):
        carried_out(Steps(built_first(5)), Scripted("m", "a", failing=LOST))


@pytest.mark.parametrize(
    ("before", "why"), [((), "no host that is left can make the build"), ((built_first(5),), "is lost")]
)
def test_session_fails_if_no_host_can_make_the_build_of_an_order(before: tuple[NextAction, ...], why: str) -> None:
    with pytest.raises(EnvironmentFailure, match=why):
        carried_out(Steps(*before, NextAction(order(5), waits=True)), Scripted("m", "ab", failing=LOST))


def test_hosts_build_until_an_unreachable_build_host_returns() -> None:
    away = HostUnreachable(ConnectionLost("no answer"), lambda: len(planner.fleets) == 2 and 0 not in workers.work)
    workers = Scripted("m", "a", failing=LOST, failure=away)
    planner = Steps(built_first(5), NextAction(order(5)), built_first(7), NextAction(order(7)), NextAction(None))
    assert carried_out(planner, workers) == [
        "built 5",
        "build host a is out of reach: no answer",
        "measured 5",
        "build host a is back",
        "built 7",
        "measured 7",
    ]
    assert [fleet.has_build_host for fleet in planner.fleets] == [True, False, True, True, True]
