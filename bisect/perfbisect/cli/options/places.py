"""Where recipes come from: --builders, --workloads and --hosts, and a line for each recipe from elsewhere."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfbisect.folders import config_folder
from perfbisect.recipes.configuration import BUILDERS, HOSTS, WORKLOADS, working_directory
from perfbisect.ui.stream import note

if TYPE_CHECKING:
    from perfbisect.core.domain.settings import Settings
    from perfbisect.recipes.builder import Builder
    from perfbisect.recipes.inventory import HostEntry
    from perfbisect.recipes.workload import Workload

UNLESS = "unless that is in a git repository or another user's"


def builders_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--builders FOLDER``, given to the command as ``builders: Path | None``."""
    return _option("builders", BUILDERS, f"Folder with builders of your own. Default: ./builders, {UNLESS}.")(command)


def workloads_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--workloads FOLDER``, given to the command as ``workloads: Path | None``."""
    return _option("workloads", WORKLOADS, f"Folder with workloads of your own. Default: ./workloads, {UNLESS}.")(
        command
    )


def inventory_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--hosts FILE``, given to the command as ``hosts: Path | None``."""
    return _option("hosts", HOSTS, f"hosts.toml to use. Default: ./hosts.toml, {UNLESS}.")(command)


def _option(name: str, place: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def given(ctx: click.Context, _param: click.Parameter, value: Path | None) -> Path | None:
        if value is not None:
            return value.absolute()
        return _of_working_directory(place, f"give --{name} {place}", quiet=ctx.resilient_parsing)

    return click.option(f"--{name}", type=click.Path(path_type=Path), callback=given, help=text)


def _of_working_directory(name: str, advice: str, *, quiet: bool = False) -> Path | None:
    """The recipes ``name`` of the working directory if they count; otherwise a line on standard error says why not."""
    place, reason = working_directory(name)
    if place and reason:
        if not quiet:  # completion of a shell
            note(f"{place} is ignored: {reason}. To use it, {advice}.")
        return None
    return place


def continued(settings: "Settings") -> "Settings":
    """The settings of a stored hunt, as they are used to go on with it.

    A hunt keeps the folders that it began with. One that has none stored may have found its recipes in the working
    directory, which earlier releases searched each time.
    """

    def place(stored: str, name: str) -> str:
        advice = f"copy what the hunt needs of it to {config_folder() / name}"
        return stored or str(_of_working_directory(name, advice) or "")

    return replace(
        settings,
        builders_path=place(settings.builders_path, BUILDERS),
        workloads_path=place(settings.workloads_path, WORKLOADS),
        hosts_path=place(settings.hosts_path, HOSTS),
    )


def announce_recipes(*every: "Settings") -> None:
    """Say on standard error from which files are the recipes and hosts of hunts that differ in their workloads only; see
    ``announce``.
    """
    from perfbisect.recipes.inventory import load_host
    from perfbisect.recipes.requested import load_requested

    found = [load_requested(settings) for settings in every]
    hosts = [load_host(name, every[0].hosts_path) for name in every[0].hosts]
    announce(found[0][0], [workload for _, workload in found], hosts)


def announce(
    builder: "Builder | None" = None, workloads: "Iterable[Workload]" = (), hosts: "Iterable[HostEntry]" = ()
) -> None:
    """Say on standard error from which files these are, unless they are shipped or in the user's configuration folder."""
    from perfbisect.recipes.requested import foreign_files

    for what, file in foreign_files(builder, workloads, hosts).items():
        note(f"{what} is from {file}")
