"""A host whose next command can be kept from beginning: so a thread that works there is told to stop."""

import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import PurePosixPath

from perfbisect.host.protocol import Host, Result


@dataclass(frozen=True, slots=True)
class StoppableHost:
    """``host``; when ``stop`` is set, the next command raises KeyboardInterrupt instead, as if by Ctrl-C.

    It is raised once, and clears ``stop``: what is done because of it (a job is ended, a server is stopped) goes through.
    """

    host: Host
    stop: threading.Event

    @property
    def name(self) -> str:
        """The host's name in hosts.toml."""
        return self.host.name

    @property
    def root(self) -> PurePosixPath:
        """The folder on that host under which everything of ours lives."""
        return self.host.root

    @property
    def here(self) -> bool:
        """Whether it is the machine that we run on."""
        return self.host.here

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
        self._go_on()
        return self.host.run(argv, cwd=cwd, env=env, stdin=stdin, timeout=timeout, check=check)

    def stream(self, argv: Sequence[str]) -> AbstractContextManager[socket.socket]:
        """Run ``argv`` with its stdin and stdout on a socket; see ``Host.stream``."""
        self._go_on()
        return self.host.stream(argv)

    def _go_on(self) -> None:
        if self.stop.is_set():
            self.stop.clear()
            raise KeyboardInterrupt
