"""What several verbs share: the history they work on, and how wide their output may be."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def history_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--history FILE``, given to the command as ``history: Path | None`` (None: the default place)."""
    return click.option(
        "--history",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="History to use. Default: perfbisect/history.db in the user's state folder.",
    )(command)


def output_width() -> int | None:
    """Columns that a line of standard output may take; None (no limit) where it does not go to a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
