"""From an entry of hosts.toml to a Host."""

from pathlib import Path, PurePosixPath

from perfbisect.errors import EnvironmentFailure
from perfbisect.host.local import LocalHost
from perfbisect.host.protocol import Host
from perfbisect.recipes.inventory import HostEntry


def connect(entry: HostEntry) -> Host:
    """The host that ``entry`` describes, its root folder made.

    Raises EnvironmentFailure when it cannot be reached or its root folder cannot be made.
    """
    if entry.address != "local":
        raise EnvironmentFailure(
            f"host {entry.name} has the address {entry.address!r}: hosts reached through ssh are not supported yet",
            'Use a host with address = "local".',
        )
    root = Path(entry.root).expanduser().absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFailure(
            f"the root folder {root} of host {entry.name} cannot be made: {error.strerror}",
            "Choose another `root` for this host in hosts.toml.",
        ) from error
    return LocalHost(entry.name, PurePosixPath(root))
