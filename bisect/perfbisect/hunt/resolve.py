"""What the recipe and the repository decide of a hunt's settings."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.policy import Direction
from perfbisect.core.domain.settings import Settings
from perfbisect.errors import UsageError
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.find import load_builder
from perfbisect.recipes.inheritance import build_of, variant_of
from perfbisect.recipes.overrides import typed
from perfbisect.recipes.requested import load_requested
from perfbisect.recipes.workload import Workload
from perfbisect.repository.clone import cached_clone
from perfbisect.repository.resolve import open_repository, resolve


def settle(settings: Settings, direction: Direction | None = None, *, to_build: bool = True) -> Settings:
    """The settings with everything resolved that recipe and repository decide: metric, clone, variant, commits.

    ``direction`` None is the one that makes the metric worse. What is mistyped is told before anything is cloned.
    ``to_build`` as ``with_commits`` has it.
    """
    if settings.quick and settings.quick.build is not None and not settings.repository:
        git = open_repository(Path.cwd())
        settings = replace(settings, repository=str(git.working_tree_dir or git.git_dir))
    builder, workload = load_requested(settings)
    variant_of(builder, settings.variant)
    metric = metric_of(settings.metric, [workload])
    settings = replace(
        settings,
        builder=settings.builder or builder.name,
        workload=settings.workload or workload.name,
        metric=metric,
        overrides=typed(workload, settings.overrides),
        policy=replace(settings.policy, direction=direction or worse(metric)),
        suspects={**builder.suspects, **workload.suspects, **settings.suspects},
    )
    settings, [good, bad] = with_commits(settings, builder, (settings.good, settings.bad), to_build=to_build)
    return replace(settings, good_commit=good, bad_commit=bad)


def metric_of(asked: str, workloads: Sequence[Workload]) -> str:
    """The metric asked for, by default what the workloads tell. Raises UsageError for one that one of them does not."""
    if asked:
        find_metric(asked)
    own = {workload.metric: workload.name for workload in workloads}
    if not asked and len(own) > 1:
        told = ", ".join(f"{name} {metric}" for metric, name in own.items())
        raise UsageError(
            f"These workloads tell different things: {told}.", "Measure them apart, or give a --metric that all have."
        )
    metric = asked or next(iter(own))
    for workload in workloads:
        if find_metric(metric).from_output and metric != workload.metric:
            raise UsageError(
                f"Workload {workload.name} does not tell a {metric}, so it cannot be hunted.",
                f"Say where its output tells it, with --{metric} or in suite.toml; or hunt another metric.",
            )
    return metric


def worse(metric: str) -> Direction:
    """The direction in which a metric gets worse."""
    return Direction.DROP if find_metric(metric).higher_is_better else Direction.RISE


def builder_of(settings: Settings) -> Builder:
    """The builder that was asked for; its variant exists, too."""
    builder = load_builder(settings.builder, settings.builders_path)
    variant_of(builder, settings.variant)
    return builder


def with_commits(
    settings: Settings, builder: Builder, revisions: Sequence[str], *, to_build: bool = True
) -> tuple[Settings, list[str]]:
    """The settings with repository and variant, and the commit of each revision. Clones what is not here.

    Raises RecipeError where commits are ``to_build`` and the recipe does not say how.
    """
    if to_build:
        build_of(builder)
    repository = Path(settings.repository) if settings.repository else cached_clone(builder, revisions, say)
    git = open_repository(repository)
    settled = replace(settings, repository=str(repository), variant=settings.variant or builder.variant)
    return settled, [resolve(git, revision, builder.release_tags) for revision in revisions]


def say(step: str, done: int, total: int) -> None:
    """Show on standard error, where a person watches it, how far git has got with a clone."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{step} {done}/{total}" + ("\n" if done == total else ""), nl=False, err=True)
