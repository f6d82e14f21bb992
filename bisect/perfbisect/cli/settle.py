"""What the recipe and the repository decide of a hunt's settings."""

from dataclasses import replace
from pathlib import Path

from perfbisect.core.settings import Settings
from perfbisect.recipes.find import load_builder
from perfbisect.repository.clone import cached_clone
from perfbisect.repository.resolve import open_repository, resolve


def settle(settings: Settings) -> Settings:
    """The settings with everything resolved that the recipe and the repository decide: clone, variant, commits."""
    builder = load_builder(settings.builder, settings.builders_path)
    repository = Path(settings.repository) if settings.repository else cached_clone(builder)
    git = open_repository(repository)
    return replace(
        settings,
        repository=str(repository),
        variant=settings.variant or builder.variant,
        good_commit=resolve(git, settings.good, builder.release_tags),
        bad_commit=resolve(git, settings.bad, builder.release_tags),
    )
