"""`bisect show`: report one hunt, one comparison, one proof or one A/A."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import Given, history_option, id_argument, output_width, say, say_json, verb_command
from perfbisect.cli.options.param_types import ANY
from perfbisect.cli.options.stored import (
    DELIMITERS,
    Clone,
    form_options,
    from_option,
    id_of_other,
    opened_for,
    print_document,
    print_trial,
)
from perfbisect.store.history import History

if TYPE_CHECKING:
    from perfbisect.hunt.slurm import Jobs
    from perfbisect.store.batches import Batch


@verb_command()
@id_argument(ANY)
@form_options
@from_option
@history_option
def show(given: Given) -> None:
    """Report HUNT (default: the latest): verdict, proof, reason, candidates, counters, costs; or a trial.

    \b
    Examples:
      bisect show              the latest hunt
      bisect show 12
      bisect show 12 --markdown > issue.md
      bisect show 12 --json | jq .cases
      bisect show c3           a comparison, its counters included
      bisect show c3 --tsv     its tables, to be read by programs; also --csv
      bisect show p5           a proof
      bisect show n4           an A/A
      bisect show b2           a batch: its hunts and their verdicts
      bisect show ORIGIN:12 --from central
    """
    from perfbisect.report import hunt as builder
    from perfbisect.report.command_line import command_on
    from perfbisect.report.hunt_report import read_hunt
    from perfbisect.report.markdown import fenced
    from perfbisect.store.batches import read_batch

    form, history, name = given.form, given.history, id_of_other(given.hunt)
    if name.startswith("b") and form in ("json", *DELIMITERS):
        raise click.UsageError(f"{name} is a batch: it is shown as a table only; its hunts have other forms.")
    if not name and form in DELIMITERS:
        raise click.UsageError(f"--{form} is for comparisons, as c3; `bisect query` prints hunts as CSV.")
    with opened_for(given.hunt, history, given.central) as (opened, wanted, called):
        if name.startswith("b"):
            batch = read_batch(opened, int(name[1:]))
            table = batch_table(batch, opened, output_width(), called=str(called))
            if batch.submitted and not given.central:
                table.append(f"Its jobs: {command_on('batch', name, history)}")
            say("\n".join(fenced(table) if form == "markdown" else table))
        elif name:
            trial = opened.trial(name)
            if form in DELIMITERS and not name.startswith("c"):
                raise click.UsageError(f"--{form} is for comparisons, and {name} is none.")
            print_trial(trial, form, detailed=True)
        else:
            number = int(wanted)
            clone = Clone(Path(opened.settings(number).repository))
            report = read_hunt(opened, number, clone.describe, clone.link)
            if form == "json":
                from perfbisect.report import published

                say_json(published.encoded(published.of_hunt(report)))
            else:
                print_document(builder.document(report), form)


def batch_table(
    batch: "Batch", history: History, width: int | None, jobs: "Jobs | None" = None, called: str = ""
) -> list[str]:
    """The hunts of a batch with what has become of each; with ``jobs``, also what Slurm says of those that are its jobs.

    ``called`` is its name where that is another than in this history.
    """
    from perfbisect.hunt.batch import Stage, state_of, tasks_of
    from perfbisect.wording.quantities import MISSING
    from perfbisect.wording.table import table
    from perfbisect.wording.text import printable

    rows = []
    for task, one in zip(tasks_of(batch, history), batch.hunts, strict=True):
        if one.status is not None:
            task.stage, task.status, task.failure = Stage.ENDED, one.status, one.failure
            state = state_of(task, history)
        else:
            state = history.listed(one.hunt).state if one.hunt else "not begun" if one.job else "waiting"
        row: tuple[str, ...] = (MISSING if one.hunt is None else str(one.hunt), printable(task.title))
        if jobs is not None:
            job = jobs.get(one.job)
            state = MISSING if job and job.is_open and one.status is None else state
            known = str(job or ("no longer known" if one.job else MISSING))
            row = (str(one.number + 1), *row, one.job or MISSING, known)
        rows.append((*row, printable(state)))
    head = ("hunt", "what", "state") if jobs is None else ("", "hunt", "what", "job", "Slurm", "state")
    origin = f"of {printable(batch.file)}" if batch.file else "of hunts that share all builds"
    return [f"Batch {called or batch.name} {origin}", *table(head, rows, right=("", "hunt", "job"), width=width)]
