"""`bisect history`: list hunts, comparisons, proofs and A/As; its subcommands copy them from and to other histories, and add results made by hand."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.central import from_option, opened_history
from perfbisect.cli.options.common import history_option, json_option, output_width, say, say_object
from perfbisect.cli.options.completion import builder_option, complete, host_name
from perfbisect.cli.options.param_types import Parsed
from perfbisect.cli.transfers import export, import_
from perfbisect.store.batches import all_batches
from perfbisect.store.history import History
from perfbisect.store.listing import Listed, ListedTrial
from perfbisect.wording.quantities import MISSING, chance, count, moment, workloads
from perfbisect.wording.text import printable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from perfbisect.store.batches import Batch
    from perfbisect.store.hand_files import Results

EPILOG = """\b
Examples:
  bisect history
  bisect history --json | jq '.[] | select(.state == "found")'
  bisect history export mine.db          see bisect history export --help
  bisect history import theirs.db
  bisect history --from central          those of a team: see bisect push --help
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
            say_object([{"kind": "hunt"} | asdict(one) for one in done])
        else:
            say(listing(done, central=central is not None))
            if isinstance(opened, History) and (batches := all_batches(opened)):
                say("\n".join(["", *map(batch_line, batches)]))


def listing(done: Sequence[Listed | ListedTrial], *, central: bool = False) -> str:
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


def row(one: Listed | ListedTrial) -> tuple[str, ...]:
    """The row of a hunt or a trial."""
    begun = (str(one.id), moment(one.started), one.builder)
    if isinstance(one, Listed):
        culprit = one.culprit[:10] if one.culprit else MISSING
        measured = (one.workload, one.host, one.named_range, str(one.builds), str(one.runs))
        return *begun, *measured, culprit, chance(one.probability), one.state, one.subject
    state = one.state if one.state != "done" else DONE[one.kind]
    measured = (workloads(one.workloads), one.host, one.title, str(len(one.builds)), str(one.runs))
    return *begun, *measured, MISSING, MISSING, state, ""


def batch_line(batch: "Batch") -> str:
    """A batch in a line, for `bisect history`."""
    from perfbisect.hunt.batch import VERDICTS

    begun = sorted(one.hunt for one in batch.hunts if one.hunt is not None)  # they begin in any order
    ended = sum(one.status in VERDICTS for one in batch.hunts)
    hunts = f", hunts {', '.join(map(str, begun))}" if begun else ""
    what = printable(batch.file) if batch.file else "together"
    return f"{batch.name}: {what}{hunts}; {ended} of {len(batch.hunts)} with a verdict"


def _result(text: str) -> tuple[str, Path]:
    name, separator, path = text.partition("=")
    if not separator or Path(text).exists():
        name, path = "", text
    if not Path(path).exists():
        raise ValueError(f"is no result: there is no file or folder {path!r}.")
    return name, Path(path)


def complete_result(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
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
    return [CompletionItem(each) for each in complete(sorted(found), incomplete)]


RESULT = Parsed(
    "[NAME=]PATH", _result
)  # a file or folder of results, with the name of its build before it if one is given


@click.command(epilog=ADD)
@click.argument("files", metavar="[NAME=]PATH...", type=RESULT, nargs=-1, required=True, shell_complete=complete_result)
@builder_option("System. Default: the engine that the files name.", default="")
@click.option(
    "--host", default="unknown", show_default=True, metavar="NAME", shell_complete=host_name,
    help="Machine they were measured on.",
)  # fmt: skip
@click.option("--date", type=click.DateTime(["%Y-%m-%d"]), metavar="YYYY-MM-DD", help="When, in UTC. Default: now.")
@click.option("--from", "whose", default="", metavar="NAME", help="Whose they are.")
@history_option
def add(
    files: tuple[tuple[str, Path], ...],
    builder: str,
    host: str,
    date: datetime | None,
    whose: str,
    history: Path | None,
) -> None:
    """Add results that were made by hand, as one comparison with the first build.

    PATH is a folder with files sb.r.qps… and sb.met… of one build, one such file, or a table of absolute QPS with columns
    col-1 to col-n. What is added is listed, reported and queried as any comparison, is marked as made by hand, and counts
    for no hunt. It has intervals only where builds were measured more than once.
    """
    from perfbisect.core.domain.events import RunFinished
    from perfbisect.store.hand_files import checked_name, read_results
    from perfbisect.store.hand_trials import add as store
    from perfbisect.store.hand_trials import trial_of

    for option, text in (("--builder", builder), ("--host", host), ("--from", whose)):
        if text:
            checked_name(text, option)
    at = (date.replace(tzinfo=UTC) if date else datetime.now(UTC)).timestamp()
    sets: list[Results] = [each for name, path in files for each in read_results(path, name)]
    made = trial_of(sets, builder, host, at)
    with closing(History.open(history)) as opened:
        name, new = store(opened, made, whose)
    if not new:
        say(f"{name} has these results already.")
        return
    results = sum(isinstance(each, RunFinished) for each in made.events)
    sizes = ((len(made.request.subjects), "build"), (len(made.request.works), "test"), (results, "result"))
    left_out = f"; left out: {count(made.left_out, 'test')} that only warm up" if made.left_out else ""
    say(printable(f"{name}: {', '.join(count(size, what) for size, what in sizes)}{left_out}"))
    say(f"`bisect show {name}` prints it.")


for each in (export, import_, add):
    history.add_command(each)
