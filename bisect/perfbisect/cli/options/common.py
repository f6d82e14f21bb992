"""Shared by several verbs: the history option, and writing to standard output."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from perfbisect.cli.options.completion import host_name
from perfbisect.ui.stream import put
from perfbisect.wording.glyphs import writable


def history_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--history FILE``, given to the command as ``history: Path | None`` (None: the default place)."""
    return click.option(
        "--history",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="History to use. Default: perfbisect/history.db in the user's state folder.",
    )(command)


def hosts_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--host NAME``, repeatable, given to the command as ``host: tuple[str, ...]``."""
    return click.option(
        "--host", multiple=True, default=("local",), metavar="NAME", show_default="local", shell_complete=host_name,
        help="Host to measure on. Repeatable: several hosts share the work.",
    )(command)  # fmt: skip


def output_width() -> int | None:
    """Columns of the terminal that standard output goes to; None (no limit) for a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def painter() -> Callable[[str, str], str]:
    """A function that colours a text that is "worse" or "better" ("" is neither), on terminals with colours."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return lambda text, _: text
    return lambda text, tone: click.style(text, fg={"worse": "red", "better": "green"}[tone]) if tone else text


def say(text: str) -> None:
    """Write ``text`` to standard output; signs that its encoding lacks are replaced by similar ones, or by "?".

    Ends the program, with status 0, when the reader has gone. Raises EnvironmentFailure when it cannot be written.
    """
    try:
        put(writable(text, sys.stdout.encoding or "utf-8"), sys.stdout)
    except BrokenPipeError:  # as with `| head`
        raise click.exceptions.Exit(0) from None


def clone_progress(step: str, done: int, total: int) -> None:
    """Show on standard error, if it is a terminal, how far git has got with a clone."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{step} {done}/{total}" + ("\n" if done == total else ""), nl=False, err=True)


def table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in aligned columns."""
    from perfbisect.wording.table import columns

    if not rows:
        click.echo("none", err=True)
        return
    for line in columns(rows):
        say(line)
