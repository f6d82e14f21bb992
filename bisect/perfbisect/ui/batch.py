"""Several hunts of a batch: one line for each, and below them the screens of those that run."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from perfbisect.clock import CLOCK
from perfbisect.core.domain.events import Event
from perfbisect.ui.live import PER_SECOND
from perfbisect.ui.plain import PlainLines
from perfbisect.ui.screen import lines
from perfbisect.ui.stream import put
from perfbisect.ui.view_model import REPORT, ViewModel, caught_up, recalled
from perfbisect.wording.glyphs import glyphs_for
from perfbisect.wording.text import printable

TimedEvent = tuple[float, Event]
Row = tuple[str, int | None, str]  # title, hunt, state in words


class BatchScreen:
    """Draws a batch on a terminal. Hunts that have ended give their part of the screen to the others."""

    def __init__(
        self, console: Console, report: Callable[[int], str] = REPORT, now: Callable[[], float] = CLOCK.now
    ) -> None:
        self.console = console
        self.glyphs = glyphs_for(console.encoding)
        self.now = now
        self.report = report
        self.views: dict[int, ViewModel] = {}
        self.rows: Sequence[Row] = ()
        self.live = Live(
            get_renderable=lambda: Group(*self.picture(console.height)),
            console=console,
            screen=True,
            refresh_per_second=PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def recall(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Take the events of earlier sessions of a hunt."""
        self.views[hunt] = recalled(ViewModel(report=self.report), events)

    def show(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Take events of a hunt; the next picture includes them."""
        self.views[hunt] = caught_up(self.views[hunt], events)

    def states(self, rows: Sequence[Row]) -> None:
        """Take the states of all hunts."""
        self.rows = rows
        if not self.live.is_started:
            self.live.start()

    def close(self) -> None:
        """Give the terminal back, with the last state of each hunt."""
        if self.live.is_started:
            self.live.stop()
            self.console.print(Group(*self.listing()))

    def listing(self) -> Iterator[Text]:
        """One line for each hunt."""
        wide = max((len(title) for title, _, _ in self.rows), default=0)
        for title, hunt, state in self.rows:
            number = "" if hunt is None else f"hunt {hunt}"
            line = Text(f" {printable(title).ljust(wide)}  {number:9} {printable(state)}", no_wrap=True)
            line.truncate(self.console.width)
            yield line

    def picture(self, height: int) -> Iterator[Text]:
        """The lines of all hunts, and the screens of those that run, at most ``height`` lines."""
        listed = [*self.listing()][:height]
        yield from listed
        running = [
            self.views[hunt] for _, hunt, state in self.rows if hunt in self.views and state.startswith("running")
        ]
        left = height - len(listed)
        for place, view in enumerate(running):
            share = left // (len(running) - place) - 1
            if share < 1:
                return
            yield Text(self.glyphs.line * self.console.width, "dim")
            drawn = lines(view, self.console.width, share, self.now(), self.glyphs)
            yield from drawn
            left -= len(drawn) + 1


class BatchLines:
    """Writes plain lines: those of each hunt after its number, and one where a hunt begins, ends or fails."""

    def __init__(self, stream: TextIO, report: Callable[[int], str] = REPORT) -> None:
        self.stream = stream
        self.report = report
        self.views: dict[int, PlainLines] = {}
        self.said: Mapping[str, str] = {}

    def recall(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Their lines were written when they happened."""
        self.views[hunt] = PlainLines(self.stream, self.report, f"{hunt:3}  ")
        self.views[hunt].recall(events)

    def show(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Write the lines of events."""
        for at, event in events:
            self.views[hunt].show(event, at)

    def states(self, rows: Sequence[Row]) -> None:
        """Write what has changed."""
        now = {f"{place} {title}": state for place, (title, _, state) in enumerate(rows)}
        for (key, state), (title, _, _) in zip(now.items(), rows, strict=True):
            if self.said.get(key) != state:
                put(f"batch    {printable(title)}: {printable(state)}", self.stream)
        self.said = now

    def close(self) -> None:
        """Nothing is buffered."""
