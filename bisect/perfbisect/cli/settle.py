"""What the recipe and the repository decide of a hunt's settings."""

import sys
from dataclasses import replace
from pathlib import Path

import click

from perfbisect.core.counters import REPORTED, check_metric, higher_is_better
from perfbisect.core.policy import Direction
from perfbisect.core.settings import Settings
from perfbisect.errors import UsageError
from perfbisect.recipes.asked import load_asked
from perfbisect.recipes.lineage import variant_of
from perfbisect.repository.clone import cached_clone
from perfbisect.repository.resolve import open_repository, resolve


def settle(settings: Settings, direction: Direction | None = None) -> Settings:
    """The settings with everything resolved that recipe and repository decide: metric, clone, variant, commits.

    ``direction`` None is the one that makes the metric worse. What is mistyped is told before anything is cloned.
    """
    if settings.metric:
        check_metric(settings.metric)
    if settings.quick and settings.quick.build is not None and not settings.repository:
        git = open_repository(Path.cwd())
        settings = replace(settings, repository=str(git.working_tree_dir or git.git_dir))
    builder, workload = load_asked(settings)
    variant_of(builder, settings.variant)
    metric = settings.metric or workload.metric
    if metric in REPORTED and metric != workload.metric:
        raise UsageError(
            f"Workload {workload.name} does not tell a {metric}, so it cannot be hunted.",
            f"Say where its output tells it, with --{metric} or in suite.toml; or hunt another metric.",
        )
    worse = Direction.DROP if higher_is_better(metric) else Direction.RISE
    if settings.repository:
        repository = Path(settings.repository)
    else:
        repository = cached_clone(builder, (settings.good, settings.bad), say)
    git = open_repository(repository)
    return replace(
        settings,
        repository=str(repository),
        builder=settings.builder or builder.name,
        workload=settings.workload or workload.name,
        metric=metric,
        policy=replace(settings.policy, direction=direction or worse),
        variant=settings.variant or builder.variant,
        suspects={**builder.suspects, **workload.suspects, **settings.suspects},
        good_commit=resolve(git, settings.good, builder.release_tags),
        bad_commit=resolve(git, settings.bad, builder.release_tags),
    )


def say(step: str, done: int, total: int) -> None:
    """Show on standard error, where a person watches it, how far git has got with a clone."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{step} {done}/{total}" + ("\n" if done == total else ""), nl=False, err=True)
