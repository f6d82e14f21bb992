"""Notifications about sessions: a command of the user gets each verdict, and the central history gets the logs.

A failure of the notifying command or of a push does not stop a session. The log remains in the local history, and a
later push sends the missing events.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from perfbisect.errors import Interrupted, PerfBisectError, UsageError, as_perfbisect_error
from perfbisect.process import user_at_machine
from perfbisect.recipes.configuration import load_configuration
from perfbisect.report.published import session_end_json
from perfbisect.store.central import ORIGIN
from perfbisect.store.connection import history_option
from perfbisect.store.history import History
from perfbisect.wording.text import shell_words

TIME_LIMIT = 60.0  # longest time, in seconds, of the command of --notify

Begun = Callable[[str], None]  # takes the name of a session that has begun: 12 for a hunt, c3 for a comparison


@dataclass
class Notifier:
    """Runs the user's command at the end of each session; calling the notifier registers a session that begins."""

    command: Sequence[str]
    path: Path | None  # the path of the history
    warn: Callable[[str], None]
    names: list[str] = field(default_factory=list)
    enter: Callable[[str], None] = lambda _name: None  # called with the name of each session that begins

    def __call__(self, name: str) -> None:
        """Note that the session of that name has begun."""
        self.names.append(name)
        self.enter(name)

    def notify_end(self, name: str, failure: str = "") -> None:
        """Run the command for a session that has ended; each session is notified once."""
        if name in self.names:
            self.names.remove(name)
            if self.command and (reason := _notify(self.command, self.path, name, failure)):
                self.warn(f"warning: the command of --notify {reason}")


@contextmanager
def notifying(command: Sequence[str], path: Path | None, warn: Callable[[str], None]) -> Iterator[Notifier]:
    """Notify about the sessions of a block that end with a verdict or a failure, but not about interrupted sessions.

    Within the block, the notifier must be called with the name of each session that begins in the history at ``path``.
    ``Notifier.notify_end`` can notify about the end of a hunt before the block ends. No notification is sent about a
    session that failed before it had begun. A failure of the command is a warning.
    """
    notifier = Notifier(command, path, warn)

    def send(failure: str = "") -> None:
        for name in [*notifier.names]:
            notifier.notify_end(name, failure)

    try:
        yield notifier
    except Interrupted:
        raise
    except Exception as failure:
        send(str(failure) or type(failure).__name__)
        raise
    send()


def _notify(command: Sequence[str], path: Path | None, name: str, failure: str) -> str:
    """Run the user's command with the JSON text about a session.

    Returns the reason if the command failed; "" if it succeeded.
    """
    try:
        with closing(History.open(path, read_only=True)) as history:
            data = session_end_json(history, name, failure)
    except PerfBisectError as error:
        return f"was not run, because the history cannot be read: {error}"
    return "" if data is None else command_failure(command, data)


def command_failure(command: Sequence[str], data: str, limit: float = TIME_LIMIT) -> str:
    """Run a command with ``data`` on its standard input. Returns why the command failed; "" for a success.

    The output of the command is discarded, except the last line of its standard error, which is a part of the reason.
    The command and its processes are killed after ``limit`` seconds, and when this process is interrupted.
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
    last_line = errors.decode(errors="replace").strip().rpartition("\n")[2]
    return f"ended with status {process.returncode}" + (f": {last_line}" if last_line else "")


PUSH_INTERVAL = 60.0  # seconds between pushes to the central history; a third of HEARD in store/central.py
LAST_PUSH = 30.0  # seconds; the end of a session waits this long for its last push


@contextmanager
def pushing(path: Path, sessions: Sequence[int], warn: Callable[[str], None]) -> Iterator[None]:
    """Within a block, push sessions of the history at ``path`` once a minute; when the block ends, push all sessions.

    Nothing is pushed if no central history is configured. If the last push fails, ``warn`` is called with the reason
    and with the command that pushes the sessions later.
    """
    central = load_configuration().central
    if not central.address:
        yield
        return
    stop_event, failed = threading.Event(), list[str]()

    def work() -> None:
        while not stop_event.is_set():
            push_once(path, sessions, central.address, running=True)
            stop_event.wait(PUSH_INTERVAL)
        failed[:] = push_once(path, sessions, central.address, running=False)

    thread = threading.Thread(target=work, name="push", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop_event.set()
        thread.join(LAST_PUSH)
        if thread.is_alive():
            failed[:] = [f"it has not answered within {LAST_PUSH:.0f} s."]
        if failed:
            command = shell_words(["bisect", "push", *history_option(path)])
            warn(f"Some events are not in the central history yet: {failed[0]} Push them later: {command}")


def origin_of(name_option: str | None) -> str:
    """The name of this history in a central history: from the option, else from config.toml, else made from the user
    and the machine.

    Raises UsageError for a text that cannot be the name of a history.
    """
    name = name_option or load_configuration().central.origin or user_at_machine()
    if not ORIGIN.fullmatch(name):
        advice = "A name has at most 64 letters, digits, and signs of . _ @ -"
        raise UsageError(f"{name!r} cannot be the name of a history.", advice)
    return name


def push_once(path: Path, sessions: Sequence[int], address: str, *, running: bool) -> list[str]:
    """Push ``sessions`` once.

    If the sessions have ended (``running`` is false), all other sessions of the history are pushed, too.

    Returns sentences about failures. Failures of other sessions are left out, because the processes of these sessions
    have reported them.
    """
    from perfbisect.store.central import central_connection
    from perfbisect.store.push import push

    try:
        with closing(History.open(path, read_only=True)) as history, central_connection(address) as central:
            origin = origin_of(None)
            pushes = [push(history, central, origin, session, is_running=running) for session in sessions]
            if not running:
                push(history, central, origin)
            return [sentence for result in pushes for sentence in result.refused]
    except (OSError, PerfBisectError) as error:
        failure = as_perfbisect_error(error)
        return [f"{failure} {failure.advice}".strip()]
