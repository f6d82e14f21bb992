"""`bisect report` writes the report of a session (hunt, comparison, proof or A/A test) as an HTML page, the profiles of
a hunt as files, or the pages of all sessions of a history.

`bisect show` prints the report of a session.
"""

from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import (
    FILE,
    FOLDER,
    PATH,
    CommandOptions,
    history_option,
    id_argument,
    options_command,
    output_width,
    say,
    say_json,
)
from perfbisect.cli.options.param_types import ANY
from perfbisect.cli.options.stored import (
    DELIMITERS,
    LazyClone,
    form_option_group,
    from_option,
    opened_session,
    print_document,
    print_trial,
    trial_or_batch_id,
)
from perfbisect.errors import PerfBisectError, UsageError
from perfbisect.store.batches import Batch, read_batch
from perfbisect.store.history import History
from perfbisect.ui.stream import note
from perfbisect.wording.quantities import MISSING
from perfbisect.wording.text import printable

if TYPE_CHECKING:
    from perfbisect.hunt.slurm import Jobs


@options_command()
@id_argument(ANY)
@click.option(
    "--output", "-o", metavar="FILE", type=PATH,
    help="File to write; for a batch, a folder. Default: hunt-12.html, c3.html, … in the current folder.",
)  # fmt: skip
@click.option("--markdown", is_flag=True, help="Print Markdown for an issue. Write no page.")
@click.option(
    "--speedscope", metavar="FILE", type=FILE,
    help="Also write the profiles of culprit and parent for speedscope.",
)  # fmt: skip
@click.option(
    "--folded", metavar="FOLDER", type=FOLDER,
    help="Also write these profiles as folded stacks: parent.folded and culprit.folded.",
)  # fmt: skip
@click.option(
    "--all",
    "everything",
    metavar="FOLDER",
    type=FOLDER,
    help="Write an index and a page for each session of the history.",
)
@from_option
@history_option
def report(given: CommandOptions) -> None:
    """Write the report of HUNT (default: the latest) as an HTML page: verdict, runs, reason, diff, flame graph, costs.

    \b
    Examples:
      bisect report                          the latest hunt; the file is hunt-12.html
      bisect report 12 --output why.html     hunt 12; the file is why.html
      bisect report c3                       a comparison
      bisect report b2 --output pages/       a batch: an index and a page for each hunt
      bisect report 12 --markdown            Markdown, on standard output
      bisect report 12 --speedscope 12.json  for https://www.speedscope.app
      bisect report --all pages/             an index and a page for each session
      bisect report ORIGIN:12 --from central    a hunt in the central history of a team

    \b
    A page is one file and needs no network. You can mail a page, or attach a page to an issue.
    """
    hunt, history, central, everything = given.hunt, given.history, given.central, given.everything
    output, markdown, profiles = given.output, given.markdown, given.speedscope or given.folded
    name = trial_or_batch_id(hunt)
    if everything and (hunt is not None or output or markdown or profiles):
        raise click.UsageError("--all writes the pages of all sessions. Omit HUNT and the options for a single page.")
    if markdown and output:
        raise click.UsageError("--markdown and --output exclude each other. Omit one of them.")
    if name.startswith("b") and (markdown or profiles):
        raise click.UsageError(f"{name} is a batch. A batch has an index and pages, but no Markdown and no profiles.")
    if name and profiles:
        text = f"{name} has no profiles. Profiles are recorded after the verdict of a hunt."
        raise UsageError(text, "Give the number of a hunt.")
    if everything and central:
        raise click.UsageError(
            "--all and --from exclude each other. To see all pages of a central history: bisect serve --from URL"
        )
    if everything:
        with closing(History.open(history, read_only=True)) as opened:
            write_all_pages(opened, everything, history)
        return
    with opened_session(hunt, history, central) as (opened, session_id, called):
        if name.startswith("b"):
            batch = read_batch(opened, int(name[1:]))
            begun = {hunt_of_batch.hunt for hunt_of_batch in batch.hunts if hunt_of_batch.hunt is not None}
            folder = output or Path(f"batch-{str(called).removesuffix(name)}{batch.id}")
            write_all_pages(opened, folder, history, begun)
        else:
            if isinstance(session_id, int) and profiles:
                write_profiles(opened, session_id, given.speedscope, given.folded)
            if not markdown:
                write_and_print_path(output or Path(page_name(called)), session_page_html(opened, session_id, history))
    if markdown:
        click.get_current_context().invoke(show, hunt=hunt, history=history, central=central, form="markdown")


def page_name(hunt: int | str) -> str:
    """The file name of a session's page, such as hunt-12.html or c3.html; for a session of a central history, such as
    hunt-ORIGIN:12.html or ORIGIN:c3.html."""
    return f"{'hunt-' * str(hunt).rpartition(':')[2].isdecimal()}{hunt}.html"


def session_page_html(history: History, session: int | str, history_option: Path | None, index: str = "") -> str:
    """The HTML page of a hunt or a trial. ``history_option`` is the value of the option --history, which commands on
    the page repeat."""
    if isinstance(session, str):
        from perfbisect.report.page.pages import session_page
        from perfbisect.report.trial import document

        return session_page(document(history.trial(session), for_page=True, history=history_option), index)
    from perfbisect.report import hunt as hunts
    from perfbisect.report.hunt_report import read_hunt_report
    from perfbisect.report.page.pages import session_page

    clone = LazyClone(Path(history.settings(session).repository))
    hunt_report = read_hunt_report(history, session, clone.describe, clone.link)
    return session_page(hunts.document(hunt_report, clone.diff), index)


def write_profiles(history: History, hunt: int, speedscope: Path | None, folded: Path | None) -> None:
    """Write the profiles of a hunt to the requested files. Raises UsageError if the hunt has no profiles."""
    from perfbisect.report import profiles as files
    from perfbisect.report.hunt_report import read_hunt_report

    profiles = read_hunt_report(history, hunt).profiles
    if profiles is None:
        advice = "Profiles are recorded after the verdict, if perf can sample on the host."
        raise UsageError(f"Hunt {hunt} has no profiles.", advice)
    if speedscope:
        write_and_print_path(speedscope, files.speedscope_json(profiles, f"hunt {hunt}"))
    if folded:
        write_and_print_path(folded / "parent.folded", files.folded_text(profiles.parent))
        write_and_print_path(folded / "culprit.folded", files.folded_text(profiles.culprit))


def write_all_pages(history: History, folder: Path, path: Path | None, hunts: Collection[int] | None = None) -> None:
    """Write the pages of all sessions, or only the pages of ``hunts``, and write the index.

    If the data of a session are damaged, no page is written for the session, and its name and the reason are printed.
    """
    from perfbisect.report.document import Cell
    from perfbisect.report.page.pages import index_page

    cells = dict[int | str, Cell]()
    everything = [session for session in history.hunts_and_trials() if hunts is None or session.id in hunts]
    for session in everything:
        cells[session.id] = Cell(str(session.id))
        try:
            page = session_page_html(history, session.id, path, index="index.html")
        except PerfBisectError as trouble:
            note(f"Session {session.id} has no page, because it cannot be read; all other pages are written. {trouble}")
            continue
        cells[session.id] = Cell(str(session.id), link=page_name(session.id))
        write_and_print_path(folder / page_name(session.id), page, quiet=True)
    write_and_print_path(folder / "index.html", index_page(everything, lambda session: cells[session.id]))


def write_and_print_path(path: Path, text: str, *, quiet: bool = False) -> None:
    """Write a file, create its folder if necessary, and print the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as trouble:
        trouble.filename = path  # set only by a failed opening, not by a failed write
        raise
    if not quiet:
        say(str(path))


@options_command()
@id_argument(ANY)
@form_option_group
@from_option
@history_option
def show(given: CommandOptions) -> None:
    """Print the report of HUNT (default: the latest): verdict, proof, reason, candidates, counters, costs.

    \b
    Examples:
      bisect show              the latest hunt
      bisect show 12           hunt 12
      bisect show 12 --markdown > issue.md    a report for an issue or a mail
      bisect show 12 --json | jq .cases       a part of the report as JSON
      bisect show c3           a comparison, with its counters
      bisect show c3 --tsv     the tables of the comparison, for other programs
      bisect show p5           a proof
      bisect show n4           an A/A test
      bisect show b2           a batch: its hunts and their verdicts
      bisect show ORIGIN:12 --from central    a hunt in the central history of a team
    """
    from perfbisect.report import hunt as builder
    from perfbisect.report.command_line import bisect_command
    from perfbisect.report.hunt_report import read_hunt_report
    from perfbisect.report.markdown import code_block_lines

    form, history, name = given.form, given.history, trial_or_batch_id(given.hunt)
    if name.startswith("b") and form in ("json", *DELIMITERS):
        raise click.UsageError(
            f"{name} is a batch, which has no --{form}. Show one of its hunts: bisect show HUNT --{form}"
        )
    if not name and form in DELIMITERS:
        raise click.UsageError(f"--{form} needs a comparison, such as c3. For hunts as CSV: bisect query SQL --csv")
    with opened_session(given.hunt, history, given.central) as (opened, session_id, called):
        if name.startswith("b"):
            batch = read_batch(opened, int(name[1:]))
            table = batch_lines(batch, opened, output_width(), shown_name=str(called))
            if batch.is_submitted and not given.central:
                table.append(f"To see its Slurm jobs: {bisect_command('batch', name, history)}")
            say("\n".join(code_block_lines(table) if form == "markdown" else table))
        elif name:
            trial = opened.trial(name)
            if form in DELIMITERS and not name.startswith("c"):
                raise click.UsageError(f"--{form} needs a comparison, such as c3, but {name} is not a comparison.")
            print_trial(trial, form, detailed=True)
        else:
            number = int(session_id)
            clone = LazyClone(Path(opened.settings(number).repository))
            report = read_hunt_report(opened, number, clone.describe, clone.link)
            if form == "json":
                from perfbisect.report import published

                say_json(published.json_text(published.hunt_object(report)))
            else:
                print_document(builder.document(report), form)


def batch_lines(
    batch: Batch, history: History, width: int | None, jobs: "Jobs | None" = None, shown_name: str = ""
) -> list[str]:
    """The hunts of a batch with their states; if ``jobs`` is given, also the states of the batch's jobs in Slurm.

    If ``shown_name`` is not empty, the output has this name in place of the name that the batch has in ``history``.
    """
    from perfbisect.hunt.batch import Stage, state_text, tasks_of
    from perfbisect.wording.table import table

    rows = []
    for task, hunt in zip(tasks_of(batch, history), batch.hunts, strict=True):
        if hunt.status is not None:
            task.stage, task.status, task.failure = Stage.ENDED, hunt.status, hunt.failure
            state = state_text(task, history)
        else:
            unbegun = "not begun" if hunt.job else "not submitted" if batch.is_submitted else "waiting"
            state = history.session_summary(hunt.hunt).state if hunt.hunt else unbegun
        row: tuple[str, ...] = (MISSING if hunt.hunt is None else str(hunt.hunt), printable(task.title))
        if jobs is not None:
            job = jobs.get(hunt.job)
            state = MISSING if job and job.is_open and hunt.status is None else state
            job_state = str(job or ("unknown to Slurm" if hunt.job else MISSING))
            row = (str(hunt.number + 1), *row, hunt.job or MISSING, job_state)
        rows.append((*row, printable(state)))
    head = ("hunt", "title", "state") if jobs is None else ("", "hunt", "title", "job", "Slurm", "state")
    origin = f"of {printable(batch.file)}" if batch.file else "of hunts that share all builds"
    return [f"Batch {shown_name or batch.name} {origin}", *table(head, rows, right=("", "hunt", "job"), width=width)]
