"""Recipes by name, and from which files they are. ``given`` is a folder (or an inventory) named by the user; it is searched first."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from perfbisect.errors import RecipeError
from perfbisect.recipes import builder_reader, leases, workload
from perfbisect.recipes.builder import MEASURED, Builder
from perfbisect.recipes.builder_reader import read_builder, variant_of
from perfbisect.recipes.configuration import load_configuration
from perfbisect.recipes.inventory import HostEntry, Inventory, parse_lease_name
from perfbisect.recipes.search_path import BUILDERS, HOSTS, WORKLOADS, inventory_files, own_places, recipe_folders
from perfbisect.recipes.toml_reader import Location, convert, hint, listed, read_table
from perfbisect.recipes.workload import Workload, for_each_driver, read_suite

Thing = TypeVar("Thing")


def load_builder(name: str, given: str | Path = "") -> Builder:
    """The builder of that name. Raises RecipeError when none exists, or when its recipe has a mistake."""
    folders = recipe_folders("builders", given)
    files = _recipes(folders, builder_reader.FILE)
    return read_builder(_chosen("builder", name, files), folders)


def load_builders(given: str | Path = "") -> list[Builder]:
    """All builders, in alphabetical order."""
    folders = recipe_folders("builders", given)
    return [read_builder(file, folders) for _, file in sorted(_recipes(folders, builder_reader.FILE).items())]


def load_workload(name: str, driver: str, given: str | Path = "") -> Workload:
    """The workload called ``name`` or ``suite/name`` among those for ``driver``.

    Raises RecipeError when none exists, when several suites have one, or when its suite has a mistake.
    """
    return _called(name, driver, load_workloads(given))


def _called(name: str, driver: str, everything: Sequence[Workload]) -> Workload:
    fitting = [workload for workload in everything if workload.driver == driver]
    found = [workload for workload in fitting if name in (workload.name, full_name(workload))]
    if len(found) == 1:
        return found[0]
    if found:
        raise RecipeError(
            f"Several suites have a workload '{name}' for {driver}.",
            f"Choose one of {listed(full_name(workload) for workload in found)}.",
        )
    names = {workload.name for workload in fitting}
    others = {workload.driver for workload in everything if name in (workload.name, full_name(workload))}
    elsewhere = f" The one of that name is for {listed(others)}." if others else ""
    near = hint(name, names | {full_name(workload) for workload in fitting})
    raise RecipeError(
        f"There is no workload '{name}' for {driver}.{elsewhere or near}", f"Workloads for {driver}: {listed(names)}."
    )


def load_workloads(given: str | Path = "") -> list[Workload]:
    """All workloads, by suite in alphabetical order, in the order of their file, once for each driver."""
    files = _recipes(recipe_folders("workloads", given), workload.FILE)
    return [workload for _, file in sorted(files.items()) for workload in for_each_driver(read_suite(file))]


def choose_workloads(words: str, driver: str, given: str | Path = "") -> dict[str, Workload]:
    """The workloads for a driver that ``words`` name, each once, by unambiguous names. ``words`` are names of workloads,
    groups and suites, separated by commas; a workload precedes a group of the same name.

    Raises RecipeError for a word that is neither, and as ``load_workload``.
    """
    everything = load_workloads(given)
    fitting = [workload for workload in everything if workload.driver == driver]
    short = [workload.name for workload in fitting]
    found: dict[str, tuple[str, Workload]] = {}  # full name → as first requested
    for word in filter(None, map(str.strip, words.split(","))):
        members = [workload for workload in fitting if word in (workload.group, workload.suite)]
        if word not in short and members:
            for one in members:
                found.setdefault(full_name(one), (one.name if short.count(one.name) == 1 else full_name(one), one))
        elif word in short or "/" in word:
            one = _called(word, driver, everything)
            found.setdefault(full_name(one), (word, one))
        else:
            groups = {workload.group for workload in fitting}
            raise RecipeError(
                f"There is no workload and no group '{word}' for {driver}.{hint(word, [*short, *groups])}",
                f"Workloads for {driver}: {listed(set(short))}. Groups: {listed(groups)}.",
            )
    return dict(found.values())


def load_training(
    builder: Builder, variant: str, measured: Sequence[Workload], given: str | Path = ""
) -> tuple[Workload, ...]:
    """The workloads with which builds of a variant are trained; none where they are not optimised with a profile.

    ``measured`` are those of the hunt or the comparison. They are in the order of their names, however they were given, so
    that the build is the same. Raises RecipeError for one that does not exist.
    """
    names = variant_of(builder, variant).train
    if not names:
        return ()
    found = measured if names == MEASURED else choose_workloads(names, builder.driver, given).values()
    return tuple(sorted(found, key=full_name))


def full_name(workload: Workload) -> str:
    """The unambiguous name of a workload: suite/name."""
    return f"{workload.suite}/{workload.name}"


def load_host(name: str, given: str | Path = "") -> HostEntry:
    """The host of that name: of hosts.toml, or a leased one. Raises RecipeError when none exists, or when an inventory
    has a mistake.
    """
    hosts = {host.name: host for host in load_hosts(given)}
    said = None if name in hosts else parse_lease_name(name)
    if name not in hosts and said is None and name in {lease.name for lease in leases.load_leases(given)}:
        raise RecipeError(
            f"'{name}' is not a host, but a lease: its hosts are leased by their features.",
            f"Write {name}:FEATURES, or {name}: for any of its machines.",
        )
    return _chosen("host", name, hosts) if said is None else leases.leased_host(name, said, given)


def load_hosts(given: str | Path = "") -> list[HostEntry]:
    """All hosts, in the order of the inventories; an entry of an earlier inventory hides later ones of its name."""
    hosts: dict[str, HostEntry] = {}
    remote = load_configuration().shared.ccache
    for file in inventory_files(given):
        inventory = convert(read_table(file), Inventory, Location(file))
        for name, entry in inventory.hosts.items():
            if entry.build_host and entry.build_hosts:
                place = Location(file).at("hosts", name, "build_host")
                raise place.mistake("is given beside `build_hosts`.", "Name all of them in `build_hosts`.")
        found = {
            name: msgspec.structs.replace(
                entry,
                name=name,
                file=str(file),
                ccache_remote=entry.ccache_remote or remote,
            )
            for name, entry in inventory.hosts.items()
        }
        hosts = found | hosts
    return list(hosts.values())


def _recipes(folders: Iterable[Path], file: str) -> dict[str, Path]:
    """Name → file of every recipe in these folders, the first folder having precedence."""
    found: dict[str, Path] = {}
    for folder in folders:
        for recipe in sorted(folder.glob(f"*/{file}")):
            found.setdefault(recipe.parent.name, recipe)
    return found


def _chosen(noun: str, name: str, things: Mapping[str, Thing]) -> Thing:
    if name not in things:
        raise RecipeError(
            f"There is no {noun} '{name}'.{hint(name, things)}",
            f"{noun.capitalize()}s: {listed(things)}." if things else f"There are no {noun}s at all.",
        )
    return things[name]


def foreign_files(
    builder: Builder | None, workloads: Iterable[Workload], hosts: Iterable[HostEntry]
) -> dict[str, Path]:
    """What each file defines → the file, for all that are neither shipped nor in the user's configuration folder."""
    found = {}
    if builder:
        for folder in map(Path, (builder.folder, *builder.inherited)):
            if not _is_own(folder.parent, BUILDERS):
                found[f"Builder {folder.name}"] = folder / builder_reader.FILE
    for suite in dict.fromkeys(Path(each.folder) for each in workloads if each.folder):  # a command is of no suite
        if not _is_own(suite.parent, WORKLOADS):
            found[f"Suite {suite.name}"] = suite / workload.FILE
    for host in hosts:
        if not _is_own(Path(host.file), HOSTS):
            found[f"Host {host.name}"] = Path(host.file)
    return found


def _is_own(path: Path, name: str) -> bool:
    return path.resolve() in [place.resolve() for place in own_places(name)]
