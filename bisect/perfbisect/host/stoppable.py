"""A host whose next command can be cancelled: how a thread that works there is stopped."""

import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import PurePosixPath

from perfbisect.errors import Cancelled
from perfbisect.host.protocol import Host, Listener, Result, Unsubscribe


class StoppableHost(Host):
    """``host``; when ``stop`` is set, the next command raises Cancelled instead.

    It is raised once, and clears ``stop``, so that the clean-up that follows (ending a job, stopping a server) can run.
    """

    def __init__(self, host: Host, stop: threading.Event) -> None:
        self.host = host
        self.stop = stop
        self.name, self.root, self.is_local, self.node = host.name, host.root, host.is_local, host.node

    def acquire(self) -> None:
        """Acquire the host itself."""
        self.host.acquire()

    def release(self) -> None:
        """Release the host itself."""
        self.host.release()

    def subscribe(self, listener: Listener) -> Unsubscribe:
        """Subscribe to the host itself."""
        return self.host.subscribe(listener)

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: PurePosixPath | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout: float = 60.0,
        check: bool = True,
    ) -> Result:
        """Run ``argv`` and wait for it; see ``Host.run``."""
        self._check_stopped()
        return self.host.run(argv, cwd=cwd, env=env, stdin=stdin, timeout=timeout, check=check)

    def stream(self, argv: Sequence[str]) -> AbstractContextManager[socket.socket]:
        """Run ``argv`` with its stdin and stdout on a socket; see ``Host.stream``."""
        self._check_stopped()
        return self.host.stream(argv)

    def _check_stopped(self) -> None:
        if self.stop.is_set():
            self.stop.clear()
            raise Cancelled
