"""Several hunts of a batch: one line for each, and below them the screens of those that run."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from perfbisect.clock import CLOCK
from perfbisect.ui.live import LiveScreen
from perfbisect.ui.plain import PlainLines
from perfbisect.ui.stream import put
from perfbisect.ui.view_model import REPORT, Report, TimedEvent, ViewModel
from perfbisect.wording.text import printable

Row = tuple[str, int | None, str]  # title, hunt, state in words


class BatchScreen(LiveScreen):
    """Draws a batch on a terminal. Hunts that have ended give their part of the screen to the others."""

    def __init__(self, console: Console, report: Report = REPORT, now: Callable[[], float] = CLOCK.now) -> None:
        self.rows: Sequence[Row] = ()
        super().__init__(console, (), report, now)

    def states(self, rows: Sequence[Row]) -> None:
        """Take the states of all hunts."""
        self.rows = rows
        self.draw()

    def last(self) -> Iterator[Text]:
        """The last state of each hunt."""
        return self.listing()

    def listing(self) -> Iterator[Text]:
        """One line for each hunt."""
        wide = max((cell_len(title) for title, _, _ in self.rows), default=0)
        for title, hunt, state in self.rows:
            number = "" if hunt is None else f"hunt {hunt}"
            yield self.entry(title, wide, f"{number:9} {printable(state)}")

    def current(self) -> Sequence[ViewModel]:
        """Those that run."""
        return [self.views[hunt] for _, hunt, state in self.rows if hunt in self.views and state.startswith("running")]


class BatchLines(PlainLines):
    """Writes plain lines: those of each hunt after its number, and one where a hunt begins, ends or fails."""

    def __init__(self, stream: TextIO, report: Report = REPORT) -> None:
        super().__init__(stream, {}, report)
        self.said: Mapping[str, str] = {}

    def recall(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Their lines were written when they happened."""
        self.prefixes[hunt] = f"{hunt:3}  "
        super().recall(hunt, events)

    def states(self, rows: Sequence[Row]) -> None:
        """Write what has changed."""
        now = {f"{place} {title}": state for place, (title, _, state) in enumerate(rows)}
        for (key, state), (title, _, _) in zip(now.items(), rows, strict=True):
            if self.said.get(key) != state:
                put(f"batch    {printable(title)}: {printable(state)}", self.stream)
        self.said = now
