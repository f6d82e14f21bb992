"""Reads builders: merges a recipe with the recipes that it extends, and finds the files and patches that are stored
beside the recipe.

A ``[[when]]`` block of a recipe changes the recipe for some trees or compilers. Versions are compared number by number:
8.0.9 is lower than 8.0.30, and 3.8 equals 3.8.0. Suffixes of versions (beta1, -MariaDB) are ignored.
"""

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from perfbisect.core.domain.settings import Patch
from perfbisect.errors import UsageError
from perfbisect.recipes.build_systems import build_with_needs
from perfbisect.recipes.builder import COMPILER, CONDITION, CONFIG_PLACEHOLDERS, SHARED, Build, Builder, Variant, When
from perfbisect.recipes.configuration import (
    BUILDERS,
    checked_within_folder,
    item_by_name,
    recipe_files_by_name,
    recipe_folders,
)
from perfbisect.recipes.output_pattern import check_pattern
from perfbisect.recipes.placeholders import archive_names_in, check_placeholders, check_placeholders_in
from perfbisect.recipes.toml import (
    Location,
    Table,
    convert_table,
    inherited_tables,
    merged_tables,
    read_table,
    read_text,
    similar_words_hint,
    sorted_list,
)

FILE = "builder.toml"
UNDECIDED = "cannot be evaluated: the recipe has no command that prints the version of a tree."
PRINT_IT = 'Add such a command: version = ["cat", "VERSION"].'


def read_builder(file: Path, folders: Sequence[Path]) -> Builder:
    """The builder in a recipe file, merged with all recipes that this recipe extends.

    Raises RecipeError for the first mistake in this file or in a file that this file extends.
    """
    files = [recipe for folder in folders for recipe in sorted(folder.glob(f"*/{FILE}"))]
    named = [(recipe.parent.name, Location(recipe)) for recipe in files]
    tables = inherited_tables(Location(file), named, _read_recipe_without_extended, "builder")
    sources = {source_location.file: source for source_location, source in tables.items()}
    table: Table = {"variants": SHARED}
    blocks: list[Any] = []
    for source in reversed(sources.values()):
        blocks += source.get("when", [])
        table = merged_tables(table, source)
    location = Location(file)
    builder = convert_table({**table, "when": blocks}, Builder, location)
    _check_builder(builder, location)
    builder = msgspec.structs.replace(
        builder,
        name=file.parent.name,
        folder=str(file.parent),
        extends="",  # the extended recipe is already merged
        build=None if builder.installed else build_with_needs(builder.build or Build()),
        inherited=[str(source.parent) for source in sources if source != file],
    )
    _check_conditional_blocks(sources, table)
    _check_files(builder)
    return builder


def recipe_files(builder: Builder) -> dict[str, Path]:
    """The files that commands of the recipe find in the folder ``{recipe}`` on a host. The result maps the name of each
    file in this folder to the path of the file on this machine.

    If a recipe and a recipe that it extends have files with the same name, the file of the extending recipe is used.
    Raises RecipeError for a symbolic link that leads out of the recipe's folder.
    """
    files: dict[str, Path] = {}
    for folder in (*reversed(builder.inherited), builder.folder):
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file() and path.name != FILE:
                files[path.relative_to(folder).as_posix()] = checked_within_folder(path, Path(folder).parent)
    return files


def config_template(builder: Builder) -> str:
    """The text of the configuration file of a builder's server, with placeholders; "" if the recipe names no such file.

    Raises RecipeError if the file is missing, cannot be read, or has an unknown placeholder.
    """
    if not builder.server or not builder.server.config:
        return ""
    return _config_text(builder, builder.server.config, _location(builder).at("server", "config"))


def _config_text(builder: Builder, name: str, location: Location) -> str:
    file = _file_beside_recipe(builder, name, location)
    text = read_text(file)
    check_placeholders_in(text.splitlines(), Location(file), CONFIG_PLACEHOLDERS)
    return text


def _location(builder: Builder) -> Location:
    return Location(Path(builder.folder, FILE))


def _file_beside_recipe(builder: Builder, name: str, location: Location) -> Path:
    """The path of a file that a key of the recipe names. Raises RecipeError if the file is not in the folder of the
    recipe."""
    files = recipe_files(builder)
    if name not in files:
        text = f'is "{name}", but {builder.folder} has no such file.{similar_words_hint(name, files)}'
        raise location.mistake(text, "Put the file beside builder.toml.")
    return files[name]


def _check_files(builder: Builder) -> None:
    config_template(builder)
    location = _location(builder)
    for name, config in builder.configs.items():
        where = location.at("configs", name)
        if builder.server is None or not builder.server.config:
            raise where.mistake(
                "adds to the configuration file of the server, but the recipe has no such file.", "Add server.config."
            )
        if config.file:
            _config_text(builder, config.file, where.at("file"))
    for index, patch in enumerate(builder.patches):
        where = location.at("patches", index)
        _file_beside_recipe(builder, patch.file, where.at("file"))
        if patch.version and not builder.version:
            raise where.at("version").mistake(UNDECIDED, PRINT_IT)


def find_variant(builder: Builder, name: str = "") -> Variant:
    """The variant (set of compiler settings) with that name; if ``name`` is "", the default variant of the recipe.
    Raises RecipeError for an unknown variant.
    """
    return item_by_name("variant", name or builder.variant, builder.variants, f" of builder {builder.name}")


def required_build_section(builder: Builder) -> Build:
    """The section ``[build]`` of a recipe, which must have this section."""
    assert builder.build is not None, "commits can be built only if the recipe has a table [build]"
    return builder.build


def _read_recipe_without_extended(location: Location) -> Table:
    """The contents of one builder.toml, without the recipes that it extends. Required keys may be missing, because the
    extended recipes may contain these keys."""
    table = read_table(location.file)
    completed = {"summary": "", "driver": "", **table}
    if isinstance(server := table.get("server"), dict):
        completed["server"] = {"initialise": [], "start": ["-"], "ready": ["-"], **server}
    for index, block in enumerate(convert_table(completed, Builder, location).when):
        check_conditions(block, location.at("when", index))
    check_placeholders(table, location)
    return table


def _check_conditional_blocks(sources: Mapping[Path, Table], table: Table) -> None:
    """Check that the recipe is complete with the changes of each ``[[when]]`` block. For example, a block that adds a
    section [server] must define all required keys of this section.
    """
    for file, source in sources.items():
        for index, block in enumerate(source.get("when", [])):
            location = Location(file).at("when", index)
            merged = merged_tables({**table, "when": []}, block["change"])
            changed = convert_table(merged, Builder, location.at("change"))
            check_placeholders(block["change"], location.at("change"))
            if block.get("version") and not (changed.version or changed.installed_version):
                raise location.at("version").mistake(UNDECIDED, PRINT_IT)
            _check_builder(changed, location.at("change"))


def _check_builder(builder: Builder, location: Location) -> None:
    """Check the rules for a builder that the types of its fields cannot express."""
    for key in ("summary", "driver"):
        if not getattr(builder, key).strip():
            raise location.at(key).mistake("is empty.")
    if builder.variant not in builder.variants:
        raise location.at("variant").unknown_name_error("variant", builder.variant, builder.variants)
    for name, archive in builder.archives.items():
        try:
            check_pattern(archive.pattern)
        except ValueError as error:
            raise location.at("archives", name, "pattern").mistake(f"{error}.") from error
    for name in sorted(archive_names_in(builder.build) - builder.archives.keys()):
        raise location.at("build").mistake(
            f"has the placeholder {{archives.{name}}}, but no such archive exists.{similar_words_hint(name, builder.archives)}",
            f"Archives: {sorted_list(builder.archives)}.",
        )


# Keys that are fixed for a whole hunt, before conditions are evaluated.
FIXED = (
    "extends", "when", "version", "installed_version", "summary", "repository", "release_tags", "ignore", "driver",
    "variant", "suspects", "patches", "configs", "archives",
)  # fmt: skip
OPERATORS: dict[str, Callable[[list[int], list[int]], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
DIGITS = 18  # digits of a number that are read; int() refuses thousands


@dataclass(frozen=True, slots=True)
class TreeFacts:
    """The facts on which the conditions of ``[[when]]`` blocks depend: facts about a commit's tree, and about the
    compiler."""

    version: str  # as printed by the recipe's version command; "" if unknown
    exists: Callable[[str], bool]  # whether a path is in the tree
    compiler: str  # "gcc" or "clang"
    compiler_version: str  # "12.2.0"


def recipe_for_tree(builder: Builder, facts: TreeFacts) -> Builder:
    """The recipe for one tree: the ``[[when]]`` blocks whose conditions hold are merged into the recipe, one after the
    other.

    Raises RecipeError if the merged recipe is not valid.
    """
    table = msgspec.to_builtins(msgspec.structs.replace(builder, when=[]))
    for block in builder.when:
        table = merged_tables(table, block.change if conditions_hold(block, facts) else {})
    recipe = {key: value for key, value in table.items() if key not in Builder.filled_in and value is not None}
    changed = convert_table(recipe, Builder, _location(builder))
    return msgspec.structs.replace(changed, **{name: getattr(builder, name) for name in Builder.filled_in})


def conditions_hold(block: When, facts: TreeFacts) -> bool:
    """Whether every condition of a ``[[when]]`` block holds."""
    return (
        (not block.version or version_satisfies(facts.version, block.version))
        and (not block.file or facts.exists(block.file))
        and (not block.missing or not facts.exists(block.missing))
        and (not (rule := re.fullmatch(COMPILER, block.compiler)) or rule[1] == facts.compiler)
        and (not rule or not rule[2] or version_satisfies(facts.compiler_version, rule[2]))
    )


def check_conditions(block: When, location: Location) -> None:
    """Raise RecipeError for a ``[[when]]`` block that has no conditions, or that changes a key whose value must be
    equal for all commits of a hunt."""
    if not (block.version or block.file or block.missing or block.compiler):
        raise location.mistake("has no condition.", "Give at least one of version, file, missing, compiler.")
    for key in FIXED:
        if key in block.change:
            raise location.at("change", key).mistake("cannot depend on a condition.")


def version_text(output: str) -> str:
    """The version number in the output of a recipe's version command; "" if the output contains no version number."""
    match = re.search(r"\d[0-9A-Za-z.+~-]*", output)
    return match[0] if match else ""


def version_satisfies(version: str, rule: str) -> bool:
    """Whether a version meets every condition of a rule. An unknown version meets no condition."""
    match = re.search(r"\d+(?:\.\d+)*", version)
    return match is not None and all(
        OPERATORS[sign](_version_parts(match[0]), _version_parts(limit)) for sign, limit in re.findall(CONDITION, rule)
    )


def _version_parts(number: str) -> list[int]:
    """The parts of a version number, without trailing zeros."""
    return [int(part[:DIGITS]) for part in re.sub(r"(\.0+)+\Z", "", number).split(".")]


LARGEST = 1 << 20  # most bytes of a patch, because each hunt stores its patches


def recipe_patches(builder: Builder) -> tuple[Patch, ...]:
    """The patches of a recipe. Raises UsageError if a patch cannot be read."""
    files = recipe_files(builder) if builder.patches else {}
    return tuple(Patch(patch.file, read_patch(files[patch.file]), patch.version) for patch in builder.patches)


def check_distinct_patch_names(patches: Iterable[Patch]) -> None:
    """Raise UsageError for two patches with the same name, because reports could not distinguish the patches."""
    for name, patches_so_called in Counter(patch.name for patch in patches).items():
        if patches_so_called > 1:
            raise UsageError(f"Two patches have the name {name}.", "Rename one of the files.")


def read_patch(path: Path) -> bytes:
    """The bytes of a patch. Raises UsageError if the patch cannot be read, is a folder, or is too large."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:  # a ValueError is about a NUL character in the file's name
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"The patch {path} cannot be read: {why}.") from error
    if len(content) > LARGEST:
        text = f"The patch {path} has more than {LARGEST >> 20} MiB."
        raise UsageError(text, "Remove the parts of the patch that the build does not need.")
    return content


def load_builder(name: str, user_path: str | Path = "") -> Builder:
    """The builder with that name. Raises RecipeError if the name is unknown, or if the recipe contains a mistake."""
    folders = recipe_folders(BUILDERS, user_path)
    return read_builder(item_by_name("builder", name, recipe_files_by_name(folders, FILE)), folders)


def load_builders(user_path: str | Path = "") -> list[Builder]:
    """All builders, in alphabetical order."""
    folders = recipe_folders(BUILDERS, user_path)
    return [read_builder(file, folders) for _, file in sorted(recipe_files_by_name(folders, FILE).items())]
