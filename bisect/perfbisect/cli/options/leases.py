"""Leased hosts of a command: what their scheduler says is shown on standard error."""

import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from perfbisect.ui.stream import note, rewrite_line
from perfbisect.wording.text import printable


@contextmanager
def leasing(
    names: Sequence[str],
    hosts_path: str | Path,
    nodes: Mapping[str, str] | None = None,
    *,
    builders: bool = True,
    purpose: str = "",
    minutes: float = 0,
) -> Iterator[None]:
    """Hold the leases of these hosts for a block; see ``hunt.leased_hosts``."""
    from perfbisect.hunt.leased_hosts import leased_hosts

    queue = QueueView()
    with ExitStack() as stack:
        try:
            said = queue, queue.say
            stack.enter_context(
                leased_hosts(names, hosts_path, *said, nodes=nodes, builders=builders, purpose=purpose, minutes=minutes)
            )
        finally:  # an error would stand behind it
            queue.clear()
        yield


class QueueView:
    """Shows what is waited for: a line with a clock on a terminal, else one for each change."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._shown: set[str] = set()
        self._line = False  # whether a line with a clock is on the terminal

    def __call__(self, what: str, state: str) -> None:
        """``what`` is waited for, and in this state; none: it is leased."""
        from perfbisect.wording.quantities import clock
        from perfbisect.wording.table import cut

        waited = clock(time.monotonic() - self._began)
        if not state:
            self.say(f"{what} is leased, after {waited} in the queue.")
        elif sys.stderr.isatty():
            line = f"{waited} waiting for {what}: {state}"
            rewrite_line(cut(printable(line), shutil.get_terminal_size().columns - 1))
            self._line = True
        elif state not in self._shown:
            self.say(f"Waiting for {what}: {state}")
        self._shown.add(state)

    def say(self, text: str) -> None:
        """Tell the user, in place of the line."""
        self.clear()
        note(printable(text))

    def clear(self) -> None:
        """Remove the line, if there is one."""
        if self._line:
            rewrite_line("")
            self._line = False
