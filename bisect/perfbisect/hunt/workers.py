"""Several labs at work at once: each order is carried out in the thread of its host."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from perfbisect.core.domain.events import LabEvent, Warned
from perfbisect.core.domain.orders import Measure
from perfbisect.lab.protocol import Lab

Tell = Callable[[LabEvent], None]


@runtime_checkable
class Crew(Protocol):
    """Hosts that carry out orders, in the shape of an executor of concurrent.futures.

    Whatever can run a lab somewhere may stand behind it.
    """

    @property
    def hosts(self) -> Sequence[str]:
        """The hosts' names; an order's ``host`` is a place in it."""

    def submit(self, host: int, order: Measure, tell: Tell) -> Future[None]:
        """Begin an order on a host that has none; every event is given to ``tell``, which may wait or raise.

        The future is done when the order is, with the exception that ended it, if one did. Its ``cancel`` has no power
        over an order that has begun: that is for ``stop``.
        """

    def stop(self) -> None:
        """End all orders that are under way, with everything that runs for them; do not wait for that."""


@dataclass(frozen=True, slots=True)
class Member:
    """One host of a crew."""

    name: str
    lab: Lab
    stop: threading.Event  # set to interrupt whoever works there
    hear: Callable[[Tell], AbstractContextManager[object]] = nullcontext  # forwards events of the connection meanwhile


@dataclass(frozen=True, slots=True)
class Threads:
    """A thread of this process for each order."""

    members: tuple[Member, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts' names."""
        return tuple(member.name for member in self.members)

    def submit(self, host: int, order: Measure, tell: Tell) -> Future[None]:
        """Begin an order; see ``Crew.submit``."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()
        work = threading.Thread(
            target=_work,
            args=(self.members[host], order, tell, done),
            name=f"lab of {self.members[host].name}",
            daemon=True,  # a host that does not answer keeps nobody from leaving
        )
        work.start()
        return done

    def stop(self) -> None:
        """End all orders."""
        for member in self.members:
            member.stop.set()


def _work(member: Member, order: Measure, tell: Tell, done: Future[None]) -> None:
    try:
        with member.hear(tell), closing(member.lab.measure(order)) as events:
            for event in events:
                try:
                    tell(marked(event, member.name))
                except KeyboardInterrupt:
                    member.stop.clear()  # this is the interruption; what ends the order now must go through
                    raise
    except BaseException as failure:  # noqa: BLE001 - whoever waits for the order is told
        done.set_exception(failure)
    else:
        done.set_result(None)


def marked(event: LabEvent, host: str) -> LabEvent:
    """The event with the host on which it happened."""
    return event if isinstance(event, Warned) else replace(event, host=host)
