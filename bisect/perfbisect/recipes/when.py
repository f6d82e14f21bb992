"""``[[when]]`` blocks: changes of a recipe for some trees and compilers.

Versions are compared as numbers: 8.0.9 < 8.0.30, 3.8 = 3.8.0. A suffix (beta1, -MariaDB) is ignored.
"""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from perfbisect.recipes.builder import Builder, When
from perfbisect.recipes.toml import Location, convert, hint, merged

COMPILERS = ("gcc", "clang")
COMPILER = re.compile(r"\s*([A-Za-z+]+)\s*(.*)", re.DOTALL)
# Fixed for a whole hunt, before conditions are evaluated.
FIXED = (
    "extends", "when", "version", "installed_version", "summary", "repository", "release_tags", "ignore", "driver",
    "variant", "suspects", "patches", "configs",
)  # fmt: skip
VERSION_ADVICE = 'Write one or more of >=, <=, ==, !=, >, < with a number, separated by commas: ">=3.8,<3.30".'


Number = tuple[int, ...]

OPERATORS: dict[str, Callable[[Number, Number], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
DIGITS = 18  # of a number that counts; int() refuses thousands
CONDITION = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)\s*")


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
    found = COMPILER.fullmatch(rule)
    assert found, "checked when the recipe was loaded"
    return found[1] == facts.compiler and (not found[2] or satisfies(facts.compiler_version, found[2]))


def check_conditions(block: When, location: Location) -> None:
    """Raise RecipeError for an invalid condition, and for a block that changes a key which is fixed for a hunt."""
    if not (block.version or block.file or block.missing or block.compiler):
        raise location.mistake("has no condition.", "Give at least one of version, file, missing, compiler.")
    if not block.change:
        raise location.mistake("changes nothing.", 'Give what it changes: change.build.configure = [["…"]].')
    for key in FIXED:
        if key in block.change:
            raise location.at("change", key).mistake("cannot depend on a condition.")
    if block.version:
        check_rule(block.version, location.at("version"))
    if block.compiler:
        found = COMPILER.fullmatch(block.compiler)
        if not found or found[1] not in COMPILERS:
            near = hint(found[1], COMPILERS) if found else ""
            raise location.at("compiler").mistake(
                f'is "{block.compiler}", but must begin with one of {", ".join(COMPILERS)}.{near}',
                'For example "gcc>=12" or "clang".',
            )
        if found[2]:
            check_rule(found[2], location.at("compiler"))
    for key in ("file", "missing"):
        if getattr(block, key).startswith(("/", "./", "../")):
            raise location.at(key).mistake("must be a path from the top of the source tree, without a leading / or ./.")


def check_rule(rule: str, location: Location) -> None:
    try:
        parse_conditions(rule)
    except ValueError as error:
        raise location.mistake(f"is wrong: {error}.", VERSION_ADVICE) from error


def version_text(output: str) -> str:
    """The version in the output of a recipe's version command; "" without one."""
    found = re.search(r"\d[0-9A-Za-z.+~-]*", output)
    return found[0] if found else ""


def number(text: str) -> Number:
    """The first number of a version, without trailing zeros. Raises ValueError without a number."""
    found = re.search(r"\d+(?:\.\d+)*", text)
    if not found:
        raise ValueError(f'"{text}" has no version number')
    parts = [int(part[:DIGITS]) for part in found[0].split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def parse_conditions(text: str) -> list[tuple[str, Number]]:
    """The conditions of a rule such as ">=3.8,<3.30". Raises ValueError with the reason."""
    found = {part: CONDITION.fullmatch(part) for part in text.split(",")}
    if wrong := [part for part, match in found.items() if not match]:
        raise ValueError(f'"{wrong[0].strip()}" is not a condition on a version')
    return [(match[1], number(match[2])) for match in found.values() if match]


def satisfies(version: str, rule: str) -> bool:
    """True where a version meets every condition of a rule; an unknown version meets none."""
    if not re.search(r"\d", version):
        return False
    return all(OPERATORS[sign](number(version), limit) for sign, limit in parse_conditions(rule))
