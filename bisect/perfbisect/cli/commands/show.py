"""`bisect show`: report one hunt, one comparison, one proof or one A/A."""

from contextlib import closing
from pathlib import Path

import click

from perfbisect.cli.options.clone import Clone
from perfbisect.cli.options.common import history_option, output_width, say, say_json
from perfbisect.cli.options.completion import any_id
from perfbisect.cli.options.forms import DELIMITERS, form_of, form_options, print_document, print_trial
from perfbisect.cli.options.param_types import Which
from perfbisect.store.history import History

EPILOG = """\b
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
"""


@click.command(epilog=EPILOG)
@click.argument("hunt", type=Which(batches=True), required=False, shell_complete=any_id)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@form_options
@history_option
def show(
    hunt: int | str | None, history: Path | None, as_json: bool, as_csv: bool, as_tsv: bool, markdown: bool
) -> None:
    """Report HUNT (default: the latest): verdict, proof, reason, candidates, counters, costs; or a trial."""
    form = form_of(json=as_json, csv=as_csv, tsv=as_tsv, markdown=markdown)
    if isinstance(hunt, str) and hunt.startswith("b"):
        if form in ("json", *DELIMITERS):
            raise click.UsageError(f"{hunt} is a batch: it is shown as a table only; its hunts have other forms.")
        show_batch(hunt, history, form)
        return
    if isinstance(hunt, str):
        with closing(History.open(history, read_only=True)) as opened:
            trial = opened.trial(hunt)
        if form in DELIMITERS and not hunt.startswith("c"):
            raise click.UsageError(f"--{form} is for comparisons, and {hunt} is none.")
        print_trial(trial, form, detailed=True)
        return
    if form in DELIMITERS:
        raise click.UsageError(f"--{form} is for comparisons, as c3; `bisect query` prints hunts as CSV.")
    from perfbisect.report import hunt as builder
    from perfbisect.report import published
    from perfbisect.report.reader import read_story
    from perfbisect.report.story import as_object

    with closing(History.open(history, read_only=True)) as opened:
        hunt = opened.latest() if hunt is None else hunt
        story = read_story(opened, hunt, Clone(Path(opened.settings(hunt).repository)).describe)
    if form == "json":
        say_json(published.encoded(as_object(story)))
    else:
        print_document(builder.document(story), form)


def show_batch(name: str, given: Path | None, form: str) -> None:
    """Print the hunts of a batch with their states."""
    from perfbisect.cli.commands.batch import batch_table
    from perfbisect.report.markdown import fenced
    from perfbisect.store.batches import read_batch

    with closing(History.open(given, read_only=True)) as opened:
        lines = batch_table(read_batch(opened, int(name[1:])), opened, output_width())
    say("\n".join(fenced(lines) if form == "markdown" else lines))
