"""The one interface through which effects on a machine happen, and hosts that do something around each command of another."""

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from types import TracebackType
from typing import Self

from perfbisect.errors import Cancelled


class ConnectionState(StrEnum):
    """What has happened to a connection."""

    RETRYING = "retrying"  # it is lost, and is being opened again
    LOST = "lost"  # it could not be opened again in time
    RESTORED = "restored"


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """A change of the connection to a host, in a sentence for the user."""

    host: str
    state: ConnectionState
    text: str


Listener = Callable[[ConnectionEvent], None]
"""Called in the thread whose command needs the connection. An exception of it ends the attempts to reconnect."""

Unsubscribe = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Result:
    """A finished command. Output is text, undecodable bytes replaced."""

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        """True when the command ended with status 0."""
        return self.status == 0


class Host(ABC):
    """A machine on which commands run. They write only below ``root``.

    ``run`` is for short commands. Long ones are jobs (``perfbisect.host.jobs``), which use nothing but ``run``.
    A host is a context manager: it is acquired on entry and released on exit. See ``perfbisect.host.lock`` for the right
    to measure on it.
    """

    __slots__ = ()
    name: str  # in hosts.toml
    root: PurePosixPath  # the folder on that host that contains everything perfbisect writes there
    is_local: bool  # whether commands see the files of this process
    node: str = ""  # the machine behind a leased host, which may be another in another session

    def acquire(self) -> None:  # noqa: B027
        """Obtain what commands need: open the connection, or wait for an allocation. Does nothing when acquired.

        By default nothing has to be obtained. Raises EnvironmentFailure when the host cannot be reached.
        """

    def release(self) -> None:  # noqa: B027
        """Give back what ``acquire`` obtained. A later command acquires the host again."""

    def __enter__(self) -> Self:
        """Acquire the host."""
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the host."""
        self.release()

    def subscribe(self, _listener: Listener) -> Unsubscribe:
        """Report connection events to the listener until the returned function is called. By default there are none."""
        return lambda: None

    def give_up_after(self, seconds: float) -> None:  # noqa: B027
        """Open a lost connection again for so long at most. By default none can be lost."""

    @abstractmethod
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
        """Run ``argv`` (never through a shell) and wait for it; ``env`` is added to the host's own environment.

        When the connection is lost meanwhile, the progress of the command is unknown: it is killed and run once more.
        So every command must be idempotent: killed at any point and run again, it has the same effect and prints the
        same.

        Raises CommandFailed when ``check`` and the status is not 0 (124 when ``timeout`` seconds have passed),
        EnvironmentFailure when the host cannot be reached or the program does not exist.
        """

    @abstractmethod
    def stream(self, argv: Sequence[str]) -> AbstractContextManager[socket.socket]:
        """Run ``argv`` with its stdin and stdout connected to the socket that is yielded: for data too large for ``run``.

        Leaving the context closes the socket and waits for the command. It is not run again.

        Raises CommandFailed when the status is not 0, ConnectionLost when the connection is, EnvironmentFailure as
        above.
        """


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
