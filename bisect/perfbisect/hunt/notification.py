"""Runs a command of the user when a hunt, a comparison or a proof has ended, with the verdict on its standard input."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from perfbisect.errors import Interrupted, PerfBisectError
from perfbisect.report.published import notice
from perfbisect.store.history import History

LIMIT = 60.0  # seconds that the command may take

Begun = Callable[[str], None]  # takes the name of what has begun: 12 for a hunt, c3 for a comparison


@dataclass
class Notifier:
    """Notifies once each of what it was called with has ended."""

    command: Sequence[str]
    path: Path | None  # of the history
    warn: Callable[[str], None]
    names: list[str] = field(default_factory=list)

    def __call__(self, name: str) -> None:
        """It begins."""
        self.names.append(name)

    def ended(self, name: str, failure: str = "") -> None:
        """Notify once that it has ended."""
        if name in self.names:
            self.names.remove(name)
            if self.command and (reason := _sent(self.command, self.path, name, failure)):
                self.warn(f"warning: the command of --notify {reason}")


@contextmanager
def notifying(command: Sequence[str], path: Path | None, warn: Callable[[str], None]) -> Iterator[Notifier]:
    """Notify when what is done inside ends, with a verdict or a failure; not when it is interrupted.

    Inside, what this yields takes the name of what has begun in the history at ``path``, each of several, and that of a hunt
    whose verdict is there before all is done. Nothing is sent about what has failed before. A failure of the command is a
    warning.
    """
    begun = Notifier(command, path, warn)

    def send(failure: str = "") -> None:
        for name in [*begun.names]:
            begun.ended(name, failure)

    try:
        yield begun
    except Interrupted:
        raise
    except Exception as failure:
        send(str(failure) or type(failure).__name__)
        raise
    send()


def _sent(command: Sequence[str], path: Path | None, name: str, failure: str) -> str:
    """Run the command with the notice; returns why that failed, "" where it did not."""
    try:
        with closing(History.open(path, read_only=True)) as history:
            data = notice(history, name, failure)
    except PerfBisectError as trouble:
        return f"has nothing to get: {trouble}"
    return "" if data is None else run(command, data)


def run(command: Sequence[str], data: str, limit: float = LIMIT) -> str:
    """Run a command with ``data`` on its standard input; returns why it failed, "" where it did not.

    What it prints is discarded, but for the last line on standard error in that reason. It is killed, with all that it
    started, after ``limit`` seconds, and when this process is interrupted.
    """
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as failure:
        return f"cannot be started: {failure.strerror}"
    with process:
        try:
            _, errors = process.communicate(data.encode(), limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"has not ended in {limit:.0f} s and was killed"
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if not process.returncode:
        return ""
    said = errors.decode(errors="replace").strip().rpartition("\n")[2]
    return f"ended with status {process.returncode}" + (f": {said}" if said else "")
