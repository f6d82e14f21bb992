"""`bisect history add`: results that were made by hand become a comparison."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import history_option, say
from perfbisect.cli.options.completion import builder_name, complete, host_name
from perfbisect.cli.transfers import of_group
from perfbisect.store.history import History
from perfbisect.wording.quantities import count
from perfbisect.wording.text import printable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from perfbisect.store.hand_files import Results

EPILOG = """\b
Examples:
  bisect history add x.my8028_rel.pk1 x.my8040_rel.pk1       folders with sb.r.qps and sb.met files
  bisect history add 8.0.28=one/sb.r.qps 8.0.40=two/sb.r.qps --builder mysql --host dell32
  bisect history add a=mon/a a=tue/a b=mon/b b=tue/b         repetitions, for intervals
  bisect history add qps.abs.dell32.tsv                      a table with all builds

\b
A history of perfbisect itself is added by `bisect history import`.
Exit status: 0, or 3 with the file and the line where something is wrong; nothing is stored then.
"""


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


@click.command(epilog=EPILOG)
@click.argument("files", metavar="[NAME=]PATH...", type=ResultPath(), nargs=-1, required=True)
@click.option(
    "--builder",
    "-b",
    default="",
    metavar="NAME",
    shell_complete=builder_name,
    help="System. Default: the engine that the files name.",
)
@click.option(
    "--host",
    default="unknown",
    show_default=True,
    metavar="NAME",
    shell_complete=host_name,
    help="Machine they were measured on.",
)
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
