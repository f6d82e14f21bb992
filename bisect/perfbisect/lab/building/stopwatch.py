"""Where the time of a build goes: the seconds of its phases, by the names of ``PHASES``.

What is done beside the job that builds is timed around its calls. The job itself prints when its stages began, by the clock of the
host (``log_parser``), so that a build has the same seconds if it is followed by a later session.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

PATCH, RELINK, RECORD, OTHER = "patch", "relink", "record", "other"  # phases that are no stages of the progress


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """The seconds of each phase so far; of one that is repeated, of all its times."""

    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """The seconds of all phases."""
        return sum(self.seconds.values())

    def add(self, phases: Mapping[str, float]) -> None:
        """Add the seconds of these phases."""
        for phase, seconds in phases.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """A block whose seconds are of that phase, without those of phases within it."""
        began, before = time.monotonic(), self.total
        try:
            yield
        finally:
            self.add({phase: time.monotonic() - began - (self.total - before)})

    def phases(self, elapsed: float) -> dict[str, float]:
        """The phases of a build that has taken ``elapsed`` seconds; what belongs to none of them is ``OTHER``."""
        seconds = self.seconds | {OTHER: elapsed - self.total}
        return {phase: rounded for phase, took in seconds.items() if (rounded := round(took, 3)) > 0}
