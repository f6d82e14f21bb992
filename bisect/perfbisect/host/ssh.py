"""Connects to a host over SSH, with the user's SSH settings.

fabric and paramiko read the settings, the keys and the jump hosts from ~/.ssh/config, and use the user's SSH agent. A
host or jump host with an unknown key is refused. Commands run in SSH channels of fabric's connection. fabric's method
``run`` is not used, because it sends stdin byte by byte, and keeps all output of a command in memory.
"""

import logging
import shlex
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.host import remote
from perfbisect.host.protocol import PRINTED, Command, StreamedCommand
from perfbisect.host.remote import SILENCE, OutputLimitExceeded, RemoteHost, check_started, connection_lost_error
from perfbisect.host.remote import Connection as HostConnection
from perfbisect.recipes.inventory import HostEntry

if TYPE_CHECKING:
    from fabric import Connection
    from paramiko import Channel, PKey, SSHClient

PROMPT = 15  # seconds in which a running host answers

KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
KNOWN_TO_ALL = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"

# Ends every process of the session in which the command marked $1 runs; jobs have other sessions. The mark is an argument
# of the session's first process.
_END = """\
ps -e -o pid= -o sess= -o args= | awk -v mark="$1" '
    { session[$1] = $2; if ($1 == $2 && index($0, mark)) theirs = $2 }
    END { for (pid in session) if (theirs && session[pid] == theirs) print pid }
' | xargs -r kill -s KILL 2>/dev/null || :
"""


def connect(entry: HostEntry, destination: str) -> "SshHost":
    """The host ``entry`` at an SSH destination. If the root folder of ``entry`` is relative, it is in the home folder
    of the user on the host. See ``registry.Connect``.
    """
    root = entry.root if entry.root.startswith(("/", "~")) else f"~/{entry.root}"
    return SshHost(entry.name, PurePosixPath(root), SshConnection(entry.name, destination, entry.port))


@dataclass(frozen=True, slots=True)
class SshHost(RemoteHost["Connection"]):
    """A host whose commands run in channels of one SSH connection."""

    connection: "SshConnection"

    @contextmanager
    def begin_stream(self, argv: tuple[str, ...], peer: socket.socket) -> Iterator[StreamedCommand]:
        """Start a command whose stdin and stdout are the socket ``peer``; see ``Host.begin_stream``."""
        script = f"{remote.script_prologue(Command(argv))}\n{shlex.join(argv)}"
        with self._channel(script, "perfbisect-stream") as channel, ThreadPoolExecutor(2) as pool:

            def end(said: str) -> tuple[int, str]:
                check_started(self.name, argv, said)
                return self._status(channel), said

            # If the command stops reading, writing to the other end of the socket fails instead of blocking.
            pool.submit(
                copy_stream, peer.recv, channel.sendall, partial(peer.shutdown, socket.SHUT_RD), channel.shutdown_write
            )
            pool.submit(copy_stream, channel.recv, peer.sendall, partial(peer.shutdown, socket.SHUT_WR))
            yield StreamedCommand(channel.recv_stderr, end, channel.close)

    def _channel(self, script: str, mark: str) -> "Channel":
        """A new SSH channel in which ``script`` runs. Raises ConnectionLost."""
        from paramiko import SSHException

        text = f"{{\n{script}\n}}".encode()
        connection = self.connection.open()
        try:
            channel: Channel = connection.transport.open_session(timeout=SILENCE)
        except (SSHException, OSError, EOFError) as error:
            connection.transport.close()
            raise connection_lost_error(self.name, str(error)) from error
        try:
            channel.exec_command(script_receiver(len(text), mark))
            channel.sendall(text)
        except (SSHException, OSError, EOFError) as error:
            raise connection_lost_error(self.name, str(error)) from error
        return channel

    def _status(self, channel: "Channel") -> int:
        if (status := channel.recv_exit_status()) < 0:
            raise connection_lost_error(self.name, "the host closed the channel")
        return status

    def run_script_once(self, script: str, stdin: bytes, mark: str, limit: float) -> tuple[int, bytes, bytes]:
        """Run a script once, in a new channel; see ``RemoteHost.run_script_once``."""
        with self._channel(script, mark) as channel, ThreadPoolExecutor(2) as pool:
            try:
                channel.settimeout(limit)
                errors = pool.submit(_read, channel.recv_stderr, channel.close)
                pool.submit(copy_stream, BytesIO(stdin).read, channel.sendall, channel.shutdown_write)
                stdout = _read(channel.recv, channel.close)
                stderr = errors.result()
                if not channel.status_event.wait(limit):
                    raise TimeoutError
            except OSError as error:  # after a timeout, closing the transport ends all other channels, too
                channel.get_transport().close()
                raise connection_lost_error(self.name, str(error)) from error
            finally:
                channel.close()
            return self._status(channel), stdout, stderr

    def kill_script(self, mark: str) -> None:
        """After a lost connection or an interruption, kill the processes that remain of the command with the mark
        ``mark``."""
        self.run_script_once(remote.shell_script(Command(("sh", "-c", _END, "end", mark))), b"", "perfbisect-end", 60)


def script_receiver(length: int, mark: str) -> str:
    """A command line for the host: it reads a script of ``length`` bytes from stdin, and runs the script.

    The command line is valid in every login shell that a user may have. Only the values of ``length`` and ``mark``
    differ between the command lines of different scripts. ``head`` reads exactly ``length`` bytes. No part of a
    truncated script is executed, because the shell refuses a script without its last brace. If ``head`` is killed, the
    shell kills itself; otherwise it would run an empty script, and end with the exit status 0.
    """
    receive = f'perfbisect_script=$(head -c {length}) || kill -s KILL $$; eval "$perfbisect_script"'
    return f"exec sh -c '{receive}' {mark}"


def _read(receive: Callable[[int], bytes], close: Callable[[], None]) -> bytes:
    """The bytes of a stream up to its end. If the connection is lost, the stream also ends; the caller notices the loss
    by the missing exit status of the command.

    If the stream is longer than ``PRINTED``, the function closes the channel, which also ends the command's other
    stream, and raises OutputLimitExceeded.
    """
    came = bytearray()
    with suppress(EOFError):  # raised at the end of a channel whose connection is closed
        while data := receive(1 << 16):
            came += data
            if len(came) > PRINTED:
                close()
                raise OutputLimitExceeded
    return bytes(came)


def copy_stream(read: Callable[[int], bytes], write: Callable[[bytes], object], *closing: Callable[[], object]) -> None:
    """Copy data from ``read`` to ``write`` until the data ends or one side is closed; then call the functions
    ``closing``. No error is raised if a side was closed too early, because the command then has a failure status.
    """
    closed = suppress(OSError, EOFError)  # a channel raises EOFError if its connection is closed
    with closed:
        while data := read(1 << 16):
            write(data)
    for close in closing:
        with closed:
            close()


class HostKeyRefused(EnvironmentFailure):
    """The key of a host is unknown, or differs from the known key. Trying again does not help."""


class SshConnection(HostConnection["Connection"]):
    """A connection to a host over SSH, opened by fabric."""

    final = (HostKeyRefused,)

    def __init__(self, name: str, address: str, port: int = 0) -> None:
        """Do not open a connection yet.

        ``address`` is an SSH destination: a name, an alias in ~/.ssh/config, or user@name. If ``port`` is 0, the port
        is from ~/.ssh/config.
        """
        super().__init__(name)
        self.address = address
        self.port = port

    def is_connected(self, state: "Connection") -> bool:
        """Whether the connection is open."""
        return bool(state.is_connected)

    def close_connection(self, state: "Connection") -> None:
        """Close the connection, and the connections to its jump hosts."""
        for hop in _hops(state):
            hop.client.close()

    def new_connection(self) -> "Connection":
        """Open a new connection.

        Raises EnvironmentFailure with advice if the host cannot be reached or refuses the login; raises HostKeyRefused
        if the host's key is unknown or differs from the known key.
        """
        import paramiko
        from fabric import Connection
        from paramiko.hostkeys import InvalidHostKey

        logging.getLogger("paramiko").addHandler(logging.NullHandler())  # our errors contain paramiko's messages
        user, _, host = self.address.rpartition("@")
        try:
            connection = Connection(host, user=user or None, port=self.port or None)
        except (ValueError, paramiko.ConfigParseError) as error:
            text = f"host {self.name} cannot be reached at {self.address}: {error}"
            raise UsageError(text, _correct(self.name)) from error
        try:
            for hop in reversed(_hops(connection)):
                # Each step must end within PROMPT seconds; the first step within the user's ConnectTimeout, if set.
                hop.connect_timeout = hop.connect_timeout or PROMPT
                for step in ("banner_timeout", "auth_timeout"):
                    hop.connect_kwargs.setdefault(step, PROMPT)
                _accept_only_known_keys(self.name, hop)
                hop.open()
                # A connection without answers ends after SILENCE seconds, and small messages are sent without delay.
                hop.transport.set_keepalive(5)
                if isinstance(hop.transport.sock, socket.socket):
                    to = partial(hop.transport.sock.setsockopt, socket.IPPROTO_TCP)
                    to(socket.TCP_USER_TIMEOUT, SILENCE * 1000)
                    to(socket.TCP_NODELAY, 1)
        except HostKeyRefused:
            raise
        except (paramiko.SSHException, OSError, EOFError, InvalidHostKey) as error:
            where = f"host {self.name}" if hop is connection else f"jump host {hop.original_host} of host {self.name}"
            raise _login_error(self.name, hop, where, error) from error
        return connection


def _hops(connection: "Connection") -> list[Any]:
    """The connection to a host, then the connections to its jump hosts, last jump host first. A gateway that is a
    string is left out, because it is a command (ProxyCommand in ~/.ssh/config), and not a connection.
    """
    hops: list[Any] = [connection]
    while hops[-1].gateway is not None and not isinstance(hops[-1].gateway, str):
        hops.append(hops[-1].gateway)
    return hops


def _login_error(name: str, hop: "Connection", where: str, error: Exception) -> EnvironmentFailure:
    """The error for a failed login; ``where`` is the name of the host or the jump host in the message."""
    import paramiko

    at = f"{hop.host}:{hop.port}"
    ssh = f"ssh -p {hop.port} {hop.user}@{hop.original_host} true"
    reason = error.strerror if isinstance(error, OSError) else ""
    reason = reason or str(error).rstrip(".") or "the host closed the connection"
    match error:
        case paramiko.BadHostKeyException():
            known_host = f"[{hop.host}]:{hop.port}" if hop.port != 22 else hop.host
            return HostKeyRefused(
                f"the key of {where} differs from the known key: {at} showed {_shown_key(error.key)}. The"
                " connection may be intercepted",
                f"If the key of the host was changed on purpose: ssh-keygen -R '{known_host}', and then"
                f" {_add_known_host_command(hop)}",
            )
        case paramiko.PasswordRequiredException():
            why = f"the key for {where} is locked by a passphrase"
            advice = "First unlock the key for the agent: ssh-add"
        case paramiko.AuthenticationException():
            why = f"{where} refuses to log {hop.user} in: {reason}"
            advice = f"perfbisect logs in with a key, without a password. ssh-copy-id copies your key to the host. To check: `{ssh}`"
        case socket.gaierror():
            why, advice = f"the name {hop.host} of {where} cannot be resolved: {reason}", _correct(name)
        case ConnectionRefusedError() | paramiko.ssh_exception.NoValidConnectionsError():
            why, advice = f"{where} does not answer at {at}: {reason}", f"Check whether sshd runs on the host: {ssh}"
        case paramiko.ChannelException():
            why, advice = f"{where} cannot be reached at {at} from its jump host", _correct(name)
        case OSError():
            why = f"{where} cannot be reached at {at}: {reason}"
            advice = f"Check whether the host runs, and whether a firewall blocks the connection: {ssh}"
        case _:
            why, advice = f"{where} does not speak SSH at {at}: {reason}", f"Try: {ssh}"
    return EnvironmentFailure(why, advice)


def _accept_only_known_keys(name: str, hop: "Connection") -> None:
    """Make the connection refuse a host whose key is not in the known_hosts file of the user or of the system."""
    from paramiko import MissingHostKeyPolicy

    class Refuse(MissingHostKeyPolicy):
        def missing_host_key(self, client: "SSHClient", hostname: str, key: "PKey") -> None:
            raise HostKeyRefused(
                f"the key of host {name} is not known: {hostname} showed {_shown_key(key)}",
                f"Compare this key with the key on the host itself. If they are equal, {_add_known_host_command(hop)}",
            )

    client: SSHClient = hop.client
    for setting, usual in (("userknownhostsfile", KNOWN_HOSTS), ("globalknownhostsfile", KNOWN_TO_ALL)):
        for file in str(hop.ssh_config.get(setting, usual)).split():
            path = Path(file).expanduser()
            if path.is_file():
                client.load_system_host_keys(str(path))
    client.set_missing_host_key_policy(Refuse())


def _add_known_host_command(hop: "Connection") -> str:
    """The command with which the user adds a host's key to the known keys."""
    if hop.gateway is not None:
        return f"add it with: ssh {hop.original_host} true"
    port = f"-p {hop.port} " if hop.port != 22 else ""
    return f"add it with: ssh-keyscan {port}{hop.host} >>~/.ssh/known_hosts"


def _correct(name: str) -> str:
    return f"Correct `hosts.{name}.address` in hosts.toml, or HostName in ~/.ssh/config."


def _shown_key(key: "PKey") -> str:
    return f"{key.get_name()} {key.fingerprint}"
