"""Which fresh layouts of a commit are measured next."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from perfbisect.core.domain.facts import RunFacts


@dataclass
class LayoutSeeds:
    """The seeds of one host: its n-th run of a commit in a fresh layout has the n-th of ``first``, ``first + step`` …

    So a resumed hunt continues with layouts that it has not measured, and hosts that start apart never share one.
    """

    first: int = 1
    step: int = 1
    used: dict[str, int] = field(default_factory=dict)  # commit → the last

    def take(self, run: RunFacts) -> None:
        """A run has ended."""
        if run.layout:
            self.used[run.commit] = max(run.layout, self.used.get(run.commit, 0))

    def following(self, commit: str) -> Iterator[int]:
        """The seeds that are next for a commit."""
        return count(self.used[commit] + self.step if commit in self.used else self.first, self.step)
