"""Reads a stored session from the local or a central history, and prints the session as text, JSON or Markdown.

The report of a comparison can also be printed as CSV or TSV.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from perfbisect.cli.options.common import adding_options, output_width, say, say_json, say_styled
from perfbisect.errors import PerfBisectError
from perfbisect.store.history import History

if TYPE_CHECKING:
    from perfbisect.core.domain.events import Commit
    from perfbisect.core.domain.session_state import SessionState
    from perfbisect.report.document import Document
    from perfbisect.repository.git import Repository
    from perfbisect.store.central import CentralReader

T = TypeVar("T")

DELIMITERS = {"csv": ",", "tsv": "\t"}
FORMS = {  # option → its help
    "markdown": "Print Markdown for an issue.",
    "json": "Print JSON.",
    "csv": "Print the tables of a comparison as comma-separated values.",
    "tsv": "Print the tables of a comparison as tab-separated values.",
}


def central_address(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """The address of the central history that the option --from gives; if its value is the word ``central``, the
    address in config.toml."""
    if value != "central":
        return value
    from perfbisect.recipes.configuration import required_central_address

    return required_central_address()


from_option = click.option(
    "--from", "central", metavar="URL", is_eager=True,  # eager: is read before the ids of hunts
    callback=central_address,
    help="Read the central history of a team: postgresql://HOST/DATABASE, or `central` for the address in config.toml. Ids of its hunts are ORIGIN:NUMBER; ORIGIN is the name of the history from which the hunt was copied.",
)  # fmt: skip


def trial_or_batch_id(hunt: int | str | None) -> str:
    """The id of a trial or a batch, such as c3, without the ORIGIN: that precedes an id in a central history; "" for a
    hunt."""
    match = re.fullmatch(r"(?:.*:)?([cpnb]\d+)", str(hunt))
    return match[1] if match else ""


@contextmanager
def opened_history(history: Path | None, central: str | None) -> "Iterator[History | CentralReader]":
    """The local history or a central history, opened for reading."""
    if central is None:
        with closing(History.open(history, read_only=True)) as opened:
            yield opened
    else:
        from perfbisect.store.central import CentralReader, central_connection

        with central_connection(central) as connection:
            yield CentralReader(central, connection)


@contextmanager
def opened_session(
    hunt: int | str | None, history: Path | None, central: str | None
) -> Iterator[tuple[History, int | str, int | str]]:
    """Yields three values: a history that contains the session ``hunt``, the id of the session in this history, and the
    id that the user sees, such as ORIGIN:12 for a session of a central history.

    If ``hunt`` is None, the session is the latest hunt. A session of a central history is copied to a temporary history
    in memory.
    """
    with opened_history(history, central) as opened:
        if isinstance(opened, History):
            number = opened.latest_hunt() if hunt is None else hunt
            yield opened, number, number
        else:
            with opened.session_copy(None if hunt is None else str(hunt)) as session:
                yield session


def form_option_group(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds an option for each output format, such as --json, to ``command``. The command's parameter ``form`` is the
    name of the chosen format, or "" for text."""

    def choose(ctx: click.Context, param: click.Parameter, is_used: bool) -> None:
        form, name = ctx.params.setdefault("form", ""), param.opts[0].removeprefix("--")
        if form and is_used:
            raise click.UsageError(f"--{form} and --{name} exclude each other. Omit one of them.")
        ctx.params["form"] = name if is_used else form

    flags = (
        click.option(f"--{name}", f"as_{name}", is_flag=True, expose_value=False, callback=choose, help=text)
        for name, text in FORMS.items()
    )
    return adding_options(*flags)(command)


def print_trial(trial: "SessionState", form: str, *, detailed: bool) -> None:
    """Print the report of a trial in the output format ``form``. If ``detailed`` is true, a text report also says how
    the trial was measured, and a Markdown report also contains the costs per operation.
    """
    from perfbisect.report import markdown, published
    from perfbisect.report.trial import document

    if form == "json":
        say_json(published.json_text(published.trial_object(trial)))
    elif form in DELIMITERS:
        say("\n".join(markdown.delimited_lines(document(trial), DELIMITERS[form])))
    else:
        print_document(document(trial, detailed=detailed), form, header=detailed)


def print_document(document: "Document", form: str, *, header: bool = True) -> None:
    """Print a document as text or Markdown."""
    if form == "markdown":
        from perfbisect.report import markdown

        say("\n".join(markdown.document_lines(document)))
    else:
        from perfbisect.report import terminal

        say_styled(terminal.document_lines(document, output_width(), header=header))


class LazyClone:
    """Gives facts about commits from the repository at a path. The repository is opened when the first fact is needed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def describe(self, sha: str) -> "Commit":
        """The date, author and title of the commit with the full hash ``sha``; only the hash if the repository lacks
        the commit."""
        from perfbisect.core.domain.events import Commit
        from perfbisect.repository.commits import describe_commit

        return self.answer_or(lambda repository: describe_commit(repository, sha), Commit(sha))

    def link(self, sha: str) -> str:
        """The web page of a commit on the site that hosts the repository's remote; "" if there is none."""
        from perfbisect.repository.commits import commit_web_page

        return self.answer_or(lambda repository: commit_web_page(repository, sha), "")

    def diff(self, old: str, new: str) -> tuple[str, int] | None:
        """The diff of two commits, and the number of files that the diff omits; None if the repository lacks one of the
        commits."""
        from perfbisect.repository.commits import unified_diff

        difference = self.answer_or(lambda repository: unified_diff(repository, old, new), None)
        return (difference.text, difference.left_out) if difference else None

    def answer_or(self, ask: "Callable[[Repository], T]", otherwise: T) -> T:
        """The result of the function ``ask``, called with the repository; ``otherwise`` if the repository cannot be
        used, or if ``ask`` fails."""
        try:
            return ask(self.opened)
        except PerfBisectError:
            return otherwise

    @cached_property
    def opened(self) -> "Repository":
        """The repository. Raises PerfBisectError if the repository cannot be used."""
        from perfbisect.repository.discovery import open_repository

        return open_repository(self.path)
