"""What the search is told: readings, failures and equal binaries, in the order in which they happened.

The list of observations *is* the state of a hunt. Nothing else is remembered between two decisions.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reading:
    """One timed run of a built candidate, as the search sees it."""

    candidate: int
    value: float  # natural logarithm of the metric
    at: float  # minutes since the hunt began, at the middle of the run
    visit: int  # runs with the same number shared one start of the server
    host: int = 0
    seconds: float = 1.0  # what the run cost, its share of the visit included


@dataclass(frozen=True, slots=True)
class Built:
    """A candidate was built; ``same_as`` is an earlier candidate with the same binary, if there is one."""

    candidate: int
    seconds: float
    same_as: int | None = None
    host: int | None = None  # where it is; None: every host has it


@dataclass(frozen=True, slots=True)
class Skipped:
    """A candidate cannot be measured: it does not build, does not start, or crashes. It never counts as slow."""

    candidate: int
    reason: str
    seconds: float = 0.0


Observation = Reading | Built | Skipped
