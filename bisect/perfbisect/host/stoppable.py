"""A host whose next command can be cancelled: how a thread that works there is stopped."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from perfbisect.errors import Cancelled
from perfbisect.host.delegating import DelegatingHost
from perfbisect.host.protocol import Host


class StoppableHost(DelegatingHost):
    """``host``; when ``stop`` is set, the next command raises Cancelled instead.

    It is raised once, and clears ``stop``, so that the clean-up that follows (ending a job, stopping a server) can run.
    """

    def __init__(self, host: Host, stop: threading.Event) -> None:
        super().__init__(host)
        self.stop = stop

    @contextmanager
    def around(self) -> Iterator[None]:
        """Cancel the command if that is asked for."""
        if self.stop.is_set():
            self.stop.clear()
            raise Cancelled
        yield
