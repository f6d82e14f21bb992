"""`bisect why`: measure the reason of a verdict."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import (
    history_option,
    id_argument,
    leasing_for,
    open_view,
    say_failures,
    view_options,
    waiting_option,
)
from perfbisect.cli.options.measurement import announce_recipes, continued
from perfbisect.cli.options.param_types import MINUTES
from perfbisect.report.command_line import command_on, command_to_compare

if TYPE_CHECKING:
    from perfbisect.core.domain.settings import Settings
    from perfbisect.host.lock import WaitCallback

EPILOG = """\b
Examples:
  bisect why                   of the latest hunt
  bisect why 12
  bisect why 12 --max-time 1h  also counts that take long

\b
What was measured is not measured again; builds that are gone are made again.
"""


@click.command(epilog=EPILOG)
@id_argument()
@click.option(
    "--max-time", type=MINUTES, default=0.0, help="Time for it. Default: a tenth of the hunt's, at least 90 s."
)
@waiting_option
@view_options
@history_option
def why(
    hunt: int | None, max_time: float, history: Path | None, view: str | None, waiting: "WaitCallback | None"
) -> int:
    """Measure why the commit is slower that HUNT names (default: the latest), as far as that was not done. The verdict stands."""
    from dataclasses import replace

    from perfbisect.core.domain.orders import Inconclusive, first_step
    from perfbisect.errors import UsageError
    from perfbisect.hunt import session
    from perfbisect.hunt.attempt import Caller, verdict_of
    from perfbisect.store.history import History

    def asked(stored: "Settings") -> "Settings":
        settings = replace(continued(stored), explain=True)
        announce_recipes(settings)
        return settings

    with closing(History.open(history, read_only=True)) as opened:
        number = opened.latest() if hunt is None else hunt
        verdict, advice = verdict_of(opened, number), ""
        if isinstance(verdict, Inconclusive) and len(verdict.candidates) == 1:
            leader = opened.candidates(number)[verdict.candidates[0]][:10]
            beside = command_to_compare(opened.settings(number), f"{leader}^", leader)
            advice = f"{leader} leads, and is not proven. To measure it beside its parent: {beside}"
    if verdict is None:
        raise UsageError(f"Hunt {number} has no verdict.", f"Go on with: {command_on('resume', str(number), history)}")
    if first_step(verdict) is None:
        raise UsageError(f"The verdict of hunt {number} names no commit, so nothing has a reason.", advice)
    how = session.Resumption(asked, lambda settings, nodes: leasing_for(settings, history, nodes), 60 * max_time)
    caller = Caller(history, open_view(history, view), waiting)
    return say_failures(session.resume(number, None, caller, how), history)
