"""`bisect show`: tell one hunt."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options import history_option, output_width, say
from perfbisect.store.history import History

if TYPE_CHECKING:
    from perfbisect.core.event import Commit

EPILOG = """\b
Examples:
  bisect show              the latest hunt
  bisect show 12
  bisect show 12 --markdown > issue.md
  bisect show 12 --json | jq .cases
"""


@click.command(epilog=EPILOG)
@click.argument("hunt", type=int, required=False)
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
@click.option("--markdown", is_flag=True, help="The same as Markdown, for an issue.")
@history_option
def show(hunt: int | None, history: Path | None, as_json: bool, markdown: bool) -> None:
    """Tell HUNT (default: the latest): verdict, proof, reason, candidates, counters, costs."""
    if as_json and markdown:
        raise click.UsageError("Choose one of --json and --markdown.")
    from perfbisect.report.story import read_story

    with closing(History.open(history, read_only=True)) as opened:
        hunt = opened.latest() if hunt is None else hunt
        story = read_story(opened, hunt, Describer(Path(opened.settings(hunt).repository)))
    if as_json:
        import msgspec

        say(msgspec.json.format(msgspec.json.encode(story), indent=2).decode())
    elif markdown:
        from perfbisect.report.markdown import render as as_markdown

        say(as_markdown(story))
    else:
        from perfbisect.report.terminal import render

        say(render(story, output_width()))


class Describer:
    """Describes commits from the repository of a hunt, while it is still there; opened only when it is asked."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository

    def __call__(self, sha: str) -> "Commit":
        """The commit with that full hash; its hash alone when the repository does not say more."""
        from perfbisect.errors import PerfBisectError
        from perfbisect.report.ledger import bare
        from perfbisect.repository.describe import describe
        from perfbisect.repository.resolve import open_repository

        try:
            with closing(open_repository(self.repository)) as repository:
                return describe(repository, sha)
        except (PerfBisectError, KeyError):
            return bare(sha)
