"""Notifies others about sessions: runs the user's --notify command with each verdict, and copies ("pushes") the logs to
the central history.

A failure of the notifying command or of a push does not stop a session. The events that a failed push has not copied
remain in the local history, and a later push copies them.
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
    """Runs the user's --notify command at the end of each session. A session registers itself by a call of this object."""

    command: Sequence[str]
    path: Path | None  # the path of the history
    warn: Callable[[str], None]
    names: list[str] = field(default_factory=list)
    enter: Callable[[str], None] = lambda _name: None  # called with the name of each session that begins

    def __call__(self, name: str) -> None:
        """Register the session with the name ``name``, which has begun."""
        self.names.append(name)
        self.enter(name)

    def notify_end(self, name: str, failure: str = "") -> None:
        """Run the command for a session that has ended, unless the command was already run for this session."""
        if name in self.names:
            self.names.remove(name)
            if self.command and (reason := _notify(self.command, self.path, name, failure)):
                self.warn(f"warning: the command of --notify {reason}")


@contextmanager
def notifying(command: Sequence[str], path: Path | None, warn: Callable[[str], None]) -> Iterator[Notifier]:
    """At the end of the ``with`` block, notify about each registered session, whether it ended with a verdict or a
    failure; if the block was interrupted, send no notification.

    Within the block, each session that begins in the history at ``path`` must be registered by calling the notifier
    with the session's name. ``Notifier.notify_end`` notifies about a session before the block ends. If the command
    fails, ``warn`` prints a warning.
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
    """Run the user's --notify command with a JSON object about a session on its standard input.

    Returns why the command failed; "" if the command succeeded.
    """
    try:
        with closing(History.open(path, read_only=True)) as history:
            data = session_end_json(history, name, failure)
    except PerfBisectError as error:
        return f"was not run, because the history cannot be read: {error}"
    return "" if data is None else command_failure(command, data)


def command_failure(command: Sequence[str], data: str, limit: float = TIME_LIMIT) -> str:
    """Run a command with ``data`` on its standard input. Returns why the command failed; "" if the command succeeded.
    The reason contains the last line of the command's standard error; all other output of the command is discarded. The
    command and its child processes are killed after ``limit`` seconds, or if this process is interrupted.
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
    """During the ``with`` block, copy the logs of ``sessions`` to the central history once a minute; when the block
    ends, copy the logs of all sessions in the local history at ``path``.

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
            push_to_central(path, sessions, central.address, are_running=True)
            stop_event.wait(PUSH_INTERVAL)
        failed[:] = push_to_central(path, sessions, central.address, are_running=False)

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


def history_origin(name_option: str | None) -> str:
    """The name of the local history in a central history: the name in the option --as, otherwise the name in
    config.toml, otherwise USER@MACHINE.

    Raises UsageError if the name is invalid.
    """
    name = name_option or load_configuration().central.origin or user_at_machine()
    if not ORIGIN.fullmatch(name):
        advice = "A name has at most 64 letters, digits, and signs of . _ @ -"
        raise UsageError(f"{name!r} cannot be the name of a history.", advice)
    return name


def push_to_central(path: Path, sessions: Sequence[int], address: str, *, are_running: bool) -> list[str]:
    """Copy the logs of ``sessions`` to the central history. If the sessions have ended (``are_running`` is false), the
    logs of all other sessions in the local history are copied, too.

    Returns sentences that state what could not be copied. Failures of sessions that are not in ``sessions`` are left
    out, because the processes of these sessions report them.
    """
    from perfbisect.store.central import central_connection
    from perfbisect.store.push import push

    try:
        with closing(History.open(path, read_only=True)) as history, central_connection(address) as central:
            origin = history_origin(None)
            pushes = [push(history, central, origin, session, is_running=are_running) for session in sessions]
            if not are_running:
                push(history, central, origin)
            return [sentence for result in pushes for sentence in result.refused]
    except (OSError, PerfBisectError) as error:
        failure = as_perfbisect_error(error)
        return [f"{failure} {failure.advice}".strip()]
