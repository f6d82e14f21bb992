"""What is read of a central history: the option that names one, and the session that is wanted."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.errors import UsageError
from perfbisect.store.history import History

if TYPE_CHECKING:
    from perfbisect.store.central import Central

CONFIGURED = "central"


def address_of(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """The address that is given; that of config.toml for the word ``central``."""
    return configured_address() if value == CONFIGURED else value


def configured_address() -> str:
    """The address of the central history in config.toml. Raises UsageError where there is none."""
    from perfbisect.folders import config_folder
    from perfbisect.recipes.configuration import CONFIGURATION, load_configuration

    if not (address := load_configuration().central.address):
        raise UsageError(
            f"{config_folder() / CONFIGURATION} names no central history.",
            'Give its address, or write there: [central] address = "postgresql://HOST/DATABASE"',
        )
    return address


from_option = click.option(
    "--from", "central", metavar="URL", callback=address_of, is_eager=True,  # before the names of hunts
    help="Read a central history: postgresql://HOST/DATABASE, or `central` for that of config.toml. A hunt there is ORIGIN:NUMBER.",
)  # fmt: skip


def id_of_other(hunt: int | str | None) -> str:
    """The id of a trial or a batch, without the origin that a central history has before it; "" for a hunt."""
    found = re.fullmatch(r"(?:.*:)?([cpnb]\d+)", str(hunt))
    return found[1] if found else ""


@contextmanager
def opened_history(history: Path | None, central: str | None) -> "Iterator[History | Central]":
    """The local history, or a central one, to be read."""
    if central is None:
        with closing(History.open(history, read_only=True)) as opened:
            yield opened
    else:
        from perfbisect.store.central import Central, connected

        with connected(central) as connection:
            yield Central(central, connection)


@contextmanager
def opened_for(
    hunt: int | str | None, history: Path | None, central: str | None
) -> Iterator[tuple[History, int | str, int | str]]:
    """The history with a session (None: the latest hunt), the local one or of a central one a copy; its id there, and here."""
    with opened_history(history, central) as opened:
        if isinstance(opened, History):
            one = opened.latest() if hunt is None else hunt
            yield opened, one, one
        else:
            with opened.session(None if hunt is None else str(hunt)) as found:
                yield found
