"""The screen: it is redrawn once a second, and leaves the last picture behind.

Events only change what is known; rich's own thread draws it, at its own pace.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from perfbisect.core.domain.events import SessionEnded
from perfbisect.core.domain.measured_log import is_of_build
from perfbisect.process import CLOCK
from perfbisect.ui.screen import lines
from perfbisect.ui.session_update import caught_up, recalled
from perfbisect.ui.session_view import REPORT, ActiveRun, Report, SessionRow, SessionView, TimedEvent
from perfbisect.ui.terminal import echo_control
from perfbisect.wording.glyphs import glyphs_for
from perfbisect.wording.quantities import count
from perfbisect.wording.text import printable

PER_SECOND = 1  # pictures: enough for a clock; each costs some milliseconds, and measurements must not feel them


class LiveScreen:
    """Draws hunts on a terminal of its own screen: those that run, one below the other, each with the same share of the height.

    Where there are several, a line for each is above them. With ``together`` one process carries out all of them: those
    that are measured now are drawn. ``close`` prints the last picture on the ordinary screen: of hunts that others carry
    out (``states``) their lines alone; without ``keep`` nothing.
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
        self.views: dict[int, SessionView] = {hunt: SessionView(report=report) for hunt in titles}
        self.rows: Sequence[SessionRow] = [SessionRow(title, hunt) for hunt, title in titles.items()]
        self.latest = next(iter(titles), None)  # the hunt that was measured last
        self.echo = False  # whether the terminal printed ^C before
        self.live = Live(
            get_renderable=lambda: Group(*self.picture(console.height)),
            console=console,
            screen=True,
            refresh_per_second=PER_SECOND,
            redirect_stdout=False,  # rich would obey some control sequences in what it redirects
            redirect_stderr=False,
        )

    def recall(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Take the events of earlier sittings of a hunt, before any other of it."""
        self.views[hunt] = recalled(SessionView(report=self.report), events)

    def show(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Take events of a hunt; the next picture includes them."""
        happened = [*events]
        self.views[hunt] = caught_up(self.views[hunt], happened)
        if any(not (is_of_build(event) or isinstance(event, SessionEnded)) for _, event in happened):
            self.latest = hunt  # builds and ends are in the logs of the others, too
        self.draw()

    def states(self, rows: Sequence[SessionRow]) -> None:
        """Take the states of all hunts, which others carry out."""
        self.rows = rows
        self.draw()

    def draw(self) -> None:
        """Begin to draw."""
        if not self.live.is_started:
            self.echo = echo_control(self.console.file, on=False)  # into the picture
            self.live.start()

    def end(self, hunt: int, at: float) -> None:
        """Stop the clock of a hunt at that time."""
        self.views[hunt] = self.views[hunt].stopped(at)
        self.rows = [replace(row, running=row.running and row.hunt != hunt) for row in self.rows]

    def close(self) -> None:
        """Give the terminal back, with everything that was drawn last."""
        if not self.live.is_started:
            return
        self.live.stop()
        if self.echo:
            echo_control(self.console.file, on=True)
        if not self.keep:
            return
        drawn = [] if any(row.state for row in self.rows) else [*self.views.values()]
        pictures = (lines(view, self.console.width, None, self.now(), self.glyphs) for view in drawn)
        several = len(self.rows) > 1
        left = [line for picture in pictures for line in (*picture, *([self.rule()] if several else []))]
        self.console.print(Group(*left, *self.listing()))

    def current(self) -> list[int]:
        """The hunts that are drawn."""
        hunts = [row.hunt for row in self.rows if row.hunt in self.views and (row.running or len(self.rows) == 1)]
        if not self.together:
            return hunts
        running = {
            hunt
            for hunt in hunts
            for doing in self.views[hunt].busy.values()
            if isinstance(doing, ActiveRun) and not doing.finished
        }
        return [hunt for hunt in hunts if hunt in running] or [hunt for hunt in hunts if hunt == self.latest]

    def listing(self) -> Iterator[Text]:
        """One line for each hunt, if there are several: what it is, its number, and what is known."""
        wide = max((cell_len(row.title) for row in self.rows), default=0)
        drawn = self.current()
        for row in self.rows if len(self.rows) > 1 else ():
            view = None if row.hunt is None else self.views.get(row.hunt)
            known = "" if view is None else f"{count(view.state.run_count, 'run'):>9}  {view.brief}"
            name = view.name if view and view.trial else "" if row.hunt is None else f"hunt {row.hunt}"
            gap = " " * (wide - cell_len(row.title))
            state = printable(row.state) or known
            style = "bold" if self.together and row.hunt in drawn and view and not view.decided else ""
            line = Text(f" {printable(row.title)}{gap}  {name:10} {state}", style, no_wrap=True)
            line.truncate(self.console.width, overflow="ellipsis")
            yield line

    def picture(self, height: int) -> Iterator[Text]:
        """At most ``height`` lines, with a rule above each hunt that is not on top."""
        listed, views = [*self.listing()][:height], [self.views[hunt] for hunt in self.current()]
        yield from listed
        left = height - len(listed) - len(views) + (not listed)
        for place, view in enumerate(views):
            share = left // (len(views) - place)
            if share < 1:
                return
            if place or listed:
                yield self.rule()
            drawn = lines(view, self.console.width, share, self.now(), self.glyphs)
            yield from drawn
            left -= len(drawn)

    def rule(self) -> Text:
        """A line between two hunts."""
        return Text(self.glyphs.line * self.console.width, "dim")
