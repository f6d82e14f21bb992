"""`bisect workloads`: list the microbenchmarks."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import say, table
from perfbisect.cli.options.completion import builder_name, workload_name
from perfbisect.cli.options.places import builders_option, workloads_option

if TYPE_CHECKING:
    from perfbisect.recipes.workload import Workload


@click.command(
    epilog="\b\nExamples:\n  bisect workloads\n  bisect workloads --builder demo\n  bisect workloads --show demo/update-index"
)
@click.option("--show", metavar="NAME", shell_complete=workload_name, help="Print one workload, complete, as TOML.")
@click.option("--builder", metavar="NAME", shell_complete=builder_name, help="Only what this builder can run.")
@builders_option
@workloads_option
def workloads(show: str | None, builder: str | None, builders: Path | None, workloads: Path | None) -> None:
    """List the microbenchmarks."""
    from perfbisect.recipes.builder_reader import load_builder
    from perfbisect.recipes.workload import load_workloads

    known = load_workloads(workloads or "")
    if builder:
        driver = load_builder(builder, builders or "").driver
        known = [workload for workload in known if workload.driver == driver]
    if show:
        shown = alike(chosen(show, known))
        say("\n".join(f"# {each[0].folder}\n{workload_text(each)}" for each in shown.values()))
        return
    table(
        [
            (name, ", ".join(one.driver for one in each), each[0].group, each[0].summary)
            for name, each in alike(known).items()
        ]
    )


def chosen(name: str, workloads: "Iterable[Workload]") -> "list[Workload]":
    """Every workload called ``name``: several where systems share a workload."""
    from perfbisect.errors import RecipeError
    from perfbisect.recipes.toml import hint, listed
    from perfbisect.recipes.workload import full_name

    known = list(workloads)
    found = [workload for workload in known if name in (workload.name, full_name(workload))]
    if not found:
        names = {workload.name for workload in known}
        raise RecipeError(f"There is no workload '{name}'.{hint(name, names)}", f"Workloads: {listed(names)}.")
    return found


def alike(workloads: "Iterable[Workload]") -> "dict[str, list[Workload]]":
    """Full name → the workloads of that name, which differ in their drivers only."""
    from perfbisect.recipes.workload import full_name

    found: dict[str, list[Workload]] = {}
    for workload in workloads:
        found.setdefault(full_name(workload), []).append(workload)
    return found


def workload_text(workloads: "Sequence[Workload]") -> str:
    """A suite with this one workload, for each of its drivers, as TOML."""
    from perfbisect.recipes.toml import to_toml
    from perfbisect.recipes.workload import Suite

    one, *others = workloads
    driver = [each.driver for each in workloads] if others else one.driver
    return to_toml(Suite(summary=one.summary, driver=driver, workloads={one.name: one}))
