"""``[[when]]`` blocks: changes of a recipe for some trees and compilers.

Versions are compared as numbers: 8.0.9 < 8.0.30, 3.8 = 3.8.0. A suffix (beta1, -MariaDB) is ignored.
"""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from perfbisect.recipes.builder import COMPILER, CONDITION, Builder, When
from perfbisect.recipes.toml import Location, convert, merged

# Fixed for a whole hunt, before conditions are evaluated.
FIXED = (
    "extends", "when", "version", "installed_version", "summary", "repository", "release_tags", "ignore", "driver",
    "variant", "suspects", "patches", "configs", "archives",
)  # fmt: skip
OPERATORS: dict[str, Callable[[list[int], list[int]], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
DIGITS = 18  # of a number that counts; int() refuses thousands


@dataclass(frozen=True, slots=True)
class TreeFacts:
    """The facts that conditions depend on: a commit's tree and the compiler."""

    version: str  # as printed by the recipe's version command; "" when unknown
    exists: Callable[[str], bool]  # True for a path in the tree
    compiler: str  # "gcc" or "clang"
    compiler_version: str  # "12.2.0"


def applied(builder: Builder, facts: TreeFacts) -> Builder:
    """The recipe for one tree, without blocks: the changes of every block whose conditions hold are merged, in order.

    Raises RecipeError when the result is not a valid recipe.
    """
    table = msgspec.to_builtins(msgspec.structs.replace(builder, when=[]))
    for block in builder.when:
        table = merged(table, block.change if holds(block, facts) else {})
    recipe = {key: value for key, value in table.items() if key not in Builder.filled_in and value is not None}
    changed = convert(recipe, Builder, Location(Path(builder.folder, "builder.toml")))
    return msgspec.structs.replace(changed, **{name: getattr(builder, name) for name in Builder.filled_in})


def holds(block: When, facts: TreeFacts) -> bool:
    """True where every condition of a block holds."""
    return (
        (not block.version or satisfies(facts.version, block.version))
        and (not block.file or facts.exists(block.file))
        and (not block.missing or not facts.exists(block.missing))
        and (not block.compiler or _compiler_fits(block.compiler, facts))
    )


def _compiler_fits(rule: str, facts: TreeFacts) -> bool:
    found = re.fullmatch(COMPILER, rule)
    assert found, "checked when the recipe was loaded"
    return found[1] == facts.compiler and (not found[2] or satisfies(facts.compiler_version, found[2]))


def check_conditions(block: When, location: Location) -> None:
    """Raise RecipeError for a block without condition or change, and for one that changes a key which is fixed for a hunt."""
    if not (block.version or block.file or block.missing or block.compiler):
        raise location.mistake("has no condition.", "Give at least one of version, file, missing, compiler.")
    if not block.change:
        raise location.mistake("changes nothing.", 'Give what it changes: change.build.configure = [["…"]].')
    for key in FIXED:
        if key in block.change:
            raise location.at("change", key).mistake("cannot depend on a condition.")


def version_text(output: str) -> str:
    """The version in the output of a recipe's version command; "" without one."""
    found = re.search(r"\d[0-9A-Za-z.+~-]*", output)
    return found[0] if found else ""


def satisfies(version: str, rule: str) -> bool:
    """True where a version meets every condition of a rule; an unknown version meets none."""
    found = re.search(r"\d+(?:\.\d+)*", version)
    return found is not None and all(
        OPERATORS[sign](_parts(found[0]), _parts(limit)) for sign, limit in re.findall(CONDITION, rule)
    )


def _parts(number: str) -> list[int]:
    """The parts of a version number, without trailing zeros."""
    parts = [int(part[:DIGITS]) for part in number.split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    return parts
