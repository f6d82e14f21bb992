"""Follow hunts that other processes carry out, by reading their history until they end. Nothing is written."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Protocol

from perfbisect.core.domain.events import Event
from perfbisect.store.history import History
from perfbisect.store.listing import Listed
from perfbisect.ui.stored import Completed

EVERY = 1.0  # seconds between two looks, each of which costs a millisecond beside what is measured
RUNNING = "running"

TimedEvent = tuple[float, Event]


class View(Protocol):
    """Shows hunts, by their numbers; closing it leaves the terminal as it was."""

    def recall(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Take the events of earlier sessions of a hunt, before any other of it."""

    def show(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Take events of the present session."""

    def end(self, hunt: int, at: float) -> None:
        """A hunt goes on no more; its latest event was then."""

    def close(self) -> None:
        """Show no more."""


def running(history: History) -> list[int]:
    """The hunts that processes of this machine work on now."""
    return [hunt.id for hunt in history.hunts() if hunt.state == RUNNING]


def watch(history: History, hunts: Sequence[int], view: View, pause: Callable[[float], None]) -> Generator[Listed]:
    """Show hunts until all have ended; yields each when it has, in its last state.

    ``pause`` waits that many seconds.
    """
    followed = {hunt: Followed(history, hunt) for hunt in hunts}
    with closing(view):
        for hunt, each in followed.items():
            view.recall(hunt, each.earlier())
        while followed:
            for hunt, each in [*followed.items()]:
                state = history.listed(
                    hunt
                )  # read before the events, so that none follows those of a hunt that has ended
                if events := [*each.new()]:
                    view.show(hunt, events)
                if state.state != RUNNING:
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
        self.began = (history.sittings(hunt) or [history.began(hunt)])[-1]

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
            for event in self.events.after(entry.event):
                yield entry.at, event
