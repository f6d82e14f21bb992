"""What several verbs share: the history they work on, what they change of a workload, how they write their results."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click

from perfbisect.cli.values import Option
from perfbisect.core.settings import TIMING


def history_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--history FILE``, given to the command as ``history: Path | None`` (None: the default place)."""
    return click.option(
        "--history",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="History to use. Default: perfbisect/history.db in the user's state folder.",
    )(command)


def workload_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that change a workload; ``overrides`` reads what they are given."""
    for option in (
        click.option("--set", "changes", type=Option(), multiple=True, help="One of the workload's args. Repeatable."),
        click.option("--threads", type=click.IntRange(min=1), help="Client threads."),
        click.option("--warmup", type=click.FloatRange(min=0), help="Seconds of warm-up before each run."),
        click.option("--time", type=click.IntRange(min=1), help="Seconds of each timed run."),
    ):
        command = option(command)
    return command


def overrides(options: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """What the options above change, for the settings of a hunt; in one order, whatever the order they are given in."""
    return {name: options[name] for name in TIMING if options[name] is not None} | dict(
        sorted(dict(options["changes"]).items())
    )


def output_width() -> int | None:
    """Columns that a line of standard output may take; None (no limit) where it does not go to a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def say(text: str) -> None:
    """Write ``text`` to standard output; signs that its encoding does not have become "?".

    Ends the program, with status 0, when nobody reads any more.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        click.echo(text, nl=not text.endswith("\n"))
    except BrokenPipeError:
        # The reader has enough (`| head`). What Python still buffers for it must not raise again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(0) from None
