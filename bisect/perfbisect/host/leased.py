"""A host that is leased: nothing runs there once the lease has ended, when the machine may be another user's."""

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath

from perfbisect.errors import ConnectionLost, EnvironmentFailure
from perfbisect.host.leases import Machine
from perfbisect.host.protocol import ConnectionEvent, ConnectionState, Host, Listener, Result, Unsubscribe


@dataclass(frozen=True, slots=True)
class LeasedHost(Host):
    """``host``, as long as ``machine`` is leased. A lease that has ended is a lost host: LeaseEnded."""

    name: str
    root: PurePosixPath
    host: Host
    machine: Machine
    is_local: bool
    node: str

    @classmethod
    def of(cls, host: Host, machine: Machine) -> "LeasedHost":
        """The host of a machine, which is given up as soon as its lease has ended, however long it could be retried."""

        def look(event: ConnectionEvent) -> None:
            if event.state is ConnectionState.RETRYING:
                machine.look()

        host.subscribe(look)
        return cls(host.name, host.root, host, machine, host.is_local, machine.address)

    def acquire(self) -> None:
        """Acquire the host itself."""
        with self._judged():
            self.host.acquire()

    def release(self) -> None:
        """Release the host itself; its lease is released at the end of the session."""
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
        with self._judged():
            return self.host.run(argv, cwd=cwd, env=env, stdin=stdin, timeout=timeout, check=check)

    @contextmanager
    def stream(self, argv: Sequence[str]) -> Iterator[socket.socket]:
        """Run ``argv`` with its stdin and stdout on a socket; see ``Host.stream``."""
        with self._judged(), self.host.stream(argv) as near:
            yield near

    @contextmanager
    def _judged(self) -> Iterator[None]:
        self.machine.check()
        try:
            yield
        except ConnectionLost:
            self.machine.look()
            raise
        except EnvironmentFailure:
            self.machine.check()
            raise
