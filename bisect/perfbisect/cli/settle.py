"""What the recipe and the repository decide of a hunt's settings."""

import sys
from dataclasses import replace
from pathlib import Path

import click

from perfbisect.core.counters import check_metric
from perfbisect.core.settings import Settings
from perfbisect.recipes.find import load_builder, load_workload
from perfbisect.recipes.lineage import variant_of
from perfbisect.recipes.overrides import typed
from perfbisect.repository.clone import cached_clone
from perfbisect.repository.resolve import open_repository, resolve


def settle(settings: Settings) -> Settings:
    """The settings with everything resolved that the recipe and the repository decide: clone, variant, commits.

    What is mistyped is told before anything is cloned.
    """
    check_metric(settings.metric)
    builder = load_builder(settings.builder, settings.builders_path)
    variant_of(builder, settings.variant)
    workload = load_workload(settings.workload, builder.driver, settings.workloads_path)
    overrides = typed(workload, settings.overrides)
    if settings.repository:
        repository = Path(settings.repository)
    else:
        repository = cached_clone(builder, (settings.good, settings.bad), say)
    git = open_repository(repository)
    return replace(
        settings,
        repository=str(repository),
        overrides=overrides,
        variant=settings.variant or builder.variant,
        suspects={**builder.suspects, **workload.suspects, **settings.suspects},
        good_commit=resolve(git, settings.good, builder.release_tags),
        bad_commit=resolve(git, settings.bad, builder.release_tags),
    )


def say(step: str, done: int, total: int) -> None:
    """Show on standard error, where a person watches it, how far git has got with a clone."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{step} {done}/{total}" + ("\n" if done == total else ""), nl=False, err=True)
