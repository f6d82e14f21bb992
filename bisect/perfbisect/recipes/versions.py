"""Versions, compared as numbers: 8.0.9 < 8.0.30, 3.8 = 3.8.0. A suffix (beta1, -MariaDB) is ignored."""

import operator
import re
from collections.abc import Callable

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
    conditions = []
    for part in text.split(","):
        found = CONDITION.fullmatch(part)
        if not found:
            raise ValueError(f'"{part.strip()}" is not a condition on a version')
        conditions.append((found[1], number(found[2])))
    return conditions


def satisfies(version: str, rule: str) -> bool:
    """True where a version meets every condition of a rule; an unknown version meets none."""
    if not re.search(r"\d", version):
        return False
    return all(OPERATORS[sign](number(version), limit) for sign, limit in parse_conditions(rule))
