"""A host that leaves everything to another one, and does something around each of its commands."""

import socket
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import PurePosixPath

from perfbisect.host.protocol import Host, Listener, Result, Unsubscribe


class DelegatingHost(Host):
    """``host``, each of whose commands runs within ``around``."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.name, self.root, self.is_local, self.node = host.name, host.root, host.is_local, host.node

    @abstractmethod
    def around(self) -> AbstractContextManager[None]:
        """What is done before and after a command, or in its place by raising an error."""

    def acquire(self) -> None:
        """Acquire the host itself."""
        self.host.acquire()

    def release(self) -> None:
        """Release the host itself."""
        self.host.release()

    def subscribe(self, listener: Listener) -> Unsubscribe:
        """Subscribe to the host itself."""
        return self.host.subscribe(listener)

    def give_up_after(self, seconds: float) -> None:
        """Give up the host itself."""
        self.host.give_up_after(seconds)

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
        with self.around():
            return self.host.run(argv, cwd=cwd, env=env, stdin=stdin, timeout=timeout, check=check)

    @contextmanager
    def stream(self, argv: Sequence[str]) -> Iterator[socket.socket]:
        """Run ``argv`` with its stdin and stdout on a socket; see ``Host.stream``."""
        with self.around(), self.host.stream(argv) as near:
            yield near
