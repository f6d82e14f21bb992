"""Runs commands on a host that a command such as ``srun`` or ``docker exec`` leads to: a machine, an allocation of a
scheduler, or a container.

A single shell on the host runs all commands, many of them at the same time, so that all commands run in one job step of
the scheduler, or in one container. For each command, the shell prints one line on stdout, which contains the outputs of
the command in base64. Other lines on stdout are skipped, because the command that leads to the host has printed these
lines, for instance a notice of a scheduler.
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
from perfbisect.host.local import LocalHost, kill_process_group, terminate_process_group
from perfbisect.host.protocol import PRINTED, Command, StreamedCommand
from perfbisect.host.remote import (
    Connection,
    OutputLimitExceeded,
    RemoteHost,
    check_started,
    connection_lost_error,
    script_prologue,
)
from perfbisect.masking import mask_credentials
from perfbisect.recipes.inventory import HostEntry

OPENING = 120.0  # most seconds from the start of the shell to its first answer
ENDING = 10.0  # seconds that the shell gets to end after its last request
ANSWER = re.compile(rb"perfbisect: (\d+) (\d*) ([\w+/=]*) ([\w+/=]*) end\s")

# A shell that runs scripts. A request is "run ID N M", followed by a script of N bytes and its stdin of M bytes (head
# reads exactly N and M bytes); or "end ID", which kills the session (setsid) of a script, but not the jobs of the
# script, which have other sessions. When a script has ended, the shell prints an ANSWER: ID, status, stdout, stderr.
# The first answer, with ID 0, shows that the shell is ready. $1 is the number of bytes that are kept of stdout and of
# stderr.
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
# Runs the script $1, and prints its status on stderr, because the command that leads to the host may end with a
# different status. stdout goes through cat, because tar does not write to a terminal, which stdout is under `srun
# --unbuffered`.
_STREAM = f"""\
exec 4>&1
status=$({{ {{ sh -c "$1" stream 3>&- 4>&-; echo "$?" >&3; }} | cat >&4; }} 3>&1)
echo '{_STATUS}'"$status" >&2
"""
# The first cat makes the program's stdin a pipe, because not every program can reopen a stdin that is a socket. kill 0
# ends this cat when the program has ended.
_PIPES = """cat | { { "$@"; echo "it ended with status $?" >&2; } | cat; kill 0; }"""

Answer = tuple[int, bytes, bytes]  # status, stdout, stderr


def connect(entry: HostEntry, _destination: str) -> "ThroughHost":
    """The host to which the command ``entry.through`` leads. A relative root folder is a path in the home folder on
    this host. See ``registry.Connect``.
    """
    root = entry.root if entry.root.startswith(("/", "~")) else f"~/{entry.root}"
    return ThroughHost(entry.name, PurePosixPath(root), Shell(entry.name, entry.through))


@dataclass(frozen=True, slots=True)
class ThroughHost(RemoteHost["ShellProcess"]):
    """A host whose commands run in one shell. If the shell ends, perfbisect starts a new shell. Each command of
    ``stream`` has its own process in place of the shell.
    """

    connection: "Shell"

    def run_script_once(self, script: str, stdin: bytes, mark: str, limit: float) -> Answer:
        """Run a script once in the shell. If perfbisect is interrupted, the script is killed. See
        ``RemoteHost.run_script_once``."""
        running = self.connection.open()
        number, future = running.send(script.encode(), stdin)
        try:
            status, out, err = future.result(limit)
        except TimeoutError:
            running.close(at_once=True)
            raise connection_lost_error(self.name, "") from None
        except (KeyboardInterrupt, SystemExit):
            with suppress(TimeoutError, EnvironmentFailure):
                running.kill_script(number)
                future.result(ENDING)
            raise
        if max(len(out), len(err)) > PRINTED:
            raise OutputLimitExceeded
        return status, out, err

    @contextmanager
    def begin_stream(self, argv: tuple[str, ...], peer: socket.socket) -> Iterator[StreamedCommand]:
        """Start a command whose stdin and stdout are the socket ``peer``; see ``Host.begin_stream``."""
        script = f"{script_prologue(Command(argv))}\nexec {shlex.join(argv)}"
        leading = ("sh", "-c", _PIPES, "pipes", *self.connection.command, "sh", "-c", _STREAM, "stream", script)
        with LocalHost(self.name, self.root).begin_stream(leading, peer) as running:

            def ended(stderr: str) -> tuple[int, str]:
                running.wait(stderr)
                stderr, separator, status = stderr.rpartition(_STATUS)
                if not separator:
                    raise connection_lost_error(self.name, "".join(status.strip().splitlines()[-2:][:1]))
                check_started(self.name, argv, stderr)
                return int(status.split()[0]), stderr

            yield running._replace(wait=ended)


class Shell(Connection["ShellProcess"]):
    """The shell that ``command`` starts on the host. The shell is started at its first use, and again if it ends.
    Thread-safe."""

    tells_at_once = True

    def __init__(self, name: str, command: Sequence[str]) -> None:
        """Only store the arguments. ``command`` is the prefix with which a command runs on the host, such as ``docker
        exec NAME``."""
        super().__init__(name)
        self.command = tuple(command)

    def new_connection(self) -> "ShellProcess":
        """Start a new shell. Raises EnvironmentFailure if the shell does not start."""
        return ShellProcess(self.name, self.command)

    def is_connected(self, state: "ShellProcess") -> bool:
        """Whether the shell still answers."""
        return not state.ended

    def close_connection(self, state: "ShellProcess") -> None:
        """End the shell."""
        state.close()


class ShellProcess:
    """One process of a shell."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.ended = False
        ready = Future[Answer]()
        self._waiting = {0: ready}
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._requests: SimpleQueue[bytes] = SimpleQueue()  # b"" is the last request
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``close``
        argv = [*command, "sh", "-c", _SERVER, "perfbisect", str(PRINTED + 1)]
        pipe = subprocess.PIPE
        try:  # start_new_session: Ctrl-C does not reach the shell
            self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=self._errors, start_new_session=True)
        except OSError as error:
            self._errors.close()
            raise EnvironmentFailure(
                f"host {name} cannot be reached: {command[0]} does not start on this machine: {error.strerror}"
            ) from error
        work = (self._read, self._write_requests, self._clean_up_at_end)
        self._threads = [threading.Thread(target=target, name=f"shell of {name}", daemon=True) for target in work]
        for thread in self._threads:
            thread.start()
        try:
            ready.result(OPENING)
        except BaseException as error:
            why = self.last_stderr_line() or "the host does not answer"
            self.close()
            if isinstance(error, TimeoutError | EnvironmentFailure):
                raise EnvironmentFailure(f"host {name} cannot be reached with {command[0]}: {why}") from None
            raise

    def last_stderr_line(self) -> str:
        """The last line that the command that leads to the host has printed on stderr, such as the reason why it
        ended."""
        if self._errors.closed:
            return ""
        written = self._errors.fileno()  # pread keeps the file offset, at which the command writes
        lines = os.pread(written, 4096, max(0, os.fstat(written).st_size - 4096)).decode(errors="replace").split("\n")
        return mask_credentials(next((line.strip() for line in reversed(lines) if line.strip()), ""))

    def send(self, script: bytes, stdin: bytes) -> tuple[int, Future[Answer]]:
        """Send a script to the shell; return the number of the script, and a future of the script's outputs."""
        number, future = next(self._numbers), Future[Answer]()
        with self._lock:
            if self.ended:
                raise self._lost()
            self._waiting[number] = future
        self._requests.put(b"run %d %d %d\n" % (number, len(script), len(stdin)) + script + stdin)
        return number, future

    def kill_script(self, number: int) -> None:
        """Kill the script with this number, and the processes that it started."""
        self._requests.put(b"end %d\n" % number)

    def _write_requests(self) -> None:
        """Write queued scripts to the shell's stdin, until an empty request is queued or the shell has ended."""
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

    def _clean_up_at_end(self) -> None:
        """Wait until the command that leads to the host has ended; kill the processes that this command has left on
        this machine and that keep its output open; and let all unanswered requests fail.
        """
        self._process.wait()
        kill_process_group(self._process)
        self._requests.put(b"")
        self._threads[0].join(10)
        with self._lock:
            self.ended = True
            unanswered = [*self._waiting.values()]
            self._waiting.clear()
        failure = self._lost()
        for future in unanswered:
            future.set_exception(failure)

    def _lost(self) -> ConnectionLost:
        return connection_lost_error(self.name, self.last_stderr_line() or "the shell on the host ended")

    def close(self, *, at_once: bool = False) -> None:
        """End the shell and the command that started the shell. If ``at_once`` is false, first wait some time for the
        command to end by itself.
        """
        self._requests.put(b"")
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0 if at_once else ENDING)
        terminate_process_group(self._process, ENDING)
        for thread in self._threads:
            thread.join(10)
        self._errors.close()
