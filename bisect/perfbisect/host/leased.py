"""A host that is leased: nothing runs there once the lease has ended, when the machine may be another user's."""

from collections.abc import Iterator
from contextlib import contextmanager

from perfbisect.errors import ConnectionLost, EnvironmentFailure
from perfbisect.host.delegating import DelegatingHost
from perfbisect.host.leases import Machine
from perfbisect.host.protocol import ConnectionEvent, ConnectionState, Host


class LeasedHost(DelegatingHost):
    """``host``, as long as ``machine`` is leased. A lease that has ended is a lost host: LeaseEnded.

    It is given up as soon as that is seen, however long the connection could be retried.
    """

    def __init__(self, host: Host, machine: Machine) -> None:
        super().__init__(host)
        self.machine, self.node = machine, machine.address

        def look(event: ConnectionEvent) -> None:
            if event.state is ConnectionState.RETRYING:
                machine.look()

        host.subscribe(look)

    def acquire(self) -> None:
        """Acquire the host itself. Its lease is released at the end of the session."""
        with self.around():
            super().acquire()

    @contextmanager
    def around(self) -> Iterator[None]:
        """Refuse the command if the lease has ended, and ask whether it has where the host fails."""
        self.machine.check()
        try:
            yield
        except ConnectionLost:
            self.machine.look()
            raise
        except EnvironmentFailure:
            self.machine.check()
            raise
