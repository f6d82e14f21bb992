"""The progress of a trial on standard error: a bar in a terminal, otherwise a line for each run. Its table comes at the end."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from perfbisect.core.domain.events import (
    BuildStarted,
    CandidateSkipped,
    Event,
    RunFinished,
    RunStarted,
    TrialEnded,
    TrialStarted,
    Warned,
)
from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.trials import Trial
from perfbisect.ui.stream import note
from perfbisect.wording.quantities import count, figure
from perfbisect.wording.text import advised, printable

if TYPE_CHECKING:
    from rich.progress import Progress


class TrialLines:
    """A line for each step and each run; with ``quiet`` warnings only."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.trial: Trial | None = None
        self.rounds = range(0)  # those of this sitting
        self.runs = self.done = 0  # of this sitting
        self.said = ""

    def recall(self, _trial: int, events: Iterable[tuple[float, Event]]) -> None:
        """Take the events of earlier sittings."""
        for at, event in events:
            self._take(at, event)

    def show(self, _trial: int, events: Iterable[tuple[float, Event]]) -> None:
        """Take events of the present sitting."""
        for at, event in events:
            self._take(at, event)
            self._tell(event)

    def states(self, rows: Sequence[object]) -> None:
        """No other process carries out a trial that this one shows."""

    def end(self, _trial: int, _at: float) -> None:
        """Nothing more is said."""

    def close(self) -> None:
        """Nothing to remove."""

    def say(self, text: str) -> None:
        """What happens now; repeated texts are left out."""
        if text != self.said and not self.quiet:
            note(printable(text))
        self.said = text

    def ran(self, event: RunFinished) -> None:
        """A run has ended."""
        assert self.trial
        if not self.quiet:
            metric = find_metric(self.trial.request.metric)
            value = metric.read(event.facts)
            text = f"no {metric.name}" if value is None else f"{figure(value)} {metric.unit or metric.name}"
            note(f"  run {self.done} of {self.runs}  {text}")

    def warn(self, warned: Warned) -> None:
        """A warning."""
        note(f"warning: {advised(warned.text, warned.advice)}")

    def _take(self, at: float, event: Event) -> None:
        if isinstance(event, TrialStarted) and self.trial is None:
            self.trial = Trial.begun(at, event)
        elif self.trial:
            self.trial.add(at, event)

    def _tell(self, event: Event) -> None:
        if isinstance(event, Warned):
            self.warn(event)
        if not (trial := self.trial):
            return
        request = trial.request
        match event:
            case TrialStarted(resumed=resumed):
                self.rounds = trial.rounds_to_do()
                self.runs = len(self.rounds) * len(trial.pairs()) * request.runs
                if resumed:
                    self.say(f"continuing {trial.name}, which has {count(len(trial.runs), 'run')}")
            case BuildStarted(candidate=number, commit=commit) if not request.subjects[number].key:
                variant = request.subjects[number].variant
                self.say(f"building {commit.short}{variant and '@'}{variant} {commit.title}")
            case CandidateSkipped(candidate=number, facts=skip, workload=work):
                name = request.subjects[number].name
                what = "is left out" if skip.of_build else f"fails in {request.works[work].name}"
                self.warn(Warned(f"{name} {what}: {skip.reason}", f"See {skip.log}."))
            case RunStarted(candidate=number, workload=work):
                place = f"{event.round - self.rounds.start + 1} of {len(self.rounds)}"
                name = f"round {place}: {request.works[work].name}, {request.subjects[number].name}"
                self.say(f"visit {place}" if len(request.subjects) == 1 else name)
            case RunFinished():
                self.done += 1
                self.ran(event)
            case TrialEnded() | _:
                pass


class TrialBar(TrialLines):
    """A bar with the time left."""

    def __init__(self) -> None:
        super().__init__()
        self._bar: Progress | None = None

    def say(self, text: str) -> None:
        """What happens now."""
        self._rich.update(self._task, description=printable(text), total=self.runs or None)

    def ran(self, _event: RunFinished) -> None:
        """A run has ended."""
        self._rich.advance(self._task)

    def warn(self, warned: Warned) -> None:
        """A warning, above the bar."""
        self._rich.console.print(f"warning: {advised(warned.text, warned.advice)}")

    def close(self) -> None:
        """Remove the bar."""
        if self._bar:
            self._bar.stop()

    @property
    def _rich(self) -> "Progress":
        if self._bar is None:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            from perfbisect.ui.terminal import Terminal

            text = TextColumn("{task.description}", markup=False)
            columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            # Rich would obey some control sequences in what it redirects.
            self._bar = Progress(
                *columns, console=Terminal(sys.stderr), transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._task = self._bar.add_task("preparing", total=None)
            self._bar.start()
        return self._bar
