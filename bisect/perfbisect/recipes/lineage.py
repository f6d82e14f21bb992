"""A builder recipe and those that it extends, made one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from perfbisect.errors import RecipeError
from perfbisect.recipes.builder import Build, Builder, Variant, When
from perfbisect.recipes.nearest import hint, listed
from perfbisect.recipes.placeholders import check_config, check_placeholders
from perfbisect.recipes.strict import Place, Table, convert, merged, read_table, read_text, verify
from perfbisect.recipes.variants import SHARED
from perfbisect.recipes.when import check_conditions

FILE = "builder.toml"


@dataclass(frozen=True, slots=True)
class Source:
    """One builder.toml, verified by itself."""

    file: Path
    table: Table


def read_builder(file: Path, folders: Sequence[Path]) -> Builder:
    """The builder that a file describes, with everything that it extends.

    Raises RecipeError for the first mistake found, in this file or in one that it extends.
    """
    sources = _lineage(file, folders)
    table: Table = {"variants": SHARED}
    blocks: list[Any] = []
    for source in reversed(sources):
        blocks += source.table.get("when", [])
        table = merged(table, source.table)
    place = Place(file)
    builder = convert({**table, "when": blocks}, Builder, place)
    _check_builder(builder, place)
    builder = msgspec.structs.replace(
        builder,
        name=file.parent.name,
        folder=str(file.parent),
        extends="",  # done
        inherited=[str(source.file.parent) for source in sources[1:]],
    )
    _check_changes(sources, table)
    config_template(builder)
    return builder


def recipe_files(builder: Builder) -> dict[str, Path]:
    """The files that lie under ``{recipe}``: name below that folder → where it is here.

    A recipe's own file wins over one of the same name of a recipe that it extends.
    """
    files: dict[str, Path] = {}
    for folder in (*reversed(builder.inherited), builder.folder):
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file() and path.name != FILE:
                files[path.relative_to(folder).as_posix()] = path
    return files


def config_template(builder: Builder) -> str:
    """The configuration file of a builder's server as it is in the recipe; "" when it has none.

    Raises RecipeError when it is not there, cannot be read, or has a placeholder that is not known.
    """
    name = builder.server.config if builder.server else ""
    if not name:
        return ""
    files = recipe_files(builder)
    if name not in files:
        place = Place(Path(builder.folder, FILE), "server.config")
        raise place.mistake(
            f'is "{name}", but there is no such file in {builder.folder}.{hint(name, files)}',
            "Put it beside the builder.toml.",
        )
    text = read_text(files[name])
    check_config(text, Place(files[name]))
    return text


def variant_of(builder: Builder, name: str = "") -> Variant:
    """A variant by its name, by default the recipe's own choice. Raises RecipeError for one that does not exist."""
    wanted = name or builder.variant
    if wanted not in builder.variants:
        raise RecipeError(
            f"Builder {builder.name} has no variant '{wanted}'.{hint(wanted, builder.variants)}",
            f"Variants of {builder.name}: {listed(builder.variants)}.",
        )
    return builder.variants[wanted]


def build_of(builder: Builder) -> Build:
    """How a commit is built. Raises RecipeError for a recipe that does not say it."""
    if builder.build is None:
        raise RecipeError(
            f"Builder {builder.name} cannot build commits: its recipe has no [build].",
            "Compare installed releases (bisect compare NAME=PATH NAME=PATH …), or write a recipe with "
            f'extends = "{builder.name}" and a [build] of your own: see docs/recipes.md.',
        )
    return builder.build


def _lineage(file: Path, folders: Sequence[Path]) -> list[Source]:
    """The recipe itself, then what it extends, then what that extends, …"""
    sources = [_read_source(file)]
    while name := sources[-1].table.get("extends", ""):
        parent = _parent(name, sources[-1].file, folders)
        seen = [source.file for source in sources]
        if parent in seen:
            circle = " → ".join(str(each) for each in (*seen[seen.index(parent) :], parent))
            raise Place(sources[-1].file, "extends").mistake(f"goes round in a circle: {circle}.")
        sources.append(_read_source(parent))
    return sources


def _parent(name: str, child: Path, folders: Sequence[Path]) -> Path:
    """Where the recipe ``name`` is; a recipe that extends its own name means the one that it hides."""
    everything = [file for folder in folders for file in sorted(folder.glob(f"*/{FILE}"))]
    files = [file for file in everything if file.parent.name == name]
    if child.parent.name == name and child in files:
        files = files[files.index(child) + 1 :] or [child]
    if not files:
        known = {file.parent.name for file in everything}
        raise Place(child, "extends").mistake(
            f'is "{name}", but there is no such builder.{hint(name, known)}', f"Builders: {listed(known)}."
        )
    return files[0]


def _read_source(file: Path) -> Source:
    table, place = read_table(file), Place(file)
    verify(table, Builder, place, partial=True)
    check_placeholders(table, place)
    for index, block in enumerate(table.get("when", [])):
        where = place.at("when").at(index)
        check_conditions(msgspec.convert(block, When), where)
        verify(block["change"], Builder, where.at("change"), partial=True)
        check_placeholders(block["change"], where.at("change"))
    return Source(file, table)


def _check_changes(sources: Sequence[Source], table: Table) -> None:
    """Every block must leave a whole recipe: one that begins a [server], for example, must give all of it."""
    for source in sources:
        for index, block in enumerate(source.table.get("when", [])):
            place = Place(source.file).at("when").at(index)
            changed = convert(merged({**table, "when": []}, block["change"]), Builder, place.at("change"))
            if block.get("version") and not (changed.version or changed.installed_version):
                raise place.at("version").mistake(
                    "cannot be decided: the recipe does not say how to read the version of a tree.",
                    'Give a command that prints it: version = ["cat", "VERSION"].',
                )
            _check_builder(changed, place.at("change"))


def _check_builder(builder: Builder, place: Place) -> None:
    """What types cannot say."""
    for key in ("summary", "driver"):
        if not getattr(builder, key).strip():
            raise place.at(key).mistake("is empty.")
    if builder.variant not in builder.variants:
        raise place.at("variant").mistake(
            f'is "{builder.variant}", but there is no such variant.{hint(builder.variant, builder.variants)}',
            f"Variants: {listed(builder.variants)}.",
        )
    artifacts = builder.build.artifacts if builder.build else []
    for index, path in enumerate((builder.library, *artifacts)):
        parts = PurePosixPath(path).parts
        if path.startswith("/") or ".." in parts:
            where = place.at("build").at("artifacts").at(index - 1) if index else place.at("library")
            raise where.mistake(f'is "{path}", but must be a path below {{prefix}}, without a leading /.')
    for index, pattern in enumerate(builder.release_tags):
        if "{version}" not in pattern and "{version:_}" not in pattern:
            raise (
                place.at("release_tags")
                .at(index)
                .mistake(
                    f'is "{pattern}", which does not say where the version stands.',
                    'Write {version}, or {version:_} for one with _ in place of dots: "REL_{version:_}".',
                )
            )
    for index, pattern in enumerate(builder.ignore):
        if not pattern or pattern.startswith(("/", "./", "!", ":")) or pattern.endswith("/"):
            raise (
                place.at("ignore")
                .at(index)
                .mistake(
                    f'is "{pattern}", which matches nothing.',
                    'Write paths from the top of the source tree: "doc/**" for a folder, "**/*.md" at any depth.',
                )
            )
