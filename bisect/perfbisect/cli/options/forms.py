"""The forms in which a session is printed: text, JSON, Markdown; a comparison also as CSV or TSV."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from perfbisect.cli.options.common import output_width, say, say_json, say_styled

if TYPE_CHECKING:
    from perfbisect.core.domain.trials import Trial
    from perfbisect.report.document import Document

DELIMITERS = {"csv": ",", "tsv": "\t"}

CSV = click.option("--csv", "as_csv", is_flag=True, help="Print the tables of a comparison as comma-separated values.")
TSV = click.option("--tsv", "as_tsv", is_flag=True, help="Print them separated by tabs.")
MARKDOWN = click.option("--markdown", is_flag=True, help="Print Markdown, for an issue.")


def form_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of all forms but JSON."""
    return CSV(TSV(MARKDOWN(command)))


def form_of(**chosen: bool) -> str:
    """The chosen form; empty for text. Raises click's UsageError for several."""
    names = [name for name, is_chosen in chosen.items() if is_chosen]
    if len(names) > 1:
        raise click.UsageError(f"Choose one of {' and '.join(f'--{name}' for name in names)}.")
    return "".join(names)


def print_trial(trial: "Trial", form: str, *, detailed: bool) -> None:
    """Print a trial in one of the forms. In ``detailed`` text there is how it was measured, in Markdown, too, costs per operation."""
    from perfbisect.report import markdown, published
    from perfbisect.report.trial import document

    if form == "json":
        say_json(published.encoded(published.of_trial(trial)))
    elif form in DELIMITERS:
        say("\n".join(markdown.delimited(document(trial), DELIMITERS[form])))
    else:
        print_document(document(trial, detailed=detailed), form, header=detailed)


def print_document(document: "Document", form: str, *, header: bool = True) -> None:
    """Print a document as text or Markdown."""
    from perfbisect.report import markdown, terminal

    if form == "markdown":
        say("\n".join(markdown.markdown(document)))
    else:
        say_styled(terminal.lines(document, output_width(), header=header))
