"""`bisect resume`: continue an interrupted hunt."""

from pathlib import Path

import click

from perfbisect.cli.options.common import history_option
from perfbisect.cli.options.completion import hunt_number
from perfbisect.cli.options.notify import notify_option
from perfbisect.cli.options.param_types import HUNT
from perfbisect.cli.options.places import announce_recipes, continued
from perfbisect.cli.options.views import open_view, view_options
from perfbisect.cli.options.wait import wait_callback, wait_option
from perfbisect.ui.stream import note

EPILOG = """\b
Examples:
  bisect resume        the latest hunt
  bisect resume 12
"""


@click.command(epilog=EPILOG)
@click.argument("hunt", type=HUNT, required=False, shell_complete=hunt_number)
@wait_option
@notify_option
@view_options
@history_option
def resume(hunt: int | None, history: Path | None, view: str | None, wait: bool, notify: tuple[str, ...]) -> int:
    """Continue HUNT (default: the latest) after an interruption or a failure, without repeating finished work."""
    from perfbisect.core.domain.settings import Settings
    from perfbisect.hunt import session
    from perfbisect.hunt.notification import notifying
    from perfbisect.wording.verdicts import exit_status

    def announced(stored: Settings) -> Settings:
        settings = continued(stored)
        announce_recipes(settings)
        return settings

    with notifying(notify, history, note) as begun:
        verdict = session.resume(hunt, history, open_view(history, view), wait_callback(wait), announced, begun)
    return exit_status(verdict)
