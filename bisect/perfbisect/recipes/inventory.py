"""The schema of ``hosts.toml``: the machines that build and measure, and those that are leased.

``slurm:quiet`` names a machine with the feature quiet, leased by the commands of ``[leases.slurm]``; ``slurm:quiet*3`` are
three of them, which are called ``slurm:quiet/1`` and so on.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import msgspec

from perfbisect.errors import UsageError

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
LeasedRoot = Annotated[
    str,
    msgspec.Meta(pattern=r"^[\w.~/+@{}-]+\Z", description="a path of letters, digits, placeholders, and . ~ / + @ _ -"),
]
LeasedAddress = Annotated[
    str, msgspec.Meta(pattern=r"^[^\s-]\S*\Z", description='an address such as "{address}" or "user@{address}"')
]
Seconds = Annotated[int, msgspec.Meta(ge=1, le=86400, description="a number of seconds from 1 to 86400")]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535, description="a port number, 1 to 65535")]
Cpus = Annotated[str, msgspec.Meta(pattern=CPUS, description='a list of CPUs such as "0-3" or "0,2,8-15"')]
Kind = Annotated[str, msgspec.Meta(pattern=r"^[\w.-]*\Z", description='a name such as "c8"')]
Remote = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(none|[a-z][a-z0-9+.-]*://[^\s|$]+)?\Z",
        description='an address such as "redis://cache:6379", or "none"',
    ),
]
Device = Annotated[str, msgspec.Meta(pattern=r"^[\w/-]*\Z", description='a block device such as "nvme0n1"')]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000, description="a whole number from 0 to 1000000")]
MiB = Annotated[int, msgspec.Meta(ge=0, le=2**40, description="a whole number of MiB, 0 or more")]
Size = Annotated[str, msgspec.Meta(pattern=rf"^{SIZE}\Z", description='a size such as "20G"')]


MOST = 1000  # machines of one name
_NAME = re.compile(r"([\w.-]+):([\w.,&|=:+()!-]*)(?:\*([0-9]{1,4})|/([0-9]{1,4}))?")


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

    filled_in: ClassVar[frozenset[str]] = frozenset({"name", "file", "leased"})  # by the reader

    name: str = ""  # its key
    file: str = ""  # absolute path of its inventory
    leased: bool = False  # whether its address is known only while it is leased
    summary: str = ""
    address: Address = "local"  # "local", or what ssh takes: an alias of ~/.ssh/config, a name, user@name
    through: list[str] = []  # a command that runs the command appended to it there, in place of ssh
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
    build_hosts: list[
        str
    ] = []  # the hosts that build for this one, itself among them if it builds, too; []: this one alone
    build_host: str = ""  # a single one of them, as earlier versions wrote it
    ccache_remote: Remote = (
        ""  # a cache that the ccaches of several hosts share; "none"; "": the one of the user, if any
    )
    keep: Size = "50G"  # what `bisect gc` leaves of builds, datasets, jobs and logs, together

    @property
    def built_on(self) -> tuple[str, ...]:
        """The hosts that build for this one, each once; by default it builds for itself."""
        return tuple(dict.fromkeys(expanded_names(self.build_hosts or [self.build_host or self.name])))

    @property
    def is_here(self) -> bool:
        """Whether it is this machine."""
        return self.address == "local" and not self.through and not self.leased

    @property
    def built_elsewhere(self) -> tuple[str, ...]:
        """The other hosts that build for this one."""
        return tuple(name for name in self.built_on if name != self.name)

    @property
    def builds(self) -> bool:
        """Whether it builds, alone or besides others."""
        return self.name in self.built_on


class LeasedEntry(HostEntry, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all machines of a lease have in common. In the way to them, placeholders stand for what the lease says."""

    address: LeasedAddress = "{address}"
    root: LeasedRoot = "/var/tmp/perfbisect-{user}"


class LeaseEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Commands of this machine that lease others from a scheduler. All but acquire are run again when they fail.

    An acquire that fails by itself has leased nothing: what it had obtained, it has given back.
    """

    filled_in: ClassVar[frozenset[str]] = frozenset({"name", "file"})

    name: str = ""
    file: str = ""
    summary: str = ""
    extends: str = ""  # another lease, whose keys hold where this one has none
    acquire: list[
        str
    ] = []  # waits, then prints a line for each machine: its address, a blank, what renew calls the lease
    status: list[str] = []  # prints a line about the queue, while acquire waits
    renew: list[str] = []  # status 1 says that the lease has ended, any other but 0 says nothing
    release: list[str] = []  # may be run for a lease whose acquire was ended from outside, or that is released already
    every: Seconds = 60  # seconds between two of renew
    host: LeasedEntry = LeasedEntry()


class Inventory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All machines."""

    hosts: dict[str, HostEntry] = {}
    leases: dict[str, LeaseEntry] = {}


@dataclass(frozen=True, slots=True)
class LeaseName:
    """What a name says."""

    lease: str  # of hosts.toml
    features: str  # as the scheduler takes them; "": any machine
    count: int = 1

    @property
    def kind(self) -> str:
        """The class of all machines with these features, and what their names begin with."""
        return f"{self.lease}:{self.features}"


def parse_lease_name(name: str) -> LeaseName | None:
    """What the name of a leased host says; None for the name of another."""
    found = _NAME.fullmatch(name)
    return LeaseName(found[1], found[2], int(found[3] or 1)) if found else None


def expanded_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names with ``*3`` as three names. Raises UsageError for a number that is none."""
    every: list[str] = []
    for name in names:
        said = parse_lease_name(name)
        if said is None or "*" not in name:
            every.append(name)
        elif not 1 <= said.count <= MOST:
            raise UsageError(f"{name} are {said.count} hosts, but 1 to {MOST} can be leased.")
        else:
            every += [f"{said.kind}/{number}" for number in range(1, said.count + 1)]
    return tuple(every)
