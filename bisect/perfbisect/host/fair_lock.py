"""A FIFO lock: one lab at a time uses a host that several labs share."""

import threading
from collections import deque
from types import TracebackType


class FairLock:
    """A FIFO lock: threads get it in the order in which they requested it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Event] = deque()  # the first holds it

    @property
    def requests(self) -> int:
        """How many threads hold it or wait for it."""
        return len(self._waiting)

    def __enter__(self) -> None:
        mine = threading.Event()
        with self._guard:
            self._waiting.append(mine)
            if self._waiting[0] is mine:
                mine.set()
        mine.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._guard:
            self._waiting.popleft()
            if self._waiting:
                self._waiting[0].set()
