"""What the user requests of the search."""

from dataclasses import dataclass, replace
from enum import StrEnum

CAP = 0.995  # no model is better than this: no higher probability of a culprit is ever stated or required


class Direction(StrEnum):
    """Which change of the metric is hunted, reading from good to bad."""

    DROP = "drop"
    RISE = "rise"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one hunt. Fractions, not percentages; 0 for a budget means no limit."""

    confidence: float = 0.95  # name a culprit at this probability
    direction: Direction = Direction.DROP
    min_effect: float = 0.02  # smallest change of interest between the ends
    max_builds: int = 0
    max_runs: int = 0
    max_minutes: float = 0.0
    all_steps: bool = False  # after the largest change, every other of at least ``min_effect``

    def unlimited(self) -> "Policy":
        """The same rules for a hunt for the largest change alone, without budgets."""
        return replace(self, all_steps=False, max_builds=0, max_runs=0, max_minutes=0.0)
