"""`bisect show`: report one hunt, one comparison, one proof or one A/A."""

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.clone import Clone
from perfbisect.cli.options.common import history_option, output_width, say, say_json, say_styled
from perfbisect.cli.options.param_types import Which
from perfbisect.store.history import History

if TYPE_CHECKING:
    from rich.text import Text

    from perfbisect.core.domain.trials import Trial

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
        story = read_story(opened, hunt, Clone(Path(opened.settings(hunt).repository)).describe)
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
