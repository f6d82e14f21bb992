"""Shell completion of the names of builders, workloads, hosts and sessions; and the options that take the first two."""

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from perfbisect.errors import PerfBisectError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from perfbisect.recipes.workload import Workload

PLAIN = re.compile(r"[\w@%+=:,./-]+")  # a word that no shell changes or executes

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Completion = Callable[[click.Context, click.Parameter, str], list[str]]


def complete(names: Iterable[str], incomplete: str) -> list[str]:
    """The names that begin with what has been typed. Left out are those that a shell would have to be given in quotes."""
    return sorted(name for name in names if name.startswith(incomplete) and PLAIN.fullmatch(name))


def completing(names: Callable[[click.Context, str], Iterable[str]]) -> Completion:
    """Shell completion by the names that a function finds; by none where it fails, since a shell cannot show an error."""

    def completion(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        try:
            return complete(names(ctx, incomplete), incomplete)
        except PerfBisectError:
            return []

    return completion


@completing
def builder_name(ctx: click.Context, _incomplete: str) -> Iterable[str]:
    """The names of builders."""
    from perfbisect.recipes.builder_reader import load_builders

    return (builder.name for builder in load_builders(ctx.params.get("builders") or ""))


@completing
def variant_of_build(ctx: click.Context, incomplete: str) -> Iterable[str]:
    """What follows the last @ or + of a build, if --builder stands before it."""
    from perfbisect.recipes.builder_reader import load_builder

    sign = max("@+", key=incomplete.rfind)
    revision, found, _ = incomplete.rpartition(sign)
    if not found or not ctx.params.get("builder"):
        return []
    builder = load_builder(ctx.params["builder"], ctx.params.get("builders") or "")
    return (f"{revision}{sign}{name}" for name in (builder.variants if sign == "@" else builder.configs))


@completing
def workload_name(ctx: click.Context, incomplete: str) -> Iterable[str]:
    """The names of workloads; only those of the builder, if --builder stands before it."""
    return names_of(offered(ctx), incomplete)


@completing
def workload_names(ctx: click.Context, incomplete: str) -> Iterable[str]:
    """The last of several workloads or groups, separated by commas."""
    begun, comma, last = incomplete.rpartition(",")
    workloads = offered(ctx)
    return {f"{begun}{comma}{name}" for name in names_of(workloads, last) | {each.group for each in workloads}}


def names_of(workloads: "Iterable[Workload]", incomplete: str) -> set[str]:
    """Their names; with those of their suites if none begins as what has been typed."""
    from perfbisect.recipes.workload import full_name

    short = {workload.name for workload in workloads}
    return short if complete(short, incomplete) else {*map(full_name, workloads)}


def offered(ctx: click.Context) -> "list[Workload]":
    """The workloads of the builder that stands before them; without one, all."""
    from perfbisect.recipes.builder_reader import load_builder
    from perfbisect.recipes.workload import load_workloads

    workloads = load_workloads(ctx.params.get("workloads") or "")
    if builder := ctx.params.get("builder"):
        driver = load_builder(builder, ctx.params.get("builders") or "").driver
        workloads = [workload for workload in workloads if workload.driver == driver]
    return workloads


@completing
def host_name(ctx: click.Context, _incomplete: str) -> Iterable[str]:
    """The names of hosts; of leased ones as far as the lease."""
    from perfbisect.recipes.inventory import load_hosts, load_leases

    given = ctx.params.get("hosts") or ""
    leased = [f"{lease.name}:" for lease in load_leases(given)]
    return [*(host.name for host in load_hosts(given)), *leased]


def builder_option(text: str, **how: Any) -> Decorator:
    """``--builder NAME``; ``text`` is its help, ``how`` further arguments of click."""
    return click.option("--builder", "-b", metavar="NAME", shell_complete=builder_name, help=text, **how)


def workload_option(text: str, **how: Any) -> Decorator:
    """``--workload NAME``; likewise."""
    return click.option("--workload", "-w", metavar="NAME", shell_complete=workload_name, help=text, **how)


def several_workloads_option(text: str) -> Decorator:
    """``--workload NAME,…``; likewise."""
    return click.option("--workload", "-w", default="", metavar="NAME,…", shell_complete=workload_names, help=text)


def any_id(ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Shell completion of the ids that a parameter of the type ``Id`` takes: hunts, the latest first, then trials, batches."""
    from contextlib import closing

    from click.shell_completion import CompletionItem

    from perfbisect.cli.options.param_types import Id
    from perfbisect.store.batches import all_batches
    from perfbisect.store.history import History
    from perfbisect.wording.text import printable

    assert isinstance(param.type, Id)
    items: list[tuple[int | str, str]] = []
    try:
        with closing(History.open(ctx.params.get("history"), read_only=True)) as opened:
            items += [
                (each.id, f"{each.builder} {each.good}..{each.bad}, {each.state}") for each in opened.hunts()[::-1]
            ]
            items += [(each.id, f"{each.builder} {each.title}, {each.state}") for each in opened.trials()[::-1]]
            items += [(each.name, each.file or "together") for each in all_batches(opened)[::-1]]
    except PerfBisectError:  # what was read before it is offered
        pass
    return [
        CompletionItem(str(name), help=printable(text))
        for name, text in items
        if str(name).startswith(incomplete) and (isinstance(name, int) or name[0] in param.type.kinds)
    ]
