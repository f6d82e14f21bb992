"""What is found out about a build beside how fast it is: by its counters, in profiles, from plans of statements.

Each study has a module of its own. Its runs are made after the verdict and are no evidence of the search.
"""

from collections.abc import Callable, Generator
from typing import Protocol

from perfbisect.core.domain.events import LabEvent
from perfbisect.lab.measure.runner import Turn
from perfbisect.lab.measure.visit import RunContext
from perfbisect.lab.server.installation import System


class Study(Protocol):
    """Takes turns of one context, in place of ``Runner``; it yields events of its own, never RunFinished."""

    def visit(self, system: System, dataset: str, turn: Turn) -> Generator[LabEvent]:
        """Carry out one run of ``turn``, in as many visits as it needs, and count ``turn.left`` down by one.

        Yields Unexplained, and nothing else, if the host cannot do it. Raises as ``Runner.visit``.
        """


StudyMaker = Callable[[RunContext, Callable[[], None]], Study]
"""Makes a study for one context; the function is to be called after each visit that ends well."""
