"""The interface between a hunt and a lab. The real lab acts on a host; a simulated one computes."""

from collections.abc import Generator
from typing import Protocol

from perfbisect.core.domain.events import LabEvent
from perfbisect.core.domain.orders import Measure


class Lab(Protocol):
    """Carries out measurements and yields events.

    A candidate that fails yields CandidateSkipped and the rest of the measurement is left to a new order. What is
    wrong with the machine rather than with a candidate is raised as EnvironmentFailure.
    """

    def measure(self, order: Measure) -> Generator[LabEvent]:
        """Build what is not built, then time the runs of ``order`` in interleaved order."""
