"""Completes revisions and the names of builders, workloads, metrics, hosts and sessions in a shell; and defines the
options that use this completion."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfbisect.errors import PerfBisectError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from perfbisect.recipes.builder import Builder
    from perfbisect.recipes.workload import Workload

PLAIN = re.compile(r"[\w@%+=:,./-]+")  # a word that needs no quotes in any shell

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Completion = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def matching_names(names: Iterable[str], incomplete: str) -> list[str]:
    """The names that begin with the typed text, except names that need quotes in a shell."""
    return [name for name in names if name.startswith(incomplete) and PLAIN.fullmatch(name)]


def completion_from(names: Callable[[click.Context, str], Mapping[str, str]]) -> Completion:
    """A shell completion that offers the names, with descriptions, that the function ``names`` returns. If ``names``
    fails, nothing is offered, because a shell cannot show an error.
    """

    def completion(ctx: click.Context, _param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        from perfbisect.wording.text import printable

        try:
            described = names(ctx, incomplete)
        except PerfBisectError:
            return []
        return [CompletionItem(name, help=printable(described[name])) for name in matching_names(described, incomplete)]

    return completion


@completion_from
def builder_names(ctx: click.Context, _incomplete: str) -> Mapping[str, str]:
    """The names of builders."""
    from perfbisect.recipes.builder_reader import load_builders

    return {builder.name: builder.summary for builder in load_builders(ctx.params.get("builders") or "")}


def given_builder(ctx: click.Context) -> "Builder | None":
    """The builder that the option --builder names, if the option precedes the word that the shell completes; otherwise
    None."""
    from perfbisect.recipes.builder_reader import load_builder

    name = ctx.params.get("builder")
    return load_builder(name, ctx.params.get("builders") or "") if name else None


def revisions(ctx: click.Context, incomplete: str) -> Mapping[str, str]:
    """The revisions that can complete the typed word: versions of releases (from the builder's tags), branches and
    tags. After GOOD.., the second revision is completed. The revisions are read from the repository in --repo; without
    --repo, from perfbisect's clone for the builder; without a clone, from the repository of the current folder.
    """
    from perfbisect.repository.commits import refs_with_subjects, versions_of_tags
    from perfbisect.repository.discovery import clone_path, open_repository

    builder = given_builder(ctx)
    clone = clone_path(builder.name) if builder else Path()
    repo = open_repository(ctx.params.get("repo") or (clone if clone.exists() else Path()), is_named_by_user=False)
    refs = refs_with_subjects(repo)
    patterns = builder.release_tags if builder else ()
    tags = (pair for pattern in patterns for pair in versions_of_tags([*refs], pattern))
    begun = incomplete[: incomplete.rfind("..") + 2] if ".." in incomplete else ""
    return {begun + name: text for name, text in ({version: refs[tag] for version, tag in tags} | refs).items()}


revision = completion_from(revisions)


@completion_from
def complete_revision(ctx: click.Context, incomplete: str) -> Mapping[str, str]:
    """The words that complete a typed build: a revision, which may be followed by @VARIANT or +CONFIGURATION. Variants
    and configurations are completed only if the option --builder precedes the word.
    """
    sign = max("@+", key=incomplete.rfind)
    name, separator, _ = incomplete.rpartition(sign)
    builder = given_builder(ctx) if separator else None
    if builder is None:
        return revisions(ctx, incomplete)
    return {f"{name}{sign}{suffix}": "" for suffix in (builder.variants if sign == "@" else builder.configs)}


@completion_from
def workload_names_of_builder(ctx: click.Context, incomplete: str) -> Mapping[str, str]:
    """The names of the workloads for the builder that --builder names, or of all workloads if --builder does not
    precede the word."""
    return workload_summaries(offered_workloads(ctx), incomplete)


@completion_from
def workload_list_names(ctx: click.Context, incomplete: str) -> Mapping[str, str]:
    """For a typed list with commas: the list, with each possible completion of its last name (of a workload or a group
    of workloads)."""
    begun, comma, last = incomplete.rpartition(",")
    workloads = offered_workloads(ctx)
    described = {**{workload.group: "a group" for workload in workloads}, **workload_summaries(workloads, last)}
    return {f"{begun}{comma}{name}": described[name] for name in sorted(described)}


def workload_summaries(workloads: "Iterable[Workload]", incomplete: str) -> dict[str, str]:
    """The summaries of workloads by their names. If no name begins with the typed text, the names have the form
    SUITE/NAME.
    """
    from perfbisect.recipes.workload import qualified_name

    short = {workload.name: workload.summary for workload in workloads}
    summaries = {qualified_name(workload): workload.summary for workload in workloads}
    described = short if matching_names(short, incomplete) else summaries
    return dict(sorted(described.items()))


@completion_from
def metric_names(_ctx: click.Context, _incomplete: str) -> Mapping[str, str]:
    """The names of metrics."""
    from perfbisect.core.domain.metrics import METRICS

    return dict.fromkeys(METRICS, "")


def offered_workloads(ctx: click.Context) -> "list[Workload]":
    """The workloads for the builder if --builder precedes the word; otherwise all workloads."""
    from perfbisect.recipes.workload import load_workloads

    workloads = load_workloads(ctx.params.get("workloads") or "")
    if builder := given_builder(ctx):
        workloads = [workload for workload in workloads if workload.driver == builder.driver]
    return workloads


@completion_from
def host_names(ctx: click.Context, _incomplete: str) -> Mapping[str, str]:
    """The names of hosts that the user can type. Names of leased hosts begin with the name of a lease and a colon, so
    this beginning is offered."""
    from perfbisect.recipes.inventory import load_hosts, load_leases

    hosts_path = ctx.params.get("hosts") or ""
    leased = {f"{lease.name}:": lease.summary for lease in load_leases(hosts_path)}
    return {host.name: host.summary for host in load_hosts(hosts_path)} | leased


def builder_option(text: str, **how: Any) -> Decorator:
    """The option ``--builder NAME``; ``text`` is its help, ``how`` has further arguments for click."""
    return click.option("--builder", "-b", metavar="NAME", shell_complete=builder_names, help=text, **how)


def workload_option(text: str, **how: Any) -> Decorator:
    """The option ``--workload NAME``; see ``builder_option`` for the arguments."""
    return click.option("--workload", "-w", metavar="NAME", shell_complete=workload_names_of_builder, help=text, **how)


def several_workloads_option(text: str) -> Decorator:
    """The option ``--workload NAME,…``; ``text`` is the option's help."""
    return click.option("--workload", "-w", default="", metavar="NAME,…", shell_complete=workload_list_names, help=text)


def complete_id(ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Completes the id of a session for a parameter of the type ``SessionIdParam``: offers hunts, the latest first,
    then trials, then batches. For a parameter that takes a file or a batch, only files and batches are offered.
    """
    from contextlib import closing

    from click.shell_completion import CompletionItem

    from perfbisect.cli.options.param_types import FileOrBatchParam, SessionIdParam
    from perfbisect.store.batches import all_batches
    from perfbisect.store.history import History
    from perfbisect.wording.text import printable

    assert isinstance(param.type, SessionIdParam)
    items: list[tuple[int | str, str]] = []
    try:
        with closing(History.open(ctx.params.get("history"), read_only=True)) as opened:
            items += [(hunt.id, f"{hunt.title}, {hunt.state}") for hunt in opened.hunts()[::-1]]
            trials = opened.trials_except_fitness_checks()[::-1]
            items += [(trial.id, f"{trial.builder} {trial.title}, {trial.state}") for trial in trials]
            items += [(batch.name, batch.file or "together") for batch in all_batches(opened)[::-1]]
    except PerfBisectError:  # ids that were read before the error are offered
        pass
    # The shell completes the names of files.
    files = [CompletionItem(incomplete, type="file")] * isinstance(param.type, FileOrBatchParam)
    kinds = param.type.kinds if files else ("", *param.type.kinds)
    return files + [
        CompletionItem(str(name), help=printable(text))
        for name, text in items
        if str(name).startswith(incomplete) and str(name)[0].strip("0123456789") in kinds
    ]
