"""Several hunts on one screen, one below the other. Their events come from a history, many at once at first."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from perfbisect.clock import CLOCK
from perfbisect.core.domain.events import Event
from perfbisect.ui.live import PER_SECOND
from perfbisect.ui.screen import lines
from perfbisect.ui.view_model import REPORT, ViewModel, caught_up, recalled
from perfbisect.wording.glyphs import glyphs_for


class Wall:
    """Draws hunts as LiveScreen draws one; each has the same share of the height. ``report`` as in the view."""

    def __init__(
        self,
        console: Console,
        hunts: Sequence[int],
        report: Callable[[int], str] = REPORT,
        now: Callable[[], float] = CLOCK.now,
    ) -> None:
        self.console = console
        self.glyphs = glyphs_for(console.encoding)
        self.now = now
        self.views = {hunt: ViewModel(report=report) for hunt in hunts}
        self.live = Live(
            get_renderable=lambda: Group(*self.picture(console.height)),
            console=console,
            screen=True,
            refresh_per_second=PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def recall(self, hunt: int, events: Iterable[tuple[float, Event]]) -> None:
        """Take the events of earlier sessions of a hunt."""
        self.views[hunt] = recalled(self.views[hunt], events)

    def show(self, hunt: int, events: Iterable[tuple[float, Event]]) -> None:
        """Take events of a hunt; the next picture includes them."""
        self.views[hunt] = caught_up(self.views[hunt], events)
        if not self.live.is_started:
            self.live.start()

    def end(self, hunt: int, at: float) -> None:
        """Stop the clock of a hunt at that time."""
        view = self.views[hunt]
        self.views[hunt] = replace(view, ended=view.ended or at, now=None, busy={})

    def close(self) -> None:
        """Give the terminal back, with everything that was drawn last."""
        if self.live.is_started:
            self.live.stop()
            self.console.print(Group(*self.picture(None)))

    def picture(self, height: int | None) -> Iterator[Text]:
        """The lines of all hunts, at most ``height`` (None: as many as it takes), with a rule between two of them."""
        size, width = len(self.views), self.console.width
        share = None if height is None else max(1, (height - size + 1) // size)
        for place, view in enumerate(self.views.values()):
            if place:
                yield Text(self.glyphs.line * width, "dim")
            yield from lines(view, width, share, self.now(), self.glyphs)
