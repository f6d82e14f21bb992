"""Follow hunts that other processes carry out, by reading their history until they end. Nothing is written.

A history does not keep that a run begins; views show what is done now, so the events that are read are completed.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol

from perfbisect.core.domain.events import (
    BuildFinished,
    CandidateSkipped,
    Counted,
    Decided,
    Event,
    Planned,
    Profiled,
    RunFinished,
    RunStarted,
    SessionEnded,
    SessionStarted,
)
from perfbisect.core.domain.orders import Measure, Purpose, first_step, interleave
from perfbisect.store.history import History
from perfbisect.store.listing import SessionSummary
from perfbisect.ui.session_view import SessionRow, TimedEvent

EVERY = 1.0  # seconds between two looks, each of which costs a millisecond beside what is measured
RUNNING = "running"


class View(Protocol):
    """Shows hunts, by their numbers; closing it leaves the terminal as it was."""

    def recall(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Take the events of earlier sessions of a hunt, before any other of it."""

    def show(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Take events of the present session."""

    def states(self, rows: Sequence[SessionRow]) -> None:
        """Take the lines of all hunts, where others carry them out."""

    def end(self, hunt: int, at: float) -> None:
        """A hunt goes on no more; its latest event was then."""

    def close(self) -> None:
        """Show no more."""


def running(history: History) -> list[int]:
    """The hunts and trials that processes of this machine work on now."""
    return [session.number for session in (*history.hunts(), *history.trials()) if session.state == RUNNING]


def watch(
    history: History, sessions: Sequence[int], view: View, pause: Callable[[float], None]
) -> Generator[SessionSummary]:
    """Show hunts and trials until all have ended; yields each when it has, in its last state.

    ``pause`` waits that many seconds.
    """
    followed = {session: Followed(history, session) for session in sessions}
    with closing(view):
        for hunt, each in followed.items():
            view.recall(hunt, each.earlier())
        while followed:
            for hunt, each in [*followed.items()]:
                state = history.listed(hunt)  # read first, so that no event follows those of one that has ended
                if events := [*each.new()]:
                    view.show(hunt, events)
                if state.state != RUNNING and not (each.reason_follows and history.is_carried_out(hunt)):
                    del followed[hunt]
                    view.end(hunt, each.at)
                    yield state
            if followed:
                pause(EVERY)


class Followed:
    """One hunt, and how far its log was read."""

    def __init__(self, history: History, hunt: int) -> None:
        self.history = history
        self.hunt = hunt
        self.last = 0  # id of the last entry that was read
        self.at = history.began(hunt)  # its time
        self.events = Completed()
        self.began = (history.attempts(hunt) or [history.began(hunt)])[-1]
        self.reason_follows = False

    def earlier(self) -> Iterator[TimedEvent]:
        """The events of all sessions but the latest."""
        for entry in self.history.events(self.hunt):
            if entry.at >= self.began:
                return
            self.last, self.at = entry.id, entry.at
            yield entry.at, entry.event

    def new(self) -> Iterator[TimedEvent]:
        """The events since the last call, with those that follow from them."""
        for entry in self.history.events(self.hunt, self.last):
            self.last, self.at = entry.id, entry.at
            if isinstance(entry.event, SessionEnded):
                self.reason_follows = entry.event.reason_follows
            for event in self.events.after(entry.event):
                yield entry.at, event


@dataclass
class Completed:
    """The events of a hunt in order, with each RunStarted that follows from them.

    A run begins when its order was given, its builds were made and the run before it has ended. How long it will take is
    not known here. Once there is a verdict, its reason is measured, which is shown as one run after the other.
    """

    hosts: tuple[str, ...] = ()
    build_hosts: tuple[str, ...] = ()
    built: set[tuple[str, int]] = field(default_factory=set)  # host and candidate, in this session
    orders: dict[str, Measure] = field(default_factory=dict)  # that a host carries out
    done: dict[str, int] = field(default_factory=dict)  # its runs so far
    begun: dict[str, int] = field(default_factory=dict)  # those of them that have begun

    def after(self, event: Event) -> Iterator[Event]:
        """The event, and what begins then."""
        yield event
        match event:
            case SessionStarted():
                self.hosts = tuple(facts.name for facts in event.hosts)
                self.build_hosts = event.build_hosts
                self.built.clear()
                self.orders.clear()
            case Decided(decision) if isinstance(decision.order, Measure) and self.hosts:
                host = self.hosts[decision.order.host]
                self.orders[host], self.done[host], self.begun[host] = decision.order, 0, 0
                yield from self._begins(host)
            case Decided(decision) if not isinstance(decision.order, Measure):
                self.orders.clear()
                if (step := first_step(decision.order)) and len(self.hosts) == 1 and not self.build_hosts:
                    yield RunStarted(step.candidate, 1, 1, Purpose.EXPLAIN, 0.0)
            case Planned() | Profiled() | Counted():
                yield RunStarted(event.candidate, 1, 1, Purpose.EXPLAIN, 0.0, event.host)
            case BuildFinished(candidate):
                host = self._host(event.host)
                self.built.add((host, candidate))
                for each in (host,) if host in self.hosts else self.hosts:
                    yield from self._begins(each)
            case RunFinished():
                host = self._host(event.host)
                self.done[host] = self.done.get(host, 0) + 1
                yield from self._begins(host)
            case CandidateSkipped():
                self.orders.pop(self._host(event.host), None)
            case _:
                pass

    def _host(self, name: str) -> str:
        """The host of an event, which has its name only where there are several."""
        return name or self.hosts[0]

    def _begins(self, host: str) -> Iterator[RunStarted]:
        """The next run of a host, if nothing remains to be done before it."""
        order = self.orders.get(host)
        makers = (host, *self.build_hosts)
        if order is None or not all(
            any((maker, share.candidate) in self.built for maker in makers) for share in order.plan
        ):
            return
        first, number = order.plan[0], self.done[host]
        turns = interleave(order.plan)
        if order.together:  # a round begins as one run of the first, and ends as one of each
            turns, number = (first.candidate,) * first.runs, number // len(order.plan)
        if self.begun[host] <= number < len(turns):
            self.begun[host] = number + 1
            name = host if len(self.hosts) > 1 or self.build_hosts else ""
            yield RunStarted(turns[number], number + 1, len(turns), order.purpose, 0.0, name)
