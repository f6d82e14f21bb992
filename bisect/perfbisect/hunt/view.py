"""Which view draws a hunt: live in a terminal, plain lines otherwise, JSON for programs."""

import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import click

if TYPE_CHECKING:
    from pathlib import Path

    from perfbisect.core.domain.events import Event


class View(Protocol):
    """Draws the events of a hunt; closing it leaves the terminal as it was."""

    def recall(self, events: Iterable[tuple[float, "Event"]]) -> None:
        """Take the events of earlier sessions of a resumed hunt, before the first event is shown."""

    def show(self, event: "Event", at: float) -> None:
        """Draw one event that happened ``at`` seconds since the epoch."""

    def close(self) -> None:
        """Draw no more."""


def view_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every verb that hunts: how the hunt is shown."""
    command = click.option("--json", "as_json", is_flag=True, help="One JSON object for each event.")(command)
    return click.option("--plain", is_flag=True, help="Plain lines, as when there is no terminal.")(command)


def open_view(history: "Path | None", *, as_json: bool, plain: bool) -> View:
    """The view the user asked for, or the one that suits standard output, of a hunt in the history at that path."""
    from perfbisect.report.command import show

    def report(hunt: int) -> str:
        return show(str(hunt), history)

    if as_json:
        from perfbisect.ui.jsonlines import JsonLines

        return JsonLines(sys.stdout)
    if plain or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        from perfbisect.ui.plain import PlainLines

        return PlainLines(sys.stdout, report)
    from perfbisect.ui.live import LiveScreen

    return LiveScreen(report=report)
