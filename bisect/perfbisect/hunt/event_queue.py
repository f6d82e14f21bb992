"""Brings the events of several hosts from their threads to the main thread, which saves and shows them."""

import threading
from collections.abc import Collection
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from perfbisect.errors import Cancelled

E = TypeVar("E")

PATIENCE = 60.0  # seconds for which the end of cancelled threads is awaited


class EventQueue(Generic[E]):
    """Takes events one at a time; a thread that puts one waits until the main thread has dealt with it.

    So nothing goes on at a host, neither a run nor the next action, before what has happened there is saved.
    """

    def __init__(self) -> None:
        self._arrived: SimpleQueue[tuple[int, E, threading.Event]] = SimpleQueue()
        self._latest = threading.Event()
        self._closed = False

    def put(self, host: int, event: E) -> None:
        """Add an event; returns when it has been dealt with. Raises Cancelled when the queue is closed."""
        dealt_with = threading.Event()
        if not self._closed:
            self._arrived.put((host, event, dealt_with))
            dealt_with.wait()
        if self._closed:
            raise Cancelled

    def put_last(self, host: int, event: E) -> None:
        """Add the last event of an order, without waiting."""
        self._arrived.put((host, event, threading.Event()))

    def next(self, seconds: float = threading.TIMEOUT_MAX) -> tuple[int, E]:
        """The next event and its host. The event before it has been dealt with. Raises Empty after so many seconds."""
        self._latest.set()
        host, event, self._latest = self._arrived.get(timeout=seconds)
        return host, event

    def close(self, threads: Collection[threading.Thread]) -> None:
        """Take nothing more, and wait for the end of ``threads``, which are being cancelled: at most PATIENCE."""
        self._closed = True
        self._latest.set()
        left = PATIENCE
        while left > 0 and (alive := [thread for thread in threads if thread.is_alive()]):
            alive[0].join(0.1)
            left -= 0.1
            try:
                while True:
                    self._arrived.get_nowait()[2].set()
            except Empty:
                pass
