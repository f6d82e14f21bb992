"""``hosts.toml``: the machines that build and measure, and leases: who lends others, and by which commands.

``slurm:quiet`` names a machine with the feature quiet, leased by the commands of ``[leases.slurm]``; ``slurm:quiet*3`` are
three of them, which are called ``slurm:quiet/1`` and so on.
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
from perfbisect.recipes.configuration import HOSTS, Remote, Size, chosen, load_configuration, recipe_places
from perfbisect.recipes.placeholders import check_texts, fill, fill_text, placeholders_in
from perfbisect.recipes.toml import Location, Table, convert, inheritance, matching, merged, read_table

CPUS = r"[0-9]{1,6}(-[0-9]{1,6}(:[0-9]{1,6})?)?"

# Build tools fail on spaces in paths, shells on other characters: a root has none of them.
Root = Annotated[str, matching(r"^[\w.~/+@-]+\Z", "a path of letters, digits and any of . ~ / + @ _ -")]
Address = Annotated[str, matching(r"^(?!ssh://\Z|\S*@\Z)[^\s-]\S*\Z", '"local", or an address such as user@host')]
LeasedRoot = Annotated[str, matching(r"^[\w.~/+@{}-]+\Z", "a path of letters, digits, placeholders, and . ~ / + @ _ -")]
LeasedAddress = Annotated[str, matching(r"^[^\s-]\S*\Z", 'an address such as "{address}" or "user@{address}"')]
Seconds = Annotated[int, Meta(ge=1, le=86400, description="a number of seconds from 1 to 86400")]
Port = Annotated[int, Meta(ge=0, le=65535, description="a port number, 1 to 65535")]
Cpus = Annotated[str, matching(rf"^({CPUS}(,{CPUS})*)?\Z", 'a list of CPUs such as "0-3" or "0,2,8-15"')]
Kind = Annotated[str, matching(r"^[\w.-]*\Z", 'a name such as "c8"')]
Device = Annotated[str, matching(r"^[\w/-]*\Z", 'a block device such as "nvme0n1"')]
Count = Annotated[int, Meta(ge=0, le=1_000_000, description="a whole number from 0 to 1000000")]
MiB = Annotated[int, Meta(ge=0, le=2**40, description="a whole number of MiB, 0 or more")]

MOST = 1000  # machines of one name
_NAME = re.compile(r"([\w.-]+):([\w.,&|=:+()!-]*)(?:\*([0-9]{1,4})|/([0-9]{1,4}))?")


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
    # Hosts of one class show the same change; "": a class of its own.
    kind: Kind = msgspec.field(name="class", default="")
    # The hosts that build for this one, itself among them if it builds, too; []: this one alone.
    build_hosts: list[str] = []
    # A cache that the ccaches of several hosts share; "none"; "": the one of the user, if any.
    ccache_remote: Remote = ""
    keep: Size = "50G"  # what `bisect gc` leaves of builds, datasets, jobs and logs, together

    @property
    def built_on(self) -> tuple[str, ...]:
        """The hosts that build for this one, each once; by default it builds for itself."""
        return tuple(dict.fromkeys(expanded_names(self.build_hosts or [self.name])))

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
    # Waits, then prints a line for each machine: its address, a blank, what renew calls the lease.
    acquire: Argv
    status: list[str] = []  # prints a line about the queue, while acquire waits
    renew: list[str] = []  # status 1 says that the lease has ended, any other but 0 says nothing
    release: Argv  # may be run for a lease whose acquire was ended from outside, or that is released already
    every: Seconds = 60  # seconds between two of renew
    host: LeasedEntry = LeasedEntry()


class Inventory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All machines."""

    hosts: dict[str, Any] = {}  # each a HostEntry
    leases: dict[str, Any] = {}  # each a LeaseEntry, which may extend another


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


IN_JOB = ("job", "user")  # the name of what is leased, random and chosen before; the user's name on this machine
# And at which addresses an earlier session has measured, and for how long it is wanted: empty where that is not known.
IN_ACQUIRE = (*IN_JOB, "features", "count", "node", "minutes", "every")
IN_RENEW = (*IN_JOB, "lease", "address")
COMMANDS = {"acquire": IN_ACQUIRE, "status": IN_JOB, "renew": IN_RENEW, "release": IN_JOB}
WAY = ("address", "root", "through")  # keys of ``host`` with placeholders


def load_leases(given: str | Path = "") -> list[LeaseEntry]:
    """All leases; one of an earlier inventory hides later ones of its name. Raises RecipeError for a mistake."""
    tables: dict[Location, Table] = {}  # as written
    named: list[tuple[str, Location]] = []
    for file in recipe_places(HOSTS, given):
        for name, table in _read(file).leases.items():
            place = Location(file).at("leases", name)
            named.append((name, place))
            tables[place] = table
            convert(merged({"acquire": ["-"], "release": ["-"]}, table), LeaseEntry, place)  # it may inherit them
            convert(table.get("host", {}), LeasedEntry, place.at("host"))
    leases: dict[str, LeaseEntry] = {}
    for name, place in named:
        if name not in leases:
            sources = inheritance(place, named, tables.__getitem__, "lease")
            whole = reduce(merged, reversed(sources.values()), Table())
            leases[name] = _checked(convert({**whole, "extends": ""}, LeaseEntry, place), name, place)
    return [*leases.values()]


def load_lease(name: str, given: str | Path = "") -> LeaseEntry:
    """The lease of that name. Raises RecipeError."""
    return chosen("lease", name, {lease.name: lease for lease in load_leases(given)})


def _checked(lease: LeaseEntry, name: str, place: Location) -> LeaseEntry:
    """The lease with its name and file. Raises RecipeError for what types cannot express."""
    for key, allowed in COMMANDS.items():
        check_texts(getattr(lease, key), place.at(key), allowed)
    for key in WAY:
        check_texts(getattr(lease.host, key), place.at("host", key), IN_RENEW)
    return msgspec.structs.replace(lease, name=name, file=str(place.file))


def reached(entry: HostEntry, values: Mapping[str, str]) -> HostEntry:
    """A leased host with the way to it; ``values`` are those of the placeholders. Raises RecipeError for a wrong one."""
    way = {"root": fill_text(entry.root, values), "address": fill_text(entry.address, values)}
    convert(way, HostEntry, Location(Path(entry.file)).at("leases", entry.name.partition(":")[0], "host"))
    return msgspec.structs.replace(entry, leased=False, through=fill(entry.through, values), **way)


def at_once(lease: LeaseEntry) -> bool:
    """Whether one acquisition can lease several machines."""
    return "count" in placeholders_in(lease.acquire)


def load_host(name: str, given: str | Path = "") -> HostEntry:
    """The host of that name: of hosts.toml, or a leased one, to which the way is not known before it is leased.

    Raises RecipeError when none exists, or when an inventory has a mistake.
    """
    hosts = {host.name: host for host in load_hosts(given)}
    said = None if name in hosts else parse_lease_name(name)
    if said:
        lease = load_lease(said.lease, given)
        fields = {field: getattr(lease.host, field) for field in lease.host.__struct_fields__}
        own = {"name": name, "file": lease.file, "leased": True, "kind": lease.host.kind or said.kind}
        return HostEntry(**fields | own)
    if name not in hosts and name in {lease.name for lease in load_leases(given)}:
        raise RecipeError(
            f"'{name}' is not a host, but a lease: its hosts are leased by their features.",
            f"Write {name}:FEATURES, or {name}: for any of its machines.",
        )
    return chosen("host", name, hosts)


def load_hosts(given: str | Path = "") -> list[HostEntry]:
    """All hosts, in the order of the inventories; an entry of an earlier inventory hides later ones of its name."""
    hosts: dict[str, HostEntry] = {}
    remote = load_configuration().shared.ccache
    for file in recipe_places(HOSTS, given):
        found = {}
        for name, table in _read(file).hosts.items():
            entry = convert(table, HostEntry, Location(file).at("hosts", name))
            found[name] = msgspec.structs.replace(
                entry, name=name, file=str(file), ccache_remote=entry.ccache_remote or remote
            )
        hosts = found | hosts
    return list(hosts.values())


def _read(file: Path) -> Inventory:
    return convert(read_table(file), Inventory, Location(file))
