"""`bisect history export` and `bisect history import`: histories of several people become one."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import EXISTING, FILE, history_option, say
from perfbisect.cli.options.completion import any_id
from perfbisect.cli.options.param_types import ANY, Id
from perfbisect.errors import UsageError
from perfbisect.store.connection import explained
from perfbisect.store.history import History
from perfbisect.ui.stream import note
from perfbisect.wording.quantities import count
from perfbisect.wording.text import printable

if TYPE_CHECKING:
    from perfbisect.store.transfer import Copied

SQLITE = b"SQLite format 3\0"  # the beginning of every database
CONFLICTS = 1  # exit status

EXPORT = """\b
Examples:
  bisect history export mine.db              everything
  bisect history export two.db 12 13 c3 b2   hunts 12 and 13 with their proofs, a comparison, and the hunts of a batch

\b
FILE is a history of its own: bisect show 12 --history FILE. Passwords in it are masked.
"""
IMPORT = """\b
Examples:
  bisect history import theirs.db
  bisect history import from-mail.db --from NAME
  bisect history import laptop.db --own        my hunts of another machine

\b
Importing a file twice adds nothing. Exit status: 0, or 1 where a hunt was continued in both histories: it stays as
it is here.
"""


@click.command(epilog=EXPORT)
@click.argument("file", type=FILE)
@click.argument("hunts", metavar="[HUNT…]", type=Id(ANY), nargs=-1, shell_complete=any_id)
@history_option
def export(file: Path, hunts: tuple[int | str, ...], history: Path | None) -> None:
    """Write HUNTs, comparisons and A/As (default: all) with everything about them to FILE, a new history."""
    from perfbisect.store import transfer
    from perfbisect.store.maker import copied

    if re.fullmatch(rf"[{ANY}]?\d{{1,15}}", str(file)):  # FILE was forgotten
        from perfbisect.report.command_line import history_option as same_history
        from perfbisect.wording.text import shell_words

        again = ["bisect", "history", "export", "hunts.db", str(file), *map(str, hunts), *same_history(history)]
        raise UsageError(f"{file} is an id, and FILE must come before it.", f"Write: {shell_words(again)}")
    if file.exists():
        raise UsageError(f"{file} exists already.", "Name another file, or remove it.")
    with closing(History.open(history)) as source, transfer.snapshot(source):
        wanted = transfer.completed(source, hunts) if hunts else transfer.everything(source)
        with explained(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            beside = TemporaryDirectory(prefix=f".{file.name}.", dir=file.parent)
        with beside as folder:
            partial = Path(folder) / file.name
            with closing(History.open(partial)) as target:
                with target.transaction():
                    done = transfer.copy(source, target, wanted, "", copied("exported"))
                target.connection.execute("PRAGMA journal_mode = DELETE")  # one file, also beside no other
            partial.rename(file)
    say(f"{file}: {contents(done)}")


@click.command(name="import", epilog=IMPORT)
@click.argument("files", metavar="FILE…", type=EXISTING, nargs=-1, required=True)
@click.option("--from", "origin", metavar="NAME", help="Whose they are. Default: the name of FILE without its ending.")
@click.option(
    "--own",
    is_flag=True,
    help="They are your own: hosts of the same names are the same machines, and hunts can be gone on with.",
)
@history_option
def import_(files: tuple[Path, ...], origin: str | None, own: bool, history: Path | None) -> int:
    """Add the hunts, comparisons and A/As of FILEs, with new numbers; what is known already is updated.

    What others have measured is listed and reported, but counts for no new hunt: a host of theirs is another machine, also
    where it has the same name.
    """
    from perfbisect.store import transfer
    from perfbisect.store.connection import default_place

    if own and origin:
        raise click.UsageError("--own and --from exclude each other: give one of them.")
    path = history or default_place()
    for file in files:
        if path.exists() and file.samefile(path):
            raise UsageError(f"{file} is the history itself.", "Name another file, or another history with --history.")
    conflicts = 0
    with closing(History.open(path)) as target:
        for file in files:
            with foreign(file) as source, transfer.snapshot(source):
                wanted = transfer.everything(source)
                transfer.check(source, wanted)  # nothing of a file with mistakes is imported
                done = transfer.copy(source, target, wanted, "" if own else origin or file.stem)
            conflicts += tell(file, done)
    return CONFLICTS if conflicts else 0


@contextmanager
def foreign(file: Path) -> Iterator[History]:
    """A history of someone else, open for reading."""
    from perfbisect.store.connection import NoHistory
    from perfbisect.store.transfer import check_pages

    try:
        opened = History.open(file, read_only=True)
    except NoHistory as wrong:  # its advice is about the user's own history
        with file.open("rb") as stream:
            begun = stream.read(len(SQLITE))
        known = {b"": "it is empty", SQLITE: "it is an SQLite database, but no history of perfbisect"}
        what = known.get(begun, "it is no SQLite database")
        raise UsageError(
            f"{printable(str(file))} cannot be imported: {what}.",
            "Give the history of someone, or what `bisect history export` has written.",
        ) from wrong
    with closing(opened):
        check_pages(opened.connection, file)
        yield opened


def tell(file: Path, done: "Sequence[Copied]") -> int:
    """Say what has become of the hunts of a file; returns the number of conflicts."""
    name = printable(str(file))
    for one in done:
        same = f"{one.name} is {one.here} here"
        if one.how in ("new", "grown"):
            say(f"{same}, which has grown" if one.how == "grown" else same)
        elif one.how == "conflict":
            note(f"{name}: {same}, but differs from it: it stays as it is here.")
    found = Counter(one.how for one in done)
    say(f"{name}: {found['new']} new, {found['grown']} grown, {found['known']} known already")
    return found["conflict"]


def contents(done: "Sequence[Copied]") -> str:
    """How much was written."""
    hunts = sum(one.name.startswith("hunt") for one in done)
    others = len(done) - hunts
    return count(hunts, "hunt") + (f"; comparisons, proofs and A/As: {others}" if others else "")
