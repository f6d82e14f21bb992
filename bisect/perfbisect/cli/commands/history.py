"""`bisect history`: list hunts, comparisons, proofs and A/As; its subcommands copy them from and to other histories, and add results made by hand."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import history_option, output_width, say, say_object
from perfbisect.cli.options.completion import builder_option, complete, host_name
from perfbisect.cli.transfers import export, import_, of_group
from perfbisect.store.batches import all_batches
from perfbisect.store.history import History
from perfbisect.store.listing import Listed, ListedTrial
from perfbisect.wording.quantities import count
from perfbisect.wording.text import printable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from perfbisect.store.batches import Batch
    from perfbisect.store.hand_files import Results

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
ADD = """\b
Examples:
  bisect history add x.my8028_rel.pk1 x.my8040_rel.pk1       folders with sb.r.qps and sb.met files
  bisect history add 8.0.28=one/sb.r.qps 8.0.40=two/sb.r.qps --builder mysql --host dell32
  bisect history add a=mon/a a=tue/a b=mon/b b=tue/b         repetitions, for intervals
  bisect history add qps.abs.dell32.tsv                      a table with all builds

\b
A history of perfbisect itself is added by `bisect history import`.
Exit status: 0, or 3 with the file and the line where something is wrong; nothing is stored then.
"""

# columns that are dropped in a narrow terminal
DISPENSABLE = ("runs", "builds", "host", "sure", "builder", "range", "when")
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
        say_object([{"kind": "hunt"} | asdict(one) for one in done])
    else:
        say(listing(done))
        if batches:
            say("\n".join(["", *map(batch_line, batches)]))


def listing(done: Sequence[Listed | ListedTrial]) -> str:
    """The table of hunts and trials."""
    from perfbisect.wording.table import table

    if not done:
        return "There are no hunts yet. Begin one with `bisect run`."
    rows = [row(one) if isinstance(one, Listed) else trial_row(one) for one in done]
    head: tuple[str, ...] = HEAD
    if any(one.origin for one in done):  # a host of theirs is another machine than one of ours
        head = (*HEAD[:ORIGIN], "from", *HEAD[ORIGIN:])
        rows = [
            (*cells[:ORIGIN], printable(one.origin), *cells[ORIGIN:]) for cells, one in zip(rows, done, strict=True)
        ]
    lines = table(head, rows, right=("id", "builds", "runs", "sure"), width=output_width(), drop=DISPENSABLE)
    return "\n".join([*lines, *(f"{one.id} failed: {printable(one.failure)}" for one in done if one.failure)])


def row(hunt: Listed) -> tuple[str, ...]:
    """The row of a hunt."""
    from perfbisect.wording.quantities import MISSING, chance, moment

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
    from perfbisect.wording.quantities import MISSING, moment

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

    begun = map(str, sorted(one.hunt for one in batch.hunts if one.hunt is not None))  # they begin in any order
    ended = sum(one.status in VERDICTS for one in batch.hunts)
    hunts = ", ".join(begun)
    hunts = f", hunts {hunts}" if hunts else ""
    what = printable(batch.file) if batch.file else "together"
    return f"{batch.name}: {what}{hunts}; {ended} of {len(batch.hunts)} with a verdict"


class ResultPath(click.ParamType[tuple[str, Path]]):
    """A file or folder of results, with the name of its build before it where one is given."""

    name = "[NAME=]PATH"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Path]:
        """The name, or nothing, and the path."""
        if isinstance(value, tuple):
            return value
        text = str(value)
        name, separator, path = text.partition("=")
        if not separator or Path(text).exists():
            name, path = "", text
        if not Path(path).exists():
            self.fail(f"There is no file or folder {path!r}.", param, ctx)
        return name, Path(path)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        """Files, which the shell knows best; behind the name of a build, those that no shell changes."""
        from click.shell_completion import CompletionItem

        name, separator, typed = incomplete.partition("=")
        if not separator:
            return [CompletionItem(incomplete, type="file")]
        before = typed[: typed.rfind("/") + 1]
        try:
            found = [f"{name}={before}{each.name}{'/' * each.is_dir()}" for each in Path(before or ".").iterdir()]
        except OSError:
            return []
        return [CompletionItem(each) for each in complete(found, incomplete)]


@click.command(epilog=ADD)
@click.argument("files", metavar="[NAME=]PATH...", type=ResultPath(), nargs=-1, required=True)
@builder_option("System. Default: the engine that the files name.", default="")
@click.option(
    "--host", default="unknown", show_default=True, metavar="NAME", shell_complete=host_name,
    help="Machine they were measured on.",
)  # fmt: skip
@click.option("--date", type=click.DateTime(["%Y-%m-%d"]), metavar="YYYY-MM-DD", help="When, in UTC. Default: now.")
@click.option("--from", "whose", default="", metavar="NAME", help="Whose they are.")
@history_option
@click.pass_context
def add(
    ctx: click.Context,
    files: tuple[tuple[str, Path], ...],
    builder: str,
    host: str,
    date: object,
    whose: str,
    history: Path | None,
) -> None:
    """Add results that were made by hand, as one comparison with the first build.

    PATH is a folder with files sb.r.qps… and sb.met… of one build, one such file, or a table of absolute QPS with columns
    col-1 to col-n. What is added is listed, reported and queried as any comparison, is marked as made by hand, and counts
    for no hunt. It has intervals only where builds were measured more than once.
    """
    from datetime import UTC, datetime

    from perfbisect.core.domain.events import RunFinished
    from perfbisect.store.hand_files import checked_name, read_results
    from perfbisect.store.hand_trials import add as store
    from perfbisect.store.hand_trials import trial_of

    for option, text in (("--builder", builder), ("--host", host), ("--from", whose)):
        if text:
            checked_name(text, option)
    at = date.replace(tzinfo=UTC).timestamp() if isinstance(date, datetime) else datetime.now(UTC).timestamp()
    sets: list[Results] = [each for name, path in files for each in read_results(path, name)]
    made = trial_of(sets, builder, host, at)
    with closing(History.open(history or of_group(ctx))) as opened:
        name, new = store(opened, made, whose)
    if not new:
        say(f"{name} has these results already.")
        return
    request = made.request
    extent = f"{count(len(request.subjects), 'build')}, {count(len(request.works), 'test')}, {count(sum(isinstance(each, RunFinished) for each in made.events), 'result')}"
    say(
        printable(
            f"{name}: {extent}"
            + (f"; left out: {count(made.left_out, 'test')} that only warm up" if made.left_out else "")
        )
    )
    say(f"`bisect show {name}` prints it.")


for each in (export, import_, add):
    history.add_command(each)
