"""The microbenchmarks: how they are run and what a timed process comes to."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import StringIO

from perfbisect.errors import RunLost

SIGNALS = range(1, 65)
TIMED_OUT = (124, 137)  # statuses of a job that has reached its time limit
SECONDS = r"([0-9]{1,12}(?:\.[0-9]{1,9})?)"  # as date and /proc/uptime print them, in a file that a program may forge


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """A timed process that has ended."""

    stdout: str  # the end of it, where it was too much to be kept
    stderr: str
    status: int  # of the job
    limit: float  # its time limit in seconds
    clock: str  # what ``command.timed`` wrote; empty for sysbench
    note: str = ""  # what is left out of its output, for the end of a sentence
    is_whole: bool = True  # stdout

    def lines(self) -> Iterator[str]:
        """The lines of both streams, one at a time: a list of them may need thirty times the memory."""
        for stream in (self.stdout, self.stderr):
            yield from lines_of(stream)


def not_recorded() -> RunLost:
    """The error for a run that ended well, and whose times could not be written, as on a disk that was full for a moment."""
    return RunLost("the begin and the end of a run could not be written", "Is the disk of the host full at times?")


def lines_of(text: str) -> Iterator[str]:
    """Its lines, one at a time."""
    return (line.removesuffix("\n") for line in StringIO(text))


@dataclass(frozen=True, slots=True)
class RunResult:
    """The parsed result of one run."""

    opened: float | None  # seconds since the epoch; None when the script does not use the shared Lua module
    seconds: float
    operations: int
    latency: Mapping[str, float | None]  # milliseconds
    samples: tuple[float, ...] = ()  # operations per second in each report interval
    reported: float | None = None  # a rate or a cost in a unit of its own
    unit: str = ""  # that unit, where the output says it
    results: Mapping[str, float] = field(default_factory=dict)  # of an output with several that are measured: each
    counters: Mapping[str, float | None] = field(default_factory=dict)  # totals that the output has, beside perf's


def killed(status: int) -> str:
    """The sentence for a status above 128, by which a shell reports a signal; "" for any other, such as the 255 of perf."""
    return f"it was killed by signal {status - 128}" if status - 128 in SIGNALS else ""
