"""`bisect show`: report one hunt, one comparison, one proof or one A/A."""

import re
from collections.abc import Iterable
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import history_option, output_width, say, say_json, say_styled
from perfbisect.store.history import History

if TYPE_CHECKING:
    from rich.text import Text

    from perfbisect.core.domain.events import Commit
    from perfbisect.core.domain.trials import Trial
    from perfbisect.repository.git import Repository

EPILOG = """\b
Examples:
  bisect show              the latest hunt
  bisect show 12
  bisect show 12 --markdown > issue.md
  bisect show 12 --json | jq .cases
  bisect show c3           a comparison, its counters included
  bisect show p5           a proof
  bisect show n4           an A/A
"""


class Which(click.ParamType[int | str]):
    """The id of a hunt (12), a comparison (c3), a proof (p5) or an A/A (n4)."""

    name = "ID"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """A number for a hunt, text for a trial."""
        text = str(value)
        if not re.fullmatch(r"[cnp]?\d{1,15}", text):
            self.fail(
                f"{text!r} is not an id; write 12 for a hunt, c3 for a comparison, p5 for a proof, n4 for an A/A.",
                param,
                ctx,
            )
        return int(text) if text.isdecimal() else text


@click.command(epilog=EPILOG)
@click.argument("hunt", type=Which(), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", is_flag=True, help="Print Markdown, for an issue.")
@history_option
def show(hunt: int | str | None, history: Path | None, as_json: bool, markdown: bool) -> None:
    """Report HUNT (default: the latest): verdict, proof, reason, candidates, counters, costs; or a trial."""
    if as_json and markdown:
        raise click.UsageError("Choose one of --json and --markdown.")
    if isinstance(hunt, str):
        with closing(History.open(history, read_only=True)) as opened:
            trial = opened.trial(hunt)
        show_trial(trial, as_json=as_json, markdown=markdown)
        return
    from perfbisect.report.reader import read_story

    with closing(History.open(history, read_only=True)) as opened:
        hunt = opened.latest() if hunt is None else hunt
        story = read_story(opened, hunt, Describer(Path(opened.settings(hunt).repository)))
    if as_json:
        import msgspec

        from perfbisect.report.content import as_object

        say_json(msgspec.json.format(msgspec.json.encode(as_object(story)), indent=2).decode())
    elif markdown:
        from perfbisect.report.markdown import render as as_markdown

        say(as_markdown(story))
    else:
        from perfbisect.report.terminal import render

        say(render(story, output_width()))


def show_trial(trial: "Trial", *, as_json: bool, markdown: bool) -> None:
    """Print the report of a comparison, a proof or an A/A."""
    from perfbisect.core.domain.trials import TrialType
    from perfbisect.core.stats.sampling_plan import noise_of_trial
    from perfbisect.report import comparison, noise, proof
    from perfbisect.report.markdown import fenced

    lines: Iterable[str | Text]
    if trial.request.kind is TrialType.COMPARE:
        if as_json:
            say_json(comparison.as_object(trial))
            return
        lines = (*comparison.header(trial), *comparison.lines(trial, counters=True))
    elif trial.request.kind is TrialType.PROVE:
        if as_json:
            say_json(proof.as_object(trial))
            return
        lines = (*comparison.header(trial), *proof.lines(trial, counters=True))
    else:
        found = noise_of_trial(trial)
        if as_json:
            say_json(noise.as_object(trial, found))
            return
        missing = f"{trial.name}: {trial.failure or 'too few runs to estimate their noise.'}"
        lines = (missing,) if found is None else noise.lines(trial, found)
    if markdown:
        say("\n".join(fenced(map(str, lines))))
    else:
        say_styled(lines)


class Describer:
    """Describes commits from the repository of a hunt, if it still exists; opened when it is needed."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository

    def __call__(self, sha: str) -> "Commit":
        """The commit with that full hash; the hash alone when the repository does not have it."""
        from perfbisect.core.domain.events import Commit
        from perfbisect.errors import PerfBisectError
        from perfbisect.repository.describe import describe

        try:
            return describe(self.opened, sha)
        except PerfBisectError:
            return Commit(sha)

    @cached_property
    def opened(self) -> "Repository":
        """The repository. Raises PerfBisectError where it cannot be used."""
        from perfbisect.repository.discovery import open_repository

        return open_repository(self.repository)
