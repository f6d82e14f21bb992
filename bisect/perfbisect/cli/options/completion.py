"""Shell completion of the names of builders, workloads, hosts and sessions; and the options that take the first two."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from perfbisect.recipes.workload import Workload

PLAIN = re.compile(r"[\w@%+=:,./-]+")  # a word that no shell changes or executes


def complete(names: Iterable[str], incomplete: str) -> list[str]:
    """The names that begin with what has been typed. Left out are those that a shell would have to be given in quotes."""
    return sorted(name for name in names if name.startswith(incomplete) and PLAIN.fullmatch(name))


def builder_name(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of a builder's name."""
    from perfbisect.errors import PerfBisectError
    from perfbisect.recipes.builder_reader import load_builders

    try:
        return complete((builder.name for builder in load_builders(ctx.params.get("builders") or "")), incomplete)
    except PerfBisectError:  # a shell cannot show an error
        return []


def variant_of_build(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of what follows the last @ or + of a build, if --builder stands before it."""
    from perfbisect.errors import PerfBisectError
    from perfbisect.recipes.builder_reader import load_builder

    sign = max("@+", key=incomplete.rfind)
    revision, found, _ = incomplete.rpartition(sign)
    if not found or not ctx.params.get("builder"):
        return []
    try:
        builder = load_builder(ctx.params["builder"], ctx.params.get("builders") or "")
    except PerfBisectError:
        return []
    names = [*(builder.variants if sign == "@" else builder.configs)]
    return complete((f"{revision}{sign}{name}" for name in names), incomplete)


def workload_name(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of a workload's name; only those of the builder, if --builder stands before it."""
    from perfbisect.recipes.workload import full_name

    workloads = offered(ctx)
    short = complete({workload.name for workload in workloads}, incomplete)
    return short or complete(set(map(full_name, workloads)), incomplete)


def offered(ctx: click.Context) -> "list[Workload]":
    """The workloads of the builder that stands before them; without one, all."""
    from perfbisect.errors import PerfBisectError
    from perfbisect.recipes.builder_reader import load_builder
    from perfbisect.recipes.workload import load_workloads

    try:
        workloads = load_workloads(ctx.params.get("workloads") or "")
        if builder := ctx.params.get("builder"):
            driver = load_builder(builder, ctx.params.get("builders") or "").driver
            workloads = [workload for workload in workloads if workload.driver == driver]
    except PerfBisectError:
        return []
    return workloads


def workload_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of the last of several workloads or groups, separated by commas."""
    begun, _, last = incomplete.rpartition(",")
    before = f"{begun}," if begun else ""
    groups = {workload.group for workload in offered(ctx)}
    names = {*workload_name(ctx, param, last), *complete(groups, last)}
    return [f"{before}{name}" for name in sorted(names)]


def builder_option(text: str, **how: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``--builder NAME``; ``text`` is its help, ``how`` further arguments of click."""
    return click.option("--builder", "-b", metavar="NAME", shell_complete=builder_name, help=text, **how)


def workload_option(text: str, **how: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``--workload NAME``; likewise."""
    return click.option("--workload", "-w", metavar="NAME", shell_complete=workload_name, help=text, **how)


def several_workloads_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``--workload NAME,…``; likewise."""
    return click.option(
        "--workload", "-w", default="", metavar="NAME,…", shell_complete=workload_names, help=text
    )  # fmt: skip


def host_name(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of a host's name; of a leased one as far as the lease."""
    from perfbisect.errors import PerfBisectError
    from perfbisect.recipes.inventory import load_hosts, load_leases

    given = ctx.params.get("hosts") or ""
    try:
        leased = [f"{lease.name}:" for lease in load_leases(given)]
        return complete((*(host.name for host in load_hosts(given)), *leased), incomplete)
    except PerfBisectError:
        return []


def hunt_number(ctx: click.Context, _param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Shell completion of a hunt's number, with its range and how it ended; the latest first."""
    from contextlib import closing

    from click.shell_completion import CompletionItem

    from perfbisect.errors import PerfBisectError
    from perfbisect.store.history import History
    from perfbisect.wording.text import printable

    try:
        with closing(History.open(history_of(ctx), read_only=True)) as opened:
            hunts = [*reversed(opened.hunts())]
    except PerfBisectError:
        return []
    return [
        CompletionItem(str(hunt.id), help=printable(f"{hunt.builder} {hunt.good}..{hunt.bad}, {hunt.state}"))
        for hunt in hunts
        if str(hunt.id).startswith(incomplete)
    ]


def any_id(ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Shell completion of the ids that a parameter of the type ``Which`` takes: hunts, then trials, then batches."""
    from contextlib import closing

    from click.shell_completion import CompletionItem

    from perfbisect.cli.options.param_types import Which
    from perfbisect.errors import PerfBisectError
    from perfbisect.store.batches import all_batches
    from perfbisect.store.history import History
    from perfbisect.wording.text import printable

    items = hunt_number(ctx, param, incomplete)
    try:
        with closing(History.open(history_of(ctx), read_only=True)) as opened:
            named = [(trial.id, f"{trial.builder} {trial.title}, {trial.state}") for trial in reversed(opened.trials())]
            if isinstance(param.type, Which) and param.type.batches:
                named += [(batch.name, batch.file or "together") for batch in reversed(all_batches(opened))]
    except PerfBisectError:
        return items
    return items + [CompletionItem(name, help=printable(text)) for name, text in named if name.startswith(incomplete)]


def history_of(ctx: click.Context) -> Path | None:
    """The history that was given to the command, or before its name to the group."""
    found: Path | None = ctx.params.get("history") or (ctx.parent.params.get("history") if ctx.parent else None)
    return found
