"""What a hunt needs of a view."""

from collections.abc import Iterable
from typing import Protocol

from perfbisect.core.domain.events import Event


class View(Protocol):
    """Draws the events of a hunt; closing it leaves the terminal as it was."""

    def recall(self, events: Iterable[tuple[float, Event]]) -> None:
        """Take the events of earlier sessions of a resumed hunt, before the first event is shown."""

    def show(self, event: Event, at: float) -> None:
        """Draw one event that happened ``at`` seconds since the epoch."""

    def close(self) -> None:
        """Draw no more."""
