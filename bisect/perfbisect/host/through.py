"""A machine, an allocation or a container that a command leads to, such as ``srun`` or ``docker exec``, as a host."""

import contextlib
import itertools
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath

from perfbisect.errors import ConnectionLost, EnvironmentFailure
from perfbisect.host.commands import GRACE, PRINTED, check_started, finished, judged, last_of, require, script, too_much
from perfbisect.host.protocol import ConnectionEvent, ConnectionState, Host, Listener, Result, Unsubscribe
from perfbisect.host.shell import Shell
from perfbisect.host.ssh_connection import LONGEST_PAUSE, PATIENCE, SILENCE
from perfbisect.recipes.inventory import HostEntry

_STATUS = "perfbisect: ended with status "
# Runs the script $1, and tells its status: that of the command that leads here may be its own. tar writes to no terminal,
# which is what stdout is below `srun --unbuffered`.
_STREAM = f"""\
exec 4>&1
status=$({{ {{ sh -c "$1" stream 3>&- 4>&-; echo "$?" >&3; }} | cat >&4; }} 3>&1)
echo '{_STATUS}'"$status" >&2
"""


def connect(entry: HostEntry, _destination: str) -> "ThroughHost":
    """The host behind ``entry.through``, where a relative root begins in the home there; see
    ``registry.ConnectionModule``.
    """
    root = entry.root if entry.root.startswith(("/", "~")) else f"~/{entry.root}"
    return ThroughHost(entry.name, PurePosixPath(root), Shell(entry.name, entry.through))


@dataclass(frozen=True, slots=True)
class ThroughHost(Host):
    """Commands run in one shell, which is started again when it is lost; a stream has a process of its own."""

    name: str
    root: PurePosixPath
    shell: Shell
    listeners: list[Listener] = field(default_factory=list)
    is_local = False  # even if the command leads to this machine

    def acquire(self) -> None:
        """Start the shell."""
        self.shell.open()

    def release(self) -> None:
        """End the shell."""
        self.shell.close()

    def subscribe(self, listener: Listener) -> Unsubscribe:
        """Report that the shell is lost, and started again; see ``Host.subscribe``."""
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def give_up_after(self, seconds: float) -> None:
        """Start a lost shell again for so long at most."""
        self.shell.patience = seconds

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
        data = stdin.encode()
        text = script(argv, cwd, env, timeout, len(data))
        deadline: float | None = None
        for again in itertools.count(1):
            began = time.monotonic()
            try:
                status, out, err = self.shell.call(text, data, timeout + GRACE + SILENCE)
                break
            except ConnectionLost as lost:
                now, patience = time.monotonic(), min(self.shell.patience, PATIENCE)
                deadline = deadline or now + timeout + patience  # also for one that is lost again and again
                if now > deadline:
                    raise
                self._reopen(lost, min(deadline, now + patience))
                time.sleep(min(0.1 * again, 5))
        if max(len(out), len(err)) > PRINTED:
            raise too_much(self.name, tuple(argv))
        stdout, stderr = (each.decode(errors="replace") for each in (out, err))
        result = finished(tuple(argv), timeout, time.monotonic() - began, status, stdout, stderr)
        check_started(self.name, result, cwd)
        return judged(self.name, result, timeout, check)

    def _reopen(self, lost: ConnectionLost, deadline: float) -> None:
        """Start the lost shell again, with growing pauses until ``deadline``. Raises ConnectionLost after that."""
        pause = 0.5
        left = deadline - time.monotonic()
        self._report(ConnectionState.RETRYING, f"{lost}; trying again for {left:.0f} s")
        while True:
            try:
                self.shell.open()
            except ConnectionLost as failure:
                if (left := deadline - time.monotonic()) <= 0:
                    self._report(ConnectionState.LOST, str(failure))
                    raise
                time.sleep(min(pause, left))
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                self._report(ConnectionState.RESTORED, f"the connection to host {self.name} is restored")
                return

    def _report(self, state: ConnectionState, text: str) -> None:
        for listener in tuple(self.listeners):
            listener(ConnectionEvent(self.name, state, text))

    @contextlib.contextmanager
    def stream(self, argv: Sequence[str]) -> Iterator[socket.socket]:
        """Run ``argv`` with its stdin and stdout on a socket; see ``Host.stream``."""
        command = [*self.shell.command, "sh", "-c", _STREAM, "stream", f"{require(argv[0])}\nexec {shlex.join(argv)}"]
        near, far = socket.socketpair()
        with near:
            try:
                # Pipes, since not every program can open its stdin again if that is a socket.
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    start_new_session=True,
                )
            except OSError as error:
                far.close()
                raise EnvironmentFailure(
                    f"host {self.name} cannot be reached: {command[0]} does not start: {error.strerror}"
                ) from error
            with far, process, ThreadPoolExecutor(3) as pool:
                assert process.stdin
                assert process.stdout
                assert process.stderr
                try:
                    errors = pool.submit(last_of, process.stderr.read)
                    # Where the command does not read on, writing to the socket fails instead of blocking.
                    unread = partial(far.shutdown, socket.SHUT_RD)
                    pool.submit(_copy, far.recv, process.stdin.write, unread, process.stdin.close)
                    pool.submit(_copy, process.stdout.read, far.sendall, partial(far.shutdown, socket.SHUT_WR))
                    yield near
                    near.close()
                    stderr = errors.result().decode(errors="replace")
                    process.wait()
                except BaseException:
                    near.close()
                    process.kill()
                    raise
        said, told, status = stderr.rpartition(_STATUS)
        if not told:
            why = (stderr.strip().splitlines() or [f"it ended with status {process.returncode}"])[-1]
            raise ConnectionLost(f"the connection to host {self.name} broke off: {why}")
        result = Result(tuple(argv), int(status.split()[0]), "", said)
        check_started(self.name, result, None)
        judged(self.name, result, 0, True)


def _copy(
    read: Callable[[int], bytes | None], write: Callable[[bytes], object], *closing: Callable[[], object]
) -> None:
    """Copy all of one end to the other, then close. An end that is gone ends it: the status of the command tells."""
    with contextlib.suppress(OSError, ValueError):
        while data := read(1 << 16):
            unsent = memoryview(data)
            while unsent:
                written = write(unsent.tobytes())
                unsent = unsent[written if isinstance(written, int) else len(unsent) :]
    for close in closing:
        with contextlib.suppress(OSError, ValueError):
            close()
