"""What the user asks of the search."""

from dataclasses import dataclass, replace
from enum import StrEnum

CAP = 0.995  # no model is better than this: no culprit is ever stated, or asked for, with more


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
    build_cost: float = 10.0  # first guess of a build's cost in runs, until this hunt has seen its own
    all_steps: bool = False  # after the largest change, every other of at least ``min_effect``
    noise: float | None = None  # s.d. of one run if it is known of the first host or of one of its class
    kinds: tuple[str, ...] = ()  # class of each host; hosts of one class show the same change; empty: all are of one

    def unlimited(self) -> "Policy":
        """The same rules for a hunt for the largest change alone that may cost what it likes."""
        return replace(self, all_steps=False, max_builds=0, max_runs=0, max_minutes=0.0)
