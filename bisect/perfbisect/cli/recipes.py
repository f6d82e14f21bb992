"""`bisect builders`, `bisect workloads`, `bisect hosts`: what there is to choose from, and completion of its names."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options import say

if TYPE_CHECKING:
    from perfbisect.recipes.workload import Workload

FOLDER = click.Path(path_type=Path)


def complete(names: Iterable[str], incomplete: str) -> list[str]:
    """The names that begin with what has been typed."""
    return sorted(name for name in names if name.startswith(incomplete))


def builder_name(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of a builder's name."""
    from perfbisect.errors import RecipeError
    from perfbisect.recipes.find import load_builders

    try:
        return complete((builder.name for builder in load_builders(ctx.params.get("builders") or "")), incomplete)
    except RecipeError:  # a shell has no place to say what is wrong
        return []


def workload_name(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of a workload's name, for the builder chosen before it if there is one."""
    from perfbisect.errors import RecipeError
    from perfbisect.recipes.find import full_name, load_builder, load_workloads

    try:
        workloads = load_workloads(ctx.params.get("workloads") or "")
        if builder := ctx.params.get("builder"):
            driver = load_builder(builder, ctx.params.get("builders") or "").driver
            workloads = [workload for workload in workloads if workload.driver == driver]
    except RecipeError:
        return []
    short = complete({workload.name for workload in workloads}, incomplete)
    return short or complete(set(map(full_name, workloads)), incomplete)


def workload_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of the last of several workloads or groups, separated by commas."""
    from perfbisect.errors import RecipeError
    from perfbisect.recipes.find import load_workloads

    begun, _, last = incomplete.rpartition(",")
    before = f"{begun}," if begun else ""
    try:
        groups = {workload.group for workload in load_workloads(ctx.params.get("workloads") or "")}
    except RecipeError:
        return []
    names = {*workload_name(ctx, param, last), *complete(groups, last)}
    return [f"{before}{name}" for name in sorted(names)]


def host_name(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of a host's name."""
    from perfbisect.errors import RecipeError
    from perfbisect.recipes.find import load_hosts

    try:
        return complete((host.name for host in load_hosts(ctx.params.get("hosts") or "")), incomplete)
    except RecipeError:
        return []


@click.command(
    epilog="\b\nExamples:\n  bisect builders\n  bisect builders --show demo\n  bisect builders --builders ~/my-builders"
)
@click.option("--show", metavar="NAME", shell_complete=builder_name, help="Print one recipe, fully resolved, as TOML.")
@click.option("--builders", type=FOLDER, help="Folder with builders of your own.")
def builders(show: str | None, builders: Path | None) -> None:
    """List the recipes: systems that can be built or, prebuilt, compared."""
    from perfbisect.recipes.find import load_builder, load_builders
    from perfbisect.recipes.render import to_toml

    if show:
        builder = load_builder(show, builders or "")
        say("".join(f"# {folder}\n" for folder in (builder.folder, *builder.inherited)))
        say(to_toml(builder))
        return
    prebuilt = "  (prebuilt binaries only)"
    known = load_builders(builders or "")
    table([(each.name, each.driver, each.summary + ("" if each.build else prebuilt)) for each in known])


@click.command(
    epilog="\b\nExamples:\n  bisect workloads\n  bisect workloads --builder demo\n  bisect workloads --show demo/update-index"
)
@click.option("--show", metavar="NAME", shell_complete=workload_name, help="Print one workload, complete, as TOML.")
@click.option("--builder", metavar="NAME", shell_complete=builder_name, help="Only what this builder can run.")
@click.option("--builders", type=FOLDER, help="Folder with builders of your own.")
@click.option("--workloads", type=FOLDER, help="Folder with workloads of your own.")
def workloads(show: str | None, builder: str | None, builders: Path | None, workloads: Path | None) -> None:
    """List the microbenchmarks."""
    from perfbisect.recipes.find import load_builder, load_workloads

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


@click.command(epilog="\b\nExamples:\n  bisect hosts\n  bisect hosts --show local")
@click.option("--show", metavar="NAME", shell_complete=host_name, help="Print one host, complete, as TOML.")
@click.option("--hosts", type=FOLDER, help="hosts.toml to use.")
def hosts(show: str | None, hosts: Path | None) -> None:
    """List the machines of hosts.toml."""
    from perfbisect.recipes.find import load_host, load_hosts
    from perfbisect.recipes.inventory import Inventory
    from perfbisect.recipes.render import to_toml

    if show:
        say(to_toml(Inventory(hosts={show: load_host(show, hosts or "")})))
        return
    table([(each.name, each.address, each.summary) for each in load_hosts(hosts or "")])


def chosen(name: str, workloads: "Iterable[Workload]") -> "list[Workload]":
    """Every workload called ``name``: more than one where systems have a workload in common."""
    from perfbisect.errors import RecipeError
    from perfbisect.recipes.find import full_name
    from perfbisect.recipes.nearest import hint, listed

    known = list(workloads)
    found = [workload for workload in known if name in (workload.name, full_name(workload))]
    if not found:
        names = {workload.name for workload in known}
        raise RecipeError(f"There is no workload '{name}'.{hint(name, names)}", f"Workloads: {listed(names)}.")
    return found


def alike(workloads: "Iterable[Workload]") -> "dict[str, list[Workload]]":
    """Full name → the workloads of that name, which differ in their drivers only."""
    from perfbisect.recipes.find import full_name

    found: dict[str, list[Workload]] = {}
    for workload in workloads:
        found.setdefault(full_name(workload), []).append(workload)
    return found


def workload_text(workloads: "Sequence[Workload]") -> str:
    """A suite with this one workload, for each of its drivers, as TOML."""
    from perfbisect.recipes.render import to_toml
    from perfbisect.recipes.workload import Suite

    one, *others = workloads
    driver = [each.driver for each in workloads] if others else one.driver
    return to_toml(Suite(summary=one.summary, driver=driver, workloads={one.name: one}))


def table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in aligned columns."""
    if not rows:
        click.echo("none", err=True)
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
