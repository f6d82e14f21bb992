"""``[[when]]`` blocks: what a recipe changes for some trees and compilers."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from perfbisect.recipes.builder import Builder, When
from perfbisect.recipes.nearest import hint
from perfbisect.recipes.strict import Place, convert, merged
from perfbisect.recipes.versions import parse_conditions, satisfies

COMPILERS = ("gcc", "clang")
COMPILER = re.compile(r"\s*([A-Za-z+]+)\s*(.*)", re.DOTALL)
# Settled for a whole hunt, before the conditions are looked at.
FIXED = (
    "extends", "when", "version", "installed_version", "summary", "repository", "release_tags", "ignore", "driver",
    "variant", "suspects",
)  # fmt: skip
VERSION_ADVICE = 'Write one or more of >=, <=, ==, !=, >, < with a number, separated by commas: ">=3.8,<3.30".'


@dataclass(frozen=True, slots=True)
class TreeFacts:
    """What the conditions of a recipe ask of one commit's tree and of the compiler that will build it."""

    version: str  # as the recipe's version command prints it; "" when it is not known
    exists: Callable[[str], bool]  # is there such a path in the tree?
    compiler: str  # "gcc" or "clang"
    compiler_version: str  # "12.2.0"


def applied(builder: Builder, facts: TreeFacts) -> Builder:
    """The recipe for one tree: the changes of every block that holds, in their order, and no blocks left.

    Raises RecipeError when the blocks that hold do not make a valid recipe together.
    """
    holding = [block for block in builder.when if holds(block, facts)]
    resolved = msgspec.structs.replace(builder, when=[])
    if not holding:
        return resolved
    table = msgspec.to_builtins(resolved)
    for block in holding:
        table = merged(table, block.change)
    recipe = {key: value for key, value in table.items() if key not in Builder.filled_in and value is not None}
    changed = convert(recipe, Builder, Place(Path(builder.folder, "builder.toml")))
    return msgspec.structs.replace(changed, **{name: getattr(builder, name) for name in Builder.filled_in})


def holds(block: When, facts: TreeFacts) -> bool:
    """Whether every condition of a block is fulfilled."""
    return (
        (not block.version or satisfies(facts.version, block.version))
        and (not block.file or facts.exists(block.file))
        and (not block.missing or not facts.exists(block.missing))
        and (not block.compiler or _compiler_fits(block.compiler, facts))
    )


def _compiler_fits(rule: str, facts: TreeFacts) -> bool:
    found = COMPILER.fullmatch(rule)
    assert found, "checked when the recipe was loaded"
    return found[1] == facts.compiler and (not found[2] or satisfies(facts.compiler_version, found[2]))


def check_conditions(block: When, place: Place) -> None:
    """Raise RecipeError for conditions that cannot be meant, or that change what is fixed before them."""
    if not (block.version or block.file or block.missing or block.compiler):
        raise place.mistake("has no condition.", "Give at least one of version, file, missing, compiler.")
    if not block.change:
        raise place.mistake("changes nothing.", 'Give what it changes: change.build.configure = [["…"]].')
    for key in FIXED:
        if key in block.change:
            raise place.at("change").at(key).mistake("cannot depend on a condition.")
    if block.version:
        _check_rule(block.version, place.at("version"))
    if block.compiler:
        name, rule = COMPILER.fullmatch(block.compiler), ""
        if name:
            rule = name[2]
        if not name or name[1] not in COMPILERS:
            near = hint(name[1], COMPILERS) if name else ""
            raise place.at("compiler").mistake(
                f'is "{block.compiler}", but must begin with one of {", ".join(COMPILERS)}.{near}',
                'For example "gcc>=12" or "clang".',
            )
        if rule:
            _check_rule(rule, place.at("compiler"))
    for key in ("file", "missing"):
        if getattr(block, key).startswith(("/", "./", "../")):
            raise place.at(key).mistake("must be a path from the top of the source tree, without a leading / or ./.")


def _check_rule(rule: str, place: Place) -> None:
    try:
        parse_conditions(rule)
    except ValueError as error:
        raise place.mistake(f"is wrong: {error}.", VERSION_ADVICE) from error
