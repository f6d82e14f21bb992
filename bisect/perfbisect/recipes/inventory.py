"""Reads ``hosts.toml`` files (inventories), which define the machines that build and measure, and leases: commands by
which perfbisect leases further machines.

The host name ``slurm:quiet`` means a machine with the feature quiet that the commands of ``[leases.slurm]`` lease.
``slurm:quiet*3`` means three such machines, named ``slurm:quiet/1`` to ``slurm:quiet/3``.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from perfbisect.errors import RecipeError, UsageError
from perfbisect.recipes.builder import Argv
from perfbisect.recipes.configuration import HOSTS, Remote, Size, item_by_name, load_configuration, recipe_folders
from perfbisect.recipes.placeholders import check_placeholders_in, fill_command, fill_text, placeholders_in
from perfbisect.recipes.toml import (
    Location,
    Table,
    convert_table,
    inherited_tables,
    merged_tables,
    read_table,
    text_constraint,
)

CPUS = r"[0-9]{1,6}(-[0-9]{1,6}(:[0-9]{1,6})?)?"

# A root folder contains no spaces, on which build tools fail, and no other characters on which shells fail.
Root = Annotated[str, text_constraint(r"^[\w.~/+@-]+\Z", "a path of letters, digits and any of . ~ / + @ _ -")]
Address = Annotated[
    str, text_constraint(r"^(?!ssh://\Z|\S*@\Z)[^\s-]\S*\Z", '"local", or an address such as user@host')
]
LeasedRoot = Annotated[
    str, text_constraint(r"^[\w.~/+@{}-]+\Z", "a path of letters, digits, placeholders, and . ~ / + @ _ -")
]
LeasedAddress = Annotated[str, text_constraint(r"^[^\s-]\S*\Z", 'an address such as "{address}" or "user@{address}"')]
Seconds = Annotated[int, Meta(ge=1, le=86400, description="a number of seconds from 1 to 86400")]
Port = Annotated[int, Meta(ge=0, le=65535, description="a port number, 1 to 65535")]
Cpus = Annotated[str, text_constraint(rf"^({CPUS}(,{CPUS})*)?\Z", 'a list of CPUs such as "0-3" or "0,2,8-15"')]
Kind = Annotated[str, text_constraint(r"^[\w.-]*\Z", 'a name such as "c8"')]
Device = Annotated[str, text_constraint(r"^[\w/-]*\Z", 'a block device such as "nvme0n1"')]
Count = Annotated[int, Meta(ge=0, le=1_000_000, description="a whole number from 0 to 1000000")]
MiB = Annotated[int, Meta(ge=0, le=2**40, description="a whole number of MiB, 0 or more")]

MAX_MACHINES = 1000  # most machines of one name
_NAME = re.compile(r"([\w.-]+):([\w.,&|=:+()!-]*)(?:\*([0-9]{1,4})|/([0-9]{1,4}))?")


class HostEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A machine in ``hosts.toml``, with the keys of its entry."""

    filled_in: ClassVar[frozenset[str]] = frozenset({"name", "file", "leased"})  # set by the reader of the file

    name: str = ""  # key of the host's table in hosts.toml
    file: str = ""  # absolute path of the hosts.toml that has the host
    leased: bool = False  # whether the host's address is known only while the host is leased
    summary: str = ""
    address: Address = "local"  # "local", or an ssh destination: an alias of ~/.ssh/config, a name, user@name
    through: list[str] = []  # command that runs the command appended to it on the host, instead of ssh
    port: Port = 0  # port of the host's sshd; 0: the port in ~/.ssh/config, or 22
    root: Root = "~/.cache/perfbisect"  # perfbisect's folder on that host
    jobs: Count = 0  # parallel compile jobs; 0: one per core
    memory: MiB = 0  # memory of which servers get a share; 0: all memory of the host
    server_cpus: Cpus = ""  # list for taskset, such as "0-3"; empty: servers are not pinned
    client_cpus: Cpus = ""
    device: Device = ""  # block device that iostat watches; empty: none
    ccache_size: Size = "20G"
    # Hosts of one class show the same change; "": a class for this host alone.
    kind: Kind = msgspec.field(name="class", default="")
    # The hosts that build for this host, which may include this host; []: only this host builds.
    build_hosts: list[str] = []
    # Address of a cache that the ccaches of several hosts share; "none": no such cache; "": the user's cache, if any.
    ccache_remote: Remote = ""
    keep: Size = "50G"  # size to which `bisect gc` shrinks builds, datasets, jobs and logs, together

    @property
    def all_build_hosts(self) -> tuple[str, ...]:
        """The names of the hosts that build for this host, without repetitions; by default only the host itself."""
        return tuple(dict.fromkeys(expanded_names(self.build_hosts or [self.name])))

    @property
    def is_local(self) -> bool:
        """Whether the host is this machine."""
        return self.address == "local" and not self.through and not self.leased

    @property
    def build_hosts_except_itself(self) -> tuple[str, ...]:
        """The build hosts of this host, except the host itself."""
        return tuple(name for name in self.all_build_hosts if name != self.name)

    @property
    def builds_itself(self) -> bool:
        """Whether this host also makes builds for itself."""
        return self.name in self.all_build_hosts


class LeasedEntry(HostEntry, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The host keys that are the same for all machines of a lease. ``address``, ``root`` and ``through`` may contain
    placeholders for values of the lease.
    """

    address: LeasedAddress = "{address}"
    root: LeasedRoot = "/var/tmp/perfbisect-{user}"


class LeaseEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The commands by which this machine leases other machines from a scheduler. perfbisect repeats a failed command,
    except ``acquire``.

    If ``acquire`` ends with an error status, no machine may remain leased.
    """

    filled_in: ClassVar[frozenset[str]] = frozenset({"name", "file"})

    name: str = ""
    file: str = ""
    summary: str = ""
    extends: str = ""  # another lease, which provides missing keys
    # The command waits, then prints a line for each machine: its address, a blank, and the name of the lease for renew.
    acquire: Argv
    status: list[str] = []  # prints a line about the queue, while acquire waits
    renew: list[str] = []  # status 1 means that the lease has ended; any status except 0 and 1 means nothing
    release: Argv  # may run although ``acquire`` was killed, or the lease is already released
    every: Seconds = 60  # seconds between two renewals
    host: LeasedEntry = LeasedEntry()


class Inventory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of a ``hosts.toml``: machines and leases."""

    hosts: dict[str, Any] = {}  # name → table of a HostEntry
    leases: dict[str, Any] = {}  # name → table of a LeaseEntry, which may extend another lease


@dataclass(frozen=True, slots=True)
class LeasedHostName:
    """The parts of the name of a leased host, such as slurm:quiet*3."""

    lease: str  # name of a lease in hosts.toml
    features: str  # features of the machine that the scheduler shall lease; "": any machine
    count: int = 1

    @property
    def host_class(self) -> str:
        """The host class of all machines of the lease with these features, such as slurm:quiet. The names of these
        machines begin with this text."""
        return f"{self.lease}:{self.features}"


def parse_leased_host_name(name: str) -> LeasedHostName | None:
    """The parts of the name of a leased host; None if ``name`` is not the name of a leased host."""
    match = _NAME.fullmatch(name)
    return LeasedHostName(match[1], match[2], int(match[3] or 1)) if match else None


def expanded_names(names: Iterable[str]) -> tuple[str, ...]:
    """The host names, in which ``NAME*3`` is replaced by ``NAME/1``, ``NAME/2`` and ``NAME/3``. Raises UsageError if
    the number after ``*`` is not between 1 and MAX_MACHINES."""
    every: list[str] = []
    for name in names:
        parsed = parse_leased_host_name(name)
        if parsed is None or "*" not in name:
            every.append(name)
        elif not 1 <= parsed.count <= MAX_MACHINES:
            raise UsageError(f"{name} are {parsed.count} hosts, but 1 to {MAX_MACHINES} can be leased.")
        else:
            every += [f"{parsed.host_class}/{number}" for number in range(1, parsed.count + 1)]
    return tuple(every)


IN_JOB = ("job", "user")  # the job's name, random and chosen before the lease; the user's name on this machine
# Placeholders of each command. ``node`` is the machines of an earlier session, and ``minutes`` is the time for which
# the lease is needed; each of the two is empty if unknown.
IN_ACQUIRE = (*IN_JOB, "features", "count", "node", "minutes", "every")
IN_RENEW = (*IN_JOB, "lease", "address")
COMMANDS = {"acquire": IN_ACQUIRE, "status": IN_JOB, "renew": IN_RENEW, "release": IN_JOB}
WAY = ("address", "root", "through")  # keys of ``host`` with placeholders


def load_leases(user_path: str | Path = "") -> list[LeaseEntry]:
    """All leases. If several inventories have a lease with the same name, the first lease is used. Raises RecipeError
    for a mistake."""
    tables: dict[Location, Table] = {}  # the tables as they are written
    named: list[tuple[str, Location]] = []
    for file in recipe_folders(HOSTS, user_path):
        for name, table in _read_inventory(file).leases.items():
            location = Location(file).at("leases", name)
            named.append((name, location))
            tables[location] = table
            # A lease may inherit ``acquire`` and ``release``, so missing values are no error here.
            convert_table(merged_tables({"acquire": ["-"], "release": ["-"]}, table), LeaseEntry, location)
            convert_table(table.get("host", {}), LeasedEntry, location.at("host"))
    leases: dict[str, LeaseEntry] = {}
    for name, location in named:
        if name not in leases:
            sources = inherited_tables(location, named, tables.__getitem__, "lease")
            combined = reduce(merged_tables, reversed(sources.values()), Table())
            lease = convert_table({**combined, "extends": ""}, LeaseEntry, location)
            leases[name] = _checked_lease(lease, name, location)
    return [*leases.values()]


def load_lease(name: str, user_path: str | Path = "") -> LeaseEntry:
    """The lease with the name ``name``. Raises RecipeError if no inventory has this lease, or if an inventory has a
    mistake."""
    return item_by_name("lease", name, {lease.name: lease for lease in load_leases(user_path)})


def _checked_lease(lease: LeaseEntry, name: str, location: Location) -> LeaseEntry:
    """The lease, to which its name and the path of its file are added. Raises RecipeError for a placeholder that is not
    allowed in a command, ``address``, ``root`` or ``through``.
    """
    for key, allowed in COMMANDS.items():
        check_placeholders_in(getattr(lease, key), location.at(key), allowed)
    for key in WAY:
        check_placeholders_in(getattr(lease.host, key), location.at("host", key), IN_RENEW)
    return msgspec.structs.replace(lease, name=name, file=str(location.file))


def leased_host_with_address(entry: HostEntry, values: Mapping[str, str]) -> HostEntry:
    """The host ``entry`` after its lease: ``values`` replace the placeholders in its keys, so that the address is
    known. Raises RecipeError if the root folder or the address is not allowed after this replacement."""
    way = {"root": fill_text(entry.root, values), "address": fill_text(entry.address, values)}
    convert_table(way, HostEntry, Location(Path(entry.file)).at("leases", entry.name.partition(":")[0], "host"))
    return msgspec.structs.replace(entry, leased=False, through=fill_command(entry.through, values), **way)


def leases_several_at_once(lease: LeaseEntry) -> bool:
    """Whether one call of ``acquire`` can lease several machines."""
    return "count" in placeholders_in(lease.acquire)


def load_host(name: str, user_path: str | Path = "") -> HostEntry:
    """The host with the name ``name``: a host of hosts.toml, or a leased host. The address of a leased host is not
    known before the lease.

    Raises RecipeError if there is no host of that name, or if an inventory has a mistake.
    """
    hosts = {host.name: host for host in load_hosts(user_path)}
    parsed = None if name in hosts else parse_leased_host_name(name)
    if parsed:
        lease = load_lease(parsed.lease, user_path)
        fields = {field: getattr(lease.host, field) for field in lease.host.__struct_fields__}
        of_machine = {"name": name, "file": lease.file, "leased": True, "kind": lease.host.kind or parsed.host_class}
        return HostEntry(**fields | of_machine)
    if name not in hosts and name in {lease.name for lease in load_leases(user_path)}:
        text = f"'{name}' is not a host, but a lease: its hosts are leased by their features."
        raise RecipeError(text, f"Write {name}:FEATURES, or {name}: for any machine of the lease.")
    return item_by_name("host", name, hosts)


def load_hosts(user_path: str | Path = "") -> list[HostEntry]:
    """All hosts, in the order of the inventories. If several inventories have an entry with the same name, the first
    entry is used."""
    hosts: dict[str, HostEntry] = {}
    remote = load_configuration().shared.ccache
    for file in recipe_folders(HOSTS, user_path):
        in_file = {}
        for name, table in _read_inventory(file).hosts.items():
            entry = convert_table(table, HostEntry, Location(file).at("hosts", name))
            in_file[name] = msgspec.structs.replace(
                entry, name=name, file=str(file), ccache_remote=entry.ccache_remote or remote
            )
        hosts = in_file | hosts
    return list(hosts.values())


def _read_inventory(file: Path) -> Inventory:
    return convert_table(read_table(file), Inventory, Location(file))
