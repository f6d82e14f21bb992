"""A host on which labs work, one at a time, and the lock for that."""

import threading
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType

from perfbisect.host.protocol import Host
from perfbisect.lab.build.shared_builds import SharedBuilds
from perfbisect.recipes.inventory import HostEntry


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


@dataclass(frozen=True, slots=True)
class LabHost:
    """A host on which a lab works, while it holds ``lock``: several labs may share the host.

    On a host that ``only_builds`` what needs its files for a moment, to send or to link a build, does not wait for the end of
    the present one: that is another lock. What it builds is given to the ``shared`` builds, and taken from them.
    """

    host: Host
    entry: HostEntry
    lock: FairLock = field(default_factory=FairLock)
    only_builds: FairLock | None = None
    shared: SharedBuilds | None = None

    @property
    def beside(self) -> FairLock:
        """Held for a moment by what needs no more of the host than its files."""
        return self.only_builds or self.lock
