"""A machine, an allocation or a container that a command leads to, such as ``srun`` or ``docker exec``, as a host.

One shell there runs many commands at once: what a scheduler does to the step, or the container, that it entered by is
done to all of them alike, and a command costs no step of its own. An answer is one line with the outputs in base64. What
else comes on its stdout is of the command that leads there, such as a notice of a scheduler, and is passed over.
"""

import base64
import os
import re
import shlex
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import PurePosixPath
from queue import SimpleQueue

from perfbisect.errors import ConnectionLost, EnvironmentFailure
from perfbisect.host.local import LocalHost, end, kill_group
from perfbisect.host.protocol import PRINTED, Command, Streamed
from perfbisect.host.remote import Connection, RemoteHost, TooMuch, broken_off, check_started, surrounded
from perfbisect.masking import masked
from perfbisect.recipes.inventory import HostEntry

OPENING = 120.0  # seconds that the command may take until the shell answers
ENDING = 10.0  # seconds in which it ends when it is asked to
ANSWER = re.compile(rb"perfbisect: (\d+) (\d*) ([\w+/=]*) ([\w+/=]*) end\s")

# Reads requests: "run ID N M", then a script of N bytes and its stdin of M bytes; "end ID". Prints an ANSWER for each
# script that has ended: ID, status, stdout, stderr; at first one of ID 0. head reads not a byte too much. Each script leads a session of its
# own, by which it is ended: jobs that it has left have others. $1 is the most that is kept of a stream.
_SERVER = """\
limit=$1
folder=$(mktemp -d "${TMPDIR:-/tmp}/perfbisect-shell-XXXXXXXX") || exit 1
trap 'rm -rf -- "$folder"' EXIT
exec 7>&1
serve() {
    at=$folder/$1
    {
        {
            setsid sh -c 'echo $$ >"$1/pid"; exec sh "$1/script"' script "$at" <"$at/in" 3>&- 7>&-
            echo "$?" >"$at/status"
        } 2>&1 >&3 | head -c "$limit" >"$at/err" 3>&- 7>&-
    } 3>&1 | head -c "$limit" >"$at/out" 7>&-
    (
        flock 9
        printf 'perfbisect: %s %s ' "$1" "$(cat "$at/status")"
        base64 -w 0 "$at/out"
        printf ' '
        base64 -w 0 "$at/err"
        echo ' end'
    ) >&7 9>>"$folder/lock"
    rm -rf -- "$at"
}
end() {
    read -r leader <"$folder/$1/pid" || return
    ps -e -o pid= -o sess= | while read -r pid session; do [ "$session" != "$leader" ] || echo "$pid"; done |
        xargs -r kill -s KILL
} 2>/dev/null
echo 'perfbisect: 0 0   end'
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
# Not every program can open its stdin again if that is a socket. When it ends, its stdin is read no more.
_PIPES = """cat | { { "$@"; echo "it ended with status $?" >&2; } | cat; kill 0; }"""

Answer = tuple[int, bytes, bytes]  # status, stdout, stderr


def connect(entry: HostEntry, _destination: str) -> "ThroughHost":
    """The host behind ``entry.through``, where a relative root begins in the home there; see
    ``registry.Connect``.
    """
    root = entry.root if entry.root.startswith(("/", "~")) else f"~/{entry.root}"
    return ThroughHost(entry.name, PurePosixPath(root), Shell(entry.name, entry.through))


@dataclass(frozen=True, slots=True)
class ThroughHost(RemoteHost["ShellProcess"]):
    """Commands run in one shell, which is started again when it is lost; a stream has a process of its own."""

    connection: "Shell"

    def exchange(self, script: str, stdin: bytes, mark: str, limit: float) -> Answer:
        """Run a script once, in the shell, which ends it when it is interrupted; see ``RemoteHost.exchange``."""
        running = self.connection.open()
        number, future = running.send(script.encode(), stdin)
        try:
            status, out, err = future.result(limit)
        except TimeoutError:
            running.close(at_once=True)
            raise broken_off(self.name, "") from None
        except (KeyboardInterrupt, SystemExit):
            with suppress(TimeoutError, EnvironmentFailure):
                running.end(number)
                future.result(ENDING)
            raise
        if max(len(out), len(err)) > PRINTED:
            raise TooMuch
        return status, out, err

    @contextmanager
    def begin(self, argv: tuple[str, ...], far: socket.socket) -> Iterator[Streamed]:
        """Start a command with its stdin and stdout on the socket; see ``Host.begin``."""
        script = f"{surrounded(Command(argv))}\nexec {shlex.join(argv)}"
        leading = ("sh", "-c", _PIPES, "pipes", *self.connection.command, "sh", "-c", _STREAM, "stream", script)
        with LocalHost(self.name, self.root).begin(leading, far) as running:

            def ended(said: str) -> tuple[int, str]:
                running.end(said)
                said, told, status = said.rpartition(_STATUS)
                if not told:
                    raise broken_off(self.name, "".join(status.strip().splitlines()[-2:][:1]))
                check_started(self.name, argv, said)
                return int(status.split()[0]), said

            yield running._replace(end=ended)


class Shell(Connection["ShellProcess"]):
    """The shell behind ``command``, started when it is first used and again after it was lost. Thread-safe."""

    tells_at_once = True

    def __init__(self, name: str, command: Sequence[str]) -> None:
        """Start nothing yet. ``command`` runs a command that is appended to it."""
        super().__init__(name)
        self.command = tuple(command)

    def connected(self) -> "ShellProcess":
        """A new shell. Raises EnvironmentFailure when it does not start."""
        return ShellProcess(self.name, self.command)

    def is_open(self, now: "ShellProcess") -> bool:
        """Whether it still answers."""
        return not now.ended

    def drop(self, now: "ShellProcess") -> None:
        """End it."""
        now.close()


class ShellProcess:
    """One start of a shell."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.ended = False
        ready = Future[Answer]()
        self._waiting = {0: ready}
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._requests: SimpleQueue[bytes] = SimpleQueue()  # b"" is the last
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``close``
        program = [*command, "sh", "-c", _SERVER, "perfbisect", str(PRINTED + 1)]
        pipe = subprocess.PIPE
        try:  # Ctrl-C in the terminal does not reach it
            self._process = subprocess.Popen(
                program, stdin=pipe, stdout=pipe, stderr=self._errors, start_new_session=True
            )
        except OSError as error:
            self._errors.close()
            raise EnvironmentFailure(
                f"host {name} cannot be reached: {command[0]} does not start on this machine: {error.strerror}"
            ) from error
        work = (self._read, self._write, self._watch)
        self._threads = [threading.Thread(target=each, name=f"shell of {name}", daemon=True) for each in work]
        for thread in self._threads:
            thread.start()
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
        written = self._errors.fileno()  # its offset is that at which the command writes
        lines = os.pread(written, 4096, max(0, os.fstat(written).st_size - 4096)).decode(errors="replace").split("\n")
        return masked(next((line.strip() for line in reversed(lines) if line.strip()), ""))

    def send(self, script: bytes, stdin: bytes) -> tuple[int, Future[Answer]]:
        """Begin a script; its number, and what will have its answer."""
        number, future = next(self._numbers), Future[Answer]()
        with self._lock:
            if self.ended:
                raise self._lost()
            self._waiting[number] = future
        self._requests.put(b"run %d %d %d\n" % (number, len(script), len(stdin)) + script + stdin)
        return number, future

    def end(self, number: int) -> None:
        """Kill a script with its processes."""
        self._requests.put(b"end %d\n" % number)

    def _write(self) -> None:
        """Write the requests, for as long as the shell reads them."""
        assert self._process.stdin
        with suppress(OSError), self._process.stdin as stdin:
            while request := self._requests.get():
                stdin.write(request)
                stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout
        with suppress(OSError, ValueError), self._process.stdout as stdout:
            for line in stdout:
                if answer := ANSWER.search(line):
                    number, status, out, err = answer.groups()
                    with self._lock:
                        future = self._waiting.pop(int(number), None)
                    if future:
                        future.set_result((int(status or b"137"), base64.b64decode(out), base64.b64decode(err)))

    def _watch(self) -> None:
        """After the end of the command no answer comes: what it has left on this machine must not keep its output open."""
        self._process.wait()
        kill_group(self._process)
        self._requests.put(b"")
        self._threads[0].join(10)
        with self._lock:
            self.ended = True
            left = [*self._waiting.values()]
            self._waiting.clear()
        lost = self._lost()
        for future in left:
            future.set_exception(lost)

    def _lost(self) -> ConnectionLost:
        return broken_off(self.name, self.said() or "its shell has ended")

    def close(self, *, at_once: bool = False) -> None:
        """End the shell, and the command that led to it; it has time to end by itself, unless ``at_once``."""
        self._requests.put(b"")
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0 if at_once else ENDING)
        end(self._process, ENDING)
        for thread in self._threads:
            thread.join(10)
        self._errors.close()
