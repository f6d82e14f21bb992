"""One connection to a host over SSH, with the user's own settings: opened when first used, opened again when lost.

Settings, keys, agent and jump hosts are those of ~/.ssh/config, as fabric and paramiko read them. A host, or a jump
host, whose key is not known is refused.
"""

import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfbisect.errors import ConnectionLost, EnvironmentFailure, UsageError
from perfbisect.host import remote

if TYPE_CHECKING:
    from fabric import Connection
    from paramiko import Channel, PKey, SSHClient

PROMPT = 15  # seconds in which a running host answers

KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
KNOWN_TO_ALL = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"


class HostKeyRefused(EnvironmentFailure):
    """The key of a host is unknown, or is not the one that is known. Trying again does not help."""


class SshConnection(remote.Connection):
    """One connection to a host over SSH."""

    def __init__(self, name: str, address: str, port: int = 0) -> None:
        """Open nothing yet.

        ``address`` is an ssh destination: a name, an alias of the user's settings,
        user@name; ``port`` 0 leaves the port to these settings.
        """
        super().__init__(name)
        self.address = address
        self.port = port
        self._connection: Connection | None = None

    def session(self) -> "Channel":
        """A new channel of the connection. Raises ConnectionLost when the connection is lost; see also ``open``."""
        from paramiko import SSHException

        connection = self.open()
        try:
            channel: Channel = connection.transport.open_session(timeout=remote.SILENCE)
            return channel
        except (SSHException, OSError, EOFError) as error:
            connection.transport.close()
            raise remote.broken_off(self.name, str(error)) from error

    def open(self) -> "Connection":
        """The connection, opened if it is closed.

        Raises EnvironmentFailure with advice when the host cannot be reached or refuses the login: ConnectionLost if it
        was open before, HostKeyRefused when the host's key is not the known one.
        """
        with self._lock:
            if self._connection is None or not self._connection.is_connected:
                self._drop()
                try:
                    self._connection = self._opened()
                except HostKeyRefused:
                    raise
                except EnvironmentFailure as failure:  # a host that is starting refuses connections or logins
                    if not self.was_open:
                        raise
                    lost = f"the connection to host {self.name} is lost: {failure}"
                    raise ConnectionLost(lost, failure.advice) from failure
                self.was_open, self._given_up = True, False
            return self._connection

    def close(self) -> None:
        """Close the connection. The next use opens it again."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        each: Any = self._connection
        self._connection = None
        while each is not None and not isinstance(each, str):  # a string is a command of the user's that connects
            each.client.close()
            each = each.gateway

    def _opened(self) -> "Connection":
        import paramiko
        from fabric import Connection
        from paramiko.hostkeys import InvalidHostKey

        logging.getLogger("paramiko").addHandler(logging.NullHandler())  # its messages are repeated by our errors
        user, _, host = self.address.rpartition("@")
        try:
            connection = Connection(host, user=user or None, port=self.port or None)
        except (ValueError, paramiko.ConfigParseError) as error:
            raise UsageError(
                f"host {self.name} cannot be reached at {self.address}: {error}", _correct(self.name)
            ) from error
        hops: list[Any] = [connection]
        while hops[-1].gateway is not None and not isinstance(hops[-1].gateway, str):
            hops.append(hops[-1].gateway)
        try:
            for hop in reversed(hops):
                _be_prompt(hop)
                _trust_only_known(self.name, hop)
                hop.open()
                _keep_alive(hop)
        except HostKeyRefused:
            raise
        except (paramiko.SSHException, OSError, EOFError, InvalidHostKey) as error:
            where = f"host {self.name}" if hop is connection else f"jump host {hop.original_host} of host {self.name}"
            raise self._refused(hop, where, error) from error
        return connection

    def _refused(self, hop: "Connection", where: str, error: Exception) -> EnvironmentFailure:
        """The error for a failed attempt to connect to ``where``."""
        import paramiko

        at = f"{hop.host}:{hop.port}"
        ssh = _ssh(hop)
        match error:
            case paramiko.BadHostKeyException():
                known = f"[{hop.host}]:{hop.port}" if hop.port != 22 else hop.host
                return HostKeyRefused(
                    f"the key of {where} is not the one that is known: {at} showed {_shown(error.key)}. The"
                    " connection may be intercepted",
                    f"If it has been changed on purpose: ssh-keygen -R '{known}', and then {_add(hop)}",
                )
            case paramiko.PasswordRequiredException():
                return EnvironmentFailure(
                    f"the key for {where} is locked by a passphrase", "Unlock it for the agent first: ssh-add"
                )
            case paramiko.AuthenticationException():
                return EnvironmentFailure(
                    f"{where} refuses to log {hop.user} in: {_said(error)}",
                    f"Only keys are used, no passwords. `{ssh}` should work without one; ssh-copy-id puts a key there.",
                )
            case socket.gaierror():
                return EnvironmentFailure(
                    f"the name {hop.host} of {where} is not known: {_said(error)}", _correct(self.name)
                )
            case ConnectionRefusedError() | paramiko.ssh_exception.NoValidConnectionsError():
                return EnvironmentFailure(
                    f"{where} does not answer at {at}: {_said(error)}", f"Is sshd running there? Try: {ssh}"
                )
            case paramiko.ChannelException():
                return EnvironmentFailure(f"{where} cannot be reached at {at} from its jump host", _correct(self.name))
            case OSError():
                return EnvironmentFailure(
                    f"{where} cannot be reached at {at}: {_said(error)}",
                    f"Is it running, and is no firewall in between? Try: {ssh}",
                )
            case _:
                return EnvironmentFailure(f"{where} does not speak SSH at {at}: {_said(error)}", f"Try: {ssh}")


def _trust_only_known(name: str, hop: "Connection") -> None:
    """Accept only hosts whose keys are in the user's known_hosts files."""
    from paramiko import MissingHostKeyPolicy

    class Refuse(MissingHostKeyPolicy):
        def missing_host_key(self, client: "SSHClient", hostname: str, key: "PKey") -> None:
            raise HostKeyRefused(
                f"the key of host {name} is not known: {hostname} showed {_shown(key)}",
                f"Compare it with the host's own, and then {_add(hop)}",
            )

    client: SSHClient = hop.client
    for setting, usual in (("userknownhostsfile", KNOWN_HOSTS), ("globalknownhostsfile", KNOWN_TO_ALL)):
        for file in str(hop.ssh_config.get(setting, usual)).split():
            path = Path(file).expanduser()
            if path.is_file():
                client.load_system_host_keys(str(path))
    client.set_missing_host_key_policy(Refuse())


def _be_prompt(hop: "Connection") -> None:
    """Limit each step of opening it to PROMPT; the first answer to the ConnectTimeout of the user's settings."""
    hop.connect_timeout = hop.connect_timeout or PROMPT
    hop.connect_kwargs.setdefault("banner_timeout", PROMPT)
    hop.connect_kwargs.setdefault("auth_timeout", PROMPT)


def _keep_alive(hop: "Connection") -> None:
    """Notice a missing answer after SILENCE seconds, and send small messages without delay."""
    hop.transport.set_keepalive(5)
    if isinstance(hop.transport.sock, socket.socket):
        hop.transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, remote.SILENCE * 1000)
        hop.transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _add(hop: "Connection") -> str:
    """The command with which the user makes a host's key known."""
    if hop.gateway is not None:
        return f"add it with: ssh {hop.original_host} true"
    port = f"-p {hop.port} " if hop.port != 22 else ""
    return f"add it with: ssh-keyscan {port}{hop.host} >>~/.ssh/known_hosts"


def _ssh(hop: "Connection") -> str:
    return f"ssh -p {hop.port} {hop.user}@{hop.original_host} true"


def _correct(name: str) -> str:
    return f"Correct `hosts.{name}.address` in hosts.toml, or HostName in ~/.ssh/config."


def _shown(key: "PKey") -> str:
    return f"{key.get_name()} {key.fingerprint}"


def _said(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).rstrip(".") or "it closed the connection"
