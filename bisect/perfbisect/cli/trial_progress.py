"""The progress of a trial on standard error: a bar in a terminal, otherwise a line for each run."""

import sys
from typing import TYPE_CHECKING

from perfbisect.core.domain.events import Warned
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.metrics import find_metric
from perfbisect.ui.stream import note
from perfbisect.wording.quantities import figure
from perfbisect.wording.text import advised, printable

if TYPE_CHECKING:
    from pathlib import Path

    from perfbisect.core.domain.trials import Trial
    from perfbisect.hunt.trials.view import Progress


class Lines:
    """A line for each run and each step."""

    def __init__(self, metric: str, *, quiet: bool) -> None:
        self.metric = metric
        self.quiet = quiet
        self.runs = self.done = 0
        self.said = ""

    def expect(self, runs: int) -> None:
        """The number of runs that will be made."""
        self.runs = runs

    def say(self, text: str) -> None:
        """What happens now; repeated texts are left out."""
        if text != self.said and not self.quiet:
            note(printable(text))
        self.said = text

    def ran(self, run: RunFacts) -> None:
        """A run has ended."""
        self.done += 1
        if not self.quiet:
            metric = find_metric(self.metric)
            value = metric.read(run)
            text = f"no {metric.name}" if value is None else f"{figure(value)} {metric.unit or metric.name}"
            note(f"  run {self.done} of {self.runs}  {text}")

    def warn(self, warned: Warned) -> None:
        """A warning."""
        note(f"warning: {advised(warned.text, warned.advice)}")

    def close(self) -> None:
        """Nothing to remove."""


class Bar:
    """A bar with the time left."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Rich

        from perfbisect.ui.terminal import Terminal

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        # Rich would obey some control sequences in what it redirects.
        self.rich = Rich(
            *columns, console=Terminal(sys.stderr), transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self.task = self.rich.add_task("preparing", total=None)
        self.rich.start()

    def expect(self, runs: int) -> None:
        """The number of runs that will be made."""
        self.rich.update(self.task, total=runs)

    def say(self, text: str) -> None:
        """What happens now."""
        self.rich.update(self.task, description=printable(text))

    def ran(self, _run: RunFacts) -> None:
        """A run has ended."""
        self.rich.advance(self.task)

    def warn(self, warned: Warned) -> None:
        """A warning, above the bar."""
        self.rich.console.print(f"warning: {advised(warned.text, warned.advice)}")

    def close(self) -> None:
        """Remove the bar."""
        self.rich.stop()


def open_progress(metric: str, *, quiet: bool) -> "Progress":
    """The progress that suits standard error, with runs in a metric; with ``quiet`` warnings only."""
    return Lines(metric, quiet=quiet) if quiet or not sys.stderr.isatty() else Bar()


def say_where_kept(trial: "Trial", history: "Path | None", *, complete: bool, quiet: bool) -> None:
    """What can be done with a comparison or a proof that has ended, or was interrupted."""
    from perfbisect.core.domain.settings import Policy, TrialType
    from perfbisect.core.stats.drops import find_drops
    from perfbisect.report.command_line import command_on, command_to_show

    if not complete:
        note(f"Interrupted. What was measured is kept as {trial.name}; the same command continues it.")
    elif not quiet:
        note(f"Counters per operation: {command_to_show(trial.name, history)}")
        if trial.request.kind is TrialType.COMPARE and (drops := find_drops(trial, Policy().min_effect)):
            several = (
                f"{len(drops)} drops are real: to find their commits"
                if len(drops) > 1
                else "A drop is real: to find its commit"
            )
            note(f"{several}: {command_on('compare', trial.name, history)} --hunt")
