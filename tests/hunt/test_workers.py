"""Threads that work for one hunt: cancelling, order of turns, and what is left on hosts."""

import signal
import threading
import time
from collections.abc import Generator
from pathlib import Path, PurePosixPath

import pytest

from perfbisect.clock import CLOCK
from perfbisect.core.domain.events import LabEvent, RunProgress
from perfbisect.core.domain.orders import Measure, Purpose
from perfbisect.errors import Cancelled
from perfbisect.host.local import LocalHost
from perfbisect.host.lock import ABANDONED, hold
from perfbisect.host.protocol import StoppableHost
from perfbisect.host.registry import connect
from perfbisect.hunt.host_locks import clear
from perfbisect.hunt.loop import Ended
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
