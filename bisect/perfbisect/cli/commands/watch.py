"""`bisect watch` shows hunts that run in other terminals. `bisect replay` computes the decisions of a past hunt again.
Neither command changes the history.
"""

import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import (
    CommandOptions,
    history_option,
    id_argument,
    options_command,
    plain_option,
    say,
)
from perfbisect.cli.options.completion import complete_id
from perfbisect.cli.options.measurement import (
    announce_recipe_files,
    confidence_option,
    effect_option,
    limit_options,
    requested_policy,
)
from perfbisect.cli.options.param_types import ANY, SessionIdParam
from perfbisect.cli.sessions import is_no_screen, view_opener
from perfbisect.errors import UsageError
from perfbisect.report.command_line import bisect_command
from perfbisect.store.connection import with_history
from perfbisect.ui.stream import note
from perfbisect.wording.text import printable

if TYPE_CHECKING:
    from perfbisect.store.history import History
    from perfbisect.store.listing import SessionSummary

UNDECIDED = 2


@options_command()
@click.argument("sessions", metavar="[HUNT…]", type=SessionIdParam(ANY), nargs=-1, shell_complete=complete_id)
@plain_option
@history_option
def watch(given: CommandOptions) -> None:
    """Show hunts and comparisons that run in other terminals, as these terminals show them, until all have ended.

    HUNT is the id of a hunt, a comparison (c3), a proof (p5), an A/A test (n4) or a batch (b3). Default: all
    sessions that run now.

    \b
    Examples:
      bisect watch                          all running sessions
      bisect watch 12 13 c3                 two hunts and a comparison
      bisect watch b3                       the hunts of a batch that have begun
      bisect watch --plain | grep verdict   only verdicts

    \b
    `bisect watch` only reads the history. Ctrl-C ends `bisect watch`; the sessions continue.
    """
    from perfbisect.hunt import watching
    from perfbisect.store.batches import batch_of_one_process
    from perfbisect.store.history import History

    with closing(History.open(given.history, read_only=True)) as opened:
        named = dict.fromkeys(number for session_id in given.sessions for number in session_numbers(session_id, opened))
        chosen = tuple(named) or tuple(watching.running_sessions(opened))
        if not chosen:
            advice = "`bisect history` lists all sessions; `bisect show` prints the report of a session."
            raise UsageError("No session is running.", advice)
        batch = batch_of_one_process(opened, chosen[0])
        together = batch is not None and {*chosen} <= {hunt.hunt for hunt in batch.hunts}
        lines = given.plain or is_no_screen()

        def title(summary: "SessionSummary") -> str:
            return str(summary.id) if lines else summary.workloads[0] if together else summary.title

        titles = {number: title(opened.session_summary(number)) for number in chosen}
        view = view_opener(given.history, "plain" if lines else None, together=together and not lines)(titles)
        ended: list[SessionSummary] = []
        with suppress(KeyboardInterrupt), closing(watching.watch(opened, chosen, view, time.sleep)) as ends:
            for summary in ends:
                ended += [summary]
        for summary in ended:
            print_unfinished_end(summary, opened.path)


def session_numbers(session_id: int | str, history: "History") -> list[int]:
    """The number of a hunt or a trial, or the numbers of all hunts of a batch that have begun. Raises UsageError if
    there is no such hunt or trial.
    """
    from perfbisect.store.batches import read_batch

    if isinstance(session_id, int):
        return [session_id]
    if not session_id.startswith("b"):
        return [history.trial_number(session_id)]
    begun = [hunt.hunt for hunt in read_batch(history, int(session_id[1:])).hunts if hunt.hunt is not None]
    if not begun:
        text = f"No hunt of batch {session_id} has begun."
        raise UsageError(text, f"To see the hunts: {bisect_command('show', session_id, history.path)}")
    return begun


def print_unfinished_end(session: "SessionSummary", history: Path) -> None:
    """Print on standard error why a hunt ended without a verdict, or why a trial is incomplete."""
    if session.state in ("failed", "interrupted"):
        reason = f": {printable(session.failure)}" if session.failure else ""
        name = f"Hunt {session.id}" if isinstance(session.id, int) else session.id
        note(f"{name} {'has' if session.failure else 'was'} {session.state}{reason}")
        note(f"To continue: {bisect_command('resume', str(session.id), history)}")


@options_command()
@id_argument()
@confidence_option()
@effect_option("Smallest change to search for.")
@limit_options
@history_option
def replay(given: CommandOptions) -> int:
    """Compute the decisions of HUNT (default: the latest) again from its stored runs, with the same or with other
    settings.

    Prints a line for each decision: the number of runs before the decision, and the most probable culprit. A replay
    makes no new runs, so with other settings the replay may end without a verdict.

    \b
    Examples:
      bisect replay                       the latest hunt, with its own settings
      bisect replay 12 --confidence 80%   does a lower confidence need fewer runs?
      bisect replay 12 --max-runs 40      the verdict after 40 runs

    \b
    Exit status: the status of `bisect run` with the same verdict; 2 if the hunt has no verdict.
    """
    from perfbisect.core.domain.events import SessionStarted
    from perfbisect.core.domain.orders import Measure, Purpose
    from perfbisect.core.domain.session_state import fold
    from perfbisect.errors import UsageError
    from perfbisect.hunt.search_problem import SearchProblem, recompute_decisions
    from perfbisect.hunt.setup import read_hunt_range
    from perfbisect.recipes.requested import requested_builder
    from perfbisect.report.hunt_report import shared_builds_text
    from perfbisect.repository.commits import describe_commit
    from perfbisect.repository.discovery import open_repository
    from perfbisect.store.history import History
    from perfbisect.wording.quantities import chance, count
    from perfbisect.wording.verdicts import VerdictSentences, exit_status

    with closing(History.open(given.history, read_only=True)) as store:
        number = store.latest_hunt() if given.hunt is None else given.hunt
        settings, began = store.settings(number), store.start_time(number)
        events = [(entry.at, entry.event) for entry in store.events(number)]
        candidates = store.candidates(number)
        together = shared_builds_text(store, number)
    if settings.narrows:
        text = f"Hunt {number} is a search in a diff (`bisect narrow`), which cannot be replayed."
        raise UsageError(text, "Give the number of a hunt of `bisect run`.")
    if not Path(settings.repository).is_dir():
        raise UsageError(
            f"A replay needs the repository of hunt {number}, but the folder {printable(settings.repository)} does not exist.",
            "Clone the repository to this folder, then repeat the command.",
        )
    builder = requested_builder(settings)
    announce_recipe_files(builder)
    span, _ = read_hunt_range(settings, builder)
    if span.candidates != candidates:
        raise UsageError(
            f"The repository {settings.repository} no longer has the commits of hunt {number}, so the hunt cannot be replayed."
        )
    policy = requested_policy(given, settings.policy)
    hosts = settings.hosts if settings.further_hosts else ()
    build_hosts = next((event.build_hosts for _, event in reversed(events) if isinstance(event, SessionStarted)), ())
    problem = SearchProblem(span.graph, candidates, policy, settings.metric, hosts, settings.prior, build_hosts)
    repository = open_repository(Path(settings.repository))
    if together:
        note(
            f"Hunt {number} ran {together}. The replay counts only the time, builds and runs of hunt {number}, so it can reach their limits later than the hunt did."
        )
    said = ""
    for runs, decision in recompute_decisions(problem, events, began, shares_builds=bool(together)):
        order, culprit = decision.order, decision.belief.culprit
        if not isinstance(order, Measure):
            say(f"after {count(runs, 'run'):>8}: verdict")
            commits = [describe_commit(repository, commit) for commit in candidates]
            state = fold(events)
            state.renumber_candidates(candidates)
            state.belief = decision.belief
            sentences = VerdictSentences(state, commits.__getitem__, with_history("", given.history)).sentences(order)
            say("\n".join(sentences))
            return exit_status(order)
        leader = int(culprit.argmax())
        alike = int((culprit > 0.99 * culprit[leader]).sum())
        first = f"most probable: {candidates[leader][:10]}" if alike == 1 else f"most probable: {alike} commits, each"
        leads = f"{first} with {chance(float(culprit[leader]))}"
        line = (
            f"after {count(runs, 'run'):>8}: {'comparison of good and bad' if order.purpose is Purpose.ENDS else leads}"
        )
        if line != said:  # a further choice before the next run
            say(line)
        said = line
    say("The stored runs end here. With these settings, the hunt would need further runs.")
    return UNDECIDED
