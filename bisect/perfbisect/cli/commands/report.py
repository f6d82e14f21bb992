"""`bisect report`: one hunt, comparison, proof or A/A as a page, with its profiles as files; or all of a history."""

from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import click

from perfbisect.cli.options.common import history_option, say
from perfbisect.cli.options.completion import any_id
from perfbisect.cli.options.forms import Clone
from perfbisect.cli.options.param_types import Which
from perfbisect.errors import PerfBisectError, UsageError
from perfbisect.store.history import History
from perfbisect.store.listing import Listed, ListedTrial
from perfbisect.ui.stream import note

EPILOG = """\b
Examples:
  bisect report                          the latest hunt, to hunt-12.html
  bisect report 12 --output why.html
  bisect report c3                       a comparison
  bisect report b2 --output pages/       a batch: an index and a page for each hunt
  bisect report 12 --markdown            for an issue, to standard output
  bisect report 12 --speedscope 12.json  for https://www.speedscope.app
  bisect report --all pages/             an index and a page for each

\b
A page is one file that needs no network: mail it, or keep it with the issue.
"""


@click.command(epilog=EPILOG)
@click.argument("hunt", type=Which(batches=True), required=False, shell_complete=any_id)
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Page to write. Default: hunt-12.html, c3.html, … in the working directory. Of a batch: a folder.",
)
@click.option("--markdown", is_flag=True, help="Print Markdown for an issue, and write no page.")
@click.option(
    "--speedscope",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the profiles of culprit and parent for speedscope as well.",
)
@click.option(
    "--folded",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write them as folded stacks as well: parent.folded and culprit.folded.",
)
@click.option(
    "--all",
    "everything",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write an index and the pages of the whole history.",
)
@history_option
@click.pass_context
def report(
    ctx: click.Context,
    hunt: int | str | None,
    output: Path | None,
    markdown: bool,
    speedscope: Path | None,
    folded: Path | None,
    everything: Path | None,
    history: Path | None,
) -> None:
    """Write a page about HUNT (default: the latest): verdict, runs, reason, functions and diff, flame graph, costs."""
    if everything and (hunt is not None or output or markdown or speedscope or folded):
        raise click.UsageError("--all writes everything: leave out HUNT and the other options.")
    if markdown and output:
        raise click.UsageError("Choose one of --markdown and --output.")
    if everything:
        with closing(History.open(history, read_only=True)) as opened:
            write_all(opened, everything, history)
        return
    if isinstance(hunt, str) and hunt.startswith("b"):
        if markdown or speedscope or folded:
            raise click.UsageError(f"{hunt} is a batch: it has an index and pages only.")
        with closing(History.open(history, read_only=True)) as opened:
            write_all(opened, output or Path(f"batch-{hunt[1:]}"), history, hunts_of_batch(opened, hunt))
        return
    if isinstance(hunt, str) and (speedscope or folded):
        raise UsageError(f"{hunt} has no profiles: they are recorded after the verdict of a hunt.")
    with closing(History.open(history, read_only=True)) as opened:
        hunt = opened.latest() if hunt is None else hunt
        if isinstance(hunt, int):
            write_profiles(opened, hunt, speedscope, folded)
        if not markdown:
            path = output or Path(page_name(hunt))
            write(path, page_of(opened, hunt, history))
            say(str(path))
    if markdown:
        from perfbisect.cli.commands.show import show

        ctx.invoke(show, hunt=hunt, history=history, as_json=False, as_csv=False, as_tsv=False, markdown=True)


def page_name(hunt: int | str) -> str:
    """The file of a page."""
    return f"hunt-{hunt}.html" if isinstance(hunt, int) else f"{hunt}.html"


def page_of(history: History, hunt: int | str, given: Path | None, index: str = "") -> str:
    """The page of a hunt or a trial; ``given`` is the history as the user named it."""
    if isinstance(hunt, str):
        from perfbisect.report.page.pages import page
        from perfbisect.report.trial import document

        return page(document(history.trial(hunt), page=True, history=given), index)
    from perfbisect.report.page.case import hunt_page
    from perfbisect.report.reader import read_hunt

    clone = Clone(Path(history.settings(hunt).repository))
    return hunt_page(*read_hunt(history, hunt, clone.describe), clone.diff, given, index)


def write_profiles(history: History, hunt: int, speedscope: Path | None, folded: Path | None) -> None:
    """Write the files of profiles that are wanted. Raises UsageError where the hunt has none."""
    if not (speedscope or folded):
        return
    from perfbisect.report import profiles as files

    found = files.profiles(entry.event for entry in history.events(hunt))
    if found is None:
        raise UsageError(f"Hunt {hunt} has no profiles.", "They are recorded after the verdict, where perf can sample.")
    if speedscope:
        write(speedscope, files.speedscope(found, f"hunt {hunt}"))
        say(str(speedscope))
    if folded:
        for side, stacks in (("parent", found.parent), ("culprit", found.culprit)):
            path = folded / f"{side}.folded"
            write(path, files.folded(stacks))
            say(str(path))


def hunts_of_batch(history: History, name: str) -> set[int]:
    """The hunts of a batch that have begun. Raises UsageError when there is no such batch."""
    from perfbisect.store.batches import read_batch

    return {one.hunt for one in read_batch(history, int(name[1:])).hunts if one.hunt is not None}


def write_all(history: History, folder: Path, given: Path | None, only: Collection[int] | None = None) -> None:
    """Write every page, or those of the hunts of ``only``, and the index. What is damaged is named and left out."""
    from perfbisect.report.page.pages import index_page

    hunts, trials = history.hunts(), history.trials()
    if only is not None:
        hunts, trials = [hunt for hunt in hunts if hunt.id in only], []
    written: dict[int | str, str] = {}
    everything: list[Listed | ListedTrial] = [*hunts, *trials]
    for one in everything:
        try:
            page = page_of(history, one.id, given, index="index.html")
        except PerfBisectError as trouble:
            note(f"No page of {one.id}: {trouble}")
            continue
        written[one.id] = page_name(one.id)
        write(folder / written[one.id], page)
    write(folder / "index.html", index_page(hunts, trials, written))
    say(str(folder / "index.html"))


def write(path: Path, text: str) -> None:
    """Write a file, with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
