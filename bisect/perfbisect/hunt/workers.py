"""Workers that carry out the work orders (descriptions of the next measurements) of a hunt: a thread carries out each
work order on its host.
"""

import threading
import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from perfbisect.core.domain.events import BuildCancelled, Commit, LabEvent, Warned
from perfbisect.core.domain.orders import BuildOrder, Measure
from perfbisect.errors import Cancelled, EnvironmentFailure
from perfbisect.hunt.loop import UNLIMITED, OrderEnded
from perfbisect.lab import Lab
from perfbisect.process import CLOCK

PATIENCE = 60.0  # seconds; close() waits this long for the end of cancelled threads
KILL_INTERVAL = 0.5  # seconds between two attempts to kill the jobs of a cancelled order
E = TypeVar("E")

Listener = Callable[[LabEvent], None]
Work = Callable[[], Generator[LabEvent]]  # carries out an order or makes a build
Subscribe = Callable[[Listener], AbstractContextManager[object]]  # forwards connection events


def _seconds_left(limit: tuple[float, float]) -> float:
    """The seconds until the time limit of a hunt.

    ``limit`` is the time at which the hunt began (seconds since the epoch) and the allowed minutes; 0 minutes mean no
    limit.
    """
    began, minutes = limit
    return max(began + 60 * minutes - CLOCK.now(), 0.001) if minutes else threading.TIMEOUT_MAX


@dataclass(frozen=True, slots=True)
class MeasuringWorker:
    """A host that measures."""

    name: str
    lab: Lab
    stop: threading.Event  # set to cancel the work of the lab
    subscribe: Subscribe = nullcontext
    kill_jobs: Callable[[], None] = lambda: None  # kills the jobs for which the lab may wait


@dataclass(frozen=True, slots=True)
class BuildWorker:
    """A build host that makes builds before the measuring hosts need these builds."""

    name: str
    build: Callable[[BuildOrder], Generator[LabEvent]]  # builds a candidate
    stop: threading.Event
    describe: Callable[[int], Commit]  # the commit of a candidate
    subscribe: Subscribe = nullcontext


@dataclass(frozen=True, slots=True)
class _RunningBuild:
    """The present build of a build host."""

    order: BuildOrder
    began: float  # time.monotonic() at the start of the build
    cancelled: threading.Event


class SynchronousEventQueue(Generic[E]):
    """A queue of events. A thread that puts an event waits until the main thread has handled the event.

    Therefore a host begins a run, or any other action, only after all its earlier events have been stored.
    """

    def __init__(self) -> None:
        self._arrived: SimpleQueue[tuple[int, E, threading.Event]] = SimpleQueue()
        self._latest = threading.Event()
        # of unhandled events, also of events that Ctrl-C lost in ``next``
        self._unhandled: set[threading.Event] = set()
        self._closed = False

    def put_and_wait(self, host: int, event: E) -> None:
        """Add an event, and wait until it has been handled. Raises Cancelled if the queue is closed."""
        handled = threading.Event()
        self._unhandled.add(handled)
        if not self._closed:
            self._arrived.put((host, event, handled))
            handled.wait()
        self._unhandled.discard(handled)
        if self._closed:
            raise Cancelled

    def next(self, seconds: float = threading.TIMEOUT_MAX) -> tuple[int, E]:
        """The next event and its host. The call tells the thread that put the previous event into the queue that the
        previous event has been handled. Raises Empty after ``seconds``.
        """
        self._latest.set()
        host, event, self._latest = self._arrived.get(timeout=seconds)
        return host, event

    def close_and_join(self, threads: Collection[threading.Thread]) -> None:
        """Refuse all further events, and wait at most PATIENCE seconds until the cancelled ``threads`` have ended."""
        self._closed = True
        seconds_left = PATIENCE
        while seconds_left > 0 and (alive := [thread for thread in threads if thread.is_alive()]):
            for handled in list(self._unhandled):
                handled.set()
            alive[0].join(0.1)
            seconds_left -= 0.1


class ThreadWorkers:
    """Workers that carry out each work order and each build in a thread of this process; see ``hunt.loop.Workers``."""

    limit, minutes = UNLIMITED, 0.0

    def __init__(
        self, *measuring: MeasuringWorker, build_workers: Sequence[BuildWorker] = (), builds_between: bool = False
    ) -> None:
        self.hosts = tuple(host.name for host in measuring)
        self.build_hosts = tuple(build_host.name for build_host in build_workers)
        self.builds_between = builds_between
        self._measuring, self._build_workers = measuring, build_workers
        self._queue: SynchronousEventQueue[LabEvent | OrderEnded | BaseException] = SynchronousEventQueue()
        self._threads: dict[int, threading.Thread] = {}  # number of a worker → its thread
        self._in_flight: dict[int, _RunningBuild] = {}  # number of a build host → its present build
        self._killers: list[threading.Thread] = []  # threads that kill the jobs of cancelled orders

    def submit(self, order: Measure) -> None:
        """Begin a work order; see ``Workers.submit``."""
        host = self._measuring[order.host]
        self._start(order.host, host, lambda: host.lab(order))

    def begin(self, build: BuildOrder) -> None:
        """Begin a build; see ``Workers.begin``."""
        build_host = self._build_workers[build.build_host]
        build_host.stop.clear()  # still set if the last build ended before it was cancelled
        self._in_flight[build.build_host] = _RunningBuild(build, time.monotonic(), threading.Event())
        self._start(len(self.hosts) + build.build_host, build_host, lambda: build_host.build(build))

    def elapsed_seconds(self, build_host: int) -> float:
        """The seconds since the present build began; see ``Workers.elapsed_seconds``."""
        return time.monotonic() - self._in_flight[build_host].began

    def cancel(self, build_host: int) -> None:
        """Cancel the build that is in progress; see ``Workers.cancel``."""
        self._in_flight[build_host].cancelled.set()
        self._build_workers[build_host].stop.set()

    def next(self) -> tuple[int, LabEvent | OrderEnded]:
        """The next event; see ``Workers.next``."""
        try:
            worker, event = self._queue.next(threading.TIMEOUT_MAX if self.minutes else _seconds_left(self.limit))
        except Empty:
            self.minutes = self.limit[1]
            self._cancel_all()
            return self.next()
        if isinstance(event, OrderEnded | BaseException):
            del self._threads[worker]
        if isinstance(event, BaseException):
            raise event
        return worker, event

    def stop(self) -> None:
        """Cancel all work orders and builds, and wait at most PATIENCE seconds until their threads have ended."""
        if self._threads:
            self._cancel_all()
        self._queue.close_and_join([*self._killers, *self._threads.values()])

    def _cancel_all(self) -> None:
        """Cancel the work of all threads, and kill the jobs that the threads may be waiting for."""
        for measuring in self._measuring:
            measuring.stop.set()
        for building in self._build_workers:
            building.stop.set()
        killers = [
            threading.Thread(target=self._kill_jobs, args=(self._measuring[number], thread), daemon=True)
            for number, thread in self._threads.items()
            if number < len(self._measuring)
        ]
        for killer in killers:
            killer.start()
        self._killers += killers

    @staticmethod
    def _kill_jobs(worker: MeasuringWorker, order: threading.Thread) -> None:
        """Kill the jobs of a cancelled work order repeatedly, until the thread of the work order has ended.

        If a job begins while the jobs are being listed, the next repetition kills this job.
        """
        worker.kill_jobs()
        while order.is_alive():
            worker.kill_jobs()
            order.join(KILL_INTERVAL)

    def _start(self, number: int, worker: MeasuringWorker | BuildWorker, work: Work) -> None:
        """Start a thread in which ``worker``, with this ``number``, carries out a work order or a build."""
        thread = threading.Thread(
            target=self._work,
            args=(number, worker, work),
            name=f"lab of {worker.name}",
            daemon=True,  # the program can end although a host does not answer
        )
        self._threads[number] = thread
        thread.start()

    def _work(self, number: int, worker: MeasuringWorker | BuildWorker, work: Work) -> None:
        """Put the events of a work order or a build, and finally its end, into the queue. This method runs in the
        thread of a worker.
        """
        has_several = len(self.hosts) + len(self.build_hosts) > 1
        name = worker.name if has_several else ""  # events have the name of their host if there are several

        def put(event: LabEvent) -> None:
            self._queue.put_and_wait(number, event)

        ended: OrderEnded | BaseException = OrderEnded()
        try:
            with worker.subscribe(put), closing(work()) as events:
                for event in events:
                    try:
                        put(with_default_host(event, name))
                    except Cancelled:
                        worker.stop.clear()  # the commands that end the order must not be cancelled, too
                        raise
        except EnvironmentFailure as failure:
            ended = OrderEnded(failure)
        except Cancelled as cancelled:
            ended = self._end_of_cancelled(number, cancelled)
        except BaseException as failure:  # noqa: BLE001 - raised in the main thread
            ended = failure
        with suppress(Cancelled):
            self._queue.put_and_wait(number, ended)

    def _end_of_cancelled(self, number: int, cancelled: Cancelled) -> OrderEnded | BaseException:
        """The event that ends a cancelled work order or build; if the whole session was cancelled, the exception
        ``cancelled``.
        """
        build_host = number - len(self.hosts)
        if self.minutes:
            return OrderEnded()
        if build_host < 0 or not self._in_flight[build_host].cancelled.is_set():
            return cancelled
        build, worker = self._in_flight[build_host], self._build_workers[build_host]
        candidate = build.order.candidate
        event = BuildCancelled(candidate, worker.describe(candidate), self.elapsed_seconds(build_host), worker.name)
        try:
            self._queue.put_and_wait(number, event)
        except Cancelled as session_cancelled:
            return session_cancelled
        return OrderEnded()


def with_default_host(event: LabEvent, host: str) -> LabEvent:
    """The event with ``host`` as its host, unless the event already names a host."""
    return event if isinstance(event, Warned) or event.host else replace(event, host=host)
