"""`bisect watch`: the live view of hunts that run in other terminals."""

import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import history_option, lines_wanted, plain_option, view_of
from perfbisect.cli.options.completion import any_id
from perfbisect.cli.options.param_types import Which
from perfbisect.report.command_line import command_to_resume, command_to_show
from perfbisect.ui.stream import note
from perfbisect.wording.text import printable

if TYPE_CHECKING:
    from perfbisect.store.history import History
    from perfbisect.store.listing import Listed

EPILOG = """\b
Examples:
  bisect watch           all hunts that run now
  bisect watch 12 13
  bisect watch b3        the hunts of a batch that have begun
  bisect watch --plain | grep verdict

\b
The history is only read. Ctrl-C ends watching, and nothing else.
"""


@click.command(epilog=EPILOG)
@click.argument("hunts", metavar="[HUNT…]", type=Which(batches=True), nargs=-1, shell_complete=any_id)
@plain_option
@history_option
def watch(hunts: tuple[int | str, ...], plain: bool, history: Path | None) -> None:
    """Show HUNTs (default: all that run now) as their own terminals do, until they end."""
    from perfbisect.errors import UsageError
    from perfbisect.hunt import watching
    from perfbisect.store.batches import batch_together
    from perfbisect.store.history import History

    with closing(History.open(history, read_only=True)) as opened:
        chosen = tuple(dict.fromkeys(each for one in hunts for each in numbers(one, opened))) or tuple(
            watching.running(opened)
        )
        if not chosen:
            raise UsageError("No hunt is running.", "`bisect history` lists all; `bisect show` reports one.")

        batch = batch_together(opened, chosen[0])
        together = batch is not None and {*chosen} <= {one.hunt for one in batch.hunts}
        if plain or lines_wanted():
            wide = max(len(str(hunt)) for hunt in chosen)
            view = view_of({hunt: f"{hunt:{wide}}" for hunt in chosen}, history, "plain")
        else:
            every = {hunt: opened.listed(hunt) for hunt in chosen}
            titles = {hunt: each.workload if together else each.title for hunt, each in every.items()}
            view = view_of(titles, history, None, together=together)
        ended: list[Listed] = []
        with suppress(KeyboardInterrupt), closing(watching.watch(opened, chosen, view, time.sleep)) as ends:
            for hunt in ends:
                ended += [hunt]
        for hunt in ended:
            say_how(hunt, opened.path)


def numbers(one: int | str, history: "History") -> list[int]:
    """The hunt of that number, or those of a batch that have begun. Raises UsageError for what is neither."""
    from perfbisect.errors import UsageError
    from perfbisect.store.batches import read_batch

    if isinstance(one, int):
        return [one]
    if not one.startswith("b"):
        raise UsageError(
            f"{one} is no hunt.", "Hunts have numbers, and batches names as b3: `bisect history` lists them."
        )
    found = [each.hunt for each in read_batch(history, int(one[1:])).hunts if each.hunt is not None]
    if not found:
        raise UsageError(f"No hunt of {one} has begun.", f"See what it has: {command_to_show(one, history.path)}")
    return found


def say_how(hunt: "Listed", history: Path) -> None:
    """On standard error: how a hunt has ended that has no verdict."""
    if hunt.state in ("failed", "interrupted"):
        reason = f": {printable(hunt.failure)}" if hunt.failure else ""
        note(f"Hunt {hunt.id} {'has' if hunt.failure else 'was'} {hunt.state}{reason}")
        note(f"Go on with: {command_to_resume(hunt.id, history)}")
