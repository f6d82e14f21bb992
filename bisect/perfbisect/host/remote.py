"""Runs commands on a host over a connection that may be lost. A lost connection is reopened, and the interrupted
command is run again.

A command is sent as a script for a POSIX shell on the host.
"""

import itertools
import re
import secrets
import shlex
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Generic, TypeVar

from perfbisect.errors import ConnectionLost, EnvironmentFailure
from perfbisect.host.packages import missing_needs_error
from perfbisect.host.protocol import TIMED_OUT, Command, Host, Result, missing_folder_error, too_much_output_error

PATIENCE = 300.0  # seconds in which a lost connection is reopened: enough for a restart of the host
SILENCE = 20  # seconds without an answer after which a connection counts as lost
LONGEST_PAUSE = 10.0  # most seconds between two attempts to reopen a lost connection

Listener = Callable[[str], None]
"""Called with a sentence if a connection is lost and being reopened, or restored; in the thread whose command needs it.

An exception raised by it ends the attempts to reconnect."""

Unsubscribe = Callable[[], None]


def connection_lost_error(host: str, why: str) -> ConnectionLost:
    """The error for a connection that was lost."""
    return ConnectionLost(f"the connection to host {host} was lost: {why or 'the host does not answer'}")


T = TypeVar("T")


class Connection(ABC, Generic[T]):
    """A connection to a host. The connection is opened at its first use, and reopened if it is lost. Thread-safe."""

    tells_at_once = False  # whether a lost connection is reported before the first attempt to reopen it has failed
    final: tuple[type[EnvironmentFailure], ...] = ()  # errors after which no further attempt to open it is made

    def __init__(self, name: str) -> None:
        """Store the name of the host, which messages show. No connection is opened yet."""
        self.name = name
        self.patience = PATIENCE
        self._now: T | None = None
        self._was_open = False
        self._given_up = False
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()

    @abstractmethod
    def new_connection(self) -> T:
        """Open a new connection, and return its state. Raises EnvironmentFailure."""

    @abstractmethod
    def is_connected(self, state: T) -> bool:
        """Whether the connection with this ``state`` still works."""

    @abstractmethod
    def close_connection(self, state: T) -> None:
        """Close the connection with this ``state``."""

    def open(self) -> T:
        """Open the connection if it is closed, and return the state of the connection. Raises EnvironmentFailure, or
        ConnectionLost if the connection was open before.
        """
        with self._lock:
            if self._now is None or not self.is_connected(self._now):
                self._drop()
                try:
                    self._now = self.new_connection()
                except EnvironmentFailure as failure:  # a host that is restarting refuses connections or logins
                    if not self._was_open or isinstance(failure, self.final):
                        raise
                    lost = f"the connection to host {self.name} is lost: {failure}"
                    raise ConnectionLost(lost, failure.advice) from failure
                self._was_open, self._given_up = True, False
            return self._now

    def close(self) -> None:
        """Close the connection. At its next use, the connection is opened again."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        now, self._now = self._now, None
        if now is not None:
            self.close_connection(now)

    def subscribe(self, listener: Listener) -> Unsubscribe:
        """Call ``listener`` with a message when the connection is lost or restored, until the caller calls the returned
        function."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def reopen(self, lost: ConnectionLost, deadline: float) -> None:
        """Try to reopen a lost connection until ``deadline`` (a time of ``time.monotonic``), with growing pauses
        between the attempts.

        Raises ConnectionLost if the connection could not be reopened until ``deadline``. Does not catch other errors of
        ``open``. After a timeout or an interruption, later calls make only one attempt, so that the clean-up of a host
        that cannot be reached does not wait again.
        """
        pause, reported, failure = 0.5, False, lost
        try:
            while True:
                if not reported and (self.tells_at_once or failure is not lost):
                    reported = True
                    self._report(f"{failure}; perfbisect tries to reconnect for {deadline - time.monotonic():.0f} s")
                if failure is not lost:
                    time.sleep(max(0, min(pause, deadline - time.monotonic())))
                    pause = min(2 * pause, LONGEST_PAUSE)
                try:
                    self.open()
                    break
                except ConnectionLost as again:
                    if self._given_up or time.monotonic() >= deadline:
                        raise
                    failure = again
        except BaseException:
            self._given_up = True
            raise
        if reported:
            self._report(f"the connection to host {self.name} is restored")

    def _report(self, text: str) -> None:
        for listener in tuple(self._listeners):
            listener(text)


GRACE = 5.0  # seconds between TERM and KILL for a command that takes too long
_ABSENT, _NOWHERE = "perfbisect: no such program", "perfbisect: no such folder"

# A command cannot know that a lost connection truncated its stdin, so the command is started after all of its stdin has
# arrived.
_WHOLE = """\
perfbisect_stdin=$(head -c {length} | base64 -w 0)
[ "${{#perfbisect_stdin}}" -eq {encoded} ] || {{ echo "perfbisect: stdin was cut short" >&2; exit 1; }}
{{ printf %s "$perfbisect_stdin" | base64 -d; }} 2>/dev/null | """


def shell_script(command: Command) -> str:
    """A script for a POSIX shell that runs the command. The shell remains the parent process of the command, so that
    the shell reports a command that was killed by a signal as an exit status (128 + signal).
    """
    length = len(command.stdin)
    check_stdin = _WHOLE.format(length=length, encoded=-(-length // 3) * 4) if length else ""
    limited = f"timeout -k {GRACE:g} {command.timeout:g} {shlex.join(command.argv)}"
    return "\n".join([script_prologue(command), f"{check_stdin}{limited}", "exit $?"])


def script_prologue(command: Command) -> str:
    """The first lines of a script, which change to the working folder of the command, set its environment, and check
    that its program exists.
    """
    if wrong := [name for name in command.added_env if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name)]:
        raise ValueError(f"not a name of an environment variable: {wrong[0]!r}")
    lines = ["umask o-w", *(f"export {name}={shlex.quote(value)}" for name, value in command.added_env.items())]
    if folder := command.cwd:
        lines.append(f"cd -- {shlex.quote(str(folder))} 2>/dev/null || {{ echo {_NOWHERE} >&2; exit 1; }}")
    program = shlex.quote(command.argv[0])
    return "\n".join([*lines, f"command -v -- {program} >/dev/null || {{ echo {_ABSENT} >&2; exit 127; }}"])


def check_started(host: str, argv: Sequence[str], stderr: str, cwd: PurePosixPath | None = None) -> None:
    """Raise EnvironmentFailure if ``stderr`` of a script says that its program or its working folder does not exist."""
    if stderr.strip() == _ABSENT:
        raise missing_needs_error([argv[0]], host)
    if stderr.strip() == _NOWHERE:
        raise missing_folder_error(host, cwd)


class OutputLimitExceeded(Exception):
    """A command printed more than PRINTED bytes to a stream."""


@dataclass(frozen=True, slots=True)
class RemoteHost(Host, Generic[T]):
    """A host that runs commands over ``connection``. If the connection is lost during a command, the command is run
    again.
    """

    name: str
    root: PurePosixPath
    connection: Connection[T]
    is_local = False  # also if the connection is to this machine

    @abstractmethod
    def run_script_once(self, script: str, stdin: bytes, mark: str, limit: float) -> tuple[int, bytes, bytes]:
        """Run a script once, without a second attempt, and return its exit status, its stdout and its stderr. Raises
        ConnectionLost and OutputLimitExceeded.

        ``mark`` is a text by which ``kill_script`` finds the running script. If the script prints nothing for ``limit``
        seconds, the connection counts as lost.
        """

    def kill_script(self, mark: str) -> None:
        """Kill the remaining processes of the script whose mark is ``mark``. This default does nothing, which is right
        for connections whose scripts end if the connection is lost. Raises EnvironmentFailure.
        """

    def execute(self, command: Command) -> Result:
        """Run a command; if the connection is lost, reopen the connection and run the command again. See
        ``Host.execute``."""
        text, limit = shell_script(command), command.timeout
        mark = f"perfbisect-{secrets.token_hex(8)}"
        deadline: float | None = None
        for again in itertools.count(1):
            began = time.monotonic()
            try:
                status, out, err = self.run_script_once(text, command.stdin, mark, limit + GRACE + SILENCE)
                break
            except OutputLimitExceeded:
                with suppress(ConnectionLost):  # if the kill fails, the program soon ends, because its output is closed
                    self.kill_script(mark)
                raise too_much_output_error(self.name, command.argv) from None
            except ConnectionLost as lost:
                now, patience = time.monotonic(), self.connection.patience
                deadline = deadline or now + limit + patience  # one deadline, also if the connection is lost repeatedly
                if now > deadline:
                    raise
                self.connection.reopen(lost, min(deadline, now + patience))
                time.sleep(min(0.1 * again, 5))
                with suppress(ConnectionLost):
                    self.kill_script(mark)
            except (KeyboardInterrupt, SystemExit):
                with suppress(EnvironmentFailure):
                    self.kill_script(mark)
                raise
        if status in (TIMED_OUT, 128 + 9) and time.monotonic() - began >= limit:
            return command.timeout_result()
        result = command.result_of(status, out, err)
        check_started(self.name, command.argv, result.stderr, command.cwd)
        return result
