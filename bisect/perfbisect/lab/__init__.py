"""What is done on a host."""

from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

Step = TypeVar("Step")
Result = TypeVar("Result")


class Work(Generic[Step, Result]):
    """The steps of a generator, iterated over once; afterwards ``result`` is its return value."""

    result: Result

    def __init__(self, work: Generator[Step, None, Result]) -> None:
        self.work = work

    def __iter__(self) -> Iterator[Step]:
        """Each step as it is yielded."""
        self.result = yield from self.work
