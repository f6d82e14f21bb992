"""A timed program that has ended, and what that comes to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SIGNALS = range(1, 65)


@dataclass(frozen=True, slots=True)
class Ended:
    """What is known of it, whatever it was."""

    stdout: Sequence[str]  # lines
    stderr: Sequence[str]
    status: int  # of the job
    limit: float  # seconds that it was given
    clock: str  # what ``command.timed`` wrote; empty for others

    @property
    def said(self) -> list[str]:
        """All lines."""
        return [*self.stdout, *self.stderr]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What it says of one run."""

    opened: float | None  # seconds since the epoch; None when the script does not use the shared Lua module
    seconds: float
    operations: int
    latency: Mapping[str, float | None]  # milliseconds
    samples: tuple[float, ...] = ()  # operations per second in each report interval
    reported: float | None = None  # a rate or a cost in a unit of its own


def killed(status: int) -> str:
    """The sentence for a status that tells of a signal, as a shell has it; "" for any other, such as the 255 of perf."""
    return f"it was killed by signal {status - 128}" if status - 128 in SIGNALS else ""
