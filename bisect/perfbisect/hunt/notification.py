"""Tells others of sessions: a command of the user, which gets the verdict of each that ends; and the central history.

What goes wrong there delays nothing here: the log is in the local history, and a later push carries what is missing.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from perfbisect.errors import Interrupted, PerfBisectError, UsageError, in_words
from perfbisect.process import own_name
from perfbisect.recipes.configuration import load_configuration
from perfbisect.report.command_line import history_option
from perfbisect.report.published import notice
from perfbisect.store.central import ORIGIN
from perfbisect.store.history import History
from perfbisect.wording.text import shell_words

LIMIT = 60.0  # seconds that the command may take

Begun = Callable[[str], None]  # takes the name of what has begun: 12 for a hunt, c3 for a comparison


@dataclass
class Notifier:
    """Notifies once each of what it was called with has ended."""

    command: Sequence[str]
    path: Path | None  # of the history
    warn: Callable[[str], None]
    names: list[str] = field(default_factory=list)
    enter: Callable[[str], None] = lambda _name: None  # called with the name of each session that begins

    def __call__(self, name: str) -> None:
        """It begins."""
        self.names.append(name)
        self.enter(name)

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


EVERY = 60.0  # seconds; a session counts as running for three times as long (store/central.py)
LAST = 30.0  # seconds that the end of a session waits for a push


@contextmanager
def pushing(path: Path, sessions: Sequence[int], warn: Callable[[str], None]) -> Iterator[None]:
    """Within, push these sessions of the history at ``path`` once a minute, and at the end all; nothing without a central history.

    Where the last push fails, ``warn`` is given the reason and the command that makes up for it.
    """
    central = load_configuration().central
    if not central.address:
        yield
        return
    stop, failed = threading.Event(), list[str]()

    def work() -> None:
        while not stop.is_set():
            attempt(path, sessions, central.address, running=True)
            stop.wait(EVERY)
        failed[:] = attempt(path, sessions, central.address, running=False)

    thread = threading.Thread(target=work, name="push", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(LAST)
        if thread.is_alive():
            failed[:] = [f"it has not answered within {LAST:.0f} s."]
        if failed:
            again = shell_words(["bisect", "push", *history_option(path)])
            warn(f"Not all is in the central history yet: {failed[0]} Push it later: {again}")


def origin_of(given: str | None) -> str:
    """The name of this history in a central one: the given one, that of config.toml, or of this user and machine.

    Raises UsageError for what is no name.
    """
    name = given or load_configuration().central.origin or own_name()
    if not ORIGIN.fullmatch(name):
        advice = "It has at most 64 letters, digits, and signs of . _ @ -"
        raise UsageError(f"{name!r} is no name for a history.", advice)
    return name


def attempt(path: Path, sessions: Sequence[int], address: str, *, running: bool) -> list[str]:
    """Push sessions once, and unless they are ``running`` all that is missing; returns sentences about what went wrong.

    What is wrong with other sessions, they have said themselves.
    """
    from perfbisect.store.central import connected
    from perfbisect.store.push import push

    try:
        with closing(History.open(path, read_only=True)) as history, connected(address) as there:
            origin = origin_of(None)
            done = [push(history, there, origin, each, running=running) for each in sessions]
            if not running:
                push(history, there, origin)
            return [sentence for each in done for sentence in each.refused]
    except (OSError, PerfBisectError) as trouble:
        failure = in_words(trouble)
        return [f"{failure} {failure.advice}".strip()]
