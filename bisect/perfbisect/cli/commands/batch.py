"""`bisect batch`: hunts over several ranges, systems and workloads, as many at once as hosts allow."""

import shlex
import time
from contextlib import closing
from pathlib import Path

import click

from perfbisect.cli.options.common import history_option, say
from perfbisect.ui.stream import note

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
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Check the file and print the hunts without beginning them.")
@click.option(
    "--anew", is_flag=True, help="Begin all hunts again, where an interrupted batch of the same FILE would go on."
)
@click.option("--plain", is_flag=True, help="Plain lines, as when there is no terminal.")
@click.option(
    "--page", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path),
    help="Write an index and the pages of the hunts at the end.",
)  # fmt: skip
@history_option
def batch(file: Path, dry_run: bool, anew: bool, plain: bool, page: Path | None, history: Path | None) -> int:
    """Carry out the hunts of FILE, as many at once as their hosts allow. The failure of one stops no other.

    An interrupted batch goes on with the same command, or with `bisect resume --all`.
    """
    from perfbisect.cli.batch_file import inside, read_batch_file
    from perfbisect.cli.batches import follow, open_batch_view, tasks_of
    from perfbisect.errors import UsageError
    from perfbisect.report.command_line import command_on
    from perfbisect.store.batches import begin_batch, continue_batch, read_batch, unfinished_batches
    from perfbisect.store.connection import default_place
    from perfbisect.store.history import History

    file, place = file.absolute(), (history or default_place()).absolute()
    page = page.absolute() if page else None
    with inside(file.parent):
        entries = read_batch_file(file)
        if dry_run:
            for entry in entries:
                hosts = " or ".join(" and ".join(hosts) for hosts in entry.planned.hosts)
                say(f"{hosts}: bisect run {shlex.join(entry.planned.arguments)}")
            return 0
        planned = [entry.planned for entry in entries]
        with closing(History.open(place)) as opened:
            same = [
                each
                for each in unfinished_batches(opened, running=True)
                if each.file == str(file) and [one.planned for one in each.hunts] == planned
            ]
            if same and same[-1].running:
                raise UsageError(
                    f"Another process works on this batch, {same[-1].name}.",
                    f"See it: {command_on('watch', same[-1].name, history)}",
                )
            if same and not anew:
                number = same[-1].id
                continue_batch(opened, number)
                note(f"Going on with batch b{number}.")
            else:
                number = begin_batch(opened, file, planned, time.time())
            tasks = tasks_of(read_batch(opened, number), opened, [entry.range for entry in entries])
            again = command_on("batch", str(file), history)
            status = follow(tasks, opened, history, open_batch_view(opened, history, plain), again)
            if page:
                from perfbisect.cli.commands.report import write_all

                write_all(opened, page, history, {task.hunt for task in tasks if task.hunt is not None})
    return status
