"""Where the events of several hosts arrive: from many threads, to the one that saves and tells them."""

import threading
from collections.abc import Collection
from concurrent.futures import Future, wait
from queue import Empty, SimpleQueue

from perfbisect.core.domain.events import LabEvent

PATIENCE = 60.0  # seconds for which the end of what was stopped is waited for


class EventQueue:
    """Takes events one at a time. Whoever brings one waits until it is dealt with, as if it told it itself.

    So nothing goes on at a host, neither a run nor the next action, before what has happened there is saved.
    """

    def __init__(self) -> None:
        self._arrived: SimpleQueue[tuple[int, LabEvent | None, threading.Event]] = SimpleQueue()
        self._latest = threading.Event()
        self._closed = False

    def bring(self, host: int, event: LabEvent) -> None:
        """Hand in an event; returns when it has been dealt with. Raises KeyboardInterrupt when the desk is closed."""
        dealt_with = threading.Event()
        if not self._closed:
            self._arrived.put((host, event, dealt_with))
            dealt_with.wait()
        if self._closed:
            raise KeyboardInterrupt

    def leave(self, host: int, _done: "Future[None]") -> None:
        """Say that the order of a host has ended."""
        self._arrived.put((host, None, threading.Event()))

    def next(self) -> tuple[int, LabEvent | None]:
        """The next event and its host, None for the end of an order. The one before has been dealt with."""
        self._latest.set()
        host, event, self._latest = self._arrived.get()
        return host, event

    def close(self, orders: Collection["Future[None]"]) -> None:
        """Take nothing more, and wait for the end of orders that are being stopped, but not for ever."""
        self._closed = True
        self._latest.set()
        left = PATIENCE
        while left > 0 and wait(orders, 0.1).not_done:
            left -= 0.1
            try:
                while True:
                    self._arrived.get_nowait()[2].set()
            except Empty:
                pass
