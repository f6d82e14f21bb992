"""`bisect history`: list hunts, comparisons, proofs and A/As; its subcommands copy them from and to other histories, and add results made by hand."""

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.additions import add
from perfbisect.cli.options.common import history_option, output_width, say, say_json
from perfbisect.cli.transfers import export, import_
from perfbisect.store.batches import all_batches
from perfbisect.store.history import History
from perfbisect.store.listing import Listed, ListedTrial

if TYPE_CHECKING:
    from perfbisect.store.batches import Batch

EPILOG = """\b
Examples:
  bisect history
  bisect history --json | jq '.[] | select(.state == "found")'
  bisect history export for-anna.db      see bisect history export --help
  bisect history import anna.db
  bisect history add x.my8028 x.my8040   results made by hand; see bisect history add --help

\b
Comparisons have ids as c3, proofs as p5, A/As as n4. `bisect show ID` reports one. The history is one SQLite file for `bisect query`,
sqlite-utils and Datasette.
"""

DISPENSABLE = (
    "runs",
    "builds",
    "host",
    "sure",
    "builder",
    "range",
    "when",
)  # columns that are dropped in a narrow terminal
HEAD = ("id", "when", "builder", "workload", "host", "range", "builds", "runs", "culprit", "sure", "state")
ORIGIN = HEAD.index("range")  # the place of the column that says from whom hunts were imported


@click.group(epilog=EPILOG, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="A JSON array; `kind` is hunt, compare, prove or noise.")
@history_option
@click.pass_context
def history(ctx: click.Context, history: Path | None, as_json: bool) -> None:
    """List hunts, comparisons, proofs and A/As, oldest first; or copy them from and to other histories."""
    if ctx.invoked_subcommand:
        return
    with closing(History.open(history, read_only=True)) as opened:
        done: list[Listed | ListedTrial] = [*opened.hunts(), *opened.trials()]
        batches = [] if as_json else all_batches(opened)
    done.sort(key=lambda one: one.started)
    if as_json:
        say_json(json.dumps([{"kind": "hunt"} | asdict(one) for one in done], indent=2))
    else:
        say(listing(done))
        if batches:
            say("\n".join(["", *map(batch_line, batches)]))


history.add_command(export)
history.add_command(import_)
history.add_command(add)


def listing(done: Sequence[Listed | ListedTrial]) -> str:
    """The table of hunts and trials."""
    from perfbisect.wording.table import table
    from perfbisect.wording.text import printable

    if not done:
        return "There are no hunts yet. Begin one with `bisect run`."
    rows = [row(one) if isinstance(one, Listed) else trial_row(one) for one in done]
    head: tuple[str, ...] = HEAD
    if any(one.origin for one in done):  # a host of theirs is another machine than one of ours
        head = (*HEAD[:ORIGIN], "from", *HEAD[ORIGIN:])
        rows = [
            (*cells[:ORIGIN], printable(one.origin), *cells[ORIGIN:]) for cells, one in zip(rows, done, strict=True)
        ]
    lines = table(
        head,
        rows,
        right=("id", "builds", "runs", "sure"),
        width=output_width(),
        drop=DISPENSABLE,
    )
    return "\n".join([*lines, *(f"{one.id} failed: {printable(one.failure)}" for one in done if one.failure)])


def row(hunt: Listed) -> tuple[str, ...]:
    """The row of a hunt."""
    from perfbisect.wording.quantities import MISSING, chance, moment
    from perfbisect.wording.text import printable

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
        MISSING if hunt.probability is None else chance(hunt.probability),
        hunt.state,
    )


def trial_row(trial: ListedTrial) -> tuple[str, ...]:
    """The row of a trial."""
    from perfbisect.wording.quantities import MISSING, count, moment
    from perfbisect.wording.text import printable

    first, *others = trial.workloads
    return (
        trial.id,
        moment(trial.started),
        printable(trial.builder),
        printable(first) if not others else count(len(trial.workloads), "workload"),
        printable(trial.host),
        printable(trial.title),
        str(len(trial.builds)),
        str(trial.runs),
        MISSING,
        MISSING,
        trial.state if trial.state != "done" else {"compare": "compared", "prove": "proof", "noise": "A/A"}[trial.kind],
    )


def batch_line(batch: "Batch") -> str:
    """A batch in a line, for `bisect history`."""
    from perfbisect.hunt.batch import VERDICTS
    from perfbisect.wording.text import printable

    begun = map(str, sorted(one.hunt for one in batch.hunts if one.hunt is not None))  # they begin in any order
    ended = sum(one.status in VERDICTS for one in batch.hunts)
    hunts = ", ".join(begun)
    hunts = f", hunts {hunts}" if hunts else ""
    what = printable(batch.file) if batch.file else "together"
    return f"{batch.name}: {what}{hunts}; {ended} of {len(batch.hunts)} with a verdict"
