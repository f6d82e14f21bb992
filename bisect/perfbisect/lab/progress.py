"""Work that tells of its steps and comes to something."""

from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

Step = TypeVar("Step")
Result = TypeVar("Result")


class Steps(Generic[Step, Result]):
    """The steps of a generator, to be iterated over once; then ``result`` is what it has returned."""

    result: Result

    def __init__(self, work: Generator[Step, None, Result]) -> None:
        self.work = work

    def __iter__(self) -> Iterator[Step]:
        """Each step as it is told."""
        self.result = yield from self.work
