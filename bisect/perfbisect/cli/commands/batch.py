"""`bisect batch`: hunts over several ranges, systems and workloads, as many at once as hosts allow."""

import shlex
import time
from collections.abc import Sequence
from contextlib import chdir, closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import FOLDER, history_option, output_width, plain_option, say, view_of
from perfbisect.cli.options.completion import file_or_batch
from perfbisect.cli.options.param_types import FileOrBatch
from perfbisect.errors import INTERRUPTED, Interrupted
from perfbisect.ui.stream import note
from perfbisect.wording.text import printable

if TYPE_CHECKING:
    from perfbisect.hunt.batch import Task
    from perfbisect.hunt.submission import SlurmJob
    from perfbisect.hunt.watching import View
    from perfbisect.store.history import History

EPILOG = """\b
Examples:
  bisect batch hunts.toml --dry-run      the hunts, and what is wrong
  bisect batch hunts.toml
  bisect batch hunts.toml --page pages/  an index and a page for each
  bisect resume --all                    after Ctrl-C
  bisect batch hunts.toml --submit slurm
  bisect batch b3                        its jobs; --cancel cancels them

\b
FILE has the options of `bisect run` as keys, without --:
  [defaults]
  builder = "sqlite"
  any-host = ["c8-1", "c8-2"]     # on one of these; host = [...]: on all
  max-time = "2h"
  slurm = ["--constraint=quiet"]  # options of sbatch

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
@click.argument("file", metavar="FILE|BATCH", type=FileOrBatch("b"), shell_complete=file_or_batch)
@click.option("--dry-run", is_flag=True, help="Check the file and print the hunts without beginning them.")
@click.option("--anew", is_flag=True, help="Begin all hunts again, where a batch of the same FILE would go on.")
@click.option("--submit", type=click.Choice(["slurm"]), metavar="slurm", help="Let each hunt be a job of Slurm.")
@click.option("--cancel", is_flag=True, help="Cancel the jobs of BATCH.")
@plain_option
@click.option(
    "--page", metavar="FOLDER", type=FOLDER,
    help="Write an index and the pages of the hunts at the end.",
)  # fmt: skip
@history_option
def batch(
    file: Path | str, dry_run: bool, anew: bool, submit: str | None, cancel: bool, plain: bool, page: Path | None,
    history: Path | None,
) -> int:  # fmt: skip
    """Carry out the hunts of FILE, as many at once as their hosts allow. The failure of one stops no other.

    An interrupted batch goes on with the same command, or with `bisect resume --all`. BATCH, as b3: show its jobs.
    """
    if isinstance(file, str):
        if dry_run or anew or submit or page:
            raise click.UsageError(f"{file} is a batch: other options than --cancel are for a FILE.")
        show_jobs(file, history, cancel=cancel)
        return 0
    if cancel or (submit and page):
        raise click.UsageError("--cancel is for a batch, as b3. Once submitted hunts have ended: bisect report b3")
    from perfbisect.cli.batch_file import read_batch_file
    from perfbisect.errors import UsageError
    from perfbisect.host.slurm import check_commands
    from perfbisect.hunt.batch import tasks_of
    from perfbisect.report.command_line import command_on
    from perfbisect.store.batches import all_batches, begin_batch, continue_batch, read_batch
    from perfbisect.store.connection import default_place
    from perfbisect.store.history import History

    file, path = file.absolute(), (history or default_place()).absolute()
    page = page.absolute() if page else None
    with chdir(file.parent):  # relative paths of the file mean what is beside it
        entries = read_batch_file(file)
        places = [" or ".join(" and ".join(hosts) for hosts in entry.planned.hosts) for entry in entries]
        if submit:  # its words are made before anything begins: they may refuse hosts
            places = [shlex.join(["sbatch", *entry.words()]) for entry in entries]
        if dry_run:
            for place, entry in zip(places, entries, strict=True):
                say(f"{place}: bisect run {shlex.join(entry.planned.arguments)}")
            return 0
        if submit:
            check_commands()
        planned = [entry.planned for entry in entries]
        with closing(History.open(path)) as opened:
            same = (each for each in all_batches(opened) if each.file == str(file))
            known = [each for each in same if [one.planned for one in each.hunts] == planned]
            for latest in known[-1:]:
                see = f"See it: {command_on('watch' if latest.running else 'batch', latest.name, history)}"
                if latest.running:
                    raise UsageError(f"Another process works on this batch, {latest.name}.", see)
                if latest.submitted and not (submit or anew or latest.ended):
                    raise UsageError(f"Slurm has this batch, {latest.name}; --anew begins all here.", see)
            if known and not anew:
                number = latest.id
                continue_batch(opened, number)
                done = f"All hunts of batch {latest.name} have verdicts; --anew begins them again."
                note(done if latest.ended else f"Going on with batch {latest.name}.")
            else:
                number = begin_batch(opened, file, planned, time.time())
            if submit:
                submit_all(opened, number, entries, history)
                return 0
            tasks = tasks_of(read_batch(opened, number), opened, [entry.range for entry in entries])
            status = follow(tasks, opened, history, command_on("batch", str(file), history), plain=plain)
            if page:
                from perfbisect.cli.commands.report import write_all

                write_all(opened, page, history, {task.hunt for task in tasks if task.hunt is not None})
    return status


def submit_all(history: "History", number: int, jobs: "Sequence[SlurmJob]", given: Path | None) -> None:
    """Submit the hunts of a batch that need a job, and say which batch it is."""
    from perfbisect.hunt.submission import submit
    from perfbisect.report.command_line import command_on
    from perfbisect.wording.quantities import count

    submitted = submit(history, number, jobs)
    kept = len(jobs) - submitted
    say(f"{count(submitted, 'hunt')} submitted{f', {kept} kept that wait, run or have a verdict' if kept else ''}.")
    say(f"Their jobs: {command_on('batch', f'b{number}', given)}")


def show_jobs(name: str, given: Path | None, *, cancel: bool) -> None:
    """Show the jobs of a batch, or cancel them."""
    from perfbisect.cli.commands.show import batch_table
    from perfbisect.errors import UsageError
    from perfbisect.host import slurm
    from perfbisect.hunt.batch import log_of, title_of
    from perfbisect.hunt.submission import is_kept, look
    from perfbisect.report.command_line import command_on
    from perfbisect.store.history import History
    from perfbisect.wording.quantities import count

    with closing(History.open(given)) as opened:
        found, states = look(opened, int(name[1:]))
        if not found.submitted:
            raise UsageError(f"{name} was not submitted: it has no jobs.", f"See it: {command_on('show', name, given)}")
        again = f"{command_on('batch', found.file, given)} --submit slurm"
        if cancel:
            waiting = [job for job, state in states.items() if state.is_open]
            slurm.cancel(waiting)
            say(f"{count(len(waiting), 'job')} cancelled. Submit what is left: {again}")
            return
        say("\n".join(batch_table(found, opened, output_width(), states)))
        left = [one for one in found.hunts if not is_kept(one, states)]
        for one in left:
            if (log := log_of(opened, found.id, one.number)).exists():
                note(f"{printable(title_of(one.planned))}: its output is {log}")
        if left:
            note(f"Submit what is left: {again}")


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
    from perfbisect.hunt.batch import VERDICTS, Stage, carry_out, locked_hosts, read_batch_at_end, state_of
    from perfbisect.report.command_line import command_on
    from perfbisect.ui.session_view import SessionRow
    from perfbisect.wording.quantities import count

    view = view or view_of({}, given, "plain" if plain else None)

    def show() -> None:
        view.states([SessionRow(task.title, task.hunt, state_of(task, history), task.runs) for task in tasks])

    try:
        carry_out(tasks, history, view, show, time.sleep, locked_hosts)
    except KeyboardInterrupt:
        ended = [task for task in tasks if task.stage is Stage.ENDED and task.status != INTERRUPTED]
        failed = sum(task.status not in VERDICTS for task in ended)
        raise Interrupted(
            f"Interrupted; {count(len(ended), 'hunt')} of {len(tasks)} ended before, {failed} of them without a verdict. What"
            f" was measured is kept; go on with: {go_on}"
        ) from None
    for why in dict.fromkeys(why for task in tasks for why in task.unfit.values()):
        note(f"Not chosen: {printable(why)}")
    open_ones = [task for task in tasks if task.status not in VERDICTS]
    for task in open_ones:
        note(f"{printable(task.title)}: {printable(state_of(task, history))}")
        note(f"  its output: {task.log(history)}")
    say(f"{len(tasks) - len(open_ones)} of {count(len(tasks), 'hunt')} ended with a verdict.")
    for number in dict.fromkeys(task.batch for task in tasks if task.batch is not None):
        batch = read_batch_at_end(history, number)
        say(f"Their page: {command_on('report', batch.name, given)}")
    if open_ones:
        note(f"Go on with the others: {go_on}")
    return max((task.status or 0 for task in tasks), default=0)
