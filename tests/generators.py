"""Generators, run to their end."""

from collections.abc import Generator
from typing import TypeVar

Told = TypeVar("Told")
Result = TypeVar("Result")


def finish(generator: Generator[Told, None, Result]) -> tuple[list[Told], Result]:
    """All that a generator yields, and what it returns."""
    told = []
    while True:
        try:
            told.append(next(generator))
        except StopIteration as end:
            return told, end.value
