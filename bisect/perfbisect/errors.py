"""The exceptions for all errors that perfbisect reports to the user. Each has a sentence, advice, and an exit status.

Exit statuses of `bisect run`: 0 culprit named, 1 not reproduced or nothing to find, 2 inconclusive, 3 usage or
configuration error, 4 environment failure, 130 interrupted (resumable). An OSError that reaches the top of the program
also gives the exit status 4. Any other exception is a bug of perfbisect, and gives the exit status 70.
"""

from collections.abc import Callable

from perfbisect.masking import mask_credentials

INCONCLUSIVE = 2
USAGE = 3
ENVIRONMENT = 4
BUG = 70
INTERRUPTED = 130


class PerfBisectError(Exception):
    """An error with a sentence for the user (``str(error)``), ``advice`` on what the user can do, and an exit status.

    The passwords of URLs are masked in the sentence and in the advice, because both are stored in the history. If
    exactly one option of `bisect run` caused the error, ``option`` is the name of this option, without "--".
    """

    exit_status = ENVIRONMENT

    def __init__(self, sentence: str, advice: str = "", option: str = "") -> None:
        super().__init__(mask_credentials(sentence))
        self.advice, self.option = mask_credentials(advice), option


class UsageError(PerfBisectError):
    """Raised because a request of the user cannot be met, for example because of an unknown revision or a wrong option."""

    exit_status = USAGE


class EndsSwapped(UsageError):
    """Raised because bad is an ancestor of good: the user has probably swapped the two revisions."""


class RecipeError(UsageError):
    """Raised for a mistake in a recipe or in hosts.toml. The sentence names the file, the key, the wrong value and the
    allowed values."""


class RunsNotComparable(UsageError):
    """Raised because the measured program or a setting of a hunt has changed, so that new runs would not be comparable
    with the earlier runs."""


class EnvironmentFailure(PerfBisectError):
    """Raised because a machine cannot do the work, for example because a tool is missing, the disk is full, or perf is
    not permitted."""


class RangeEndFailed(EnvironmentFailure):
    """Raised because good or bad cannot be built or measured, so that good and bad cannot be compared."""


class MetricPatternUnmatched(RangeEndFailed):
    """Raised because the user's pattern for the metric (--rate or --cost) does not match the output of good or bad. A
    repetition of the run would not help."""

    exit_status = USAGE


class NoMetricValues(EnvironmentFailure):
    """Raised because no run of a workload has a value of the metric."""


def as_perfbisect_error(error: "PerfBisectError | OSError") -> PerfBisectError:
    """``error`` as a PerfBisectError: an OSError is converted to an EnvironmentFailure, and a PerfBisectError is
    returned unchanged."""
    if isinstance(error, PerfBisectError):
        return error
    reason = error.strerror or str(error)
    if isinstance(error, FileNotFoundError) and error.filename is None:  # only getcwd's error has no file
        return EnvironmentFailure("The current folder does not exist any more.", "Change to another folder: cd")
    return EnvironmentFailure(reason if error.filename is None else f"{error.filename} cannot be used: {reason}")


class StdoutClosed(PerfBisectError):
    """Raised because the process that reads standard output has ended, as with `bisect show | head`. A command that
    only prints has not failed in this case, so the exit status is 0."""

    exit_status = 0

    def __init__(self) -> None:
        super().__init__("The reader of standard output has ended.")


class InstructionsNotCounted(EnvironmentFailure):
    """Raised because a run has ended without a count of instructions."""


class CommandFailed(EnvironmentFailure):
    """Raised because a command on a host ended with an exit status other than 0; ``output`` is the text that the
    command printed."""

    def __init__(self, sentence: str, advice: str = "", *, status: int, output: str = "") -> None:
        super().__init__(sentence, advice)
        self.status, self.output = status, output


class TooMuchOutput(EnvironmentFailure):
    """Raised because a command printed too much and was therefore killed. The output is incomplete."""


class Interrupted(PerfBisectError):
    """Raised because the user has pressed Ctrl-C or closed the terminal. The work can be resumed later."""

    exit_status = INTERRUPTED


class Cancelled(BaseException):
    """Raised in a thread whose work is cancelled. The class is not derived from ``Exception``, so that code that
    handles failures does not catch the cancellation."""


class ConnectionLost(EnvironmentFailure):
    """Raised because the connection to a host was lost, so that it is unknown whether the command on the host still
    runs."""


class HostUnreachable(EnvironmentFailure):
    """Raised because a host cannot be reached. Other hosts do its work until ``is_back()`` returns true."""

    def __init__(self, connection_lost: ConnectionLost, is_back: Callable[[], bool]) -> None:
        super().__init__(str(connection_lost), connection_lost.advice)
        self.is_back = is_back


class JobLost(EnvironmentFailure):
    """Raised because a job (a process that perfbisect started on a host) ended without an exit status, for instance
    because the host was restarted. The job must be started again."""


class RunLost(JobLost):
    """Raised because the result of a run is unknown, for a reason that lies with the host, not with the candidate. The
    run must be repeated."""


class HostClockChanged(RunLost):
    """Raised because the host's clock was set during a run, so that the duration of the run is unknown."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, "Set no clock during a hunt. `timedatectl` shows which service sets the clock.")


class DatasetDamaged(EnvironmentFailure):
    """Raised because a dataset, or a copy of the dataset, was changed by something other than its workload. The dataset
    must be loaded again."""


class BuildFilesChanged(EnvironmentFailure):
    """Raised because files of a finished build have changed since the build ended. The commit must be built again."""

    def __init__(self, host: str, key: str, paths: str) -> None:
        named = ", ".join(paths.split("\n")[:-1])
        super().__init__(f"files of the build on host {host} have changed since the build ended ({named})")
        self.host, self.key = host, key


class BuildFailed(PerfBisectError):
    """Raised because a candidate cannot be checked out, configured, compiled or installed. The cause is the commit, so
    the hunt skips the candidate.
    """

    def __init__(self, sentence: str, *, stage: str, log: str, hint: str = "", errors: tuple[str, ...] = ()) -> None:
        """``errors`` are the lines of the build's output that report errors; empty if there is only one such line."""
        super().__init__(sentence, f"{hint} See {log}.".lstrip())
        self.stage, self.log, self.errors = stage, log, errors


class RunFailed(PerfBisectError):
    """Raised because the build of a candidate does not start, crashes, or fails in the workload. The hunt repeats the
    run, or skips the candidate."""

    def __init__(self, sentence: str, *, stage: str, log: str) -> None:
        super().__init__(sentence, f"See {log}.")
        self.stage, self.log = stage, log


class MetricNotPrinted(RunFailed):
    """Raised because a run succeeded, but the pattern for the metric does not match its output; ``last_lines`` are the
    last lines of the output."""

    def __init__(self, sentence: str, *, stage: str, log: str, last_lines: str) -> None:
        super().__init__(sentence, stage=stage, log=log)
        self.last_lines = last_lines


class NoPerfSamples(RunFailed):
    """Raised because a run succeeded, but perf took no samples."""
