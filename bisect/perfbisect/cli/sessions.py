"""Runs sessions for commands: leases their hosts, shows their progress, and prints messages about their end.

``given`` are the options of the command that begins or resumes a session. The progress of hunts is shown on standard
output. The progress of a trial is written to standard error, and its table is written to standard output at the end.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from perfbisect.cli.options.common import CommandOptions, WaitingLine, say
from perfbisect.cli.options.measurement import announce_build_system
from perfbisect.cli.options.stored import print_trial
from perfbisect.errors import INCONCLUSIVE, INTERRUPTED, EnvironmentFailure, Interrupted
from perfbisect.report.command_line import bisect_command
from perfbisect.store.history import History
from perfbisect.ui.stream import note
from perfbisect.wording.quantities import count
from perfbisect.wording.text import printable

if TYPE_CHECKING:
    from perfbisect.core.domain.session_state import SessionState
    from perfbisect.core.domain.settings import Settings
    from perfbisect.hunt.attempt import CommandCallbacks, HuntOutcome, OpenView
    from perfbisect.hunt.batch import Task
    from perfbisect.hunt.notification import Notifier
    from perfbisect.hunt.setup import SessionSetup
    from perfbisect.hunt.watching import View
    from perfbisect.recipes.outputs import SeveralResults

    Ended = tuple[SessionState, Interrupted | None]
    CarryOut = Callable[[CommandCallbacks], object]

NOTHING = 1  # exit status: there is nothing to hunt


def is_no_screen(stream: TextIO | None = None) -> bool:
    """Whether the live screen cannot be drawn on ``stream`` (None: standard output), because the stream is no terminal,
    or a "dumb" terminal."""
    return not (stream or sys.stdout).isatty() or os.environ.get("TERM") == "dumb"


def view_opener(
    history: Path | None,
    view_name: str | None = None,
    stream: TextIO | None = None,
    *,
    together: bool | None = None,
    quiet: bool = False,
) -> "OpenView":
    """A function that opens a view, which shows the progress of sessions. ``view_name`` is "json" or "plain"; None
    means the live screen if ``stream`` is a terminal, otherwise "plain".

    If ``stream`` is None, the view is shown on standard output, and the live screen remains visible at the end.
    ``together`` says whether the sessions share their builds; None means that they do if there are several. If
    ``quiet``, only lines about problems are shown.
    """

    def report(hunt: int) -> str:
        return bisect_command("show", hunt, history)

    def opened(titles: Mapping[int, str]) -> "View":
        out, several = stream or sys.stdout, len(titles) > 1 if together is None else together
        if view_name or quiet or is_no_screen(out):
            from perfbisect.ui.lines import JsonLines, PlainLines

            if view_name == "json":
                return JsonLines(out, titles)
            return PlainLines(out, titles, report, together=several, quiet=quiet).start_reminders()
        from perfbisect.ui.live import EscapingConsole, LiveScreen

        return LiveScreen(EscapingConsole(out), titles, report, together=several, keep=stream is None)

    return opened


@contextmanager
def leases_with_messages(names: Sequence[str], hosts_path: str | Path, **lease_terms: Any) -> Iterator[None]:
    """Lease the leased hosts among ``names`` for the duration of the ``with`` block, and print the scheduler's
    messages. ``lease_terms``: see ``LeaseTerms``.
    """
    from perfbisect.hunt.session_hosts import LeaseTerms, hold_leases

    line = WaitingLine()

    def show(machine: str, state: str) -> None:
        if state:
            line.show_waiting(f"{machine}: {state}")
        else:
            line.say(f"{machine} is leased, after a wait of {line.waited_clock}.")

    with ExitStack() as stack:
        try:
            stack.enter_context(hold_leases(names, hosts_path, show, line.say, LeaseTerms(**lease_terms)))
        finally:  # the line is erased before an error is printed
            line.erase()
        yield


def hold_session_leases(
    settings: "Settings", history: Path | None, nodes: Mapping[str, str] | None = None, minutes: float = 0
) -> AbstractContextManager[None]:
    """Lease the leased hosts of a session for the duration of the ``with`` block. Machines that failed a fitness check
    in the history are not used."""
    from perfbisect.hunt.fitness import unfit_hosts

    purpose = f"{settings.builder} {settings.good}..{settings.bad}"
    how = {"nodes": nodes, "minutes": minutes, "unfit": partial(unfit_hosts, history)}
    return leases_with_messages(settings.hosts, settings.hosts_path, purpose=purpose, **how)


@contextmanager
def leases_and_notifier(given: CommandOptions, settings: "Settings", minutes: float = 0) -> Iterator["Notifier"]:
    """Lease the leased hosts of a session for the duration of the ``with`` block. Yields a notifier, which must be
    called with the name of each session that begins.

    When such a session has ended, the command of --notify is run. ``minutes`` is the time for which the hosts are
    needed; 0 if it is unknown.
    """
    from perfbisect.hunt.notification import notifying

    leases = hold_session_leases(settings, given.history, minutes=minutes)
    with notifying(given.notify, given.history, note) as notifier, leases:
        yield notifier


def print_failures(outcomes: "Sequence[HuntOutcome]", history: Path | None) -> int:
    """Print on standard error which hunts have no verdict, and the reasons; return the highest exit status of the
    hunts."""
    for outcome in outcomes:
        if outcome.failure:
            note(f"Hunt {outcome.hunt} failed: {printable(str(outcome.failure))}")
            # This command resumes all hunts of the batch that have no verdict.
            again = bisect_command("resume", str(outcome.hunt), history)
            note("\n".join(filter(None, (printable(outcome.failure.advice), f"To continue: {again}"))))
    return max(outcome.status for outcome in outcomes)


def run_and_print_hunts(
    tasks: "Sequence[Task]", history: History, path: Path | None, resume_command: str, view: "View"
) -> int:
    """Carry out hunts, each in a separate process, and print how each hunt ends; return the highest exit status.

    ``resume_command`` is the command that continues the hunts after an interruption.
    """
    from perfbisect.hunt.batch import VERDICTS, Stage, carry_out, end_batch_if_complete, locked_hosts, state_text
    from perfbisect.ui.session_view import SessionRow

    def show() -> None:
        view.set_rows([SessionRow(task.title, task.hunt, state_text(task, history), task.is_running) for task in tasks])

    try:
        carry_out(tasks, history, view, show, time.sleep, locked_hosts)
    except KeyboardInterrupt:
        ended = [task for task in tasks if task.stage is Stage.ENDED and task.status != INTERRUPTED]
        failed = sum(task.status not in VERDICTS for task in ended)
        raise Interrupted(
            f"Interrupted. {count(len(ended), 'hunt')} of {len(tasks)} had ended, {failed} of them without a verdict. All finished"
            f" runs are kept. To continue: {resume_command}"
        ) from None
    for why in dict.fromkeys(why for task in tasks for why in task.unfit.values()):
        note(f"A host was not chosen: {printable(why)}")
    open_ones = [task for task in tasks if task.status not in VERDICTS]
    for task in open_ones:
        note(f"{printable(task.title)}: {printable(state_text(task, history))}")
        note(f"  output: {task.output_file(history)}")
    say(f"{len(tasks) - len(open_ones)} of {count(len(tasks), 'hunt')} ended with a verdict.")
    for number in dict.fromkeys(task.batch for task in tasks if task.batch is not None):
        say(f"To write their pages: {bisect_command('report', end_batch_if_complete(history, number).name, path)}")
    if open_ones:
        note(f"To continue the hunts without a verdict: {resume_command}")
    return max((task.status or 0 for task in tasks), default=0)


def measured_trial(setup: "SessionSetup", given: CommandOptions, notifier: "Notifier") -> "Ended":
    """Begin a trial; see ``carry_out_trial``."""
    from perfbisect.hunt.session import begin

    if not given.form:
        announce_build_system(setup.settings)
    return carry_out_trial(lambda caller: begin([setup], caller), given, notifier)


def carry_out_trial(
    carry_out: "CarryOut", given: CommandOptions, notifier: "Notifier", view: str | None = None
) -> "Ended":
    """Carry out a trial by calling ``carry_out``. Returns the trial and, if the trial was interrupted after its begin,
    the error Interrupted; otherwise None.

    If the trial's result is printed in a format for programs, such as JSON, only problems are shown while the trial
    runs.
    """
    from perfbisect.hunt.attempt import CommandCallbacks

    shown, cut = view_opener(given.history, view, sys.stderr, quiet=bool(given.form)), None
    try:
        carry_out(CommandCallbacks(given.history, shown, given.waiting, notifier, note))
    except Interrupted as interrupted:
        if not notifier.names:
            raise
        cut = interrupted
    with closing(History.open(given.history, read_only=True)) as opened:
        return opened.trial(notifier.names[0]), cut


def hunt_differing_results(
    given: CommandOptions, settings: "Settings", several: "SeveralResults", caller: "CommandCallbacks"
) -> int:
    """For a workload whose command prints several results: compare good and bad in each result, and start a hunt for
    each result that differs. Each run gives all results, so the hunts use the same runs. Returns the highest exit
    status of the hunts.
    """
    from dataclasses import replace

    from perfbisect.core.domain.settings import Policy
    from perfbisect.core.stats.paired_comparison import compare_builds
    from perfbisect.hunt.attempt import settings_for_results
    from perfbisect.hunt.drop_hunts import comparison_of_ends, hunt_settings_by_result, with_measured_ends
    from perfbisect.hunt.notification import Notifier
    from perfbisect.hunt.resolve import worse_direction
    from perfbisect.hunt.session import begin
    from perfbisect.hunt.setup import SessionSetup
    from perfbisect.report.command_line import command_to_run
    from perfbisect.wording.trials import changed_result_lines

    history, notifier = given.history, caller.on_begin
    assert isinstance(notifier, Notifier)
    begun = int(notifier.names.pop())  # number of the hunt, which the comparison of all results replaces
    note(f"{several} So all results of good and bad are compared first; then each result that differs gets a hunt.")
    with closing(History.open(history)) as opened:
        recognised = settings_for_results(opened, settings, several.outputs)
    quiet = CommandOptions(history=history, waiting=given.waiting, form="")
    ends = comparison_of_ends(recognised, several.outputs, given.waiting)
    trial, cut = carry_out_trial(
        lambda results_caller: begin([ends], results_caller, replaced=begun), quiet, Notifier((), history, note)
    )
    tell = note if given.view == "json" else say
    tell("\n".join(changed_result_lines(trial, compare_builds(trial, trial.request.metric))))
    policy, again = recognised.policy, f"{bisect_command('compare', trial.name, history)} --hunt"
    again = f"To continue after an interruption: {again}{'' if recognised.explain else ' --no-explain'}"
    default = replace(policy.unlimited(), direction=worse_direction(recognised.metric), min_effect=Policy().min_effect)
    if policy != default:
        again = f"To begin again after an interruption: {command_to_run(recognised, history)}"  # hunts of a comparison use the default policy
    note(f"To see all results: {bisect_command('show', trial.name, history)}\n{again}")
    if cut:
        note(str(cut))
        return INTERRUPTED
    hunts = hunt_settings_by_result(recognised, trial)
    if not hunts:
        note("No hunt begins: no result differs significantly, in the hunted direction, by at least --min-effect.")
        return NOTHING
    remaining = iter(hunts)

    def enter(number: str) -> None:
        with closing(History.open(history)) as opened:
            opened.enter_drop_hunt(trial.id, (next(remaining), 0, 1), int(number))

    notifier.enter = enter
    with closing(History.open(history)) as opened:
        log, how = [entry.event for entry in opened.events(trial.id)], opened.settings(trial.id).filter or ()
    setups = [with_measured_ends(setup, log, how) for setup in SessionSetup.set_up([*hunts.values()], given.waiting)]
    return print_failures(begin(setups, caller), history)


def print_trial_end(ended: "Ended", given: CommandOptions) -> int:
    """Print the result of a trial, and suggest the next command; return the exit status."""
    from perfbisect.core.domain.settings import TrialType
    from perfbisect.core.stats.noise import noise_of_trial
    from perfbisect.core.stats.paired_comparison import has_every_build_a_ratio
    from perfbisect.hunt.drop_hunts import huntable_drops
    from perfbisect.wording.trials import proof_exit_status

    trial, cut = ended
    kind = trial.request.kind
    has_result = kind is not TrialType.NOISE or noise_of_trial(trial) is not None
    if has_result:
        print_trial(trial, given.form, detailed=False)
    if cut:
        note(str(cut))
        return INTERRUPTED
    if not has_result:
        raise EnvironmentFailure(
            f"The runs of {trial.request.subjects[0].name} have too few values of {trial.request.metric} to estimate the noise.",
            "Increase --visits or --runs, or choose another --metric.",
        )
    if kind is TrialType.NOISE:
        return 0
    if not given.form:
        note(f"To see counters per operation: {bisect_command('show', trial.name, given.history)}")
    if kind is TrialType.PROVE:
        return proof_exit_status(trial)
    if not given.form and (drops := huntable_drops(given.history, trial)):
        several = f"{len(drops)} drops are significant. To find their commits"
        text = several if len(drops) > 1 else "A drop is significant. To find its commit"
        note(f"{text}: {bisect_command('compare', trial.name, given.history)} --hunt")
    return 0 if has_every_build_a_ratio(trial) else INCONCLUSIVE
