"""Every error that is reported to the user: one sentence, advice, and the exit status.

Exit statuses of `bisect run`: 0 culprit named, 1 not reproduced or nothing to find, 2 inconclusive, 3 usage or
configuration error, 4 environment failure, 130 interrupted (resumable). An OSError that is not reported as one of these
errors also ends with 4. Any other exception is a bug of perfbisect and ends with 70.
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

    The passwords of URLs are masked in the sentence and in the advice, because both are stored in the history.
    ``option`` is the name, without "--", of the option of `bisect run` that alone caused the error.
    """

    exit_status = ENVIRONMENT

    def __init__(self, sentence: str, advice: str = "", option: str = "") -> None:
        super().__init__(mask_credentials(sentence))
        self.advice, self.option = mask_credentials(advice), option


class UsageError(PerfBisectError):
    """A request that cannot be met: an unknown revision, swapped ends, a wrong option."""

    exit_status = USAGE


class EndsSwapped(UsageError):
    """Bad is an ancestor of good."""


class RecipeError(UsageError):
    """A mistake in a recipe or in hosts.toml. The sentence names the file, the key, the wrong value and the allowed values."""


class RunsNotComparable(UsageError):
    """The measured program or a setting of a hunt has changed, so new runs would not be comparable with the earlier
    runs."""


class EnvironmentFailure(PerfBisectError):
    """The machine cannot do the work: a tool is missing, the disk is full, perf is not permitted."""


class RangeEndFailed(EnvironmentFailure):
    """Good or bad cannot be built or measured, so they cannot be compared."""


class MetricPatternUnmatched(RangeEndFailed):
    """The pattern of the metric does not match the output of an end of the range. A repetition of the run would not
    help."""

    exit_status = USAGE


class NoMetricValues(EnvironmentFailure):
    """The runs of a workload have no value for the metric."""


def as_perfbisect_error(error: "PerfBisectError | OSError") -> PerfBisectError:
    """The PerfBisectError for an OSError; a PerfBisectError is returned unchanged."""
    if isinstance(error, PerfBisectError):
        return error
    reason = error.strerror or str(error)
    if isinstance(error, FileNotFoundError) and error.filename is None:  # only getcwd's error has no file
        return EnvironmentFailure("The current folder does not exist any more.", "Change to another folder: cd")
    return EnvironmentFailure(reason if error.filename is None else f"{error.filename}: {reason}")


class StdoutClosed(PerfBisectError):
    """The reader of standard output has ended, as with `| head`. A command that only prints has not failed in this
    case, so the exit status is 0."""

    exit_status = 0

    def __init__(self) -> None:
        super().__init__("The reader of standard output has ended.")


class InstructionsNotCounted(EnvironmentFailure):
    """A run has ended, but its instructions were not counted."""


class CommandFailed(EnvironmentFailure):
    """A command on a host ended with a status other than 0; ``output`` is the text that the command printed."""

    def __init__(self, sentence: str, advice: str = "", *, status: int, output: str = "") -> None:
        super().__init__(sentence, advice)
        self.status, self.output = status, output


class TooMuchOutput(EnvironmentFailure):
    """A command was ended because its output was too long. The output is incomplete."""


class Interrupted(PerfBisectError):
    """The user has interrupted the work, or has closed the terminal. The work can be resumed later."""

    exit_status = INTERRUPTED


class Cancelled(BaseException):
    """The work of a thread was cancelled. This exception is no ``Exception``, so that code that handles failures does
    not catch it, just as it does not catch KeyboardInterrupt."""


class ConnectionLost(EnvironmentFailure):
    """The connection to a host was lost, so it is unknown whether the command still runs."""


class HostUnreachable(EnvironmentFailure):
    """A host cannot be reached. Other hosts do the work of the unreachable host until ``is_back()`` returns true."""

    def __init__(self, connection_lost: ConnectionLost, is_back: Callable[[], bool]) -> None:
        super().__init__(str(connection_lost), connection_lost.advice)
        self.is_back = is_back


class JobLost(EnvironmentFailure):
    """A job ended without an exit status, for instance because its host was restarted. The job must be started
    again."""


class RunLost(JobLost):
    """The result of a run is unknown because of the host, not of the candidate. The run must be repeated."""


class HostClockChanged(RunLost):
    """The host's clock was set during a run, whose duration is therefore unknown."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, "Set no clock during a hunt. `timedatectl` shows which service sets the clock.")


class DatasetDamaged(EnvironmentFailure):
    """Loaded data, or a copy of the data, has changed since loading. The dataset must be loaded again."""


class BuildFilesChanged(EnvironmentFailure):
    """Files of a finished build have changed since the build ended. The build of the commit must be made again."""

    def __init__(self, host: str, key: str, paths: str) -> None:
        named = ", ".join(paths.split("\n")[:-1])
        super().__init__(f"files of the build on host {host} have changed since the build ended ({named})")
        self.host, self.key = host, key


class BuildFailed(PerfBisectError):
    """A candidate cannot be checked out, configured, compiled or installed.

    The hunt skips the candidate. The cause is the commit, not a mistake of the user.
    """

    def __init__(self, sentence: str, *, stage: str, log: str, hint: str = "", errors: tuple[str, ...] = ()) -> None:
        """``errors`` are the lines in the build's output that report errors, if there are several such lines."""
        super().__init__(sentence, f"{hint} See {log}.".lstrip())
        self.stage, self.log, self.errors = stage, log, errors


class RunFailed(PerfBisectError):
    """A build of a candidate does not start, crashes, or fails in its workload. The hunt skips the candidate or repeats
    the run."""

    def __init__(self, sentence: str, *, stage: str, log: str) -> None:
        super().__init__(sentence, f"See {log}.")
        self.stage, self.log = stage, log


class MetricNotPrinted(RunFailed):
    """A run succeeded, but the pattern of the metric does not match its output; ``last_lines`` are the last lines of
    the output."""

    def __init__(self, sentence: str, *, stage: str, log: str, last_lines: str) -> None:
        super().__init__(sentence, stage=stage, log=log)
        self.last_lines = last_lines


class NoPerfSamples(RunFailed):
    """A run succeeded, but perf took no samples of the run."""
