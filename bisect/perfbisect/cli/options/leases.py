"""Leased hosts of a command: what their scheduler says is shown on standard error."""

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from perfbisect.ui.stream import note, rewrite_line
from perfbisect.wording.text import printable


def leasing(
    names: Sequence[str],
    hosts_path: str | Path,
    nodes: Mapping[str, str] | None = None,
    *,
    builders: bool = True,
    purpose: str = "",
) -> AbstractContextManager[None]:
    """Hold the leases of these hosts for a block; see ``hunt.leased_hosts``."""
    from perfbisect.hunt.leased_hosts import leased_hosts

    return leased_hosts(names, hosts_path, queue_view(), say, nodes=nodes, builders=builders, purpose=purpose)


def say(text: str) -> None:
    """Tell the user."""
    note(printable(text))


def queue_view() -> Callable[[str, str], None]:
    """Shows what is waited for: a line with a clock on a terminal, else one for each change."""
    began = time.monotonic()
    shown: set[str] = set()

    def show(what: str, state: str) -> None:
        from perfbisect.wording.quantities import clock
        from perfbisect.wording.table import cut

        waited = clock(time.monotonic() - began)
        terminal = sys.stderr.isatty()
        if terminal:
            line = f"{waited} waiting for {what}: {state}" if state else ""
            rewrite_line(cut(printable(line), shutil.get_terminal_size().columns - 1))
        if not state:
            note(f"{printable(what)} is leased, after {waited} in the queue.")
        elif not terminal and state not in shown:
            note(f"Waiting for {printable(what)}: {printable(state)}")
        shown.add(state)

    return show
