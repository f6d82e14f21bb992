"""Patches as they are read from files: those of a recipe, and those of the command line."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from perfbisect.core.domain.settings import Patch
from perfbisect.errors import RecipeError, UsageError
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import recipe_files

LARGEST = 1 << 20  # bytes: patches are kept with each hunt


def recipe_patches(builder: Builder) -> tuple[Patch, ...]:
    """The patches of a recipe. Raises RecipeError for one that cannot be read."""
    files = recipe_files(builder) if builder.patches else {}
    try:
        return tuple(Patch(each.file, content_of(files[each.file]), each.version) for each in builder.patches)
    except UsageError as error:
        raise RecipeError(str(error), error.advice) from error


def given_patches(paths: Sequence[Path]) -> tuple[Patch, ...]:
    """The patches of ``--patch``. Raises UsageError for one that cannot be read, and for two of one name."""
    patches = tuple(Patch(path.name, content_of(path), file=str(path.absolute())) for path in paths)
    check_names(patches)
    return patches


def check_names(patches: Iterable[Patch]) -> None:
    """Raise UsageError for two patches of one name, which no report could tell apart."""
    seen = set()
    for patch in patches:
        if patch.name in seen:
            raise UsageError(f"There are two patches of the name {patch.name}.", "Rename one of the files.")
        seen.add(patch.name)


def content_of(path: Path) -> bytes:
    """The bytes of a patch. Raises UsageError for what cannot be read, a folder, and what is too large."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise UsageError(
            f"The patch {path} cannot be read: {error.strerror or os.strerror(error.errno or 0)}."
        ) from error
    except ValueError as error:  # a NUL character in its name
        raise UsageError(f"The patch {path} cannot be read: {error}.") from error
    if len(content) > LARGEST:
        raise UsageError(
            f"The patch {path} has more than {LARGEST >> 20} MiB.", "Leave out what the build does not need."
        )
    return content
