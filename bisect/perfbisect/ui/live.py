"""The live views: they redraw the screen once a second, and leave the last picture behind.

Events only change what is known; rich's own thread draws it, at its own pace.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from perfbisect.clock import CLOCK
from perfbisect.core.domain.events import HuntEnded
from perfbisect.core.domain.orders import Verdict
from perfbisect.core.inference.hunt_state import is_of_build
from perfbisect.ui.screen import lines
from perfbisect.ui.view_model import (
    REPORT,
    Report,
    TimedEvent,
    ViewModel,
    brief,
    caught_up,
    recalled,
    update,
    verdict_in,
)
from perfbisect.wording.glyphs import glyphs_for
from perfbisect.wording.quantities import count
from perfbisect.wording.text import printable

PER_SECOND = 1  # pictures: enough for a clock; each costs some milliseconds, and measurements must not feel them


class LiveScreen:
    """Draws hunts on a terminal of its own screen, one below the other, each with the same share of the height.

    ``close`` prints the last picture on the ordinary screen.
    """

    def __init__(
        self,
        console: Console,
        hunts: Iterable[int] = (),
        report: Report = REPORT,
        now: Callable[[], float] = CLOCK.now,
    ) -> None:
        self.console = console
        self.glyphs = glyphs_for(console.encoding)
        self.now = now
        self.report = report
        self.views = {hunt: ViewModel(report=report) for hunt in hunts}
        self.live = Live(
            get_renderable=lambda: Group(*self.picture(console.height)),
            console=console,
            screen=True,
            refresh_per_second=PER_SECOND,
            redirect_stdout=False,  # rich would obey some control sequences in what it redirects
            redirect_stderr=False,
        )

    def recall(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Take the events of earlier sessions of a hunt, before any other of it."""
        self.views[hunt] = recalled(ViewModel(report=self.report), events)

    def show(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Take events of a hunt; the next picture includes them."""
        happened = [*events]
        if len(happened) == 1:
            [(at, event)] = happened
            self.views[hunt] = update(self.views[hunt], event, at)
        else:
            self.views[hunt] = caught_up(self.views[hunt], happened)
        self.draw()

    def draw(self) -> None:
        """Begin to draw."""
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
            self.console.print(Group(*self.last()))

    def listing(self) -> Iterator[Text]:
        """The lines above the hunts."""
        return iter(())

    def current(self) -> Sequence[ViewModel]:
        """The hunts that are drawn."""
        return [*self.views.values()]

    def picture(self, height: int | None) -> Iterator[Text]:
        """At most ``height`` lines (None: as many as it takes), with a rule above each hunt that is not on top."""
        listed, views = [*self.listing()][:height], self.current()
        yield from listed
        left = 0 if height is None else height - len(listed) - len(views) + (not listed)
        for place, view in enumerate(views):
            share = None if height is None else left // (len(views) - place)
            if share is not None and share < 1:
                return
            if place or listed:
                yield self.rule()
            drawn = lines(view, self.console.width, share, self.now(), self.glyphs)
            yield from drawn
            left -= len(drawn)

    def last(self) -> Iterator[Text]:
        """The last picture, all of it."""
        return self.picture(None)

    def rule(self) -> Text:
        """A line between two hunts."""
        return Text(self.glyphs.line * self.console.width, "dim")

    def entry(self, title: str, wide: int, rest: str, style: str = "") -> Text:
        """A line of a listing, cut to the width of the terminal; titles are ``wide`` columns."""
        line = Text(f" {printable(title)}{' ' * (wide - cell_len(title))}  {rest}", style, no_wrap=True)
        line.truncate(self.console.width)
        return line


class TogetherScreen(LiveScreen):
    """Hunts of several workloads that one process carries out: a line for each, and the screen of the one it measures."""

    def __init__(
        self, console: Console, titles: Mapping[int, str], report: Report = REPORT, now: Callable[[], float] = CLOCK.now
    ) -> None:
        self.titles = titles
        self.verdicts: dict[int, Verdict] = {}  # also of hunts that are measured for the reason still
        self.shown = next(iter(titles))  # the hunt that is measured
        super().__init__(console, titles, report, now)

    def recall(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Take the events of earlier sessions of a hunt; of one that has ended they are all."""
        kept = [*events]
        super().recall(hunt, kept)
        if kept and isinstance(ended := kept[-1][1], HuntEnded):
            self.verdicts[hunt] = ended.verdict
            self.views[hunt] = caught_up(ViewModel(report=self.report), kept)

    def show(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Take events of a hunt; the next picture includes them."""
        happened = [*events]
        for _, event in happened:
            if verdict := verdict_in(event):
                self.verdicts[hunt] = verdict
            if not (is_of_build(event) or isinstance(event, HuntEnded)):  # those are in the logs of the others, too
                self.shown = hunt
        super().show(hunt, happened)

    def current(self) -> Sequence[ViewModel]:
        """The hunt that is measured."""
        return [self.views[self.shown]]

    def last(self) -> Iterator[Text]:
        """All hunts as they were last."""
        for view in self.views.values():
            yield from lines(view, self.console.width, None, self.now(), self.glyphs)
            yield self.rule()
        yield from self.listing()

    def listing(self) -> Iterator[Text]:
        """One line for each hunt: its workload, its number and what is known."""
        wide = max(map(cell_len, self.titles.values()))
        for hunt, title in self.titles.items():
            known = brief(self.views[hunt], self.verdicts.get(hunt))
            style = "bold" if hunt == self.shown and hunt not in self.verdicts else ""
            yield self.entry(title, wide, f"hunt {hunt:<5} {count(self.views[hunt].runs, 'run'):>9}  {known}", style)
