"""Waiting for a host on which another session measures, with a line that names it."""

import shutil
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

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
            click.echo(
                "\r\x1b[K" if sys.stderr.isatty() else "The host is free now.", nl=not sys.stderr.isatty(), err=True
            )
        elif sys.stderr.isatty():
            from perfbisect.wording.quantities import clock

            line = f"{clock(time.monotonic() - began)} waiting for {owner}"
            click.echo(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}", nl=False, err=True)
        elif str(owner) not in shown:
            click.echo(f"Waiting for {owner}.", err=True)
        shown.add(str(owner))

    return waiting
