"""`bisect push`: carries what is new in the local history to a central one, which many people read."""

from contextlib import closing
from functools import partial

import click

from perfbisect.cli.options.common import Given, clone_progress, history_option, say, verb_command
from perfbisect.errors import ENVIRONMENT
from perfbisect.recipes.configuration import configured_address
from perfbisect.ui.stream import note
from perfbisect.wording.text import printable


@verb_command()
@click.option("--to", "address", metavar="URL", help="The central history. Default: that of config.toml.")
@click.option("--as", "origin", metavar="ORIGIN", help="What this history is called there.")
@click.option("--sql", is_flag=True, help="Print the SQL that makes a central history, and push nothing.")
@history_option
def push(given: Given) -> int:
    """Push new hunts, comparisons and A/As of the local history to a central one in PostgreSQL.

    \b
    Examples:
      bisect push --sql | psql postgresql://HOST/DATABASE    once: tables, views and roles
      bisect push --to postgresql://HOST/DATABASE --as ORIGIN
      bisect push                                  to that of config.toml
      bisect history --from central                what is there
      bisect show ORIGIN:12 --from central

    \b
    With this in config.toml, every session pushes while it runs and when it ends:
      [central]
      address = "postgresql://HOST/DATABASE"   # the password is in ~/.pgpass
      origin = "ORIGIN"                             # default: USER@MACHINE

    \b
    Only what is new is sent; a push that was cut off goes on with the same command. Passwords in addresses are masked. Exit status: 0 all is there, 4 it is not.
    """
    from perfbisect.hunt.pushing import origin_of
    from perfbisect.store.central import connected, definition
    from perfbisect.store.history import History
    from perfbisect.store.push import push as push_all
    from perfbisect.wording.quantities import count

    if given.sql:
        say("\n".join(definition()))
        return 0
    address = given.address or configured_address()
    origin = origin_of(given.origin)
    with closing(History.open(given.history, read_only=True)) as opened, connected(address, pushes=True) as central:
        done = push_all(opened, central, origin, said=partial(clone_progress, "Sessions"))
    for sentence in done.refused:
        note(f"Not pushed: {printable(sentence)}")
    what = f"{count(done.entries, 'event')} of {count(done.sessions, 'session')}"
    say(
        f"Pushed {what} to {printable(address)} as {origin}."
        if done.sessions
        else f"Nothing new for {printable(address)}."
    )
    return ENVIRONMENT if done.refused else 0
