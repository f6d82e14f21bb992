"""Defines ``Host``, the interface through which perfbisect runs all commands on a machine; the results and errors of
commands; and hosts that wrap another host.

A command may print without end, so output beyond the limits of this module is stored neither in memory nor on a disk.
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
        """The environment variables of the command that are added to the environment of the host."""
        return LOCALE | dict(self.env or {})

    def result_of(self, status: int, out: bytes, err: bytes) -> "Result":
        """The result, from the output."""
        return Result(self.argv, status, out.decode(errors="replace"), err.decode(errors="replace"))

    def timeout_result(self) -> "Result":
        """The result of a command that was ended because it exceeded its time limit."""
        return Result(self.argv, TIMED_OUT, "", f"the command took more than {self.timeout:g} s")


@dataclass(frozen=True, slots=True)
class Result:
    """A finished command. The output is decoded to text; bytes that cannot be decoded are replaced."""

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
    a context manager: the connection is opened on entry and closed on exit. The module ``perfbisect.host.lock`` gives a
    session the exclusive right to measure on a host. Each subclass implements ``execute`` and ``begin_stream``.
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

    def close_connection(self) -> None:
        """Close the connection. A later command opens the connection again."""
        if self.connection:
            self.connection.close()

    def __enter__(self) -> Self:
        """Acquire the host."""
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close_connection()

    def subscribe(self, listener: "Listener") -> "Unsubscribe":
        """Call ``listener`` when the connection is lost or restored, until the caller calls the returned function."""
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

        If the connection is lost during the command, the command is killed and run once more, because it is unknown
        whether the command had ended. Therefore every command must be idempotent: if a command is killed at any point
        and run again, its effect and its output are the same as after a single run.

        Raises CommandFailed if ``check`` is true and the exit status is not 0 (the exit status is 124 after ``timeout``
        seconds). Raises EnvironmentFailure if the host cannot be reached or the program does not exist.
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
        """Run ``argv`` with its stdin and stdout connected to a socket, and yield the socket. Used for data that are
        too large for ``run``.

        At the end of the ``with`` block, the socket is closed, and perfbisect waits until the command has ended. If the
        connection is lost, the command is not run again.

        Raises CommandFailed if the exit status is not 0, ConnectionLost if the connection is lost, and
        EnvironmentFailure in the same cases as ``run``.
        """
        near, peer = socket.socketpair()
        with near, peer, self.begin_stream(tuple(argv), peer) as running, ThreadPoolExecutor(1) as pool:
            try:
                errors = pool.submit(last_bytes_of_stream, running.read_stderr)
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
        """Start a command whose stdin and stdout are the socket ``peer``, which is connected to the socket that
        ``stream`` yields."""


def check_result(host: str, result: Result, check: bool) -> Result:
    """Returns ``result``, or raises an error of ``Host.run`` if the command has failed."""
    if not result.ok and NO_SPACE in result.stderr:
        raise disk_full_error(host, last_line(result.stderr))
    if check and not result.ok:
        output = last_line(result.stderr) or last_line(result.stdout) or "the command printed nothing"
        text = f"on host {host}, {_shown_command(result.argv)} ended with status {result.status}: {output}"
        raise CommandFailed(text, status=result.status, output=result.stdout + result.stderr)
    return result


def last_bytes_of_stream(receive: Callable[[int], bytes]) -> bytes:
    """Read from ``receive`` until the stream ends or its connection is closed, and return the last bytes of the
    stream."""
    last = b""
    with suppress(EOFError):
        while data := receive(1 << 16):
            last = (last + data)[-_LAST:]
    return last


def disk_full_error(host: str, detail: str) -> EnvironmentFailure:
    """The error for a full disk; ``detail`` is the message of the failing program."""
    advice = f"To free space: bisect gc {host} --keep SIZE. Removed builds and datasets are made again when necessary."
    return EnvironmentFailure(f"the disk of host {host} is full: {detail}", advice)


def too_much_output_error(host: str, argv: tuple[str, ...]) -> TooMuchOutput:
    """The error for a command that was ended because its output exceeded the limit."""
    return TooMuchOutput(
        f"on host {host}, {_shown_command(argv)} printed more than {PRINTED >> 20} MiB, so perfbisect ended the command"
    )


def missing_folder_error(host: str, folder: object) -> EnvironmentFailure:
    """The error for a missing working directory."""
    text = f"folder {folder} does not exist on host {host}"
    return EnvironmentFailure(text, "The folder may have been removed. Run the command again.")


def _shown_command(argv: tuple[str, ...]) -> str:
    command = shlex.join(argv)
    return command if len(command) <= 200 else f"{command[:199]}…"


def last_line(text: str) -> str:
    """The last line of a text; "" if it is empty."""
    lines = text[-_LAST:].strip().splitlines()
    return lines[-1].strip() if lines else ""


class DelegatingHost(Host):
    """A host that runs each command on another host, ``host``, within the context ``command_context``."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.name, self.root, self.is_local, self.node = host.name, host.root, host.is_local, host.node
        self.connection = host.connection

    @abstractmethod
    def command_context(self) -> AbstractContextManager[None]:
        """The context in which each command is run. If the context raises an error on entry, the command is not run."""

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
    """A host that runs each command on another host, ``host``. After ``stop`` is set, the next command is not run, and
    Cancelled is raised.

    Cancelled is raised only once. After that, ``stop`` is cleared, so that later commands can clean up (end a job, stop
    a server).
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
