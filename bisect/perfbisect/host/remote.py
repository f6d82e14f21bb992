"""A host at the end of a connection that can break off: what is reported of it, how a command is sent, how long it is retried.

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
from perfbisect.host.packages import absent
from perfbisect.host.protocol import TIMED_OUT, Command, Host, Result, no_folder, too_much

PATIENCE = 300.0  # seconds for which a lost connection is opened again: enough for a restart of the host
SILENCE = 20  # seconds without an answer after which a connection counts as lost
LONGEST_PAUSE = 10.0  # seconds between two attempts to open it again

Listener = Callable[[str], None]
"""Told in a sentence that a connection is lost and being opened again, or is restored; in the thread whose command needs it.

An exception of it ends the attempts to reconnect."""

Unsubscribe = Callable[[], None]


def broken_off(host: str, why: str) -> ConnectionLost:
    """The error for a connection that broke off."""
    return ConnectionLost(f"the connection to host {host} broke off: {why or 'it does not answer'}")


T = TypeVar("T")


class Connection(ABC, Generic[T]):
    """A connection to a host, opened when it is first used and opened again when it is lost. Thread-safe."""

    tells_at_once = False  # whether it is reported as lost before the first attempt to open it again has failed
    final: tuple[type[EnvironmentFailure], ...] = ()  # failures to open it that trying again does not mend

    def __init__(self, name: str) -> None:
        """Open nothing yet. ``name`` is the host's, for messages."""
        self.name = name
        self.patience = PATIENCE
        self._now: T | None = None
        self._was_open = False
        self._given_up = False
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()

    @abstractmethod
    def connected(self) -> T:
        """What it consists of, newly opened. Raises EnvironmentFailure."""

    @abstractmethod
    def is_open(self, now: T) -> bool:
        """Whether it is not lost."""

    @abstractmethod
    def drop(self, now: T) -> None:
        """Close what it consists of."""

    def open(self) -> T:
        """What it consists of, opened if it is closed. Raises EnvironmentFailure: ConnectionLost if it was open before."""
        with self._lock:
            if self._now is None or not self.is_open(self._now):
                self._drop()
                try:
                    self._now = self.connected()
                except EnvironmentFailure as failure:  # a host that is starting refuses connections or logins
                    if not self._was_open or isinstance(failure, self.final):
                        raise
                    lost = f"the connection to host {self.name} is lost: {failure}"
                    raise ConnectionLost(lost, failure.advice) from failure
                self._was_open, self._given_up = True, False
            return self._now

    def close(self) -> None:
        """Close it. The next use opens it again."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        now, self._now = self._now, None
        if now is not None:
            self.drop(now)

    def subscribe(self, listener: Listener) -> Unsubscribe:
        """Report its events until the returned function is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def reopen(self, lost: ConnectionLost, deadline: float) -> None:
        """Open it again, with growing pauses until ``deadline`` (of ``time.monotonic``).

        Raises ConnectionLost after that, and any other error of ``open`` at once. After a timeout or an interruption
        later calls try only once, so that cleaning up on an unreachable host does not wait again.
        """
        pause, reported, failure = 0.5, False, lost
        try:
            while True:
                if not reported and (self.tells_at_once or failure is not lost):
                    reported = True
                    self._report(f"{failure}; trying again for {deadline - time.monotonic():.0f} s")
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

# A command cannot see that its stdin was truncated by a lost connection: it is started when all of it has arrived.
_WHOLE = """\
perfbisect_stdin=$(head -c {length} | base64 -w 0)
[ "${{#perfbisect_stdin}}" -eq {encoded} ] || {{ echo "perfbisect: stdin was cut short" >&2; exit 1; }}
{{ printf %s "$perfbisect_stdin" | base64 -d; }} 2>/dev/null | """


def script(command: Command) -> str:
    """The script for a POSIX shell on the host. The shell stays the command's parent, so that a signal becomes a status."""
    length = len(command.stdin)
    whole = _WHOLE.format(length=length, encoded=-(-length // 3) * 4) if length else ""
    limited = f"timeout -k {GRACE:g} {command.timeout:g} {shlex.join(command.argv)}"
    return "\n".join([surrounded(command), f"{whole}{limited}", "exit $?"])


def surrounded(command: Command) -> str:
    """The beginning of a script: it enters the folder of the command, sets its environment, and requires its program."""
    if wrong := [name for name in command.added if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name)]:
        raise ValueError(f"not a name of an environment variable: {wrong[0]!r}")
    lines = ["umask o-w", *(f"export {name}={shlex.quote(value)}" for name, value in command.added.items())]
    if folder := command.cwd:
        lines.append(f"cd -- {shlex.quote(str(folder))} 2>/dev/null || {{ echo {_NOWHERE} >&2; exit 1; }}")
    program = shlex.quote(command.argv[0])
    return "\n".join([*lines, f"command -v -- {program} >/dev/null || {{ echo {_ABSENT} >&2; exit 127; }}"])


def check_started(host: str, argv: Sequence[str], stderr: str, cwd: PurePosixPath | None = None) -> None:
    """Raise EnvironmentFailure where the program or the folder of a script does not exist."""
    if stderr.strip() == _ABSENT:
        raise absent([argv[0]], host)
    if stderr.strip() == _NOWHERE:
        raise no_folder(host, cwd)


class TooMuch(Exception):
    """A command has printed more than PRINTED bytes to a stream."""


@dataclass(frozen=True, slots=True)
class RemoteHost(Host, Generic[T]):
    """Commands run at the end of ``connection``, and are run again when it was lost meanwhile."""

    name: str
    root: PurePosixPath
    connection: Connection[T]
    is_local = False  # even if it leads to this machine

    @abstractmethod
    def exchange(self, script: str, stdin: bytes, mark: str, limit: float) -> tuple[int, bytes, bytes]:
        """Run a script once: status, stdout, stderr. Raises ConnectionLost, and TooMuch.

        ``mark`` is what ``end`` finds it by. ``limit`` seconds without output mean a lost connection.
        """

    def end(self, mark: str) -> None:
        """Kill the rest of a script with that mark. By default nothing is left of one. Raises EnvironmentFailure."""

    def execute(self, command: Command) -> Result:
        """Run a command, again where the connection was lost; see ``Host.execute``."""
        text, limit = script(command), command.timeout
        mark = f"perfbisect-{secrets.token_hex(8)}"
        deadline: float | None = None
        for again in itertools.count(1):
            began = time.monotonic()
            try:
                status, out, err = self.exchange(text, command.stdin, mark, limit + GRACE + SILENCE)
                break
            except TooMuch:
                with suppress(ConnectionLost):  # what prints to a closed channel ends soon
                    self.end(mark)
                raise too_much(self.name, command.argv) from None
            except ConnectionLost as lost:
                now, patience = time.monotonic(), self.connection.patience
                deadline = deadline or now + limit + patience  # also for one that is lost again and again
                if now > deadline:
                    raise
                self.connection.reopen(lost, min(deadline, now + patience))
                time.sleep(min(0.1 * again, 5))
                with suppress(ConnectionLost):
                    self.end(mark)
            except (KeyboardInterrupt, SystemExit):
                with suppress(EnvironmentFailure):
                    self.end(mark)
                raise
        if status in (TIMED_OUT, 128 + 9) and time.monotonic() - began >= limit:
            return command.timed_out()
        result = command.ended(status, out, err)
        check_started(self.name, command.argv, result.stderr, command.cwd)
        return result
