"""From an entry of hosts.toml to a Host."""

import re
import shlex
from pathlib import Path, PurePosixPath

from perfbisect.errors import CommandFailed, EnvironmentFailure
from perfbisect.host.connection import Link
from perfbisect.host.local import LocalHost
from perfbisect.host.protocol import Host
from perfbisect.host.ssh import SshHost
from perfbisect.recipes.inventory import HostEntry


def connect(entry: HostEntry) -> Host:
    """The host that ``entry`` describes, its root folder made.

    Raises EnvironmentFailure when it cannot be reached or its root folder cannot be made.
    """
    if entry.address != "local":
        return _over_ssh(entry)
    root = Path(entry.root).expanduser().absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_root(entry, str(root), error.strerror or "") from error
    return LocalHost(entry.name, PurePosixPath(root))


def _over_ssh(entry: HostEntry) -> SshHost:
    """``~`` is that of the user whom we are there, and a relative root begins there too."""
    link = Link(entry.name, entry.address, entry.port)
    home, rest = re.fullmatch(r"(~[\w.-]*(?=/|\Z))?(.*)", entry.root, re.DOTALL).groups()  # type: ignore[union-attr]
    root = f"{home or ''}{shlex.quote(rest) if rest else ''}"
    script = f"cd && mkdir -p -- {root} && cd -- {root} && pwd"
    there = SshHost(entry.name, PurePosixPath("/"), link)
    try:
        found = there.run(["sh", "-c", script]).stdout
    except CommandFailed as failure:
        link.close()
        said = failure.output.strip().splitlines() or ["it said nothing"]
        raise _no_root(entry, entry.root, said[-1]) from failure
    path = found.removesuffix("\n")
    if not path.startswith("/") or "\n" in path:
        link.close()
        raise EnvironmentFailure(
            f"a start-up file of your shell on host {entry.name} prints {path.splitlines()[0]!r}, which gets mixed with what"
            " commands print",
            "Let it be silent for commands: in ~/.bashrc, for instance, after `[[ $- == *i* ]] || return`. "
            f"`ssh {entry.address} true` should print nothing.",
        )
    return SshHost(entry.name, PurePosixPath(path), link)


def _no_root(entry: HostEntry, root: str, why: str) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"the root folder {root} of host {entry.name} cannot be made: {why}",
        "Choose another `root` for this host in hosts.toml.",
    )
