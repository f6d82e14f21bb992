"""`bisect history`: list hunts, comparisons, proofs and A/As; its subcommands copy them from and to other histories."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.central import from_option, opened_history
from perfbisect.cli.options.common import history_option, json_option, output_width, say, say_object
from perfbisect.cli.transfers import export, import_
from perfbisect.store.batches import all_batches
from perfbisect.store.history import History
from perfbisect.store.listing import SessionSummary
from perfbisect.wording.quantities import MISSING, chance, moment, workloads
from perfbisect.wording.text import printable

if TYPE_CHECKING:
    from perfbisect.store.batches import Batch

EPILOG = """\b
Examples:
  bisect history
  bisect history --json | jq '.[] | select(.state == "found")'
  bisect history export mine.db          see bisect history export --help
  bisect history import theirs.db
  bisect history --from central          those of a team: see bisect push --help

\b
Comparisons have ids as c3, proofs as p5, A/As as n4. `bisect show ID` reports one. The history is one SQLite file for `bisect query`,
sqlite-utils and Datasette.
"""
# columns that are dropped in a narrow terminal
DISPENSABLE = ("runs", "builds", "host", "sure", "builder", "range", "when")
HEAD = ("id", "when", "builder", "workload", "host", "range", "builds", "runs", "culprit", "sure", "state", "subject")
DONE = {"compare": "compared", "prove": "proof", "noise": "A/A"}  # what a trial that is complete is, by its kind
ORIGIN = HEAD.index("range")  # the place of the column that says from whom hunts were imported


@click.group(epilog=EPILOG, invoke_without_command=True)
@json_option("A JSON array; `kind` is hunt, compare, prove or noise.")
@from_option
@history_option
@click.pass_context
def history(ctx: click.Context, history: Path | None, central: str | None, as_json: bool) -> None:
    """List hunts, comparisons, proofs and A/As, oldest first; or copy them from and to other histories."""
    if ctx.invoked_subcommand:
        return
    with opened_history(history, central) as opened:
        done = opened.listing()
        if as_json:
            say_object([{"kind": one.kind} | one.as_object() for one in done])
        else:
            say(listing(done, central=central is not None))
            if isinstance(opened, History) and (batches := all_batches(opened)):
                say("\n".join(["", *map(batch_line, batches)]))


def listing(done: Sequence[SessionSummary], *, central: bool = False) -> str:
    """The table of hunts and trials; those of a central history with ids that have their origins."""
    from perfbisect.wording.table import table

    if not done:
        return "There are no hunts yet. Begin one with `bisect run`."
    rows = [row(one) for one in done]
    head: tuple[str, ...] = HEAD
    if central:
        rows = [(f"{one.origin}:{cells[0]}", *cells[1:]) for cells, one in zip(rows, done, strict=True)]
    elif any(one.origin for one in done):  # a host of theirs is another machine than one of ours
        head = (*HEAD[:ORIGIN], "from", *HEAD[ORIGIN:])
        rows = [(*cells[:ORIGIN], one.origin, *cells[ORIGIN:]) for cells, one in zip(rows, done, strict=True)]
    printed = [tuple(map(printable, cells)) for cells in rows]
    lines = table(head, printed, right=("id", "builds", "runs", "sure"), width=output_width(), drop=DISPENSABLE)
    pairs = zip(printed, done, strict=True)
    return "\n".join([*lines, *(f"{id_} failed: {printable(one.failure)}" for (id_, *_), one in pairs if one.failure)])


def row(one: SessionSummary) -> tuple[str, ...]:
    """The row of a hunt or a trial."""
    builds = one.builds if one.kind == "hunt" else len(one.compared)
    measured = (one.builder, workloads(one.workloads), one.host, one.span, str(builds), str(one.runs))
    verdict = (one.culprit[:10] if one.culprit else MISSING, chance(one.probability))
    return (
        str(one.id),
        moment(one.started),
        *measured,
        *verdict,
        DONE.get(one.kind, "") if one.state == "done" else one.state,
        one.subject,
    )


def batch_line(batch: "Batch") -> str:
    """A batch in a line, for `bisect history`."""
    from perfbisect.hunt.batch import VERDICTS

    begun = sorted(one.hunt for one in batch.hunts if one.hunt is not None)  # they begin in any order
    ended = sum(one.status in VERDICTS for one in batch.hunts)
    hunts = f", hunts {', '.join(map(str, begun))}" if begun else ""
    what = printable(batch.file) if batch.file else "together"
    return f"{batch.name}: {what}{hunts}; {ended} of {len(batch.hunts)} with a verdict"


for each in (export, import_):
    history.add_command(each)
