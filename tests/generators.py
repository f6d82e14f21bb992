"""Generators, exhausted."""

from collections.abc import Generator
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def finish(generator: Generator[Item, None, Result]) -> tuple[list[Item], Result]:
    """All that a generator yields, and what it returns."""
    items = []
    while True:
        try:
            items.append(next(generator))
        except StopIteration as end:
            return items, end.value
