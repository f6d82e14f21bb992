"""Which view draws a hunt, or several at once: live in a terminal, plain lines otherwise, JSON for programs."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from perfbisect.hunt.together import OpenView
    from perfbisect.hunt.view import View
    from perfbisect.hunt.watching import Watcher

Opener = Callable[[Callable[[int], str]], "View"]  # given the command that reports a hunt, by its number


def open_live(report: Callable[[int], str]) -> "View":
    """A screen that is redrawn, for a terminal."""
    from perfbisect.ui.live import LiveScreen
    from perfbisect.ui.terminal import Terminal

    return LiveScreen(Terminal(sys.stdout), report=report)


def open_plain(report: Callable[[int], str]) -> "View":
    """A line for each event."""
    from perfbisect.ui.plain import PlainLines

    return PlainLines(sys.stdout, report)


def open_json(_report: Callable[[int], str]) -> "View":
    """A JSON object for each event."""
    from perfbisect.ui.jsonlines import JsonLines

    return JsonLines(sys.stdout)


# By option: its help, and how the view is opened. A new view is a module below ui/ and an entry here.
VIEWS: dict[str, tuple[str, Opener]] = {
    "plain": ("Plain lines, as when there is no terminal.", open_plain),
    "json": ("One JSON object for each event.", open_json),
}


def view_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every verb that hunts, given to it as ``view: str | None``; of several the last counts."""
    for name, (text, _) in reversed(VIEWS.items()):
        command = click.option(f"--{name}", "view", flag_value=name, default=None, help=text)(command)
    return command


def open_view(history: Path | None, view: str | None) -> "View":
    """The view of that name (None: the one that suits standard output) for a hunt in ``history``."""
    from perfbisect.report.command_line import command_to_show

    if view:
        _, opened = VIEWS[view]
    else:
        lines = not sys.stdout.isatty() or os.environ.get("TERM") == "dumb"
        opened = open_plain if lines else open_live
    return opened(lambda hunt: command_to_show(str(hunt), history))


def open_view_together(history: Path | None, view: str | None) -> "OpenView":
    """The same for hunts of several workloads that one process carries out."""
    from perfbisect.report.command_line import command_to_show
    from perfbisect.ui.together import TogetherJson, TogetherLines, TogetherScreen

    def report(hunt: int) -> str:
        return command_to_show(str(hunt), history)

    def opened(titles: Mapping[int, str]) -> "Watcher":
        if view == "json":
            return TogetherJson(sys.stdout)
        if view == "plain" or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
            return TogetherLines(sys.stdout, titles, report)
        from perfbisect.ui.terminal import Terminal

        return TogetherScreen(Terminal(sys.stdout), titles, report)

    return opened
