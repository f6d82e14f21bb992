"""Runs workloads (microbenchmarks), and reads the results from the output of the timed processes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import StringIO

from perfbisect.errors import RunLost

SIGNALS = range(1, 65)
TIMED_OUT = (124, 137)  # statuses of a job that has reached its time limit
# Seconds as date and /proc/uptime print them. The number of digits is limited, because a program may have forged the
# file.
SECONDS = r"([0-9]{1,12}(?:\.[0-9]{1,9})?)"


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """A timed process that has ended."""

    stdout: str  # only its end, if it was too long to be kept
    stderr: str
    status: int  # exit status of the job
    limit: float  # time limit of the job in seconds
    clock: str  # the output of ``command.timed``; empty for sysbench
    note: str = ""  # words about the omitted part of the output, for the end of a sentence
    is_whole: bool = True  # whether stdout is complete

    def output_lines(self) -> Iterator[str]:
        """Yields the lines of stdout and stderr one after the other, because a list of all lines may need thirty times
        as much memory.
        """
        for stream in (self.stdout, self.stderr):
            yield from lines_of(stream)


def times_not_recorded_error() -> RunLost:
    """The error to raise if a run succeeded, but the host could not record the run's times, for example because the
    disk was full for a moment.
    """
    text = "the begin and the end of a run could not be written"
    return RunLost(text, "Check whether the disk of the host becomes full.")


def lines_of(text: str) -> Iterator[str]:
    """The lines of a text, yielded one at a time."""
    return (line.removesuffix("\n") for line in StringIO(text))


@dataclass(frozen=True, slots=True)
class RunResult:
    """The parsed result of one run."""

    opened: float | None  # start of the measurement (epoch seconds); None if the script does not use perfbisect.lua
    seconds: float
    operations: int
    latency: Mapping[str, float | None]  # milliseconds
    samples: tuple[float, ...] = ()  # operations per second in each report interval
    reported: float | None = None  # the reported rate or cost, in the unit of the output
    unit: str = ""  # the unit of ``reported``, if the output names it
    # Name of a result → its number, if the output has several results.
    results: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, float | None] = field(default_factory=dict)  # totals in the output, beside counters of perf


def signal_sentence(status: int) -> str:
    """The sentence that a signal has ended a command, if a shell reports this by an exit status above 128; "" for any
    other exit status, such as perf's 255.
    """
    return f"the run was killed by signal {status - 128}" if status - 128 in SIGNALS else ""
