"""Work on a host: building, loading, measuring, checking."""

from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

from perfbisect.core.domain.events import LabEvent
from perfbisect.core.domain.orders import Measure

Lab = Callable[[Measure], Generator[LabEvent]]
"""Carries out a measurement and yields its events: builds what is not built, then times the runs in interleaved order.

A candidate that fails yields CandidateSkipped and the rest of the measurement is left to a new order. What is
wrong with the machine rather than with a candidate is raised as EnvironmentFailure.
"""

Step = TypeVar("Step")
Result = TypeVar("Result")


class GeneratorWithResult(Generic[Step, Result]):
    """Wraps a generator, which can be iterated over once; afterwards, ``result`` is the return value of the
    generator."""

    result: Result

    def __init__(self, work: Generator[Step, None, Result]) -> None:
        self.work = work

    def __iter__(self) -> Iterator[Step]:
        """Yield each step of the generator."""
        self.result = yield from self.work
