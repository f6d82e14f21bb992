"""Comparisons, proofs and A/As on the command line: their progress on standard error, their table at the end."""

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from perfbisect.cli.options.common import view_of
from perfbisect.cli.options.forms import print_trial
from perfbisect.cli.options.measurement import announce_system
from perfbisect.errors import Interrupted
from perfbisect.ui.stream import note

if TYPE_CHECKING:
    from perfbisect.core.domain.session_state import SessionState
    from perfbisect.host.lock import WaitCallback
    from perfbisect.hunt.attempt import OpenView
    from perfbisect.hunt.notification import Begun
    from perfbisect.hunt.setup import SessionSetup

    Ended = tuple[SessionState, Interrupted | None]
    CarryOut = Callable[[OpenView, Begun], object]

INCOMPLETE = 2


def measured(
    setup: "SessionSetup", history: Path | None, form: str, begun: "Begun", waiting: "WaitCallback | None"
) -> "Ended":
    """Begin a trial; see ``carried_out``."""
    from perfbisect.hunt.attempt import Caller
    from perfbisect.hunt.session import begin

    if not form:
        announce_system(setup.settings)
    return carried_out(
        lambda view, noted: begin([setup], Caller(history, view, waiting, noted, note)), history, form, begun
    )


def carried_out(
    carry_out: "CarryOut", history: Path | None, form: str, begun: "Begun", view: str | None = None
) -> "Ended":
    """The trial as ``carry_out`` leaves it, and what has cut it short once it had begun.

    Where it is printed in a ``form`` for programs, only warnings are shown before.
    """
    from perfbisect.store.history import History

    names: list[str] = []

    def noted(name: str) -> None:
        names.append(name)
        begun(name)

    cut = None
    try:
        carry_out(lambda titles: view_of(titles, history, view, stream=sys.stderr, quiet=bool(form)), noted)
    except Interrupted as interrupted:
        if not names:
            raise
        cut = interrupted
    with closing(History.open(history, read_only=True)) as opened:
        return opened.trial(names[0]), cut


def conclude(ended: "Ended", history: Path | None, form: str) -> int:
    """Print a trial, say what can be done with it, and return the exit status."""
    from perfbisect.core.domain.settings import TrialType
    from perfbisect.core.stats.noise import noise_of_trial
    from perfbisect.core.stats.paired_comparison import whole
    from perfbisect.errors import INTERRUPTED, EnvironmentFailure
    from perfbisect.hunt.drop_hunts import to_find
    from perfbisect.report.command_line import command_on
    from perfbisect.wording.trials import proof_status

    trial, cut = ended
    kind = trial.request.kind
    known = kind is not TrialType.NOISE or noise_of_trial(trial) is not None
    if known:
        print_trial(trial, form, detailed=False)
    if cut:
        note(str(cut))
        return INTERRUPTED
    if not known:
        raise EnvironmentFailure(
            f"The runs of {trial.request.subjects[0].name} have too few values of {trial.request.metric} to estimate their"
            " noise.",
            "Make more runs with --visits and --runs, or choose another metric.",
        )
    if kind is TrialType.NOISE:
        return 0
    if not form:
        note(f"Counters per operation: {command_on('show', trial.name, history)}")
    if kind is TrialType.PROVE:
        return proof_status(trial)
    if not form and (drops := to_find(history, trial)):
        several = f"{len(drops)} drops are real: to find their commits"
        text = several if len(drops) > 1 else "A drop is real: to find its commit"
        note(f"{text}: {command_on('compare', trial.name, history)} --hunt")
    return 0 if whole(trial) else INCOMPLETE
