"""Every error for the user: one sentence, advice, and the exit status.

Exit statuses of `bisect run`: 0 culprit named, 1 not reproduced or nothing to find, 2 inconclusive,
3 usage or configuration error, 4 environment failure, 130 interrupted (resumable). Any other
OSError ends with 4, too; any other exception is a bug of perfbisect and ends with 70.
"""

from collections.abc import Callable

from perfbisect.masking import masked

INCONCLUSIVE = 2
USAGE = 3
ENVIRONMENT = 4
BUG = 70
INTERRUPTED = 130


class PerfBisectError(Exception):
    """A failure with a sentence for the user (``str(error)``), ``advice`` on what to do, and an exit status.

    Both are without the passwords of URLs: sentences are also kept in the history. ``option`` is the option of `bisect run`
    that alone is wrong, without its --.
    """

    exit_status = ENVIRONMENT

    def __init__(self, sentence: str, advice: str = "", option: str = "") -> None:
        super().__init__(masked(sentence))
        self.advice, self.option = masked(advice), option


class UsageError(PerfBisectError):
    """A request that cannot be met: an unknown revision, swapped ends, a wrong option."""

    exit_status = USAGE


class RecipeError(UsageError):
    """A mistake in a recipe or in hosts.toml: the sentence names file, key, what was found, what is allowed."""


class CannotGoOn(UsageError):
    """What a hunt measures has changed: new runs could not be compared with its earlier ones."""


class EnvironmentFailure(PerfBisectError):
    """The machine cannot do the work: a tool is missing, the disk is full, perf is not permitted."""


class EndFailed(EnvironmentFailure):
    """An end of the range cannot be built or measured: nothing can be compared."""


class WrongPattern(EndFailed):
    """The pattern of the metric finds nothing in what an end of the range prints: it never will."""

    exit_status = USAGE


class NothingToCompare(EnvironmentFailure):
    """The runs of a workload have no value for the metric."""


def in_words(trouble: "PerfBisectError | OSError") -> PerfBisectError:
    """An OSError as an error with a sentence; other errors are returned as they are."""
    if isinstance(trouble, PerfBisectError):
        return trouble
    reason = trouble.strerror or str(trouble)
    if isinstance(trouble, FileNotFoundError) and trouble.filename is None:  # as of getcwd alone
        return EnvironmentFailure("The current folder does not exist any more.", "Change to another folder: cd")
    return EnvironmentFailure(reason if trouble.filename is None else f"{trouble.filename}: {reason}")


class ReaderGone(PerfBisectError):
    """The reader of standard output has ended, as with `| head`: for a verb that prints, nothing is wrong."""

    exit_status = 0

    def __init__(self) -> None:
        super().__init__("The reader of standard output has ended.")


class NotCounted(EnvironmentFailure):
    """A run has ended without the count of its instructions."""


class CommandFailed(EnvironmentFailure):
    """A command on a host ended with a status other than 0; ``output`` is what it printed."""

    def __init__(self, sentence: str, advice: str = "", *, status: int, output: str = "") -> None:
        super().__init__(sentence, advice)
        self.status = status
        self.output = output


class TooMuchOutput(EnvironmentFailure):
    """A command printed so much that it was ended: what it printed is incomplete."""


class Interrupted(PerfBisectError):
    """The user, or the end of the terminal, has interrupted the work; it can go on later."""

    exit_status = INTERRUPTED


class Cancelled(BaseException):
    """What a thread does is no longer wanted. Like KeyboardInterrupt it passes every handler of failures."""


class ConnectionLost(EnvironmentFailure):
    """The connection to a host was lost; the state of the command is unknown."""


class HostAway(EnvironmentFailure):
    """A host cannot be reached, and others do its work until ``is_back`` says that it can be again."""

    def __init__(self, lost: ConnectionLost, is_back: Callable[[], bool]) -> None:
        super().__init__(str(lost), lost.advice)
        self.is_back = is_back


class JobLost(EnvironmentFailure):
    """A job ended without an exit status, as after a restart of its host: it must be run again."""


class RunLost(JobLost):
    """A run whose result is unknown for a reason that is the host's, never the candidate's: it must be run again."""


class ClockSet(RunLost):
    """The host's clock was set during a run, whose duration is therefore unknown."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, "Set no clock during a hunt. `timedatectl` shows which service sets the clock.")


class DataDamaged(EnvironmentFailure):
    """Loaded data, or a copy of it, has changed since it was loaded: it must be loaded again."""


class BuildChanged(EnvironmentFailure):
    """Files of a finished build are not as they were when it was made: it must be made again."""

    def __init__(self, host: str, key: str, paths: str) -> None:
        named = ", ".join(paths.split("\n")[:-1])
        super().__init__(f"files of the build on host {host} have changed since the build ended ({named})")
        self.host = host
        self.key = key


class BuildFailed(PerfBisectError):
    """A candidate cannot be checked out, or does not configure, compile or install.

    Never the user's fault: the hunt skips it.
    """

    def __init__(self, sentence: str, *, stage: str, log: str, hint: str = "", errors: tuple[str, ...] = ()) -> None:
        """``errors`` are the lines that report one, where there are several."""
        super().__init__(sentence, f"{hint} See {log}.".lstrip())
        self.stage = stage
        self.log = log
        self.errors = errors


class RunFailed(PerfBisectError):
    """A built candidate does not start, crashes, or its workload fails: the hunt skips it or tries again."""

    def __init__(self, sentence: str, *, stage: str, log: str) -> None:
        super().__init__(sentence, f"See {log}.")
        self.stage = stage
        self.log = log


class NoMetric(RunFailed):
    """A run ended well, and ``printed`` nothing that the pattern of the metric finds: its last lines."""

    def __init__(self, sentence: str, *, stage: str, log: str, printed: str) -> None:
        super().__init__(sentence, stage=stage, log=log)
        self.printed = printed


class NoSamples(RunFailed):
    """A run ended well, and perf has taken no samples of it."""
