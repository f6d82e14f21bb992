"""The option with the command that gets the verdict."""

from collections.abc import Callable
from typing import Any

import click

from perfbisect.cli.options.param_types import Command


def notify_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--notify COMMAND``, given to the command as ``notify: tuple[str, ...]``: its arguments, none for no command."""
    return click.option(
        "--notify", type=Command(), callback=_or_configured,
        help="Command that gets the verdict as JSON on its standard input, at the end.",
    )(command)  # fmt: skip


def _or_configured(ctx: click.Context, _param: click.Parameter, value: tuple[str, ...] | None) -> tuple[str, ...]:
    from perfbisect.recipes.configuration import configured_notification

    if value is None and not ctx.resilient_parsing:  # completion of a shell
        return configured_notification()
    return value or ()
