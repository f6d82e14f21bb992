"""The schema of ``hosts.toml``: the machines that build and measure."""

import re
from typing import Annotated, ClassVar

import msgspec

CPUS = r"^([0-9]{1,6}(-[0-9]{1,6}(:[0-9]{1,6})?)?(,[0-9]{1,6}(-[0-9]{1,6}(:[0-9]{1,6})?)?)*)?\Z"

SIZE = r"([0-9]{1,15}(?:\.[0-9]{1,15})?)([kMGT]?)(i?)"

# Build tools fail on spaces in paths, shells on other characters: a root has none of them.
Root = Annotated[
    str, msgspec.Meta(pattern=r"^[\w.~/+@-]+\Z", description="a path of letters, digits and any of . ~ / + @ _ -")
]
Address = Annotated[
    str,
    msgspec.Meta(pattern=r"^(?!ssh://\Z|\S*@\Z)[^\s-]\S*\Z", description='"local", or an address such as user@host'),
]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535, description="a port number, 1 to 65535")]
Cpus = Annotated[str, msgspec.Meta(pattern=CPUS, description='a list of CPUs such as "0-3" or "0,2,8-15"')]
Kind = Annotated[str, msgspec.Meta(pattern=r"^[\w.-]*\Z", description='a name such as "c8"')]
Remote = Annotated[
    str, msgspec.Meta(pattern=r"^((redis|http)://[^\s|$]+)?\Z", description='an address such as "redis://cache:6379"')
]
Device = Annotated[str, msgspec.Meta(pattern=r"^[\w/-]*\Z", description='a block device such as "nvme0n1"')]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000, description="a whole number from 0 to 1000000")]
MiB = Annotated[int, msgspec.Meta(ge=0, le=2**40, description="a whole number of MiB, 0 or more")]
Size = Annotated[str, msgspec.Meta(pattern=rf"^{SIZE}\Z", description='a size such as "20G"')]


def in_bytes(size: str) -> int:
    """Bytes of a size as ccache reads it: 20G is 20 × 10⁹, 20Gi is 20 × 2³⁰, and a bare number means G.

    Raises ValueError for anything else.
    """
    found = re.fullmatch(SIZE, size)
    if not found:
        raise ValueError(f"not a size: {size!r}")
    power = "kMGT".index(found[2] or "G") + 1
    return int(float(found[1]) * (1024 if found[3] else 1000) ** power)


class HostEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One machine."""

    filled_in: ClassVar[frozenset[str]] = frozenset({"name", "file"})  # by the reader

    name: str = ""  # its key
    file: str = ""  # absolute path of its inventory
    summary: str = ""
    address: Address = "local"  # "local", or what ssh takes: an alias of ~/.ssh/config, a name, user@name
    port: Port = 0  # of its sshd; 0: the one in ~/.ssh/config, or 22
    root: Root = "~/.cache/perfbisect"  # the folder of perfbisect on that host
    jobs: Count = 0  # parallel compile jobs; 0: one for each core
    memory: MiB = 0  # of which servers get a share; 0: all memory of the host
    server_cpus: Cpus = ""  # a taskset list such as "0-3"; empty: not pinned
    client_cpus: Cpus = ""
    device: Device = ""  # block device that iostat watches; empty: none
    ccache_size: Size = "20G"
    kind: Kind = msgspec.field(
        name="class", default=""
    )  # hosts of one class show the same change; "": a class of its own
    build_host: str = ""  # the host that builds for this one; "": this one
    ccache_remote: Remote = ""  # a cache that the ccaches of several hosts share
    keep: Size = "50G"  # what `bisect gc` leaves of builds, datasets, jobs and logs, together

    @property
    def built_elsewhere(self) -> str:
        """The other host that builds for this one; "": this one builds itself."""
        return "" if self.build_host == self.name else self.build_host


class Inventory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All machines."""

    hosts: dict[str, HostEntry]
