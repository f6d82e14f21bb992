"""The loop with scripted workers, and threads that work for a hunt: orders, cancelling, turns, and what is left on hosts."""

import signal
import threading
import time
from collections.abc import Generator, Sequence
from pathlib import Path, PurePosixPath
from typing import Protocol, cast

import pytest

from perfbisect.clock import CLOCK
from perfbisect.core.domain.events import LabEvent, RunProgress, Warned
from perfbisect.core.domain.orders import Building, BuildOrder, Fleet, Measure, Purpose, Share
from perfbisect.errors import Cancelled, ConnectionLost, EnvironmentFailure, HostAway
from perfbisect.host.local import LocalHost
from perfbisect.host.lock import ABANDONED, hold
from perfbisect.host.protocol import StoppableHost
from perfbisect.host.registry import connect
from perfbisect.hunt.host_locks import clear
from perfbisect.hunt.loop import UNLIMITED, Ended, Listed, NoBuildHosts, Planner, Step, Workers, run
from perfbisect.hunt.workers import InlineWorkers, Member, ThreadWorkers
from perfbisect.lab.build.candidates import FairLock
from perfbisect.recipes.inventory import load_host
from tickets import write_ticket

ORDER = Measure((), Purpose.SEARCH)


def test_a_stop_is_raised_once(tmp_path: Path) -> None:
    stop = threading.Event()
    host = StoppableHost(LocalHost("here", PurePosixPath(tmp_path)), stop)
    assert host.run(["echo", "before"]).stdout == "before\n"
    stop.set()
    with pytest.raises(Cancelled):
        host.run(["echo", "never"])
    assert host.run(["echo", "after"]).stdout == "after\n"


class Idle:
    """A lab whose run never ends, and that cleans up with a command."""

    def __init__(self, host: StoppableHost) -> None:
        self.host = host
        self.tidied = ""

    def measure(self, order: Measure) -> Generator[LabEvent]:
        try:
            while True:
                yield RunProgress(0, 1.0, 2.0)
        finally:
            self.tidied = self.host.run(["echo", "tidy"]).stdout


def test_a_thread_that_is_cancelled_cleans_up(tmp_path: Path) -> None:
    stop = threading.Event()
    lab = Idle(StoppableHost(LocalHost("here", PurePosixPath(tmp_path)), stop))
    workers = ThreadWorkers(Member("here", lab, stop))
    workers.submit(ORDER)
    for _ in range(3):
        assert workers.next() == (0, RunProgress(0, 1.0, 2.0, "here"))
    workers.stop()
    assert lab.tidied == "tidy\n"


class Measures:
    """A lab that reports once, and then waits."""

    def measure(self, order: Measure) -> Generator[LabEvent]:
        yield RunProgress(0, 1.0, 2.0)
        while True:
            time.sleep(1)


def test_an_event_that_comes_with_the_end_of_the_time_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    arm = signal.setitimer

    def late(which: int, seconds: float, again: float = 0) -> None:
        if not seconds:
            signal.raise_signal(signal.SIGALRM)
        arm(which, seconds, again)

    monkeypatch.setattr(signal, "setitimer", late)
    workers = InlineWorkers("here", Measures())
    workers.limit = (CLOCK.now(), 1.0)
    workers.submit(ORDER)
    assert workers.next() == (0, RunProgress(0, 1.0, 2.0))
    workers.limit = (CLOCK.now() - 60, 1.0)
    assert workers.next() == (0, Ended())
    assert workers.minutes == 1.0


class Waits:
    """A lab that waits until it is cancelled."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop

    def measure(self, order: Measure) -> Generator[LabEvent]:
        self.stop.wait(30)
        yield from ()
        raise Cancelled


@pytest.mark.parametrize("limited", [False, True])
def test_what_ends_jobs_has_ended_when_the_workers_have(limited: bool) -> None:
    """Else the lock would be free while a program that ignores TERM still runs."""
    stop, cancelled, ended = threading.Event(), threading.Event(), threading.Event()

    def kill_jobs() -> None:
        cancelled.wait(30)
        threading.Event().wait(0.5)
        ended.set()

    workers = ThreadWorkers(Member("here", Waits(stop), stop, kill_jobs=kill_jobs))
    workers.submit(ORDER)
    if limited:
        workers.limit = (CLOCK.now() - 60, 0.5)
        assert workers.next() == (0, Ended())
    cancelled.set()
    workers.stop()
    assert ended.is_set()


def test_a_job_that_begins_while_jobs_are_listed_to_be_ended_is_ended_too() -> None:
    stop, looks, ended = threading.Event(), list[int](), threading.Event()

    class Runs:
        def measure(self, order: Measure) -> Generator[LabEvent]:
            yield from ()
            assert ended.wait(30)
            raise Cancelled

    def kill_jobs() -> None:
        looks.append(len(looks))
        if len(looks) == 2:  # the first look was too early
            ended.set()

    workers = ThreadWorkers(Member("here", Runs(), stop, kill_jobs=kill_jobs))
    workers.submit(ORDER)
    workers.stop()
    assert ended.is_set()


def test_turns_are_taken_in_order() -> None:
    turn, order = FairLock(), list[int]()

    def wait(number: int) -> None:
        with turn:
            order.append(number)

    workers = [threading.Thread(target=wait, args=[number]) for number in range(5)]
    with turn:
        for waiting, worker in enumerate(workers, 2):
            worker.start()
            while len(turn._waiting) < waiting:
                threading.Event().wait(0.001)
    for worker in workers:
        worker.join()
    assert order == [0, 1, 2, 3, 4]


@pytest.mark.tools
@pytest.mark.parametrize("taken", [False, True])
def test_the_visit_of_who_took_the_lock_over_stays(taken: bool) -> None:
    host = connect(load_host("local"))
    visit = Path(host.root, "visit")
    with hold(host, "a hunt") as held:
        visit.mkdir(parents=True)
        if taken:  # while we slept
            write_ticket()
        held.seen -= ABANDONED
        clear(host, held, None)
        assert visit.exists() == taken


FAILS = EnvironmentFailure("the connection is lost")


def order(candidate: int, host: int = 0) -> Measure:
    return Measure((Share(candidate, 1),), Purpose.SEARCH, host)


class Scripted(NoBuildHosts):
    """Workers that report each order as an event, the oldest order first; ``failing`` candidates end with a failure."""

    def __init__(self, hosts: str, *failing: int) -> None:
        self.hosts: Sequence[str] = tuple(hosts)
        self.failing = failing
        self.orders: list[Measure] = []
        self.reported = self.stopped = False

    def submit(self, order: Measure) -> None:
        assert all(each.host != order.host for each in self.orders)
        self.orders.append(order)

    def next(self) -> tuple[int, str | Ended]:
        first = self.orders[0]
        self.reported = not self.reported
        candidate = first.plan[0].candidate
        if self.reported:
            return first.host, f"measured {candidate}"
        self.orders.pop(0)
        return first.host, Ended(FAILS if candidate in self.failing else None)

    def stop(self) -> None:
        self.stopped = True


class Events(list[object]):
    """A log that returns how many events it has."""

    def append(self, event: object, workload: int | None = None) -> int:  # type: ignore[override]
        super().append(event)
        return len(self)


class Stoppable(Protocol):
    """Workers of a test."""

    stopped: bool


def course(planner: Planner, workers: Stoppable) -> list[object]:
    """The log of the loop, which returns what that returns, and stops its workers in the end."""
    log = Events()
    try:
        assert list(run(planner, log, cast(Workers[str], workers))) == [*range(1, len(log) + 1)]
    finally:
        assert workers.stopped
    return list(log)


def test_one_host_carries_out_one_order_after_another() -> None:
    assert course(Listed(map(order, (3, 1))), Scripted("a")) == ["measured 3", "measured 1"]


def test_of_several_hosts_none_misses_an_order_that_came_while_it_was_busy() -> None:
    log = course(Listed(map(order, (3, 1, 4, 2))), Scripted("ab"))
    assert log == ["measured 3", "measured 1", "measured 4", "measured 2"]


class FirstFree:
    """Gives each free host one of the orders; ends when all are given."""

    def __init__(self, *candidates: int) -> None:
        self.candidates = list(candidates)
        self.fleets: list[Fleet] = []

    def next(self, fleet: Fleet) -> Step:
        self.fleets.append(fleet)
        return Step(order(self.candidates.pop(0), fleet.free_host)) if self.candidates else Step(None)


def test_free_hosts_get_orders_at_once_and_the_end_waits_for_all() -> None:
    planner = FirstFree(1, 2, 3)
    assert len(course(planner, Scripted("ab"))) == 3
    assert [len(fleet.busy) for fleet in planner.fleets] == [0, 1, 1, 1, 0]


def test_a_host_that_fails_gets_no_further_order() -> None:
    planner = FirstFree(1, 2, 3)
    log = course(planner, Scripted("ab", 1))
    assert [event.text for event in log if isinstance(event, Warned)] == [f"host a takes no further part: {FAILS}"]
    assert planner.fleets[-1].gone == (0,)


def test_the_failure_of_the_last_host_is_raised() -> None:
    with pytest.raises(EnvironmentFailure, match="is lost"):
        course(FirstFree(1, 2), Scripted("a", 1))


def test_an_abandoned_loop_stops_its_workers() -> None:
    workers = Scripted("a")
    typed: Workers[str] = workers
    abandoned = run(FirstFree(1, 2), Events(), typed)
    next(abandoned)
    abandoned.close()
    assert workers.stopped


class WithBuildHosts:
    """One host and build hosts "0", "1", …, which report as ``course`` says: numbers of workers, the host is 0.

    The first report of a worker is an event, the second one the end. Builds of ``failing`` end with a failure.
    """

    limit, minutes = UNLIMITED, 0.0

    def __init__(
        self,
        build_hosts: str,
        *course: int,
        failing: tuple[int, ...] = (),
        failure: EnvironmentFailure | None = None,
        between: bool = False,
    ) -> None:
        self.hosts: Sequence[str] = ("m",)
        self.build_hosts: Sequence[str] = tuple(build_hosts)
        self.builds_between = between
        self.course = list(course)
        self.failing, self.failure = failing, failure or FAILS
        self.work: dict[int, str] = {}
        self.reported: set[int] = set()
        self.cancelled: list[int] = []
        self.began: list[BuildOrder] = []
        self.stopped = False

    def submit(self, order: Measure) -> None:
        assert 0 not in self.work
        self.work[0] = f"measured {order.plan[0].candidate}"

    def begin(self, build: BuildOrder) -> None:
        assert 1 + build.build_host not in self.work
        self.began.append(build)
        self.work[1 + build.build_host] = f"built {build.candidate}"

    def seconds(self, build_host: int) -> float:
        return 10.0 * (1 + build_host)

    def cancel(self, build_host: int) -> None:
        self.cancelled.append(build_host)

    def next(self) -> tuple[int, str | Ended]:
        worker = self.course.pop(0)
        if worker not in self.reported and worker - 1 not in self.cancelled:
            self.reported.add(worker)
            return worker, self.work[worker]
        self.reported.discard(worker)
        lost = self.work.pop(worker) in [f"built {candidate}" for candidate in self.failing]
        return worker, Ended(self.failure if lost else None)

    def stop(self) -> None:
        self.stopped = True


class Steps:
    """Gives the steps of a list; keeps the fleets that it was shown."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.fleets: list[Fleet] = []

    def next(self, fleet: Fleet) -> Step:
        self.fleets.append(fleet)
        return self.steps.pop(0)


def test_events_of_builds_come_between_those_of_the_order_beside_them() -> None:
    workers = WithBuildHosts("ab", 1, 0, 2, 1, 0, 2)
    both = Step(order(0), builds=(BuildOrder(5, 0), BuildOrder(7, 1)))
    planner = Steps(both, Step(order(0)), Step(None), Step(None), Step(None))
    assert course(planner, workers) == ["built 5", "measured 0", "built 7"]
    assert planner.fleets[0] == Fleet(hosts=1, build_hosts=2)
    after_one = planner.fleets[1]
    assert after_one.building == (Building(7, 1, 20.0),) and after_one.busy == (order(0),)
    assert after_one.free_build_hosts == (0,) and after_one.in_flight == {7}


def test_an_order_that_waits_is_asked_for_again_when_a_build_has_ended() -> None:
    workers = WithBuildHosts("a", 1, 1, 0, 0)
    waiting = Step(order(5), builds=(BuildOrder(5, 0),), waits=True)
    planner = Steps(waiting, Step(order(5)), Step(None))
    assert course(planner, workers) == ["built 5", "measured 5"]


def test_a_cancelled_build_keeps_its_build_host_until_it_has_ended() -> None:
    workers = WithBuildHosts("ab", 0, 0, 1, 2, 2)
    begin = Step(order(0), builds=(BuildOrder(5, 0), BuildOrder(7, 1)))
    cancel = Step(order(7), cancelled=(0,), waits=True)
    replaced = Step(order(7), builds=(BuildOrder(6, 0),), cancelled=(), waits=True)
    assert course(planner := Steps(begin, cancel, replaced, Step(None)), workers) == ["measured 0", "built 7"]
    assert workers.cancelled == [0]
    assert planner.fleets[2].building == (Building(7, 1, 20.0),)
    assert workers.began[-1] == BuildOrder(6, 0)


def test_a_lost_build_host_takes_no_further_part() -> None:
    workers = WithBuildHosts("ab", 1, 1, 2, 2, failing=(5,))
    planner = Steps(
        Step(order(5), builds=(BuildOrder(5, 0), BuildOrder(7, 1)), waits=True), Step(order(7), waits=True), Step(None)
    )
    log = course(planner, workers)
    assert [event.text for event in log if isinstance(event, Warned)] == [
        f"build host a takes no further part: {FAILS}"
    ]
    assert planner.fleets[1].gone_build_hosts == (0,) and planner.fleets[1].builds_ahead


def test_without_any_build_host_left_the_hosts_build_if_they_may() -> None:
    planner = Steps(Step(order(5), builds=(BuildOrder(5, 0),), waits=True), Step(order(5)), Step(None))
    log = course(planner, WithBuildHosts("a", 1, 1, 0, 0, failing=(5,), between=True))
    assert "measured 5" in log and not planner.fleets[1].builds_ahead
    with pytest.raises(EnvironmentFailure, match="is lost"):
        course(Steps(Step(order(5), builds=(BuildOrder(5, 0),), waits=True)), WithBuildHosts("a", 1, 1, failing=(5,)))


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ((), "no host that is left can make the build"),
        ((Step(order(5), builds=(BuildOrder(5, 0),), waits=True),), "is lost"),
    ],
)
def test_an_order_whose_build_nobody_makes_is_a_failure(before: tuple[Step, ...], why: str) -> None:
    with pytest.raises(EnvironmentFailure, match=why):
        course(Steps(*before, Step(order(5), waits=True)), WithBuildHosts("ab", *[1, 1] * len(before), failing=(5,)))


def test_hosts_build_until_a_build_host_that_is_out_of_reach_is_back() -> None:
    away = HostAway(ConnectionLost("no answer"), lambda: len(planner.fleets) == 2 and 0 not in workers.work)
    workers = WithBuildHosts("a", 1, 1, 0, 0, 1, 1, 0, 0, failing=(5,), failure=away)
    planner = Steps(
        Step(order(5), builds=(BuildOrder(5, 0),), waits=True),
        Step(order(5)),
        Step(order(7), builds=(BuildOrder(7, 0),), waits=True),
        Step(order(7)),
        Step(None),
    )
    told = [event.text if isinstance(event, Warned) else event for event in course(planner, workers)]
    assert told == [
        "built 5",
        "build host a is out of reach: no answer",
        "measured 5",
        "build host a is back",
        "built 7",
        "measured 7",
    ]
    assert [fleet.builds_ahead for fleet in planner.fleets] == [True, False, True, True, True]
