"""Comparisons, proofs and A/As on the command line: their progress on standard error, their table at the end."""

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from perfbisect.cli.options.common import view_of
from perfbisect.cli.options.forms import print_trial
from perfbisect.ui.stream import note

if TYPE_CHECKING:
    from perfbisect.core.domain.trials import Trial
    from perfbisect.errors import Interrupted
    from perfbisect.hunt.notification import Begun
    from perfbisect.hunt.sitting import OpenView

    CarryOut = Callable[[OpenView, Begun], Trial]

INCOMPLETE = 2


def carried_out(
    carry_out: "CarryOut", history: Path | None, begun: "Begun", *, quiet: bool, view: str | None = None
) -> "tuple[Trial, Interrupted | None]":
    """The trial as ``carry_out`` leaves it, and what has cut it short once it had begun; with ``quiet`` only warnings are shown."""
    from perfbisect.errors import Interrupted
    from perfbisect.store.history import History

    names: list[str] = []

    def noted(name: str) -> None:
        names.append(name)
        begun(name)

    try:
        return carry_out(lambda titles: view_of(titles, history, view, stream=sys.stderr, quiet=quiet), noted), None
    except Interrupted as cut:
        if not names:
            raise
        with closing(History.open(history, read_only=True)) as opened:
            return opened.trial(names[0]), cut


def conclude(trial: "Trial", cut: "Interrupted | None", history: Path | None, form: str) -> int:
    """Print a trial, say what can be done with it, and return the exit status."""
    from perfbisect.core.domain.settings import TrialType
    from perfbisect.core.stats.noise import noise_of_trial
    from perfbisect.core.stats.paired_comparison import whole
    from perfbisect.errors import INTERRUPTED, EnvironmentFailure
    from perfbisect.report.command_line import command_on
    from perfbisect.wording.reasons import proof_status

    kind = trial.request.kind
    if kind is TrialType.NOISE and noise_of_trial(trial) is None and not cut:
        raise EnvironmentFailure(
            f"The runs of {trial.request.subjects[0].name} have too few values of {trial.request.metric} to estimate their"
            " noise.",
            "Make more runs with --visits and --runs, or choose another metric.",
        )
    if kind is not TrialType.NOISE or noise_of_trial(trial):
        print_trial(trial, form, detailed=False)
    if cut:
        note(str(cut))
        return INTERRUPTED
    if kind is TrialType.NOISE:
        return 0
    if not form:
        note(f"Counters per operation: {command_on('show', trial.name, history)}")
    if kind is TrialType.PROVE:
        return proof_status(trial)
    if not form:
        say_drops(trial, history)
    return 0 if whole(trial) else INCOMPLETE


def say_drops(trial: "Trial", history: Path | None) -> None:
    """Say how the drops of a comparison are hunted, where some are real."""
    from perfbisect.core.domain.settings import Policy
    from perfbisect.core.stats.drops import find_drops
    from perfbisect.report.command_line import command_on

    if drops := find_drops(trial, Policy().min_effect):
        several = f"{len(drops)} drops are real: to find their commits"
        text = several if len(drops) > 1 else "A drop is real: to find its commit"
        note(f"{text}: {command_on('compare', trial.name, history)} --hunt")
