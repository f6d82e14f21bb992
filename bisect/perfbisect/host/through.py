"""A machine, an allocation or a container that a command leads to, such as ``srun`` or ``docker exec``, as a host."""

import contextlib
import shlex
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath

from perfbisect.errors import EnvironmentFailure
from perfbisect.host.commands import PRINTED, judged, last_of
from perfbisect.host.protocol import Result
from perfbisect.host.remote import RemoteHost, TooMuch, broken_off, check_started, require
from perfbisect.host.shell import Shell
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
class ThroughHost(RemoteHost):
    """Commands run in one shell, which is started again when it is lost; a stream has a process of its own."""

    connection: Shell

    def exchange(self, script: str, stdin: bytes, mark: str, limit: float) -> tuple[int, bytes, bytes]:
        """Run a script once, in the shell, which ends it when it is interrupted; see ``RemoteHost.exchange``."""
        status, out, err = self.connection.call(script, stdin, limit)
        if max(len(out), len(err)) > PRINTED:
            raise TooMuch
        return status, out, err

    @contextlib.contextmanager
    def stream(self, argv: Sequence[str]) -> Iterator[socket.socket]:
        """Run ``argv`` with its stdin and stdout on a socket; see ``Host.stream``."""
        command = [
            *self.connection.command,
            "sh",
            "-c",
            _STREAM,
            "stream",
            f"{require(argv[0])}\nexec {shlex.join(argv)}",
        ]
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
            raise broken_off(self.name, why)
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
