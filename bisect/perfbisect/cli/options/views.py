"""Which view draws a hunt, or several at once: live in a terminal, plain lines otherwise, JSON for programs."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from perfbisect.hunt.session import OpenView
    from perfbisect.hunt.watching import View

VIEWS = {
    "plain": "Plain lines, as when there is no terminal.",
    "json": "One JSON object for each event.",
}  # option: its help


def view_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every verb that hunts, given to it as ``view: str | None``; of several the last counts."""
    for name, text in reversed(VIEWS.items()):
        command = click.option(f"--{name}", "view", flag_value=name, default=None, help=text)(command)
    return command


def lines_wanted() -> bool:
    """Whether standard output is nothing that a screen can be drawn on."""
    return not sys.stdout.isatty() or os.environ.get("TERM") == "dumb"


def open_view(history: Path | None, view: str | None) -> "OpenView":
    """What opens the view of that name (None: the one that suits standard output) for hunts in ``history``."""
    from perfbisect.report.command_line import command_to_show

    def report(hunt: int) -> str:
        return command_to_show(str(hunt), history)

    def opened(titles: Mapping[int, str]) -> "View":
        together = len(titles) > 1
        if view == "json":
            from perfbisect.ui.jsonlines import JsonLines

            return JsonLines(sys.stdout, together=together)
        if view == "plain" or lines_wanted():
            from perfbisect.ui.plain import PlainLines

            return PlainLines(sys.stdout, titles, report)
        from perfbisect.ui.live import LiveScreen, TogetherScreen
        from perfbisect.ui.terminal import Terminal

        return (TogetherScreen if together else LiveScreen)(Terminal(sys.stdout), titles, report)

    return opened
