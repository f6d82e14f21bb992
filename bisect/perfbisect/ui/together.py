"""Hunts of several workloads that one process carries out: what each knows in a line, and the screen of the one it measures."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from perfbisect.clock import CLOCK
from perfbisect.core.domain.events import (
    BuildFinished,
    BuildStarted,
    CandidateSkipped,
    Decided,
    Event,
    HuntEnded,
    Warned,
)
from perfbisect.core.domain.orders import CodePlacement, Found, Inconclusive, Measure, NotReproduced, Several, Verdict
from perfbisect.core.inference.hunt_state import is_of_build
from perfbisect.ui.jsonlines import encode
from perfbisect.ui.live import PER_SECOND
from perfbisect.ui.plain import PlainLines
from perfbisect.ui.screen import lines
from perfbisect.ui.stream import put
from perfbisect.ui.view_model import REPORT, ViewModel, caught_up, recalled, update
from perfbisect.wording.glyphs import glyphs_for
from perfbisect.wording.quantities import chance, count, time_of_day
from perfbisect.wording.text import printable, safe_json

TimedEvent = tuple[float, Event]
Report = Callable[[int], str]  # the command that shows the report of a hunt


class TogetherLines:
    """Writes plain lines after the name of their workload. What several hunts have in common is written once, and a verdict
    both when it is reached and at the end of its hunt, with its sentences.
    """

    def __init__(self, stream: TextIO, titles: Mapping[int, str], report: Report = REPORT) -> None:
        wide = max(map(cell_len, titles.values()))
        self.views = {
            hunt: PlainLines(stream, report, f"{printable(title).ljust(wide)}  ") for hunt, title in titles.items()
        }
        self.build: tuple[int, Event] | None = None  # the latest event about a build that was written, and its hunt
        self.warnings: set[str] = set()

    def recall(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Their lines were written when they happened."""
        self.views[hunt].recall(events)

    def show(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Write the lines of events."""
        view = self.views[hunt]
        for at, event in events:
            if self._is_written(hunt, event):
                view.view = update(view.view, event, at)
            else:
                view.show(event, at)
            if isinstance(event, Decided) and not isinstance(event.decision.order, Measure):
                known = brief(view.view, event.decision.order)
                put(f"{view.prefix}{time_of_day(at)}  {'decided':9} {known}", view.stream)

    def end(self, hunt: int, at: float) -> None:
        """The lines of a verdict have been written."""

    def close(self) -> None:
        """Nothing is buffered."""

    def _is_written(self, hunt: int, event: Event) -> bool:
        """Whether the same was written for another hunt; it is what happens next in the log of each."""
        if isinstance(event, Warned):
            known = event.text in self.warnings
            self.warnings.add(event.text)
            return known
        if not (isinstance(event, BuildStarted | BuildFinished | CandidateSkipped) and is_of_build(event)):
            return False
        if self.build:
            other, written = self.build
            same = type(written) is type(event) and written.candidate == event.candidate
            if same and other != hunt:
                return True
        self.build = hunt, event
        return False


class TogetherJson:
    """Writes each event as a JSON object on a line; ``hunt`` is the number of its hunt."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def recall(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Their lines were written then."""

    def show(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Write the lines of events, at once."""
        for at, event in events:
            put(safe_json(encode(event, at, hunt)), self.stream)

    def end(self, hunt: int, at: float) -> None:
        """Nothing follows the verdict."""

    def close(self) -> None:
        """Nothing is buffered."""


class TogetherScreen:
    """Draws the hunts on a terminal of its own screen; ``close`` prints all of them on the ordinary one."""

    def __init__(
        self,
        console: Console,
        titles: Mapping[int, str],
        report: Report = REPORT,
        now: Callable[[], float] = CLOCK.now,
    ) -> None:
        self.console = console
        self.glyphs = glyphs_for(console.encoding)
        self.now = now
        self.titles = titles
        self.views = {hunt: ViewModel(report=report) for hunt in titles}
        self.verdicts: dict[int, Verdict] = {}  # also of hunts that are measured for the reason still
        self.shown = next(iter(titles))  # the hunt that is measured
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
        kept = [*events]
        if kept and isinstance(ended := kept[-1][1], HuntEnded):  # it does not go on
            self.verdicts[hunt] = ended.verdict
            self.views[hunt] = caught_up(self.views[hunt], kept)
        else:
            self.views[hunt] = recalled(self.views[hunt], kept)

    def show(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Take events of a hunt; the next picture includes them."""
        happened = [*events]
        for _, event in happened:
            match event:
                case Decided(decision) if not isinstance(decision.order, Measure):
                    self.verdicts[hunt] = decision.order
                case HuntEnded(verdict):
                    self.verdicts[hunt] = verdict
                case _:
                    pass
            if not (is_of_build(event) or isinstance(event, HuntEnded)):  # those are in the logs of the others, too
                self.shown = hunt
        if len(happened) == 1:
            [(at, event)] = happened
            self.views[hunt] = update(self.views[hunt], event, at)
        else:
            self.views[hunt] = caught_up(self.views[hunt], happened)
        if not self.live.is_started:
            self.live.start()

    def end(self, hunt: int, at: float) -> None:
        """Stop the clock of a hunt at that time."""
        view = self.views[hunt]
        self.views[hunt] = replace(view, ended=view.ended or at, now=None, busy={})

    def close(self) -> None:
        """Give the terminal back, with all hunts as they were last."""
        if not self.live.is_started:
            return
        self.live.stop()
        drawn: list[Text] = []
        for view in self.views.values():
            drawn += [*lines(view, self.console.width, None, self.now(), self.glyphs)]
            drawn += [Text(self.glyphs.line * self.console.width, "dim")]
        self.console.print(Group(*drawn, *self.listing()))

    def picture(self, height: int) -> Iterator[Text]:
        """A line for each hunt, and the screen of the one that is measured, at most ``height`` lines."""
        listed = [*self.listing()][:height]
        yield from listed
        left = height - len(listed) - 1
        if left > 0:
            yield Text(self.glyphs.line * self.console.width, "dim")
            yield from lines(self.views[self.shown], self.console.width, left, self.now(), self.glyphs)

    def listing(self) -> Iterator[Text]:
        """One line for each hunt: its workload, its number and what is known."""
        wide = max(map(cell_len, self.titles.values()))
        for hunt, title in self.titles.items():
            known = brief(self.views[hunt], self.verdicts.get(hunt))
            runs = count(self.views[hunt].runs, "run")
            text = f" {printable(title).ljust(wide)}  hunt {hunt:<5} {runs:>9}  {known}"
            line = Text(text, "bold" if hunt == self.shown and hunt not in self.verdicts else "", no_wrap=True)
            line.truncate(self.console.width)
            yield line


def brief(view: ViewModel, verdict: Verdict | None) -> str:
    """The verdict in a few words; before there is one, who leads."""
    match verdict:
        case None if view.leader:
            candidate, share = view.leader
            return f"{view.commit(candidate).short} leads with {chance(share)}"
        case None:
            return view.no_leader if view.hunt else "starting"
        case Found(step):
            return f"culprit {view.commit(step.candidate).short}, {chance(step.probability)}"
        case Several(steps):
            return f"changes at {', '.join(view.commit(step.candidate).short for step in steps)}"
        case NotReproduced():
            return "not reproduced"
        case CodePlacement(step):
            return f"code placement, at {view.commit(step.candidate).short}"
        case Inconclusive():
            return "inconclusive"
