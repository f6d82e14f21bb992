"""Shared by several verbs: the history option, and writing to standard output."""

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfbisect.cli.options.completion import host_name
from perfbisect.ui.stream import note, put, rewrite_line
from perfbisect.wording.text import printable, safe_json

if TYPE_CHECKING:
    from rich.text import Text


def history_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--history FILE``, given to the command as ``history: Path | None`` (None: the default place)."""
    return click.option(
        "--history",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="History to use. Default: perfbisect/history.db in the user's state folder.",
    )(command)


def hosts_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--host NAME``, repeatable, given to the command as ``host: tuple[str, ...]``; NAME*3 of a lease as three."""

    def each(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
        from perfbisect.recipes.inventory import expanded_names

        return expanded_names(value)

    return click.option(
        "--host", multiple=True, default=("local",), metavar="NAME", show_default=True, shell_complete=host_name,
        callback=each, help="Host to measure on. Repeatable: several hosts share the work.",
    )(command)  # fmt: skip


def explain_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--no-explain``, given to the command as ``explain: bool``."""
    return click.option(
        "--explain/--no-explain",
        default=True,
        show_default=True,
        help="Measure a culprit and its parent again for the reason: counters, profiles, plans.",
    )(command)


def output_width() -> int | None:
    """Columns of the terminal that standard output goes to; None (no limit) for a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def say(text: str) -> None:
    """Write lines to standard output. Raises ReaderGone or EnvironmentFailure where that is impossible."""
    put(text, sys.stdout)


def say_json(text: str, end: str = "\n") -> None:
    """Write JSON to standard output; what would be unsafe to print is escaped as JSON does it."""
    put(safe_json(text), sys.stdout, end)


def say_styled(lines: "Iterable[str | Text]") -> None:
    """Write lines to standard output, in their colours on a terminal that has them."""
    if not sys.stdout.isatty():
        say("\n".join(map(str, lines)))
        return
    from perfbisect.ui.terminal import Terminal

    terminal = Terminal(sys.stdout)
    for line in lines:
        terminal.print(line, soft_wrap=True)


def clone_progress(step: str, done: int, total: int) -> None:
    """Show on standard error, if it is a terminal, how far git has got with a clone."""
    if sys.stderr.isatty():
        rewrite_line(f"{step} {done}/{total}" + ("\n" if done == total else ""))


def table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in aligned columns."""
    from perfbisect.wording.table import columns

    if not rows:
        note("none")
        return
    for line in columns([[*map(printable, row)] for row in rows]):
        say(line)
