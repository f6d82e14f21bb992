"""Labs that carry out the orders of the loop: in the main thread for one host, in a thread for each of several."""

import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace

from perfbisect.core.domain.events import LabEvent, Warned
from perfbisect.core.domain.orders import Measure
from perfbisect.errors import Cancelled, EnvironmentFailure
from perfbisect.hunt.event_queue import EventQueue
from perfbisect.hunt.loop import Ended
from perfbisect.lab.protocol import Lab

Listener = Callable[[LabEvent], None]


class InlineWorkers:
    """One host, whose lab works in the thread of the caller; so Ctrl-C interrupts the lab itself."""

    def __init__(self, name: str, lab: Lab) -> None:
        self.hosts = (name,)
        self._lab = lab
        self._events: Generator[LabEvent] | None = None

    def submit(self, order: Measure) -> None:
        """Begin an order; see ``Workers.submit``."""
        self._events = self._lab.measure(order)

    def next(self) -> tuple[int, LabEvent | Ended]:
        """The next event; see ``Workers.next``."""
        assert self._events, "an order is under way"
        try:
            return 0, next(self._events)
        except StopIteration:
            return 0, Ended()
        except EnvironmentFailure as failure:
            return 0, Ended(failure)

    def stop(self) -> None:
        """End the order."""
        if self._events:
            self._events.close()


@dataclass(frozen=True, slots=True)
class Member:
    """One of several hosts."""

    name: str
    lab: Lab
    stop: threading.Event  # set to cancel what its lab does
    subscribe: Callable[[Listener], AbstractContextManager[object]] = nullcontext  # forwards connection events


class ThreadWorkers:
    """Several hosts, with a thread of this process for each order."""

    def __init__(self, *members: Member) -> None:
        self.hosts = tuple(member.name for member in members)
        self._members = members
        self._queue: EventQueue[LabEvent | Ended | BaseException] = EventQueue()
        self._threads: dict[int, threading.Thread] = {}

    def submit(self, order: Measure) -> None:
        """Begin an order; see ``Workers.submit``."""
        thread = threading.Thread(
            target=self._work,
            args=(order,),
            name=f"lab of {self.hosts[order.host]}",
            daemon=True,  # a host that does not answer does not keep the program from ending
        )
        self._threads[order.host] = thread
        thread.start()

    def next(self) -> tuple[int, LabEvent | Ended]:
        """The next event; see ``Workers.next``."""
        host, event = self._queue.next()
        if isinstance(event, Ended | BaseException):
            del self._threads[host]
        if isinstance(event, BaseException):
            raise event
        return host, event

    def stop(self) -> None:
        """Cancel all orders and wait for their end, for a while."""
        if self._threads:
            for member in self._members:
                member.stop.set()
            self._queue.close(self._threads.values())

    def _work(self, order: Measure) -> None:
        member = self._members[order.host]

        def put(event: LabEvent) -> None:
            self._queue.put(order.host, event)

        ended: Ended | BaseException = Ended()
        try:
            with member.subscribe(put), closing(member.lab.measure(order)) as events:
                for event in events:
                    try:
                        put(marked(event, member.name))
                    except Cancelled:
                        member.stop.clear()  # the order ends now; the commands that end it must not be cancelled
                        raise
        except EnvironmentFailure as failure:
            ended = Ended(failure)
        except BaseException as failure:  # noqa: BLE001 - raised in the main thread
            ended = failure
        self._queue.put_last(order.host, ended)


def marked(event: LabEvent, host: str) -> LabEvent:
    """The event with the host on which it happened."""
    return event if isinstance(event, Warned) else replace(event, host=host)
