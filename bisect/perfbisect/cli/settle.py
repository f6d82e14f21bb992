"""What the recipe and the repository decide of a hunt's settings."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from perfbisect.core.counters import check_metric
from perfbisect.core.settings import Settings
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.find import load_builder, load_workload
from perfbisect.recipes.lineage import build_of, variant_of
from perfbisect.repository.clone import cached_clone
from perfbisect.repository.resolve import open_repository, resolve


def settle(settings: Settings) -> Settings:
    """The settings with everything resolved that the recipe and the repository decide: clone, variant, commits.

    What is mistyped is told before anything is cloned.
    """
    builder = builder_of(settings)
    workload = load_workload(settings.workload, builder.driver, settings.workloads_path)
    settings, [good, bad] = with_commits(settings, builder, (settings.good, settings.bad))
    return replace(
        settings,
        suspects={**builder.suspects, **workload.suspects, **settings.suspects},
        good_commit=good,
        bad_commit=bad,
    )


def builder_of(settings: Settings) -> Builder:
    """The builder that was asked for; its variant and the metric exist, too."""
    check_metric(settings.metric)
    builder = load_builder(settings.builder, settings.builders_path)
    variant_of(builder, settings.variant)
    return builder


def with_commits(settings: Settings, builder: Builder, revisions: Sequence[str]) -> tuple[Settings, list[str]]:
    """The settings with repository and variant, and the commit of each revision. Clones what is not here."""
    build_of(builder)
    repository = Path(settings.repository) if settings.repository else cached_clone(builder, revisions, say)
    git = open_repository(repository)
    settled = replace(settings, repository=str(repository), variant=settings.variant or builder.variant)
    return settled, [resolve(git, revision, builder.release_tags) for revision in revisions]


def say(step: str, done: int, total: int) -> None:
    """Show on standard error, where a person watches it, how far git has got with a clone."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{step} {done}/{total}" + ("\n" if done == total else ""), nl=False, err=True)
