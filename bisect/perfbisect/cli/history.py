"""`bisect history`: list the hunts so far."""

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import click

from perfbisect.cli.options import history_option, output_width, say
from perfbisect.store.history import History
from perfbisect.store.listing import Listed

EPILOG = """\b
Examples:
  bisect history
  bisect history --json | jq '.[] | select(.state == "found")'

\b
`bisect show ID` tells one of them. The history is one SQLite file: `bisect query`, sqlite-utils and Datasette read it.
"""

DISPENSABLE = (
    "runs",
    "builds",
    "host",
    "sure",
    "builder",
    "range",
    "when",
)  # columns that a narrow terminal goes without
HEAD = ("id", "when", "builder", "workload", "host", "range", "builds", "runs", "culprit", "sure", "state")


@click.command(epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="A JSON array of hunts.")
@history_option
def history(history: Path | None, as_json: bool) -> None:
    """List the hunts so far, oldest first."""
    with closing(History.open(history, read_only=True)) as opened:
        hunts = opened.hunts()
    say(json.dumps([asdict(hunt) for hunt in hunts], indent=2) if as_json else listing(hunts))


def listing(hunts: Sequence[Listed]) -> str:
    """The table of hunts."""
    from perfbisect.report.table import table

    if not hunts:
        return "There are no hunts yet. Begin one with `bisect run`."
    return "\n".join(
        table(
            HEAD,
            [row(hunt) for hunt in hunts],
            right=("id", "builds", "runs", "sure"),
            width=output_width(),
            drop=DISPENSABLE,
        )
    )


def row(hunt: Listed) -> tuple[str, ...]:
    """One line of the table."""
    from perfbisect.core.words import printable
    from perfbisect.report.words import MISSING, moment, sure

    return (
        str(hunt.id),
        moment(hunt.started),
        printable(hunt.builder),
        printable(hunt.workload),
        printable(hunt.host),
        printable(f"{hunt.good}..{hunt.bad}"),
        str(hunt.builds),
        str(hunt.runs),
        hunt.culprit[:10] if hunt.culprit else MISSING,
        MISSING if hunt.probability is None else sure(hunt.probability),
        hunt.state,
    )
