"""Pushes sessions to the user's central history while this process works on them, beside the measuring.

What goes wrong there delays nothing here: the log is in the local history, and a later push carries what is missing.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from perfbisect.errors import PerfBisectError, UsageError, in_words
from perfbisect.process import own_name
from perfbisect.recipes.configuration import load_configuration
from perfbisect.report.command_line import history_option
from perfbisect.store.central import ORIGIN
from perfbisect.store.history import History
from perfbisect.wording.text import shell_words

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
