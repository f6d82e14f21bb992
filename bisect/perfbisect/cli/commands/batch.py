"""`bisect batch`: hunts over several ranges, systems and workloads, as many at once as hosts allow.

Beside it what `bisect resume --all`, `show` and `history` share of it: the hunts of a batch as tasks, in lines and as a table.
"""

import shlex
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import history_option, plain_option, say, view_of
from perfbisect.errors import INTERRUPTED, Interrupted, PerfBisectError
from perfbisect.ui.stream import note
from perfbisect.wording.text import printable

if TYPE_CHECKING:
    from perfbisect.hunt.batch import Task
    from perfbisect.hunt.watching import View
    from perfbisect.store.batches import Batch, Planned
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


VERDICTS = (0, 1, 2)  # exit statuses of hunts that have one


@click.command(epilog=EPILOG)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Check the file and print the hunts without beginning them.")
@click.option(
    "--anew", is_flag=True, help="Begin all hunts again, where an interrupted batch of the same FILE would go on."
)
@plain_option
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
            status = follow(tasks, opened, history, command_on("batch", str(file), history), plain=plain)
            if page:
                from perfbisect.cli.commands.report import write_all

                write_all(opened, page, history, {task.hunt for task in tasks if task.hunt is not None})
    return status


def tasks_of(batch: "Batch", history: "History", ranges: Sequence[str] = ()) -> "list[Task]":
    """The hunts of a batch that have no verdict yet, and those that have, which are shown only."""
    from perfbisect.hunt.batch import Stage, Task, failing, range_of

    tasks: list[Task] = []
    for one in batch.hunts:
        planned = one.planned
        span = ranges[one.number] if ranges else range_of(planned.folder, planned.arguments[-2:])
        task = Task(
            len(tasks), title_of(planned), planned.arguments, planned.folder, planned.hosts, span, batch.id, one.number,
            one.hunt,
        )  # fmt: skip
        if one.hunt is not None:
            with suppress(PerfBisectError) if one.status in VERDICTS else failing(task, history):
                task.choices = (history.settings(one.hunt).hosts,)
        if one.status in VERDICTS:
            task.stage, task.status = Stage.ENDED, one.status
        tasks.append(task)
    return tasks


def title_of(planned: "Planned") -> str:
    """The name of a hunt in all lines, before and after it has begun: system or repository, workload, range."""
    *options, good, bad = planned.arguments
    given = dict(word.removeprefix("--").split("=", 1) for word in options if "=" in word)
    system = given.get("builder") or Path(planned.folder, given.get("repo", "")).name
    workload = given.get("workload") or given.get("run", "")
    return " ".join(filter(None, (system, workload, f"{good}..{bad}")))


def state_of(task: "Task", history: "History") -> str:
    """How far a hunt is, in words."""
    from perfbisect.hunt.batch import Stage
    from perfbisect.wording.quantities import MISSING, chance

    if task.stage is Stage.WAITING:
        return str(task.stage)
    if task.stage is not Stage.ENDED:
        begins = task.stage is Stage.RUNNING and task.hunt is None  # not in the history yet
        return f"{'starting' if begins else str(task.stage)} on {', '.join(task.hosts)}"
    if task.status == INTERRUPTED:
        return "interrupted"
    if task.status in VERDICTS and task.hunt is not None:
        with suppress(PerfBisectError):  # of damaged rows: its exit status is known
            listed = history.listed(task.hunt)
            sure = MISSING if listed.probability is None else chance(listed.probability)
            return f"{listed.state} {listed.culprit[:10]} {sure}" if listed.culprit else listed.state
        return "ended"
    return f"failed: {task.failure or f'status {task.status}'}"


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
    from perfbisect.hunt.batch import Stage, carry_out
    from perfbisect.report.command_line import command_on
    from perfbisect.store.batches import end_batch, read_batch
    from perfbisect.ui.view_model import Row
    from perfbisect.wording.quantities import count

    view = view or view_of({}, given, "plain" if plain else None)
    logs = history.path.with_name(f"{history.path.stem}-batches")
    batches = dict.fromkeys(task.batch for task in tasks if task.batch is not None)

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
    for batch in batches:
        if all(one.status in VERDICTS for one in read_batch(history, batch).hunts):
            end_batch(history, batch, time.time())
    for task in tasks:
        if task.status not in VERDICTS:
            note(f"{printable(task.title)}: {printable(state_of(task, history))}")
            note(f"  its output: {task.log(logs)}")
    done = sum(task.status in VERDICTS for task in tasks)
    say(f"{done} of {count(len(tasks), 'hunt')} ended with a verdict.")
    for batch in batches:
        say(f"Their page: {command_on('report', f'b{batch}', given)}")
    if done < len(tasks):
        note(f"Go on with the others: {go_on}")
    return max((task.status or 0 for task in tasks), default=0)


def locked_hosts(task: "Task", host: str) -> tuple[str, ...]:
    """A host and those that build for it, which a hunt locks; none of those that a scheduler gives out."""
    from perfbisect.hunt.batch import LEASED
    from perfbisect.recipes.configuration import HOSTS
    from perfbisect.recipes.inventory import load_host

    if LEASED in host:  # its hunt waits in the queue of the scheduler
        return ()
    given = [word.removeprefix("--hosts=") for word in task.arguments if word.startswith("--hosts=")]
    file = Path(task.folder, given[0] if given else HOSTS)
    with suppress(PerfBisectError):  # which its hunt will tell
        builders = load_host(host, str(file) if given or file.exists() else "").built_elsewhere
        return (host, *(builder for builder in builders if LEASED not in builder))
    return (host,)


def batch_table(batch: "Batch", history: "History", width: int | None) -> list[str]:
    """The hunts of a batch with what has become of each, for `bisect show b1`."""
    from perfbisect.hunt.batch import Stage
    from perfbisect.wording.quantities import MISSING
    from perfbisect.wording.table import table

    rows = []
    for task, one in zip(tasks_of(batch, history), batch.hunts, strict=True):
        if one.status is not None:
            task.stage, task.status, task.failure = Stage.ENDED, one.status, one.failure
            state = state_of(task, history)
        else:
            state = "waiting" if one.hunt is None else history.listed(one.hunt).state
        rows.append((MISSING if one.hunt is None else str(one.hunt), printable(task.title), printable(state)))
    return [
        f"Batch {batch.name} {origin(batch)}",
        *table(("hunt", "what", "state"), rows, right=("hunt",), width=width, drop=()),
    ]


def origin(batch: "Batch") -> str:
    """What a batch consists of: the hunts of a file, or of workloads that share all builds."""
    return f"of {printable(batch.file)}" if batch.file else "of hunts that share all builds"


def batch_line(batch: "Batch") -> str:
    """A batch in a line, for `bisect history`."""
    begun = map(str, sorted(one.hunt for one in batch.hunts if one.hunt is not None))  # they begin in any order
    ended = sum(one.status in VERDICTS for one in batch.hunts)
    hunts = ", ".join(begun)
    hunts = f", hunts {hunts}" if hunts else ""
    what = printable(batch.file) if batch.file else "together"
    return f"{batch.name}: {what}{hunts}; {ended} of {len(batch.hunts)} with a verdict"
