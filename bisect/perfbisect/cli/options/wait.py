"""Waiting for a host on which another session measures, with a line that names it."""

import shutil
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from perfbisect.ui.stream import note, rewrite_line
from perfbisect.wording.text import printable

if TYPE_CHECKING:
    from perfbisect.host.lock import Owner, WaitCallback


def wait_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--wait``, given to the command as ``wait: bool``."""
    text = "Wait for a host on which another session measures, instead of failing."
    return click.option("--wait", is_flag=True, help=text)(command)


def wait_callback(wait: bool) -> "WaitCallback | None":
    """Shows on standard error which session is waited for; None without ``wait``."""
    if not wait:
        return None
    began = time.monotonic()
    shown: set[str] = set()

    def waiting(owner: "Owner | None") -> None:
        if owner is None:
            if sys.stderr.isatty():
                rewrite_line("")
            else:
                note("The host is free now.")
        elif sys.stderr.isatty():
            from perfbisect.wording.quantities import clock
            from perfbisect.wording.table import cut

            line = f"{clock(time.monotonic() - began)} waiting for {owner}"
            rewrite_line(cut(printable(line), shutil.get_terminal_size().columns - 1))
        elif str(owner) not in shown:
            note(f"Waiting for {printable(str(owner))}.")
        shown.add(str(owner))

    return waiting
