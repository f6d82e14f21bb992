"""What a trial needs of a view."""

from typing import Protocol

from perfbisect.core.domain.events import Warned
from perfbisect.core.domain.facts import RunFacts


class Progress(Protocol):
    """Shows how far a trial has got."""

    def expect(self, runs: int) -> None:
        """The number of runs that will be made."""

    def say(self, text: str) -> None:
        """What happens now."""

    def ran(self, run: RunFacts) -> None:
        """A run has ended."""

    def warn(self, warned: Warned) -> None:
        """A warning."""

    def close(self) -> None:
        """Leave the terminal as it was."""
