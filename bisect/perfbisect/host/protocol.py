"""The interface through which perfbisect runs all commands on a machine, the results and errors of commands, and hosts
that wrap another host.

A command may print output without end. Output beyond the limits of this module is stored neither in memory nor on a
disk.
"""

import errno
import os
import shlex
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from perfbisect.errors import Cancelled, CommandFailed, EnvironmentFailure, TooMuchOutput

if TYPE_CHECKING:
    from perfbisect.host.remote import Connection, Listener, Unsubscribe

HEAD = 8 << 20  # bytes of each stream of a job that are kept from its beginning: several times the log of a long build
TAIL = 2 << 20  # bytes of each stream of a job that are kept from its end, where totals and reasons of failures are
PRINTED = 64 << 20  # most bytes of each stream of a short command; git's list of half a million files is shorter
LINE = 64 << 10  # characters of a line that are parsed for progress and errors; lines of linkers are the longest
ARGUMENT = (128 << 10) - 1  # bytes of one argument or variable of a program: the limit of Linux

# For every command of perfbisect: decimal points in numbers, the order of letters and English messages do not depend on
# the user's locale. Jobs, which run the user's commands, have another environment.
LOCALE = {"LC_ALL": "C.UTF-8", "LANGUAGE": "C"}
TIMED_OUT = 124  # status of coreutils' timeout
NO_SPACE = os.strerror(errno.ENOSPC)
_LAST = 1000  # characters at the end of an output; the last line of these is shown as the reason of a failure


@dataclass(frozen=True, slots=True)
class Command:
    """A command for ``Host.run``."""

    argv: tuple[str, ...]
    cwd: PurePosixPath | None = None
    env: Mapping[str, str] | None = None
    stdin: bytes = b""
    timeout: float = 60.0

    @property
    def added_env(self) -> Mapping[str, str]:
        """The variables to add to the host's environment."""
        return LOCALE | dict(self.env or {})

    def result_of(self, status: int, out: bytes, err: bytes) -> "Result":
        """The result, from the output."""
        return Result(self.argv, status, out.decode(errors="replace"), err.decode(errors="replace"))

    def timeout_result(self) -> "Result":
        """The result of a command that was ended because it exceeded its time limit."""
        return Result(self.argv, TIMED_OUT, "", f"the command took more than {self.timeout:g} s")


@dataclass(frozen=True, slots=True)
class Result:
    """A finished command. Output is text; bytes that cannot be decoded are replaced."""

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        """Whether the exit status of the command was 0."""
        return self.status == 0


class StreamedCommand(NamedTuple):
    """A running command whose stdin and stdout are a socket; see ``Host.stream``."""

    read_stderr: Callable[[int], bytes]  # reads the stderr of the command
    # Waits for the command. The argument is the end of its stderr; returns its status, and this stderr without lines
    # that perfbisect added.
    wait: Callable[[str], tuple[int, str]]
    kill: Callable[[], object]


class Host(ABC):
    """A machine on which commands run. Commands write only below ``root``.

    ``run`` is for short commands. Long commands are jobs (``perfbisect.host.jobs``), which use only ``run``. A host is
    a context manager, which acquires the host on entry and releases it on exit. The module ``perfbisect.host.lock``
    gives a session the exclusive right to measure on a host. Each subclass implements ``execute`` and ``begin_stream``.
    """

    __slots__ = ()
    name: str  # in hosts.toml
    root: PurePosixPath  # the folder on that host with everything that perfbisect writes there
    is_local: bool  # whether commands see the files of this process
    connection: "Connection[Any] | None" = None  # connection that commands need, if any
    node: str = ""  # machine of a leased host; another session may have another machine

    def acquire(self) -> None:
        """Open the connection. Raises EnvironmentFailure if the host cannot be reached."""
        if self.connection:
            self.connection.open()

    def release(self) -> None:
        """Close the connection. A command after the release opens the connection again."""
        if self.connection:
            self.connection.close()

    def __enter__(self) -> Self:
        """Acquire the host."""
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        """Release the host."""
        self.release()

    def subscribe(self, listener: "Listener") -> "Unsubscribe":
        """Report connection events to the listener until the returned function is called."""
        return self.connection.subscribe(listener) if self.connection else lambda: None

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
        """Run ``argv`` (never through a shell) and wait until it ends; ``env`` is added to the host's environment.

        If the connection is lost during the command, it is unknown how far the command came: the command is killed and
        run once more. Therefore every command must be idempotent: a command that is killed at any point and run again
        has the same effect, and prints the same output.

        Raises CommandFailed if ``check`` is true and the status is not 0 (the status is 124 after ``timeout``
        seconds), EnvironmentFailure if the host cannot be reached or the program does not exist.
        """
        return check_result(self.name, self.execute(Command(tuple(argv), cwd, env, stdin.encode(), timeout)), check)

    def script(
        self, text: str, *arguments: object, stdin: str = "", timeout: float = 60.0, check: bool = True
    ) -> Result:
        """Run a POSIX shell script with ``arguments`` as its parameters; see ``run``."""
        return self.run(["sh", "-c", text, "sh", *map(str, arguments)], stdin=stdin, timeout=timeout, check=check)

    @abstractmethod
    def execute(self, command: Command) -> Result:
        """Run a command and return its result, even if its status is not 0; see ``run``."""

    @contextmanager
    def stream(self, argv: Sequence[str]) -> Iterator[socket.socket]:
        """Run ``argv`` with its stdin and stdout connected to a socket, which is yielded; for data that is too large
        for ``run``.

        Leaving the context closes the socket and waits until the command has ended. If the connection is lost, the
        command is not run again.

        Raises CommandFailed if the status is not 0, ConnectionLost if the connection is lost, EnvironmentFailure like
        ``run``.
        """
        near, peer = socket.socketpair()
        with near, peer, self.begin_stream(tuple(argv), peer) as running, ThreadPoolExecutor(1) as pool:
            try:
                errors = pool.submit(read_last_bytes, running.read_stderr)
                yield near
                near.close()
                status, stderr = running.wait(errors.result().decode(errors="replace"))
            except BaseException:
                near.close()
                running.kill()
                raise
        check_result(self.name, Result(tuple(argv), status, "", stderr), True)

    @abstractmethod
    def begin_stream(self, argv: tuple[str, ...], peer: socket.socket) -> AbstractContextManager[StreamedCommand]:
        """Start a command whose stdin and stdout are the other end of a stream's socket."""


def check_result(host: str, result: Result, check: bool) -> Result:
    """Returns ``result``, or raises the errors of ``Host.run``."""
    if not result.ok and NO_SPACE in result.stderr:
        raise disk_full_error(host, last_line(result.stderr))
    if check and not result.ok:
        output = last_line(result.stderr) or last_line(result.stdout) or "the command printed nothing"
        raise CommandFailed(
            f"on host {host}, {_shown_command(result.argv)} ended with status {result.status}: {output}",
            status=result.status,
            output=result.stdout + result.stderr,
        )
    return result


def read_last_bytes(receive: Callable[[int], bytes]) -> bytes:
    """Read a stream until it ends or its connection closes, and return its last bytes."""
    last = b""
    with suppress(EOFError):
        while data := receive(1 << 16):
            last = (last + data)[-_LAST:]
    return last


def disk_full_error(host: str, detail: str) -> EnvironmentFailure:
    """The error for a full disk; ``detail`` is the message of the failing program."""
    return EnvironmentFailure(
        f"the disk of host {host} is full: {detail}",
        f"To free space: bisect gc {host} --keep SIZE. Removed builds and datasets are made again when necessary.",
    )


def too_much_output_error(host: str, argv: tuple[str, ...]) -> TooMuchOutput:
    """The error for a command that was ended because its output exceeded the limit."""
    return TooMuchOutput(
        f"on host {host}, {_shown_command(argv)} printed more than {PRINTED >> 20} MiB, so perfbisect ended the command"
    )


def missing_folder_error(host: str, folder: object) -> EnvironmentFailure:
    """The error for a missing working directory."""
    return EnvironmentFailure(
        f"folder {folder} does not exist on host {host}", "The folder may have been removed. Run the command again."
    )


def _shown_command(argv: tuple[str, ...]) -> str:
    command = shlex.join(argv)
    return command if len(command) <= 200 else f"{command[:199]}…"


def last_line(text: str) -> str:
    """The last line of a text; "" if it is empty."""
    lines = text[-_LAST:].strip().splitlines()
    return lines[-1].strip() if lines else ""


class DelegatingHost(Host):
    """Wraps ``host``: every command runs within the context ``command_context``."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.name, self.root, self.is_local, self.node = host.name, host.root, host.is_local, host.node
        self.connection = host.connection

    @abstractmethod
    def command_context(self) -> AbstractContextManager[None]:
        """A context in which every command is run; the context may raise an error in place of the command."""

    def execute(self, command: Command) -> Result:
        """Run a command; see ``Host.execute``."""
        with self.command_context():
            return self.host.execute(command)

    @contextmanager
    def begin_stream(self, argv: tuple[str, ...], peer: socket.socket) -> Iterator[StreamedCommand]:
        """Start a command; see ``Host.begin_stream``."""
        with self.command_context(), self.host.begin_stream(argv, peer) as running:
            yield running


class StoppableHost(DelegatingHost):
    """Wraps ``host``: after ``stop`` is set, the next command raises Cancelled and is not run.

    Cancelled is raised once; ``stop`` is then cleared, so that the clean-up (ending a job, stopping a server) can
    run.
    """

    def __init__(self, host: Host, stop: threading.Event) -> None:
        super().__init__(host)
        self.stop = stop

    @contextmanager
    def command_context(self) -> Iterator[None]:
        """Raise Cancelled in place of the command if ``stop`` is set."""
        if self.stop.is_set():
            self.stop.clear()
            raise Cancelled
        yield
