"""The kinds of connection, by the scheme of a host's address in hosts.toml.

A new kind is a module with ``connect``, and a line here.
"""

from dataclasses import is_dataclass, replace
from typing import Protocol

from perfbisect.errors import UsageError
from perfbisect.host import leases, local, ssh, through
from perfbisect.host.leases import LeasedHost
from perfbisect.host.protocol import Host
from perfbisect.host.root import claim
from perfbisect.recipes.inventory import HostEntry, reached


class ConnectionModule(Protocol):
    """What a module of this folder provides for one kind of connection."""

    def connect(self, entry: HostEntry, destination: str) -> Host:
        """The host that ``entry`` describes, a dataclass. Its root is as the user wrote it, but absolute or with ``~``.

        ``destination`` is the address without its scheme. Raises EnvironmentFailure when the host cannot be reached.
        """


CONNECTIONS: dict[str, ConnectionModule] = {"local": local, "ssh": ssh, "through": through}


def connect(entry: HostEntry) -> Host:
    """The host that ``entry`` describes, acquired, with the right to its root folder; see ``root.claim``.

    An entry with ``through`` needs no address. ``local`` is a scheme by itself; any other address without a scheme is an
    ssh destination. Raises EnvironmentFailure when the host cannot be reached, or its root folder cannot be created or
    is not perfbisect's; or when it is a host of a lease that this process does not hold.
    """
    return _connect(entry, adopt=False)[0]


def adopt(entry: HostEntry) -> tuple[Host, tuple[str, ...]]:
    """The host as in ``connect``, its root folder taken over if it is not perfbisect's; and what that then contains."""
    return _connect(entry, adopt=True)


def _connect(entry: HostEntry, *, adopt: bool) -> tuple[Host, tuple[str, ...]]:
    machine = leases.machine(entry.name) if entry.leased else None
    entry = reached(entry, machine.values) if machine else entry
    scheme, separator, destination = entry.address.partition("://")
    if entry.through:
        scheme, destination = "through", ""
    elif not separator:
        scheme, destination = ("local", "") if entry.address == "local" else ("ssh", entry.address)
    if scheme not in CONNECTIONS:
        raise UsageError(
            f"Host {entry.name} has the address {entry.address!r}, and no kind of connection is named {scheme!r}.",
            f"Known are {', '.join(CONNECTIONS)}: correct `hosts.{entry.name}.address` in hosts.toml.",
        )
    host = CONNECTIONS[scheme].connect(entry, destination)
    try:
        path, adopted = claim(host, entry, adopt=adopt)
    except BaseException:
        host.release()
        raise
    assert is_dataclass(host)
    host = replace(host, root=path)
    return (LeasedHost(host, machine) if machine else host), adopted
