"""`bisect watch`: the live view of hunts and trials that run in other terminals."""

import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import Given, history_option, plain_option, verb_command
from perfbisect.cli.options.completion import any_id
from perfbisect.cli.options.param_types import ANY, Id
from perfbisect.cli.sessions import lines_wanted, open_view
from perfbisect.errors import UsageError
from perfbisect.report.command_line import command_on
from perfbisect.ui.stream import note
from perfbisect.wording.text import printable

if TYPE_CHECKING:
    from perfbisect.store.history import History
    from perfbisect.store.listing import SessionSummary


@verb_command()
@click.argument("sessions", metavar="[HUNT…]", type=Id(ANY), nargs=-1, shell_complete=any_id)
@plain_option
@history_option
def watch(given: Given) -> None:
    """Show HUNTs and trials (default: all that run now) as their own terminals do, until they end.

    \b
    Examples:
      bisect watch           all hunts that run now
      bisect watch 12 13 c3
      bisect watch b3        the hunts of a batch that have begun
      bisect watch --plain | grep verdict

    \b
    The history is only read. Ctrl-C ends watching, and nothing else.
    """
    from perfbisect.hunt import watching
    from perfbisect.store.batches import batch_together
    from perfbisect.store.history import History

    with closing(History.open(given.history, read_only=True)) as opened:
        named = dict.fromkeys(each for one in given.sessions for each in numbers(one, opened))
        chosen = tuple(named) or tuple(watching.running(opened))
        if not chosen:
            raise UsageError("No hunt is running.", "`bisect history` lists all; `bisect show` reports one.")
        batch = batch_together(opened, chosen[0])
        together = batch is not None and {*chosen} <= {one.hunt for one in batch.hunts}
        lines = given.plain or lines_wanted()

        def title(each: "SessionSummary") -> str:
            return str(each.id) if lines else each.workloads[0] if together else each.title

        titles = {number: title(opened.listed(number)) for number in chosen}
        view = open_view(given.history, "plain" if lines else None, together=together and not lines)(titles)
        ended: list[SessionSummary] = []
        with suppress(KeyboardInterrupt), closing(watching.watch(opened, chosen, view, time.sleep)) as ends:
            for each in ends:
                ended += [each]
        for each in ended:
            say_how(each, opened.path)


def numbers(one: int | str, history: "History") -> list[int]:
    """The number of a hunt or a trial, or those of the hunts of a batch that have begun. Raises UsageError without any."""
    from perfbisect.store.batches import read_batch

    if isinstance(one, int):
        return [one]
    if not one.startswith("b"):
        return [history.number_of_trial(one)]
    found = [each.hunt for each in read_batch(history, int(one[1:])).hunts if each.hunt is not None]
    if not found:
        raise UsageError(f"No hunt of {one} has begun.", f"See what it has: {command_on('show', one, history.path)}")
    return found


def say_how(session: "SessionSummary", history: Path) -> None:
    """On standard error: how a hunt has ended that has no verdict, or a trial that is incomplete."""
    if session.state in ("failed", "interrupted"):
        reason = f": {printable(session.failure)}" if session.failure else ""
        name = f"Hunt {session.id}" if isinstance(session.id, int) else session.id
        note(f"{name} {'has' if session.failure else 'was'} {session.state}{reason}")
        note(f"Go on with: {command_on('resume', str(session.id), history)}")
