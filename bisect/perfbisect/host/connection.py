"""A connection to a host that can break off, and what is reported of it."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from perfbisect.errors import ConnectionLost, EnvironmentFailure

PATIENCE = 300.0  # seconds for which a lost connection is opened again: enough for a restart of the host
SILENCE = 20  # seconds without an answer after which a connection counts as lost
LONGEST_PAUSE = 10.0  # seconds between two attempts to open it again


Listener = Callable[[str], None]
"""Told in a sentence that a connection is lost and being opened again, or is restored; in the thread whose command needs it.

An exception of it ends the attempts to reconnect."""

Unsubscribe = Callable[[], None]


def broken_off(host: str, why: str) -> ConnectionLost:
    """The error for a connection that broke off."""
    return ConnectionLost(f"the connection to host {host} broke off: {why or 'it does not answer'}")


T = TypeVar("T")


class Connection(ABC, Generic[T]):
    """A connection to a host, opened when it is first used and opened again when it is lost. Thread-safe."""

    tells_at_once = False  # whether it is reported as lost before the first attempt to open it again has failed
    final: tuple[type[EnvironmentFailure], ...] = ()  # failures to open it that trying again does not mend

    def __init__(self, name: str) -> None:
        """Open nothing yet. ``name`` is the host's, for messages."""
        self.name = name
        self.patience = PATIENCE
        self._now: T | None = None
        self._was_open = False
        self._given_up = False
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()

    @abstractmethod
    def connected(self) -> T:
        """What it consists of, newly opened. Raises EnvironmentFailure."""

    @abstractmethod
    def is_open(self, now: T) -> bool:
        """Whether it is not lost."""

    @abstractmethod
    def drop(self, now: T) -> None:
        """Close what it consists of."""

    def open(self) -> T:
        """What it consists of, opened if it is closed. Raises EnvironmentFailure: ConnectionLost if it was open before."""
        with self._lock:
            if self._now is None or not self.is_open(self._now):
                self._drop()
                try:
                    self._now = self.connected()
                except EnvironmentFailure as failure:  # a host that is starting refuses connections or logins
                    if not self._was_open or isinstance(failure, self.final):
                        raise
                    lost = f"the connection to host {self.name} is lost: {failure}"
                    raise ConnectionLost(lost, failure.advice) from failure
                self._was_open, self._given_up = True, False
            return self._now

    def close(self) -> None:
        """Close it. The next use opens it again."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        now, self._now = self._now, None
        if now is not None:
            self.drop(now)

    def subscribe(self, listener: Listener) -> Unsubscribe:
        """Report its events until the returned function is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def reopen(self, lost: ConnectionLost, deadline: float) -> None:
        """Open it again, with growing pauses until ``deadline`` (of ``time.monotonic``).

        Raises ConnectionLost after that, and any other error of ``open`` at once. After a timeout or an interruption
        later calls try only once, so that cleaning up on an unreachable host does not wait again.
        """
        pause, reported = 0.5, False

        def retrying(failure: ConnectionLost) -> None:
            nonlocal reported
            if not reported:
                reported = True
                self._report(f"{failure}; trying again for {deadline - time.monotonic():.0f} s")

        try:
            if self.tells_at_once:
                retrying(lost)
            while True:
                try:
                    self.open()
                    break
                except ConnectionLost as failure:
                    left = deadline - time.monotonic()
                    if left <= 0 or self._given_up:
                        raise
                    retrying(failure)
                    time.sleep(min(pause, left))
                    pause = min(2 * pause, LONGEST_PAUSE)
        except BaseException:
            self._given_up = True
            raise
        if reported:
            self._report(f"the connection to host {self.name} is restored")

    def _report(self, text: str) -> None:
        for listener in tuple(self._listeners):
            listener(text)
