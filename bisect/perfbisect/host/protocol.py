"""The one interface through which effects on a machine happen."""

import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import TracebackType
from typing import Protocol, Self

from perfbisect.host.events import Listener, Unsubscribe


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


class Host(Protocol):
    """A machine on which commands run. They write only below ``root``.

    ``run`` is for short commands. Long ones are jobs (``perfbisect.host.jobs``), which use nothing but ``run``.
    A host is a context manager: it is acquired on entry and released on exit. See ``perfbisect.host.lock`` for the right
    to measure on it.
    """

    @property
    def name(self) -> str:
        """The host's name in hosts.toml."""

    @property
    def root(self) -> PurePosixPath:
        """The folder on that host that contains everything perfbisect writes there."""

    @property
    def is_local(self) -> bool:
        """Whether commands see the files of this process."""

    def acquire(self) -> None:
        """Obtain what commands need: open the connection, or wait for an allocation. Does nothing when acquired.

        Raises EnvironmentFailure when the host cannot be reached.
        """

    def release(self) -> None:
        """Give back what ``acquire`` obtained. A later command acquires the host again."""

    def __enter__(self) -> Self:
        """Acquire the host."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the host."""

    def subscribe(self, listener: Listener) -> Unsubscribe:
        """Report connection events to ``listener`` until the returned function is called."""

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

    def stream(self, argv: Sequence[str]) -> AbstractContextManager[socket.socket]:
        """Run ``argv`` with its stdin and stdout connected to the socket that is yielded: for data too large for ``run``.

        Leaving the context closes the socket and waits for the command. It is not run again.

        Raises CommandFailed when the status is not 0, ConnectionLost when the connection is, EnvironmentFailure as
        above.
        """


class BaseHost:
    """The defaults of a host that needs no connection."""

    __slots__ = ()

    def acquire(self) -> None:
        """Nothing has to be obtained."""

    def release(self) -> None:
        """Nothing has to be given back."""

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
        """There are no events."""
        return lambda: None
