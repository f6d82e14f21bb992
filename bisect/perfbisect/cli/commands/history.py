"""`bisect history`: lists the stored sessions (hunts, comparisons, proofs and A/A tests); its subcommands copy sessions
from and to other histories.

`bisect push`: copies new sessions of the local history to a central history, a PostgreSQL database that a team reads.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import (
    EXISTING,
    FILE,
    CommandOptions,
    history_option,
    json_option,
    options_command,
    output_width,
    say,
    say_object,
    show_clone_progress,
)
from perfbisect.cli.options.completion import complete_id
from perfbisect.cli.options.param_types import ANY, SessionIdParam
from perfbisect.cli.options.stored import from_option, opened_history
from perfbisect.errors import ENVIRONMENT, EnvironmentFailure, UsageError
from perfbisect.store.batches import all_batches
from perfbisect.store.connection import default_history_path, sqlite_errors_explained
from perfbisect.store.history import History
from perfbisect.store.listing import SessionSummary
from perfbisect.ui.stream import note
from perfbisect.wording.quantities import MISSING, chance, count, moment, one_or_count
from perfbisect.wording.text import printable, shell_words

if TYPE_CHECKING:
    from perfbisect.store.batches import Batch
    from perfbisect.store.transfer import CopyResult

# The columns that a narrow terminal omits, in the order in which they are omitted.
DISPENSABLE = ("runs", "builds", "host", "prob.", "builder", "range", "when")
HEAD = ("id", "when", "builder", "workload", "host", "range", "builds", "runs", "culprit", "prob.", "state", "subject")
DONE = {"compare": "compared", "prove": "proved", "noise": "A/A test"}  # kind of a complete trial → its state
CONFLICTS = 1  # exit status
ORIGIN = HEAD.index("range")  # the index of the column with the origin of imported hunts


@options_command(click.Group, invoke_without_command=True)
@json_option("Print a JSON array; `kind` is hunt, compare, prove or noise.")
@from_option
@history_option
def history(given: CommandOptions) -> None:
    """List hunts, comparisons, proofs and A/A tests, the oldest first. Subcommands copy sessions between histories.

    \b
    Examples:
      bisect history                    list all sessions
      bisect history --json | jq '.[] | select(.state == "found")'   only hunts with a culprit
      bisect history export mine.db     write a copy; see bisect history export --help
      bisect history import theirs.db   add the sessions of another history
      bisect history --from central     list the sessions of a team; see bisect push --help

    \b
    Ids: 12 is a hunt, c3 a comparison, p5 a proof, n4 an A/A test. `bisect show ID` prints the report. The history is an
    SQLite file, which `bisect query`, sqlite-utils and Datasette can read.
    """
    if click.get_current_context().invoked_subcommand:
        return
    with opened_history(given.history, given.central) as opened:
        done = opened.hunts_and_trials()
        if given.as_json:
            say_object([{"kind": session.kind} | session.as_json_object() for session in done])
        else:
            say(session_table(done, central=given.central is not None))
            if isinstance(opened, History) and (batches := all_batches(opened)):
                say("\n".join(["", *map(batch_line, batches)]))


def session_table(sessions: Sequence[SessionSummary], *, central: bool = False) -> str:
    """The table of hunts and trials. If ``central`` is true, the id of each session is preceded by its origin, the name
    of the history from which the session came."""
    from perfbisect.wording.table import table

    if not sessions:
        return "The history has no hunts yet. `bisect run` begins a hunt."
    rows = [session_row(session) for session in sessions]
    head: tuple[str, ...] = HEAD
    if central:
        rows = [(f"{session.origin}:{cells[0]}", *cells[1:]) for cells, session in zip(rows, sessions, strict=True)]
    elif any(session.origin for session in sessions):  # hosts of imported sessions are other machines
        head = (*HEAD[:ORIGIN], "origin", *HEAD[ORIGIN:])
        rows = [(*row[:ORIGIN], session.origin, *row[ORIGIN:]) for row, session in zip(rows, sessions, strict=True)]
    printed = [tuple(map(printable, cells)) for cells in rows]
    lines = table(head, printed, right=("id", "builds", "runs", "prob."), width=output_width(), drop=DISPENSABLE)
    pairs = zip(printed, sessions, strict=True)
    names = {"c": "a comparison", "p": "a proof", "n": "an A/A test (a build against itself)"}
    shown = {str(session.id)[0]: str(session.id) for session in reversed(sessions)}
    examples = [f"{shown[letter]} is {name}" for letter, name in names.items() if letter in shown and not central]
    return "\n".join(
        [
            *lines,
            *(f"Session {id_} failed: {printable(session.failure)}" for (id_, *_), session in pairs if session.failure),
            *([f"Ids: {', '.join(examples)}. `bisect show ID` prints the report."] if examples else []),
        ]
    )


def session_row(session: SessionSummary) -> tuple[str, ...]:
    """The row of a hunt or a trial in the table of sessions."""
    builds = session.builds if session.kind == "hunt" else len(session.compared)
    workloads = one_or_count(session.workloads)
    measured = session.builder, workloads, session.host, session.range_or_builds, str(builds), str(session.runs)
    verdict = (session.culprit[:10] if session.culprit else MISSING, chance(session.probability))
    state = DONE.get(session.kind, "") if session.state == "done" else session.state
    return str(session.id), moment(session.started), *measured, *verdict, state, session.subject


def batch_line(batch: "Batch") -> str:
    """The row of a batch in the table of `bisect history`."""
    from perfbisect.hunt.batch import VERDICTS

    begun = sorted(hunt.hunt for hunt in batch.hunts if hunt.hunt is not None)  # hunts of a batch begin in any order
    ended = sum(hunt.status in VERDICTS for hunt in batch.hunts)
    hunts = f"hunts {', '.join(map(str, begun))}" if begun else "no hunt"
    source = printable(batch.file) if batch.file else "one command"
    return f"{batch.name}: {hunts} of {source}; {ended} of {len(batch.hunts)} have a verdict"


@options_command(parent=history)
@click.argument("file", type=FILE)
@click.argument("hunts", metavar="[HUNT…]", type=SessionIdParam(ANY), nargs=-1, shell_complete=complete_id)
@history_option
def export(given: CommandOptions) -> None:
    """Copy HUNTs, comparisons and A/A tests (default: all), with their logs, to FILE, a new history.

    \b
    Examples:
      bisect history export mine.db              all sessions
      bisect history export two.db 12 13 c3 b2   hunts 12 and 13 with their proofs, a comparison, and the hunts of a batch

    \b
    FILE is a complete history: bisect show 12 --history FILE. Passwords in FILE are masked.
    """
    from perfbisect.store import transfer
    from perfbisect.store.connection import history_option as same_history

    file, hunts, history = given.file, given.hunts, given.history
    if re.fullmatch(rf"[{ANY}]?\d{{1,15}}", str(file)):  # FILE is missing, and the first id is in its place
        again = ["bisect", "history", "export", "hunts.db", str(file), *map(str, hunts), *same_history(history)]
        raise UsageError(f"FILE is missing: {file} is the id of a session.", f"Write: {shell_words(again)}")
    if file.exists():
        raise UsageError(f"{file} exists already.", "Give another FILE, or remove the file.")
    with closing(History.open(history)) as source, transfer.reading_snapshot(source):
        selection = transfer.numbers_with_related(source, hunts) if hunts else transfer.all_session_numbers(source)
        with sqlite_errors_explained(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            beside = TemporaryDirectory(prefix=f".{file.name}.", dir=file.parent)
        with beside as folder:
            unfinished = Path(folder) / file.name
            with closing(History.open(unfinished)) as target:
                with target.transaction():
                    done = transfer.copy_sessions(source, target, selection, "", "exported")
                target.connection.execute("PRAGMA journal_mode = DELETE")  # a history in one file, without FILE-wal
            unfinished.rename(file)
    hunts_written = sum(copied.source_name.startswith("hunt") for copied in done)
    trials = len(done) - hunts_written
    also = f" and {count(trials, 'other session')} (comparisons, proofs, A/A tests)" if trials else ""
    say(f"Written to {file}: {count(hunts_written, 'hunt')}{also}")


@options_command(parent=history, name="import")
@click.argument("files", metavar="FILE…", type=EXISTING, nargs=-1, required=True)
@click.option(
    "--from", "origin", metavar="NAME", help="Name of the owner of FILE. Default: the name of FILE without its suffix."
)
@click.option(
    "--own",
    is_flag=True,
    help="The sessions are your own: hosts with equal names are the same machines, and `bisect resume` continues the sessions.",
)
@history_option
def import_(given: CommandOptions) -> int:
    """Add the hunts, comparisons and A/A tests of FILEs to the history. The sessions get new numbers. Sessions that were
    imported before are updated.

    Imported sessions are listed and reported, but no new hunt uses their runs: their hosts are other machines than
    yours, even if the names are equal.

    \b
    Examples:
      bisect history import theirs.db                  add all sessions of theirs.db
      bisect history import from-mail.db --from NAME   store NAME as the owner of the sessions
      bisect history import laptop.db --own            my own hunts, from another machine

    \b
    Importing a file twice adds nothing. Exit status: 0, or 1 if a hunt was continued in both histories; this hunt
    then stays unchanged in your history.
    """
    from perfbisect.store import transfer

    if given.own and given.origin:
        raise click.UsageError("--own and --from exclude each other. Omit one of them.")
    path = given.history or default_history_path()
    for file in given.files:
        if path.exists() and file.samefile(path):
            text = f"{file} is the history into which sessions are imported."
            raise UsageError(text, "Give another FILE, or another history with --history.")
    conflicts = 0
    with closing(History.open(path)) as target:
        for file in given.files:
            with foreign_history(file) as source, transfer.reading_snapshot(source):
                selection = transfer.all_session_numbers(source)
                try:
                    transfer.check_copyable(source, selection)
                except EnvironmentFailure as failure:
                    raise EnvironmentFailure(str(failure), f"Nothing was imported. {failure.advice}") from failure
                done = transfer.copy_sessions(source, target, selection, "" if given.own else given.origin or file.stem)
            conflicts += print_and_count_conflicts(file, done)
    return CONFLICTS if conflicts else 0


@contextmanager
def foreign_history(file: Path) -> Iterator[History]:
    """The history of another user, open for reading."""
    from perfbisect.store.connection import NoHistory
    from perfbisect.store.transfer import check_file_integrity

    try:
        opened = History.open(file, read_only=True)
    except NoHistory as wrong:  # replaces the advice, which is about the user's own history
        advice = "Give the file of a history, or a file that `bisect history export` has written."
        raise UsageError(str(wrong), advice) from wrong
    with closing(opened):
        check_file_integrity(opened.connection, file)
        yield opened


def print_and_count_conflicts(file: Path, imported: "Sequence[CopyResult]") -> int:
    """Print what was done with each session of a file; returns the number of conflicts."""
    from perfbisect.report.command_line import bisect_command

    name = printable(str(file))
    for copied in imported:
        numbers = f"{copied.source_name} of the file is {copied.target_name} in your history"
        if copied.outcome in ("new", "grown"):
            say(f"{numbers}; new events were added" if copied.outcome == "grown" else numbers)
        elif copied.outcome == "conflict":
            note(
                f"{name}: {numbers}, but each was continued separately, so the logs differ. Your history is unchanged."
                f" To see the other log: {bisect_command('show', copied.source_name.removeprefix('hunt '), file)}"
            )
    counts = Counter(copied.outcome for copied in imported)
    say(f"{name}: {count(counts['new'], 'session')} added, {counts['grown']} updated, {counts['known']} unchanged")
    return counts["conflict"]


@options_command()
@click.option(
    "--to", "address", metavar="URL", help="Address of the central history. Default: the address in config.toml."
)
@click.option(
    "--as",
    "origin",
    metavar="ORIGIN",
    help="Name of this history in the central history. Default: `origin` in config.toml.",
)
@click.option("--sql", is_flag=True, help="Print the SQL that creates a central history. Push nothing.")
@history_option
def push(given: CommandOptions) -> int:
    """Copy new hunts, comparisons and A/A tests of the local history to a central history in PostgreSQL.

    \b
    Examples:
      bisect push --sql | psql postgresql://HOST/DATABASE       once: create tables, views and roles
      bisect push --to postgresql://HOST/DATABASE --as ORIGIN   to this address, as ORIGIN
      bisect push                                               to the address in config.toml
      bisect history --from central                             list the sessions of the central history
      bisect show ORIGIN:12 --from central                      print hunt 12 of ORIGIN

    \b
    With these lines in config.toml, each session is pushed while it runs, and when it ends:
      [central]
      address = "postgresql://HOST/DATABASE"   # the password is in ~/.pgpass
      origin = "ORIGIN"                        # default: USER@MACHINE

    \b
    Only new data is sent. To continue an interrupted push, repeat the command. Passwords in addresses are masked.
    Exit status: 0 all sessions were pushed, 4 some were not.
    """
    from perfbisect.hunt.notification import history_origin
    from perfbisect.recipes.configuration import required_central_address
    from perfbisect.store.central import central_connection, central_schema_sql
    from perfbisect.store.push import push as push_all

    if given.sql:
        say("\n".join(central_schema_sql()))
        return 0
    address = given.address or required_central_address()
    origin = history_origin(given.origin)
    with (
        closing(History.open(given.history, read_only=True)) as opened,
        central_connection(address, is_push=True) as central,
    ):
        done = push_all(opened, central, origin, report_progress=partial(show_clone_progress, "Sessions"))
    for sentence in done.refused:
        note(f"A session was not pushed: {printable(sentence)}")
    amount = f"{count(done.entries, 'event')} of {count(done.sessions, 'session')}"
    place = printable(address)
    say(f"Pushed {amount} to {place} as {origin}." if done.sessions else f"{place} already has all sessions.")
    return ENVIRONMENT if done.refused else 0
