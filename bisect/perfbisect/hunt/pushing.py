"""Pushes sessions to the user's central history while this process works on them, beside the measuring.

What goes wrong there delays nothing here: the log is in the local history, and a later push carries what is missing.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from perfbisect.errors import PerfBisectError
from perfbisect.recipes.configuration import CentralHistory, load_configuration
from perfbisect.report.command_line import history_option
from perfbisect.store.history import History
from perfbisect.wording.text import shell_words

EVERY = 60.0  # seconds; a session counts as running for three times as long (store/pull.py)
LAST = 30.0  # seconds that the end of a session waits for a push


@contextmanager
def pushing(path: Path, sessions: Sequence[int], warn: Callable[[str], None]) -> Iterator[None]:
    """Within, push these sessions of the history at ``path`` once a minute, and at the end; nothing without a central history.

    Where the last push fails, ``warn`` is given the reason and the command that makes up for it.
    """
    central = load_configuration().central
    if not central.address:
        yield
        return
    stop, failed = threading.Event(), list[str]()

    def work() -> None:
        while not stop.is_set():
            attempt(path, sessions, central, running=True)
            stop.wait(EVERY)
        failed[:] = attempt(path, sessions, central, running=False)

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


def attempt(path: Path, sessions: Sequence[int], central: CentralHistory, *, running: bool) -> list[str]:
    """Push sessions once; returns sentences about what went wrong."""
    from perfbisect.store.central import connected
    from perfbisect.store.push import origin_of, push

    try:
        with closing(History.open(path, read_only=True)) as history, connected(central.address) as there:
            origin = origin_of(central.origin)
            return [
                sentence
                for each in sessions
                for sentence in push(history, there, origin, each, running=running).refused
            ]
    except PerfBisectError as trouble:
        return [str(trouble)]
