"""One thing at a time on a host that several labs use."""

import threading
from collections import deque
from types import TracebackType


class FairLock:
    """A lock that those who wait for it get in the order in which they came, so that nobody waits for ever."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Event] = deque()  # the first has it

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
