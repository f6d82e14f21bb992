"""The one interface through which effects on a machine happen."""

import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol


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
    """A machine with a root folder of ours; nothing outside ``root`` is written.

    ``run`` is for short commands. Long ones are jobs (``perfbisect.host.jobs``), which are made of ``run``.
    """

    @property
    def name(self) -> str:
        """The host's name in hosts.toml."""

    @property
    def root(self) -> PurePosixPath:
        """The folder on that host under which everything of ours lives."""

    @property
    def here(self) -> bool:
        """Whether it is the machine that we run on, whose files we can read ourselves."""

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

        When the connection to the host is lost meanwhile, nobody knows how far the command came: it is ended and run
        once more. So a command given here must bear to be cut short anywhere and to be run again, and say the same
        when it has been done already.

        Raises CommandFailed when ``check`` and the status is not 0 (124 when ``timeout`` seconds have passed),
        EnvironmentFailure when the host cannot be reached or the program does not exist.
        """

    def stream(self, argv: Sequence[str]) -> AbstractContextManager[socket.socket]:
        """Run ``argv`` with its stdin and stdout on the socket that is given: for what is too large for ``run``.

        Leaving the context closes the socket and waits for the command. It is not run again.

        Raises CommandFailed when the status is not 0, ConnectionLost when the connection is, EnvironmentFailure as
        above.
        """
