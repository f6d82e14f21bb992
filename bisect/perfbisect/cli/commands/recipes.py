"""`bisect builders` and `bisect workloads`: list recipes, or print one as TOML, fully resolved."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import Given, say, verb_command
from perfbisect.cli.options.completion import builder_name, builder_option, workload_name
from perfbisect.cli.options.measurement import builders_option, workloads_option
from perfbisect.ui.stream import note
from perfbisect.wording.text import printable

if TYPE_CHECKING:
    from perfbisect.recipes.workload import Workload


def table(rows: "Sequence[Sequence[str]]") -> None:
    """Print rows in aligned columns."""
    from perfbisect.wording.table import columns

    if rows:
        say("\n".join(columns([[*map(printable, row)] for row in rows])))
    else:
        note("none")


@verb_command()
@click.option("--show", metavar="NAME", shell_complete=builder_name, help="Print one recipe, fully resolved, as TOML.")
@builders_option
def builders(given: Given) -> None:
    """List the builders: how systems are built and run.

    \b
    Examples:
      bisect builders
      bisect builders --show demo
      bisect builders --builders ~/my-builders
    """
    from perfbisect.recipes.build_systems import listing
    from perfbisect.recipes.builder_reader import load_builder, load_builders
    from perfbisect.recipes.toml import to_toml

    if not given.show:
        table([(each.name, each.driver, each.summary) for each in load_builders(given.builders or "")])
        return
    builder = load_builder(given.show, given.builders or "")
    say("".join(f"# {folder}\n" for folder in (builder.folder, *builder.inherited)))
    say("\n".join([to_toml(builder), *listing(builder)]))


@verb_command()
@click.option("--show", metavar="NAME", shell_complete=workload_name, help="Print one workload, complete, as TOML.")
@builder_option("Only what this builder can run.")
@builders_option
@workloads_option
def workloads(given: Given) -> None:
    """List the microbenchmarks.

    \b
    Examples:
      bisect workloads
      bisect workloads --builder demo
      bisect workloads --show demo/update-index
    """
    from perfbisect.recipes.builder_reader import load_builder
    from perfbisect.recipes.toml import to_toml
    from perfbisect.recipes.workload import Suite, full_name, load_workloads

    known = load_workloads(given.workloads or "")
    if given.builder:
        driver = load_builder(given.builder, given.builders or "").driver
        known = [workload for workload in known if workload.driver == driver]
    alike: dict[str, list[Workload]] = {}  # by their full name: they differ in their drivers only
    for workload in chosen(given.show, known) if given.show else known:
        alike.setdefault(full_name(workload), []).append(workload)
    if not given.show:
        drivers = {name: ", ".join(one.driver for one in each) for name, each in alike.items()}
        table([(name, drivers[name], each[0].group, each[0].summary) for name, each in alike.items()])
        return
    for one, *others in alike.values():
        systems = [one.driver, *(each.driver for each in others)]
        suite = Suite(summary=one.summary, driver=systems if others else one.driver, workloads={one.name: one})
        say(f"# {one.folder}\n{to_toml(suite)}")


def chosen(name: str, known: "Iterable[Workload]") -> "list[Workload]":
    """Every workload called ``name``: several where systems share a workload."""
    from perfbisect.errors import RecipeError
    from perfbisect.recipes.toml import hint
    from perfbisect.recipes.workload import full_name, workloads_listed

    found = [workload for workload in known if name in (workload.name, full_name(workload))]
    if not found:
        names = {workload.name for workload in known}
        raise RecipeError(f"There is no workload '{name}'.{hint(name, names)}", workloads_listed("", names))
    return found
