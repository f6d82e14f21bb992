"""What is measured, how, by which rules and with which recipes: options that several verbs share, and settings made of them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfbisect.cli.options.common import history_option, wait_option
from perfbisect.cli.options.param_types import COUNT, Minutes, Option, Percent, Seconds
from perfbisect.core.domain.settings import CAP, COUNTED, TIMING, Policy, Settings
from perfbisect.folders import config_folder
from perfbisect.recipes.configuration import BUILDERS, HOSTS, WORKLOADS, working_directory
from perfbisect.ui.stream import note

if TYPE_CHECKING:
    from perfbisect.recipes.builder import Builder
    from perfbisect.recipes.inventory import HostEntry
    from perfbisect.recipes.workload import Workload

PATH = click.Path(path_type=Path)


def recipes_option(name: str, what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option with the folder or file ``name`` of recipes; None where those of the working directory do not count."""

    def given(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
        if value is not None:
            return value.absolute()
        return of_working_directory(name, f"give {param.opts[0]} {name}", quiet=ctx.resilient_parsing)

    text = f"{what}. Default: ./{name}, unless that is in a git repository or another user's."
    return click.option(f"--{name.partition('.')[0]}", type=PATH, callback=given, help=text)


builders_option = recipes_option(BUILDERS, "Folder with builders of your own")
workloads_option = recipes_option(WORKLOADS, "Folder with workloads of your own")
inventory_option = recipes_option(HOSTS, "hosts.toml to use")


def of_working_directory(name: str, advice: str, *, quiet: bool = False) -> Path | None:
    """The recipes ``name`` of the working directory if they count; otherwise a line on standard error says why not."""
    place, reason = working_directory(name)
    if place and reason:
        if not quiet:  # completion of a shell
            note(f"{place} is ignored: {reason}. To use it, {advice}.")
        return None
    return place


WHAT = (
    click.option(
        "--repo", type=PATH,
        help="Local clone. Default: a clone of the recipe's URL; without a recipe, the current folder.",
    ),
    click.option("--variant", metavar="NAME", default="", help="Compiler settings; see `bisect builders --show`."),
    click.option(
        "--configure", metavar="OPTION", multiple=True,
        help="Option for the configure step of the build system: -DWITH_X=OFF, --without-y. Repeatable.",
    ),
    click.option(
        "--patch", type=PATH, multiple=True,
        help="Patch for the commits that it applies to, before they are built. Repeatable.",
    ),
    click.option(
        "--metric", default="", metavar="NAME",
        help="qps, p95, cpu/o, instructions/o, …; for `run` also auto: the one that shows the change best. Default: qps,"
        " or that of the command.",
    ),
)  # fmt: skip
HOW = (
    click.option("--time", type=COUNT, help="Seconds of each timed run."),
    click.option("--warmup", type=Seconds(), help="Seconds of warm-up before each run."),
    click.option("--threads", type=click.IntRange(1, 1_000_000), help="Client threads."),
    click.option(
        "--set", "changes", type=Option(), multiple=True, help="Change one of the workload's args. Repeatable."
    ),
    builders_option,
    workloads_option,
    inventory_option,
)
RULES = (
    click.option(
        "--confidence", type=Percent(CAP), default="95%", show_default=True,
        help="Probability at which a culprit is named.",
    ),
    click.option(
        "--min-effect", type=Percent(), help="Smallest change of interest  [default: 2%; 0.2% of exact counts]"
    ),
    click.option(
        "--all", "all_steps", is_flag=True, help="Find all changes of at least that size, not only the largest."
    ),
    click.option("--max-builds", type=COUNT, help="Stop with the best answer after this many builds."),
    click.option("--max-runs", type=COUNT, help="… after this many timed runs."),
    click.option("--max-time", type=Minutes(), help="… after this time: 90s, 45m, 2h."),
)  # fmt: skip


def added(*options: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add these options to a command, in their order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


what_options, how_options, policy_options = added(*WHAT), added(*HOW), added(*RULES)


def round_options(visits: int, runs: int, of: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options of `noise` and `compare`: the number of rounds, which ``of`` describes, and those of HOW."""
    return added(
        click.option("--visits", type=COUNT, default=visits, show_default=True, help=of),
        click.option("--runs", type=COUNT, default=runs, show_default=True, help="Timed runs in each visit."),
        *HOW,
        click.option("--json", "as_json", is_flag=True, help="One JSON object at the end."),
        wait_option,
        history_option,
    )


def overrides(options: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """The changes to a workload; sorted, whatever the order on the command line."""
    return {name: options[name] for name in TIMING if options[name] is not None} | dict(
        sorted(dict(options["changes"]).items())
    )


def settings_of(options: Mapping[str, Any], **own: Any) -> Settings:
    """The settings from the options of WHAT and HOW, and the verb's ``own``."""
    from perfbisect.recipes.builder_reader import given_patches

    return Settings(
        repository=str(options["repo"].absolute()) if options["repo"] else "",
        builder=options["builder"],
        variant=options["variant"],
        metric=options["metric"],
        configure=tuple(options["configure"]),
        patches=given_patches(options["patch"]),
        overrides=overrides(options),
        builders_path=str(options["builders"] or ""),
        workloads_path=str(options["workloads"] or ""),
        hosts_path=str(options["hosts"] or ""),
        **own,
    )


def least(effect: float | None) -> dict[str, Any]:
    """The smallest changes of interest, of a time and of a count, as `--min-effect` has them; None: the usual ones."""
    return {"min_counted": COUNTED} if effect is None else {"min_effect": effect, "min_counted": 0.0}


def policy_of(options: Mapping[str, Any]) -> Policy:
    """The rules from the options of RULES."""
    return Policy(
        confidence=options["confidence"],
        **least(options["min_effect"]),
        max_builds=options["max_builds"] or 0,
        max_runs=options["max_runs"] or 0,
        max_minutes=options["max_time"] or 0.0,
        all_steps=options["all_steps"],
    )


def continued(settings: Settings) -> Settings:
    """The settings of a stored hunt, as they are used to go on with it.

    A hunt keeps the folders that it began with. One that has none stored may have found its recipes in the working
    directory, which earlier releases searched each time.
    """

    def place(stored: str, name: str) -> str:
        advice = f"copy what the hunt needs of it to {config_folder() / name}"
        return stored or str(of_working_directory(name, advice) or "")

    return replace(
        settings,
        builders_path=place(settings.builders_path, BUILDERS),
        workloads_path=place(settings.workloads_path, WORKLOADS),
        hosts_path=place(settings.hosts_path, HOSTS),
    )


def announce_recipes(*every: Settings) -> None:
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
