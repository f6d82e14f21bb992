"""Draws running hunts on a terminal. The picture is drawn again once a second; the last picture stays on the terminal.

An event only changes the data of a view. The thread of the library rich draws the views at regular intervals.
"""

import os
import termios
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import IO, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from perfbisect.core.domain.events import SessionEnded
from perfbisect.core.domain.measured_log import is_of_build
from perfbisect.process import CLOCK
from perfbisect.ui.screen import screen_lines
from perfbisect.ui.session_update import view_after_earlier_attempts, view_after_events
from perfbisect.ui.session_view import REPORT, LatestRun, Report, SessionRow, SessionView, TimedEvent
from perfbisect.ui.stream import as_safe_output
from perfbisect.wording.glyphs import glyphs_for, writable
from perfbisect.wording.quantities import count
from perfbisect.wording.text import printable, safe

PER_SECOND = 1  # pictures: enough for a clock; each takes some milliseconds, which must not disturb measurements
LOCAL = 3  # index of the local flags, of which one is echo, in the result of termios.tcgetattr


class EscapingConsole(Console):
    """A console of the library rich without markup, emoji names and highlighting. Only rich's own control sequences
    reach the terminal."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(file=as_safe_output(stream).raw, markup=False, emoji=False, highlight=False, stderr=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of ``renderable``, in which control characters are escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(writable(safe(segment.text), self.encoding), segment.style)


def set_control_echo(stream: IO[str], *, is_on: bool) -> bool:
    """Set whether the terminal prints ^C when the user types Ctrl-C. Returns the former setting.

    If there is no terminal, or if this process is in the background, nothing is set, and the result is False. The
    reason is that the system stops a background process that changes the terminal.
    """
    with suppress(OSError, termios.error):
        terminal = stream.fileno()
        if os.tcgetpgrp(terminal) == os.getpgrp():
            attributes = termios.tcgetattr(terminal)
            echoed = bool(attributes[LOCAL] & termios.ECHOCTL)
            attributes[LOCAL] = attributes[LOCAL] & ~termios.ECHOCTL | termios.ECHOCTL * is_on
            termios.tcsetattr(terminal, termios.TCSANOW, attributes)
            return echoed
    return False


class LiveScreen:
    """A view that draws running hunts on the alternate screen of a terminal. The hunts are drawn one below another,
    with equal heights.

    If there are several hunts, a list with a line for each hunt is drawn above the hunts. ``together`` is true if one
    process carries out all hunts; in this case, only hunts that are being measured are drawn. ``close`` prints the last
    picture on the ordinary screen of the terminal; if other processes carry out the hunts, ``close`` prints only the
    list of hunts. If ``keep`` is false, ``close`` prints nothing.
    """

    def __init__(
        self,
        console: Console,
        titles: Mapping[int, str],
        report: Report = REPORT,
        *,
        together: bool = False,
        keep: bool = True,
        now: Callable[[], float] = CLOCK.now,
    ) -> None:
        self.console, self.report, self.together, self.keep, self.now = console, report, together, keep, now
        self.glyphs = glyphs_for(console.encoding)
        self.views: dict[int, SessionView] = {hunt: SessionView(report_command=report) for hunt in titles}
        self.rows: Sequence[SessionRow] = [SessionRow(title, hunt) for hunt, title in titles.items()]
        self.latest = next(iter(titles), None)  # the hunt that was measured last
        self.echo = False  # whether the terminal echoed control characters (^C) before drawing began
        self.live = Live(
            get_renderable=lambda: Group(*self.list_and_hunt_lines(console.height)),
            console=console,
            screen=True,
            refresh_per_second=PER_SECOND,
            redirect_stdout=False,  # rich would execute some control sequences in redirected text
            redirect_stderr=False,
        )

    def add_earlier_events(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Add the events of earlier attempts at a hunt. Must be called before ``add_events`` for this hunt."""
        self.views[hunt] = view_after_earlier_attempts(SessionView(report_command=self.report), events)

    def add_events(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Add events of a hunt; the next picture shows them."""
        happened = [*events]
        self.views[hunt] = view_after_events(self.views[hunt], happened)
        if any(not (is_of_build(event) or isinstance(event, SessionEnded)) for _, event in happened):
            self.latest = hunt  # builds and ends may be logged in other hunts, too
        self.start_drawing()

    def set_rows(self, rows: Sequence[SessionRow]) -> None:
        """Set the lines of the list of hunts to ``rows``. Used if other processes carry out the hunts."""
        self.rows = rows
        self.start_drawing()

    def start_drawing(self) -> None:
        """Start rich's drawing thread, unless it is running."""
        if not self.live.is_started:
            self.echo = set_control_echo(self.console.file, is_on=False)  # so that no ^C is printed into the picture
            self.live.start()

    def show_hunt_end(self, hunt: int, at: float) -> None:
        """Stop the clock of a hunt at the time ``at`` (epoch seconds)."""
        self.views[hunt] = self.views[hunt].stopped_at(at)
        self.rows = [replace(row, is_running=row.is_running and row.hunt != hunt) for row in self.rows]

    def close(self) -> None:
        """Restore the terminal, and print the last picture on the ordinary screen."""
        if not self.live.is_started:
            return
        self.live.stop()
        if self.echo:
            set_control_echo(self.console.file, is_on=True)
        if not self.keep:
            return
        drawn = [] if any(row.state for row in self.rows) else [*self.views.values()]
        pictures = (screen_lines(view, self.console.width, None, self.now(), self.glyphs) for view in drawn)
        several = len(self.rows) > 1
        kept_lines = [line for picture in pictures for line in (*picture, *([self.rule_line()] if several else []))]
        self.console.print(Group(*kept_lines, *self.hunt_lines()))

    def drawn_hunts(self) -> list[int]:
        """The numbers of the hunts that are drawn, as many as the screen has room for."""
        hunts = [row.hunt for row in self.rows if row.hunt in self.views and (row.is_running or len(self.rows) == 1)]
        if not self.together:
            return hunts
        running = {
            hunt
            for hunt in hunts
            for doing in self.views[hunt].activity_by_host.values()
            if isinstance(doing, LatestRun) and not doing.is_finished
        }
        return [hunt for hunt in hunts if hunt in running] or [hunt for hunt in hunts if hunt == self.latest]

    def hunt_lines(self) -> Iterator[Text]:
        """If there are several hunts, a line for each hunt, with its title, its number, and its state or its most
        probable culprit.
        """
        wide = max((cell_len(row.title) for row in self.rows), default=0)
        drawn = self.drawn_hunts()
        for row in self.rows if len(self.rows) > 1 else ():
            view = None if row.hunt is None else self.views.get(row.hunt)
            progress = "" if view is None else f"{count(view.state.run_count, 'run'):>9}  {view.verdict_or_progress}"
            name = view.name if view and view.trial_state else "" if row.hunt is None else f"hunt {row.hunt}"
            gap = " " * (wide - cell_len(row.title))
            state = printable(row.state) or progress
            style = "bold" if self.together and row.hunt in drawn and view and not view.search_verdict else ""
            line = Text(f" {printable(row.title)}{gap}  {name:10} {state}", style, no_wrap=True)
            line.truncate(self.console.width, overflow="ellipsis")
            yield line

    def list_and_hunt_lines(self, height: int) -> Iterator[Text]:
        """The lines of the picture, at most ``height``: first the list of hunts, then each hunt, with a horizontal line
        between two hunts."""
        listed, views = [*self.hunt_lines()][:height], [self.views[hunt] for hunt in self.drawn_hunts()]
        yield from listed
        remaining = height - len(listed) - len(views) + (not listed)
        for position, view in enumerate(views):
            share = remaining // (len(views) - position)
            if share < 1:
                return
            if position or listed:
                yield self.rule_line()
            drawn = screen_lines(view, self.console.width, share, self.now(), self.glyphs)
            yield from drawn
            remaining -= len(drawn)

    def rule_line(self) -> Text:
        """A line between two hunts."""
        return Text(self.glyphs.line * self.console.width, "dim")
