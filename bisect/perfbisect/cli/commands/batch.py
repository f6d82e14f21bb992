"""`bisect batch`: hunts over several ranges, systems and workloads, as many at once as hosts allow."""

import shlex
import time
from contextlib import chdir, closing
from pathlib import Path

import click

from perfbisect.cli.options.common import FOLDER, Given, history_option, output_width, plain_option, say, verb_command
from perfbisect.cli.options.completion import any_id
from perfbisect.cli.options.param_types import FileOrBatch
from perfbisect.cli.sessions import follow, open_view
from perfbisect.errors import UsageError
from perfbisect.report.command_line import command_on
from perfbisect.store.history import History
from perfbisect.ui.stream import note
from perfbisect.wording.quantities import count
from perfbisect.wording.text import printable


@verb_command()
@click.argument("file", metavar="FILE|BATCH", type=FileOrBatch("b"), shell_complete=any_id)
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
def batch(given: Given) -> int:
    """Carry out the hunts of FILE, as many at once as their hosts allow. The failure of one stops no other.

    An interrupted batch goes on with the same command, or with `bisect resume --all`. BATCH, as b3: show its jobs.

    \b
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
    history, submit, page = given.history, given.submit, given.page
    if isinstance(given.file, str):
        if given.dry_run or given.anew or submit or page:
            raise click.UsageError(f"{given.file} is a batch: other options than --cancel are for a FILE.")
        show_jobs(given.file, history, cancel=given.cancel)
        return 0
    if given.cancel or (submit and page):
        raise click.UsageError("--cancel is for a batch, as b3. Once submitted hunts have ended: bisect report b3")
    from perfbisect.cli.batch_file import read_batch_file
    from perfbisect.hunt.batch import tasks_of
    from perfbisect.hunt.slurm import check_commands
    from perfbisect.hunt.slurm import submit as submit_all
    from perfbisect.store.batches import all_batches, begin_batch, continue_batch, read_batch
    from perfbisect.store.connection import default_place

    file, path = given.file.absolute(), (history or default_place()).absolute()
    page = page.absolute() if page else None
    with chdir(file.parent):  # relative paths of the file mean what is beside it
        entries = read_batch_file(file)
        places = [" or ".join(" and ".join(hosts) for hosts in entry.planned.hosts) for entry in entries]
        if submit:  # its words are made before anything begins: they may refuse hosts
            places = [shlex.join(["sbatch", *entry.words()]) for entry in entries]
        if given.dry_run:
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
                if latest.submitted and not (submit or given.anew or latest.ended):
                    raise UsageError(f"Slurm has this batch, {latest.name}; --anew begins all here.", see)
            if known and not given.anew:
                number = latest.id
                continue_batch(opened, number)
                done = f"All hunts of batch {latest.name} have verdicts; --anew begins them again."
                note(done if latest.ended else f"Going on with batch {latest.name}.")
            else:
                number = begin_batch(opened, file, planned, time.time())
            if submit:
                submitted = submit_all(opened, number, entries)
                kept = len(entries) - submitted
                also = f", {kept} kept that wait, run or have a verdict" if kept else ""
                say(
                    f"{count(submitted, 'hunt')} submitted{also}.\nTheir jobs: {command_on('batch', f'b{number}', history)}"
                )
                return 0
            tasks = tasks_of(read_batch(opened, number), opened, [entry.range for entry in entries])
            view = open_view(history, "plain" if given.plain else None)({})
            status = follow(tasks, opened, history, command_on("batch", str(file), history), view)
            if page:
                from perfbisect.cli.commands.report import write_all

                write_all(opened, page, history, {task.hunt for task in tasks if task.hunt is not None})
    return status


def show_jobs(name: str, given: Path | None, *, cancel: bool) -> None:
    """Show the jobs of a batch, or cancel them."""
    from perfbisect.cli.commands.report import batch_table
    from perfbisect.hunt import slurm
    from perfbisect.hunt.batch import log_of, title_of
    from perfbisect.hunt.slurm import is_kept, look

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
