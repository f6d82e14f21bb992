"""WaitCallback for a host that somebody else measures on, with a line that says for whom."""

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
    text = "Wait while somebody else measures on the host, instead of failing."
    return click.option("--wait", is_flag=True, help=text)(command)


def patience(wait: bool) -> "WaitCallback | None":
    """What is done while the host is taken: said on standard error. None when nobody wants to wait."""
    if not wait:
        return None
    began = time.monotonic()
    told: set[str] = set()

    def waiting(owner: "Owner | None") -> None:
        if owner is None:
            click.echo(
                "\r\x1b[K" if sys.stderr.isatty() else "The host is free now.", nl=not sys.stderr.isatty(), err=True
            )
        elif sys.stderr.isatty():
            from perfbisect.wording.quantities import clock

            line = f"{clock(time.monotonic() - began)} waiting for {owner}"
            click.echo(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}", nl=False, err=True)
        elif str(owner) not in told:
            click.echo(f"WaitCallback for {owner}.", err=True)
        told.add(str(owner))

    return waiting
