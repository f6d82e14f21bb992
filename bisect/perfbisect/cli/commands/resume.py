"""`bisect resume`: continue an interrupted hunt."""

from pathlib import Path

import click

from perfbisect.cli.options.common import history_option
from perfbisect.cli.options.completion import hunt_number
from perfbisect.cli.options.param_types import HUNT
from perfbisect.cli.options.places import announce_recipes, continued
from perfbisect.cli.options.views import open_view, view_options
from perfbisect.cli.options.wait import wait_callback, wait_option

EPILOG = """\b
Examples:
  bisect resume        the latest hunt
  bisect resume 12
"""


@click.command(epilog=EPILOG)
@click.argument("hunt", type=HUNT, required=False, shell_complete=hunt_number)
@wait_option
@view_options
@history_option
def resume(hunt: int | None, history: Path | None, view: str | None, wait: bool) -> int:
    """Continue HUNT (default: the latest) after an interruption or a failure, without repeating finished work."""
    from perfbisect.core.domain.settings import Settings
    from perfbisect.hunt import session
    from perfbisect.wording.verdicts import exit_status

    def announced(stored: Settings) -> Settings:
        settings = continued(stored)
        announce_recipes(settings)
        return settings

    return exit_status(session.resume(hunt, history, open_view(history, view), wait_callback(wait), announced))
