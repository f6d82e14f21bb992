"""The forms in which a comparison is printed: text, JSON, CSV, TSV or Markdown."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from perfbisect.cli.options.common import say, say_json, say_styled

if TYPE_CHECKING:
    from perfbisect.core.domain.trials import Trial

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


def print_comparison(trial: "Trial", form: str, *, detailed: bool) -> None:
    """Print a comparison in one of the forms. In ``detailed`` text and Markdown there are costs per operation, too."""
    from perfbisect.report import comparison, comparison_forms

    match form:
        case "json":
            say_json(comparison.as_object(trial))
        case "csv" | "tsv":
            say("\n".join(comparison_forms.delimited(trial, DELIMITERS[form])))
        case "markdown":
            say("\n".join(comparison_forms.markdown(trial, detailed=detailed)))
        case _:
            before = comparison.header(trial) if detailed else ()
            say_styled((*before, *comparison.lines(trial, counters=detailed)))
