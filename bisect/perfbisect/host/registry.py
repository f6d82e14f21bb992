"""The kinds of connection, by the scheme of a host's address in hosts.toml.

A new kind is a module with ``connect``, and a line here.
"""

from typing import Protocol

from perfbisect.errors import UsageError
from perfbisect.host import local, ssh
from perfbisect.host.protocol import Host
from perfbisect.recipes.inventory import HostEntry


class ConnectionModule(Protocol):
    """What a module of this folder provides for one kind of connection."""

    def connect(self, entry: HostEntry, destination: str) -> Host:
        """The host that ``entry`` describes, acquired, its root folder created.

        ``destination`` is the address without its scheme. Raises EnvironmentFailure when the host cannot be reached or
        its root folder cannot be created.
        """


CONNECTIONS: dict[str, ConnectionModule] = {"local": local, "ssh": ssh}


def connect(entry: HostEntry) -> Host:
    """The host that ``entry`` describes; see ``ConnectionModule.connect``.

    ``local`` is a scheme by itself; any other address without a scheme is an ssh destination.
    """
    scheme, separator, destination = entry.address.partition("://")
    if not separator:
        scheme, destination = ("local", "") if entry.address == "local" else ("ssh", entry.address)
    if scheme not in CONNECTIONS:
        raise UsageError(
            f"Host {entry.name} has the address {entry.address!r}, and no kind of connection is named {scheme!r}.",
            f"Known are {', '.join(CONNECTIONS)}: correct `hosts.{entry.name}.address` in hosts.toml.",
        )
    return CONNECTIONS[scheme].connect(entry, destination)
