"""`bisect batch`: hunts over several ranges, systems and workloads, as many at once as hosts allow."""

import shlex
import time
from collections.abc import Sequence
from contextlib import chdir, closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import EXISTING, FOLDER, history_option, plain_option, say, view_of
from perfbisect.errors import INTERRUPTED, Interrupted
from perfbisect.ui.stream import note
from perfbisect.wording.text import printable

if TYPE_CHECKING:
    from perfbisect.hunt.batch import Task
    from perfbisect.hunt.watching import View
    from perfbisect.store.history import History

EPILOG = """\b
Examples:
  bisect batch nightly.toml --dry-run      the hunts, and what is wrong with the file
  bisect batch nightly.toml
  bisect batch nightly.toml --page pages/  an index and a page for each, at the end
  bisect resume --all                      after Ctrl-C

\b
FILE has the options of `bisect run` as keys, without --:
  [defaults]
  builder = "sqlite"
  any-host = ["c8-1", "c8-2"]     # each hunt on one of these; host = [...]: on all of them
  max-time = "2h"

\b
  [[hunt]]
  good = "3.41.0"
  bad = "3.42.0"
  workload = ["scan", "update-index"]      # a hunt for each

\b
  [[hunt]]
  good = "3.44.0"
  bad = "3.45.0"
  workload = "point-select"
  set = {table-size = 100000}

\b
It is as if `bisect run` were called in the folder of FILE. Hunts of a range prefer the host that has its builds.
Exit status: the highest of the hunts'.
"""


@click.command(epilog=EPILOG)
@click.argument("file", type=EXISTING)
@click.option("--dry-run", is_flag=True, help="Check the file and print the hunts without beginning them.")
@click.option(
    "--anew", is_flag=True, help="Begin all hunts again, where an interrupted batch of the same FILE would go on."
)
@plain_option
@click.option(
    "--page", metavar="FOLDER", type=FOLDER,
    help="Write an index and the pages of the hunts at the end.",
)  # fmt: skip
@history_option
def batch(file: Path, dry_run: bool, anew: bool, plain: bool, page: Path | None, history: Path | None) -> int:
    """Carry out the hunts of FILE, as many at once as their hosts allow. The failure of one stops no other.

    An interrupted batch goes on with the same command, or with `bisect resume --all`.
    """
    from perfbisect.cli.batch_file import read_batch_file
    from perfbisect.errors import UsageError
    from perfbisect.hunt.batch import tasks_of
    from perfbisect.report.command_line import command_on
    from perfbisect.store.batches import begin_batch, continue_batch, read_batch, unfinished_batches
    from perfbisect.store.connection import default_place
    from perfbisect.store.history import History

    file, place = file.absolute(), (history or default_place()).absolute()
    page = page.absolute() if page else None
    with chdir(file.parent):  # relative paths of the file mean what is beside it
        entries = read_batch_file(file)
        if dry_run:
            for entry in entries:
                hosts = " or ".join(" and ".join(hosts) for hosts in entry.planned.hosts)
                say(f"{hosts}: bisect run {shlex.join(entry.planned.arguments)}")
            return 0
        planned = [entry.planned for entry in entries]
        with closing(History.open(place)) as opened:
            known = [
                each
                for each in unfinished_batches(opened, running=True)
                if each.file == str(file) and [one.planned for one in each.hunts] == planned
            ]
            for latest in known[-1:]:
                if latest.running:
                    see = command_on("watch", latest.name, history)
                    raise UsageError(f"Another process works on this batch, {latest.name}.", f"See it: {see}")
            if known and not anew:
                number = known[-1].id
                continue_batch(opened, number)
                note(f"Going on with batch b{number}.")
            else:
                number = begin_batch(opened, file, planned, time.time())
            tasks = tasks_of(read_batch(opened, number), opened, [entry.range for entry in entries])
            status = follow(tasks, opened, history, command_on("batch", str(file), history), plain=plain)
            if page:
                from perfbisect.cli.commands.report import write_all

                write_all(opened, page, history, {task.hunt for task in tasks if task.hunt is not None})
    return status


def follow(
    tasks: "Sequence[Task]",
    history: "History",
    given: Path | None,
    go_on: str,
    *,
    plain: bool = False,
    view: "View | None" = None,
) -> int:
    """Carry out hunts and tell how they end; returns the highest of their exit statuses. ``go_on`` is the command that does."""
    from perfbisect.hunt.batch import VERDICTS, Stage, carry_out, locked_hosts, state_of
    from perfbisect.report.command_line import command_on
    from perfbisect.store.batches import end_batch, read_batch
    from perfbisect.ui.view_model import Row
    from perfbisect.wording.quantities import count

    view = view or view_of({}, given, "plain" if plain else None)
    logs = history.path.with_name(f"{history.path.stem}-batches")

    def show() -> None:
        view.states([Row(task.title, task.hunt, state_of(task, history), task.runs) for task in tasks])

    try:
        carry_out(tasks, history, logs, view, show, time.sleep, locked_hosts)
    except KeyboardInterrupt:
        ended = [task for task in tasks if task.stage is Stage.ENDED and task.status != INTERRUPTED]
        failed = sum(task.status not in VERDICTS for task in ended)
        raise Interrupted(
            f"Interrupted; {count(len(ended), 'hunt')} of {len(tasks)} ended before, {failed} of them without a verdict. What"
            f" was measured is kept; go on with: {go_on}"
        ) from None
    open_ones = [task for task in tasks if task.status not in VERDICTS]
    for task in open_ones:
        note(f"{printable(task.title)}: {printable(state_of(task, history))}")
        note(f"  its output: {task.log(logs)}")
    say(f"{len(tasks) - len(open_ones)} of {count(len(tasks), 'hunt')} ended with a verdict.")
    for number in dict.fromkeys(task.batch for task in tasks if task.batch is not None):
        batch = read_batch(history, number)
        if all(one.status in VERDICTS for one in batch.hunts):
            end_batch(history, number, time.time())
        say(f"Their page: {command_on('report', batch.name, given)}")
    if open_ones:
        note(f"Go on with the others: {go_on}")
    return max((task.status or 0 for task in tasks), default=0)
