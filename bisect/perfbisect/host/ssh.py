"""A machine reached over SSH as a host."""

import contextlib
import shlex
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from perfbisect.host.commands import PRINTED, judged, last_of
from perfbisect.host.protocol import Result
from perfbisect.host.remote import RemoteHost, TooMuch, broken_off, check_started, require, script
from perfbisect.host.ssh_connection import SshConnection
from perfbisect.recipes.inventory import HostEntry

if TYPE_CHECKING:
    from paramiko import Channel

# Ends every process of the session in which the command marked $1 runs; jobs have sessions of their own. The mark is
# an argument of the session's first process.
_END = """\
ps -e -o pid= -o sess= -o args= | awk -v mark="$1" '
    { session[$1] = $2; if ($1 == $2 && index($0, mark)) theirs = $2 }
    END { for (pid in session) if (theirs && session[pid] == theirs) print pid }
' | xargs -r kill -s KILL 2>/dev/null || :
"""


def connect(entry: HostEntry, destination: str) -> "SshHost":
    """The host at an ssh destination, where a relative root begins in the home of the remote user; see
    ``registry.ConnectionModule``.
    """
    root = entry.root if entry.root.startswith(("/", "~")) else f"~/{entry.root}"
    return SshHost(entry.name, PurePosixPath(root), SshConnection(entry.name, destination, entry.port))


@dataclass(frozen=True, slots=True)
class SshHost(RemoteHost):
    """Commands run in channels of one connection."""

    connection: SshConnection

    @contextlib.contextmanager
    def stream(self, argv: Sequence[str]) -> Iterator[socket.socket]:
        """Run ``argv`` with its stdin and stdout on a socket; see ``Host.stream``."""
        channel = self._open(f"{require(argv[0])}\n{shlex.join(argv)}", "perfbisect-stream")
        near, far = socket.socketpair()
        with near, far, channel, ThreadPoolExecutor(3) as pool:
            try:
                errors = pool.submit(last_of, channel.recv_stderr)
                pool.submit(_forward, far, channel)
                pool.submit(_backward, channel, far)
                yield near
                near.close()
                stderr = errors.result().decode(errors="replace")
                status = channel.recv_exit_status()
            except BaseException:
                near.close()
                channel.close()
                raise
        if status < 0:
            raise broken_off(self.name, "it closed the channel")
        result = Result(tuple(argv), status, "", stderr)
        check_started(self.name, result, None)
        judged(self.name, result, 0, True)

    def _open(self, script: str, mark: str) -> "Channel":
        """A channel in which ``script`` runs."""
        from paramiko import SSHException

        text = f"{{\n{script}\n}}".encode()
        try:
            channel = self.connection.session()
            channel.exec_command(receiver(len(text), mark))
            channel.sendall(text)
        except (SSHException, OSError, EOFError) as error:
            raise broken_off(self.name, str(error)) from error
        return channel

    def exchange(self, script: str, stdin: bytes, mark: str, limit: float) -> tuple[int, bytes, bytes]:
        """Run a script once, in a channel of its own; see ``RemoteHost.exchange``."""
        with self._open(script, mark) as channel, ThreadPoolExecutor(2) as pool:
            try:
                channel.settimeout(limit)
                errors = pool.submit(_read, channel.recv_stderr, channel.close)
                pool.submit(_send, channel, stdin)
                stdout = _read(channel.recv, channel.close)
                stderr = errors.result()
                if not channel.status_event.wait(limit):
                    raise TimeoutError
                status = channel.recv_exit_status()
            except OSError as error:  # a timeout: closing the transport ends every other channel, too
                channel.get_transport().close()
                raise broken_off(self.name, str(error)) from error
            finally:
                channel.close()
        if status < 0:
            raise broken_off(self.name, "it closed the channel")
        return status, stdout, stderr

    def end(self, mark: str) -> None:
        """Kill the rest of the command with that mark, after a lost connection or an interruption."""
        self.exchange(script(["sh", "-c", _END, "end", mark], None, None, 60, 0), b"", "perfbisect-end", 60)


def receiver(length: int, mark: str) -> str:
    """The command line that reads a script of ``length`` bytes from stdin and runs it.

    It is what the user's login shell has to understand, and the same for all scripts. head reads not a byte too much. A
    script that is cut short is not executed as far as it came: without its last brace it is no script. Where head is
    killed, so is the shell: an empty script would end with status 0.
    """
    receive = f'perfbisect_script=$(head -c {length}) || kill -s KILL $$; eval "$perfbisect_script"'
    return f"exec sh -c '{receive}' {mark}"


# What a channel raises without its connection: the second where it writes, as it also does while it reads.
_BROKEN = (OSError, EOFError)


def _read(receive: Callable[[int], bytes], close: Callable[[], None]) -> bytes:
    """Everything up to the end of the stream. The status shows whether the connection was lost.

    Raises TooMuch, the channel closed: that ends the other stream, too.
    """
    came = bytearray()
    with contextlib.suppress(EOFError):
        while data := receive(1 << 16):
            came += data
            if len(came) > PRINTED:
                close()
                raise TooMuch
    return bytes(came)


def _send(channel: "Channel", data: bytes) -> None:
    """Write all of a command's stdin. A command may end without reading it."""
    with contextlib.suppress(*_BROKEN):
        channel.sendall(data)
        channel.shutdown_write()


def _forward(source: socket.socket, channel: "Channel") -> None:
    """Copy a socket to a channel, its end included. After the end of the channel, writing to the socket fails with a
    broken pipe instead of blocking.
    """
    with contextlib.suppress(*_BROKEN):
        while data := source.recv(1 << 16):
            channel.sendall(data)
    with contextlib.suppress(OSError):
        source.shutdown(socket.SHUT_RD)
    with contextlib.suppress(*_BROKEN):
        channel.shutdown_write()


def _backward(channel: "Channel", sink: socket.socket) -> None:
    """Copy a channel to a socket, its end included."""
    with contextlib.suppress(*_BROKEN):
        while data := channel.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
