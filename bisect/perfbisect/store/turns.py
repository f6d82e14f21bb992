"""Short transactions of a long piece of work, so that other processes can write between them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from perfbisect.store.history import History

TURN = 1.0  # seconds: a small part of what others wait for a lock
PAUSE = 0.2  # seconds: twice as long as the longest time between two attempts of SQLite to get a lock


class Turns:
    """The transactions on a history, with a pause whenever they have taken a turn's time; all are one within ``together``."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.whole = history.connection.in_transaction
        self.began = time.monotonic()

    @contextmanager
    def turn(self) -> Iterator[Any]:
        """A transaction on a database of sqlite-utils, after a pause if it is time for one."""
        if self.over():
            time.sleep(PAUSE)
            self.began = time.monotonic()
        with self.history.transaction() as db:
            yield db

    def over(self) -> bool:
        """Whether the transaction should end."""
        return not self.whole and time.monotonic() - self.began >= TURN
