"""Options that `run`, `noise` and `compare` share: which system, how it is built and measured, and where recipes are."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from perfbisect.cli.options.common import history_option
from perfbisect.cli.options.completion import builder_name
from perfbisect.cli.options.param_types import COUNT, Option, Seconds
from perfbisect.cli.options.places import builders_option, inventory_option, workloads_option
from perfbisect.cli.options.wait import wait_option
from perfbisect.core.domain.settings import TIMING, Settings

PATH = click.Path(path_type=Path)

BUILDER = click.option(
    "--builder", "-b", required=True, metavar="NAME", shell_complete=builder_name, help="System to build."
)
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


def round_options(visits: int, runs: int, of: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of `noise` and `compare`: the number of rounds, which ``of`` describes, and those of HOW."""
    return lambda command: added(
        command,
        (
            click.option("--visits", type=COUNT, default=visits, show_default=True, help=of),
            click.option("--runs", type=COUNT, default=runs, show_default=True, help="Timed runs in each visit."),
            *HOW,
            click.option("--json", "as_json", is_flag=True, help="One JSON object at the end."),
            wait_option,
            history_option,
        ),
    )


def what_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select what is measured; ``settings_of`` reads them."""
    return added(command, WHAT)


def how_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select how, and with which recipes; ``settings_of`` reads them."""
    return added(command, HOW)


def added(command: Callable[..., Any], options: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    """The command with these options, in their order."""
    for option in reversed(options):
        command = option(command)
    return command


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
