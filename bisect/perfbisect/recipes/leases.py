"""Leases of hosts.toml: who lends machines, and by which commands."""

import getpass
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from perfbisect.errors import RecipeError, UsageError
from perfbisect.recipes.inventory import HostEntry, Inventory, LeaseEntry, LeaseName, Root
from perfbisect.recipes.placeholders import check_texts, fill, fill_text, placeholders_in
from perfbisect.recipes.search_path import inventory_files
from perfbisect.recipes.toml_reader import Location, Table, convert, hint, listed, merged, read_table, verify

IN_JOB = ("job", "user")  # the name of what is leased, random and chosen before; the user's name on this machine
# And at which addresses an earlier session has measured, and for how long it is wanted: empty where that is not known.
IN_ACQUIRE = (*IN_JOB, "features", "count", "node", "minutes", "every")
IN_RENEW = (*IN_JOB, "lease", "address")
COMMANDS = {"acquire": IN_ACQUIRE, "status": IN_JOB, "renew": IN_RENEW, "release": IN_JOB}
WAY = ("address", "root", "through")  # keys of ``host`` with placeholders


def load_leases(given: str | Path = "") -> list[LeaseEntry]:
    """All leases; one of an earlier inventory hides later ones of its name. Raises RecipeError for a mistake."""
    tables: list[tuple[str, Table, Location]] = []  # name, as written, where
    for file in inventory_files(given):
        table = read_table(file)
        verify(table, Inventory, Location(file))
        place = Location(file).at("leases")
        tables += [(name, entry, place.at(name)) for name, entry in table.get("leases", {}).items()]
    names = dict.fromkeys(name for name, _, _ in tables)
    return [_resolved(next(n for n, (own, _, _) in enumerate(tables) if own == name), tables, ()) for name in names]


def load_lease(name: str, given: str | Path = "") -> LeaseEntry:
    """The lease of that name. Raises RecipeError."""
    found = {lease.name: lease for lease in load_leases(given)}
    if name not in found:
        raise RecipeError(f"There is no lease '{name}'.{hint(name, found)}", f"Leases: {listed(found)}.")
    return found[name]


def _resolved(number: int, tables: list[tuple[str, Table, Location]], under: tuple[int, ...]) -> LeaseEntry:
    """The lease of that number, with what it extends: of its own name, one of a later inventory."""
    name, _, place = tables[number]
    table = _with_base(number, tables, under)
    table.pop("extends", None)
    lease = msgspec.structs.replace(convert(table, LeaseEntry, place), name=name, file=str(place.file))
    for key in ("acquire", "release"):
        if not getattr(lease, key):
            raise place.at(key).mistake("is missing: it must be a list, a command.")
    for key, allowed in COMMANDS.items():
        check_texts(getattr(lease, key), place.at(key), allowed)
    for key in WAY:
        check_texts(getattr(lease.host, key), place.at("host", key), IN_RENEW)
    return lease


def _with_base(number: int, tables: list[tuple[str, Table, Location]], under: tuple[int, ...]) -> dict[str, Any]:
    name, table, place = tables[number]
    wanted = table.get("extends")
    if not wanted:
        return dict(table)
    bases = [n for n, (other, _, _) in enumerate(tables) if other == wanted and (n > number or other != name)]
    if not bases or bases[0] in (*under, number):
        names = {other for other, _, _ in tables}
        raise place.at("extends").mistake(
            f'is "{wanted}", and there is no such lease to extend.{hint(wanted, names)}', f"Leases: {listed(names)}."
        )
    whole: dict[str, Any] = merged(_with_base(bases[0], tables, (*under, number)), table)
    return whole


def leased_host(name: str, said: LeaseName, given: str | Path = "") -> HostEntry:
    """A host of a lease, before it is leased: the way to it is unknown. Its class is that of all with its features."""
    lease = load_lease(said.lease, given)
    fields = {field: getattr(lease.host, field) for field in lease.host.__struct_fields__}
    own = {"name": name, "file": lease.file, "leased": True, "kind": lease.host.kind or said.kind}
    return HostEntry(**fields | own)


def reached(entry: HostEntry, values: Mapping[str, str]) -> HostEntry:
    """A leased host with the way to it; ``values`` are those of the placeholders. Raises UsageError for a wrong root."""
    root = fill_text(entry.root, values)
    try:
        msgspec.convert(root, Root)
    except msgspec.ValidationError:
        raise UsageError(
            f"The root folder of {entry.name} would be {root!r}.", f"Correct `root` of its lease in {entry.file}."
        ) from None
    address = fill_text(entry.address, values)
    if not re.fullmatch(r"[^\s-]\S*", address):
        raise UsageError(f"The address of {entry.name} would be {address!r}.", f"Correct its lease in {entry.file}.")
    return msgspec.structs.replace(entry, leased=False, root=root, address=address, through=fill(entry.through, values))


def user() -> str:
    """The user's name on this machine, as schedulers know it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "user"


def at_once(lease: LeaseEntry) -> bool:
    """Whether one acquisition can lease several machines."""
    return "count" in placeholders_in(lease.acquire)
