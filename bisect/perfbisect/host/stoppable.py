"""A host whose next command can be cancelled: how a thread that works there is stopped."""

import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import PurePosixPath

from perfbisect.errors import Cancelled
from perfbisect.host.events import Listener, Unsubscribe
from perfbisect.host.protocol import BaseHost, Host, Result


@dataclass(frozen=True, slots=True)
class StoppableHost(BaseHost):
    """``host``; when ``stop`` is set, the next command raises Cancelled instead.

    It is raised once, and clears ``stop``, so that the clean-up that follows (ending a job, stopping a server) can run.
    """

    host: Host
    stop: threading.Event

    @property
    def name(self) -> str:
        """The host's name in hosts.toml."""
        return self.host.name

    @property
    def root(self) -> PurePosixPath:
        """See ``Host.root``."""
        return self.host.root

    @property
    def is_local(self) -> bool:
        """See ``Host.is_local``."""
        return self.host.is_local

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
