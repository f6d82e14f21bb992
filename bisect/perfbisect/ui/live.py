"""The live view: redraws the screen once a second, and leaves the last picture behind."""

from collections.abc import Callable, Iterable

from rich.console import Console, Group
from rich.live import Live

from perfbisect.clock import CLOCK
from perfbisect.core.domain.events import Event
from perfbisect.ui.screen import lines
from perfbisect.ui.view_model import REPORT, ViewModel, recalled, update
from perfbisect.wording.glyphs import UNICODE, Glyphs, glyphs_for

PER_SECOND = 1  # pictures: enough for a clock; each costs some milliseconds, and measurements must not feel them


def render(view: ViewModel, width: int, height: int | None, now: float, glyphs: Glyphs = UNICODE) -> Group:
    """The picture of a hunt at ``now`` (seconds since the epoch); ``height`` None draws all there is."""
    return Group(*lines(view, width, height, now, glyphs))


class LiveScreen:
    """Draws a hunt on a terminal of its own screen; ``close`` prints the last picture on the ordinary one.

    Events only change the view; rich's own thread draws it, at its own pace. ``report`` as in the view.
    """

    def __init__(
        self,
        console: Console,
        now: Callable[[], float] = CLOCK.now,
        report: Callable[[int], str] = REPORT,
    ) -> None:
        self.console = console
        self.glyphs = glyphs_for(self.console.encoding)
        self.now = now
        self.view = ViewModel(report=report)
        self.live: Live | None = None

    def recall(self, events: Iterable[tuple[float, Event]]) -> None:
        """Take the events of earlier sessions of a resumed hunt, before the first event is shown."""
        self.view = recalled(self.view, events)

    def show(self, event: Event, at: float) -> None:
        """Take one event; the next picture includes it."""
        self.view = update(self.view, event, at)
        if self.live is None:
            self.live = Live(
                get_renderable=self.picture,
                console=self.console,
                screen=True,
                refresh_per_second=PER_SECOND,
                redirect_stdout=False,  # rich would obey some control sequences in what it redirects
                redirect_stderr=False,
            )
            self.live.start()

    def close(self) -> None:
        """Give the terminal back, with everything that was drawn last."""
        if self.live is not None:
            self.live.stop()
            self.live = None
            self.console.print(render(self.view, self.console.width, None, self.now(), self.glyphs))

    def picture(self) -> Group:
        """What is drawn now, in the size that the terminal now has."""
        return render(self.view, self.console.width, self.console.height, self.now(), self.glyphs)
