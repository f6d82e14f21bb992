"""A machine, an allocation or a container that a command leads to, such as ``srun`` or ``docker exec``, as a host.

One shell there runs many commands at once: what a scheduler does to the step, or the container, that it entered by is
done to all of them alike, and a command costs no step of its own. An answer is one line with the outputs in base64. What
else comes on its stdout is of the command that leads there, such as a notice of a scheduler, and is passed over.
"""

import base64
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import PurePosixPath
from typing import IO

from perfbisect.errors import ConnectionLost, EnvironmentFailure
from perfbisect.host.local import end
from perfbisect.host.protocol import PRINTED, Streamed, copies
from perfbisect.host.remote import Connection, RemoteHost, TooMuch, broken_off, check_started, require
from perfbisect.masking import masked
from perfbisect.recipes.inventory import HostEntry

OPENING = 120.0  # seconds that the command may take until the shell answers
ENDING = 10.0  # seconds in which it ends when it is asked to
READY = b"perfbisect: ready"
ANSWER = re.compile(rb"perfbisect: (\d+) (\d*) ([\w+/=]*) ([\w+/=]*) end\s")

# Reads requests: "run ID N M", then a script of N bytes and its stdin of M bytes; "end ID". Prints an ANSWER for each
# script that has ended: ID, status, stdout, stderr. head reads not a byte too much. Each script leads a session of its
# own, by which it is ended: jobs that it has left have others. $1 is the most that is kept of a stream.
_SERVER = f"""\
limit=$1
folder=$(mktemp -d "${{TMPDIR:-/tmp}}/perfbisect-shell-XXXXXXXX") || exit 1
trap 'rm -rf -- "$folder"' EXIT
exec 7>&1
serve() {{
    at=$folder/$1
    {{
        {{
            setsid sh -c 'echo $$ >"$1/pid"; exec sh "$1/script"' script "$at" <"$at/in" 3>&- 7>&-
            echo "$?" >"$at/status"
        }} 2>&1 >&3 | head -c "$limit" >"$at/err" 3>&- 7>&-
    }} 3>&1 | head -c "$limit" >"$at/out" 7>&-
    (
        flock 9
        printf 'perfbisect: %s %s ' "$1" "$(cat "$at/status")"
        base64 -w 0 "$at/out"
        printf ' '
        base64 -w 0 "$at/err"
        echo ' end'
    ) >&7 9>>"$folder/lock"
    rm -rf -- "$at"
}}
end() {{
    read -r leader <"$folder/$1/pid" || return
    ps -e -o pid= -o sess= | while read -r pid session; do [ "$session" != "$leader" ] || echo "$pid"; done |
        xargs -r kill -s KILL
}} 2>/dev/null
echo '{READY.decode()}'
while read -r verb id size further; do
    case $verb in
    run)
        mkdir "$folder/$id" || exit 1
        head -c "$size" >"$folder/$id/script"
        head -c "$further" >"$folder/$id/in"
        serve "$id" </dev/null &
        ;;
    end) end "$id" </dev/null & ;;
    esac
done
"""

_STATUS = "perfbisect: ended with status "
# Runs the script $1, and tells its status: that of the command that leads here may be its own. tar writes to no terminal,
# which is what stdout is below `srun --unbuffered`.
_STREAM = f"""\
exec 4>&1
status=$({{ {{ sh -c "$1" stream 3>&- 4>&-; echo "$?" >&3; }} | cat >&4; }} 3>&1)
echo '{_STATUS}'"$status" >&2
"""

Answer = tuple[int, bytes, bytes]  # status, stdout, stderr


def connect(entry: HostEntry, _destination: str) -> "ThroughHost":
    """The host behind ``entry.through``, where a relative root begins in the home there; see
    ``registry.Connect``.
    """
    root = entry.root if entry.root.startswith(("/", "~")) else f"~/{entry.root}"
    return ThroughHost(entry.name, PurePosixPath(root), Shell(entry.name, entry.through))


@dataclass(frozen=True, slots=True)
class ThroughHost(RemoteHost["_Running"]):
    """Commands run in one shell, which is started again when it is lost; a stream has a process of its own."""

    connection: "Shell"

    def exchange(self, script: str, stdin: bytes, mark: str, limit: float) -> Answer:
        """Run a script once, in the shell, which ends it when it is interrupted; see ``RemoteHost.exchange``."""
        status, out, err = self.connection.call(script, stdin, limit)
        if max(len(out), len(err)) > PRINTED:
            raise TooMuch
        return status, out, err

    @contextmanager
    def begin(self, argv: tuple[str, ...], far: socket.socket) -> Iterator[Streamed]:
        """Start a command with its stdin and stdout on the socket; see ``Host.begin``."""
        program = [*self.connection.command, "sh", "-c", _STREAM, "stream"]
        # Pipes, since not every program can open its stdin again if that is a socket.
        process = _started(self.name, [*program, f"{require(argv[0])}\nexec {shlex.join(argv)}"], subprocess.PIPE, 0)

        def ended(said: str) -> tuple[int, str]:
            process.wait()
            said, told, status = said.rpartition(_STATUS)
            if not told:
                lines = status.strip().splitlines() or [f"it ended with status {process.returncode}"]
                raise broken_off(self.name, lines[-1])
            check_started(self.name, argv, said)
            return int(status.split()[0]), said

        with process:
            assert process.stdin
            assert process.stdout
            assert process.stderr
            both = copies(far, process.stdout.read, process.stdin.write, process.stdin.close)
            yield Streamed(process.stderr.read, ended, process.kill, both)


def _started(host: str, command: Sequence[str], errors: int | IO[bytes], buffer: int = -1) -> subprocess.Popen[bytes]:
    """A command that leads to a host. Ctrl-C in the terminal does not reach it."""
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=buffer,
            start_new_session=True,
        )
    except OSError as error:
        raise EnvironmentFailure(
            f"host {host} cannot be reached: {command[0]} does not start on this machine: {error.strerror}"
        ) from error


class Shell(Connection["_Running"]):
    """The shell behind ``command``, started when it is first used and again after it was lost. Thread-safe."""

    tells_at_once = True

    def __init__(self, name: str, command: Sequence[str]) -> None:
        """Start nothing yet. ``command`` runs a command that is appended to it."""
        super().__init__(name)
        self.command = tuple(command)

    def connected(self) -> "_Running":
        """A new shell. Raises EnvironmentFailure when it does not start."""
        return _Running(self.name, self.command)

    def is_open(self, now: "_Running") -> bool:
        """Whether it still answers."""
        return not now.ended

    def drop(self, now: "_Running") -> None:
        """End it."""
        now.close()

    def call(self, script: str, stdin: bytes, limit: float) -> Answer:
        """Run a script to its end. Without an answer in ``limit`` seconds the connection counts as lost.

        So it does when the script and its stdin are not read in as many.

        Raises ConnectionLost. An interruption ends the script.
        """
        running = self.open()
        number: int | None = None
        try:
            number, future = running.send(script.encode(), stdin, limit)
            return future.result(limit)
        except TimeoutError:
            running.close()
            raise broken_off(self.name, "") from None
        except (KeyboardInterrupt, SystemExit):
            if number is None:
                running.close()  # the request may be written in part
            else:
                with suppress(TimeoutError, EnvironmentFailure):
                    running.end(number)
                    future.result(ENDING)
            raise


class _Running:
    """One start of a shell."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.ended = False
        self._closing = threading.Event()
        self._cut = False  # a request was written in part: nothing that follows would be understood
        self._numbers = count()
        self._waiting: dict[int, Future[Answer]] = {}
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``close``
        try:
            self._process = _started(
                name, [*command, "sh", "-c", _SERVER, "perfbisect", str(PRINTED + 1)], self._errors
            )
        except EnvironmentFailure:
            self._errors.close()
            raise
        assert self._process.stdin
        os.set_blocking(self._process.stdin.fileno(), False)  # who does not read must not stop who writes
        ready: Future[None] = Future()
        self._reader = threading.Thread(target=self._read, args=(ready,), name=f"shell of {name}", daemon=True)
        self._reader.start()
        self._watcher = threading.Thread(target=self._watch, args=(ready,), name=f"end of {name}", daemon=True)
        self._watcher.start()
        try:
            ready.result(OPENING)
        except BaseException as error:
            why = self.said() or "it does not answer"
            self.close()
            if isinstance(error, TimeoutError | EnvironmentFailure):
                raise EnvironmentFailure(f"host {name} cannot be reached with {command[0]}: {why}") from None
            raise

    def said(self) -> str:
        """The last line that the command has printed about itself, such as why it ended."""
        if self._errors.closed:
            return ""
        self._errors.seek(max(0, self._errors.seek(0, 2) - 4096))
        lines = self._errors.read().decode(errors="replace").split("\n")
        return masked(next((line.strip() for line in reversed(lines) if line.strip()), ""))

    def send(self, script: bytes, stdin: bytes, limit: float) -> "tuple[int, Future[Answer]]":
        """Begin a script; its number, and what will have its answer. Raises TimeoutError after ``limit`` seconds."""
        number, future = next(self._numbers), Future[Answer]()
        with self._lock:
            if self.ended:
                raise self._lost()
            self._waiting[number] = future
        self._write(b"run %d %d %d\n" % (number, len(script), len(stdin)) + script + stdin, limit)
        return number, future

    def end(self, number: int) -> None:
        """Kill a script with its processes. Raises TimeoutError."""
        self._write(b"end %d\n" % number, ENDING)

    def _write(self, data: bytes, limit: float) -> None:
        """Write a request. Raises TimeoutError when the shell does not read it in ``limit`` seconds."""
        assert self._process.stdin
        until = time.monotonic() + limit
        with self._writing:
            if self._cut or self._closing.is_set():
                raise TimeoutError
            self._cut, left = True, memoryview(data)
            pipe, ready = self._process.stdin.fileno(), select.poll()
            with suppress(ConnectionError):  # the watcher notices the end
                ready.register(pipe, select.POLLOUT)
                while left:
                    if self._closing.is_set() or time.monotonic() > until:
                        raise TimeoutError
                    if ready.poll(100):  # milliseconds: ``close`` waits for this
                        with suppress(BlockingIOError):
                            left = left[os.write(pipe, left[: 1 << 16]) :]
            self._cut = False

    def _read(self, ready: "Future[None]") -> None:
        assert self._process.stdout
        with suppress(OSError, ValueError):
            for line in self._process.stdout:
                if not ready.done():
                    if line.strip().endswith(READY):
                        ready.set_result(None)
                elif answer := ANSWER.search(line):
                    number, status, out, err = answer.groups()
                    with self._lock:
                        future = self._waiting.pop(int(number), None)
                    if future:
                        future.set_result((int(status or b"137"), base64.b64decode(out), base64.b64decode(err)))

    def _watch(self, ready: "Future[None]") -> None:
        """After the end of the command no answer comes: what it has left on this machine must not keep its output open."""
        self._process.wait()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._reader.join(10)
        with self._lock:
            self.ended = True
            left = [*self._waiting.values()]
            self._waiting.clear()
        lost = self._lost()
        for future in left:
            future.set_exception(lost)
        if not ready.done():
            ready.set_exception(lost)

    def _lost(self) -> ConnectionLost:
        return broken_off(self.name, self.said() or "its shell has ended")

    def close(self) -> None:
        """End the shell, and the command that led to it: at once if it has stopped reading."""
        assert self._process.stdin
        self._closing.set()
        with self._writing:
            pass  # who was writing has stopped; nobody begins
        if self._cut:
            end(self._process, ENDING)
        with suppress(OSError):
            self._process.stdin.close()
        deadline = time.monotonic() + ENDING
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        end(self._process, ENDING)
        self._watcher.join(10)
        if not self._reader.is_alive():
            assert self._process.stdout
            self._process.stdout.close()
        self._errors.close()
