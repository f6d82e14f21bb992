"""Labs that carry out the orders of the loop, each in a thread."""

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

PATIENCE = 60.0  # seconds for which the end of cancelled threads is awaited
AGAIN = 0.5  # seconds after which an order is cancelled again, and its jobs are looked for again
E = TypeVar("E")

Listener = Callable[[LabEvent], None]
Subscribe = Callable[[Listener], AbstractContextManager[object]]  # forwards connection events


def _left(limit: tuple[float, float]) -> float:
    """Seconds until the limit of a hunt passes."""
    began, minutes = limit
    return max(began + 60 * minutes - CLOCK.now(), 0.001) if minutes else threading.TIMEOUT_MAX


@dataclass(frozen=True, slots=True)
class MeasuringWorker:
    """A host that measures."""

    name: str
    lab: Lab
    stop: threading.Event  # set to cancel what its lab does
    subscribe: Subscribe = nullcontext
    kill_jobs: Callable[[], None] = lambda: None  # those for which its lab may wait


@dataclass(frozen=True, slots=True)
class BuildWorker:
    """A host that builds ahead."""

    name: str
    build: Callable[[BuildOrder], Generator[LabEvent]]  # builds a candidate
    stop: threading.Event
    describe: Callable[[int], Commit]  # the commit of a candidate
    subscribe: Subscribe = nullcontext


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A build that a build host makes."""

    order: BuildOrder
    began: float  # by the monotonic clock
    cancelled: threading.Event


class EventQueue(Generic[E]):
    """Takes events one at a time; a thread that puts one waits until the main thread has dealt with it.

    So nothing goes on at a host, neither a run nor the next action, before what has happened there is saved.
    """

    def __init__(self) -> None:
        self._arrived: SimpleQueue[tuple[int, E, threading.Event]] = SimpleQueue()
        self._latest = threading.Event()
        self._waiting: set[threading.Event] = set()  # also of an event that Ctrl-C took from ``next`` as it arrived
        self._closed = False

    def put(self, host: int, event: E) -> None:
        """Add an event; returns when it has been dealt with. Raises Cancelled when the queue is closed."""
        dealt_with = threading.Event()
        self._waiting.add(dealt_with)
        if not self._closed:
            self._arrived.put((host, event, dealt_with))
            dealt_with.wait()
        self._waiting.discard(dealt_with)
        if self._closed:
            raise Cancelled

    def next(self, seconds: float = threading.TIMEOUT_MAX) -> tuple[int, E]:
        """The next event and its host. The event before it has been dealt with. Raises Empty after so many seconds."""
        self._latest.set()
        host, event, self._latest = self._arrived.get(timeout=seconds)
        return host, event

    def close(self, threads: Collection[threading.Thread]) -> None:
        """Take nothing more, and wait for the end of ``threads``, which are being cancelled: at most PATIENCE."""
        self._closed = True
        left = PATIENCE
        while left > 0 and (alive := [thread for thread in threads if thread.is_alive()]):
            for waiting in list(self._waiting):
                waiting.set()
            alive[0].join(0.1)
            left -= 0.1


class ThreadWorkers:
    """Hosts, with a thread of this process for each order and for each build."""

    limit, minutes = UNLIMITED, 0.0

    def __init__(
        self, *members: MeasuringWorker, build_members: Sequence[BuildWorker] = (), builds_between: bool = False
    ) -> None:
        self.hosts = tuple(member.name for member in members)
        self.build_hosts = tuple(member.name for member in build_members)
        self.builds_between = builds_between
        self._members = members
        self._build_members = build_members
        self._queue: EventQueue[LabEvent | OrderEnded | BaseException] = EventQueue()
        self._threads: dict[int, threading.Thread] = {}  # by the number of the worker
        self._in_flight: dict[int, _InFlight] = {}  # by the number of the build host
        self._killers: list[threading.Thread] = []  # threads that end jobs

    def submit(self, order: Measure) -> None:
        """Begin an order; see ``Workers.submit``."""
        member = self._members[order.host]
        self._start(order.host, member, lambda: member.lab(order))

    def begin(self, build: BuildOrder) -> None:
        """Begin a build; see ``Workers.begin``."""
        member = self._build_members[build.build_host]
        member.stop.clear()  # the last build may have ended before it was cancelled
        self._in_flight[build.build_host] = _InFlight(build, time.monotonic(), threading.Event())
        self._start(len(self.hosts) + build.build_host, member, lambda: member.build(build))

    def build_seconds(self, build_host: int) -> float:
        """How long the present build takes so far; see ``Workers.seconds``."""
        return time.monotonic() - self._in_flight[build_host].began

    def cancel(self, build_host: int) -> None:
        """End the present build; see ``Workers.cancel``."""
        self._in_flight[build_host].cancelled.set()
        self._build_members[build_host].stop.set()

    def next(self) -> tuple[int, LabEvent | OrderEnded]:
        """The next event; see ``Workers.next``."""
        try:
            worker, event = self._queue.next(threading.TIMEOUT_MAX if self.minutes else _left(self.limit))
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
        """Cancel all orders and builds and wait for their end, for a while."""
        if self._threads:
            self._cancel_all()
        self._queue.close([*self._killers, *self._threads.values()])

    def _cancel_all(self) -> None:
        """Cancel what all threads do, and end the jobs for which those may wait."""
        for stop in (*(each.stop for each in self._members), *(each.stop for each in self._build_members)):
            stop.set()
        killers = [
            threading.Thread(target=self._end_jobs, args=(self._members[worker], thread), daemon=True)
            for worker, thread in self._threads.items()
            if worker < len(self._members)
        ]
        for killer in killers:
            killer.start()
        self._killers += killers

    @staticmethod
    def _end_jobs(member: MeasuringWorker, order: threading.Thread) -> None:
        """End the jobs of a cancelled order until it has ended: one that begins while they are listed is seen the next time."""
        member.kill_jobs()
        while order.is_alive():
            member.kill_jobs()
            order.join(AGAIN)

    def _start(
        self, worker: int, member: MeasuringWorker | BuildWorker, work: Callable[[], Generator[LabEvent]]
    ) -> None:
        thread = threading.Thread(
            target=self._work,
            args=(worker, member, work),
            name=f"lab of {member.name}",
            daemon=True,  # a host that does not answer does not keep the program from ending
        )
        self._threads[worker] = thread
        thread.start()

    def _work(
        self, worker: int, member: MeasuringWorker | BuildWorker, work: Callable[[], Generator[LabEvent]]
    ) -> None:
        name = member.name if len(self.hosts) + len(self.build_hosts) > 1 else ""  # of several, events have the name

        def put(event: LabEvent) -> None:
            self._queue.put(worker, event)

        ended: OrderEnded | BaseException = OrderEnded()
        try:
            with member.subscribe(put), closing(work()) as events:
                for event in events:
                    try:
                        put(marked(event, name))
                    except Cancelled:
                        member.stop.clear()  # the order ends now; the commands that end it must not be cancelled
                        raise
        except EnvironmentFailure as failure:
            ended = OrderEnded(failure)
        except Cancelled as cancelled:
            ended = self._end_of_cancelled(worker, cancelled)
        except BaseException as failure:  # noqa: BLE001 - raised in the main thread
            ended = failure
        with suppress(Cancelled):
            self._queue.put(worker, ended)

    def _end_of_cancelled(self, worker: int, cancelled: Cancelled) -> OrderEnded | BaseException:
        """How an order or a build ends that was cancelled: alone, or with all others."""
        build_host = worker - len(self.hosts)
        if self.minutes:
            return OrderEnded()
        if build_host < 0 or not self._in_flight[build_host].cancelled.is_set():
            return cancelled
        build, member = self._in_flight[build_host], self._build_members[build_host]
        candidate = build.order.candidate
        told = BuildCancelled(candidate, member.describe(candidate), self.build_seconds(build_host), member.name)
        try:
            self._queue.put(worker, told)
        except Cancelled as all_are:
            return all_are
        return OrderEnded()


def marked(event: LabEvent, host: str) -> LabEvent:
    """The event with the host on which it happened, by default ``host``."""
    return event if isinstance(event, Warned) or event.host else replace(event, host=host)
