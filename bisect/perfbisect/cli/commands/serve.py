"""`bisect serve`: serves the history as web pages or, with `--sql`, in Datasette."""

import getpass
import socket
import sys
from ipaddress import ip_address
from pathlib import Path

import click

from perfbisect.cli.options.common import FILE, CommandOptions, history_option, options_command, say
from perfbisect.cli.options.param_types import WholeNumber
from perfbisect.cli.options.stored import from_option
from perfbisect.errors import UsageError
from perfbisect.ui.stream import note
from perfbisect.wording.text import printable

LOOPBACK = "127.0.0.1"


@options_command()
@click.option("--port", type=WholeNumber(0, 65535), default=8001, show_default=True, help="Port to listen on.")
@click.option(
    "--address", default=LOOPBACK, show_default=True, help="Address to listen on. Every address except loopback needs a login."
)  # fmt: skip
@click.option("--open", "opens", is_flag=True, help="Open the first page in a web browser.")
@click.option(
    "--sql", is_flag=True, help="Serve the history in Datasette, with queries for hunts, builds and noise by host."
)
@click.option(
    "--password-file",
    metavar="FILE",
    type=FILE,
    help="Require a login with a name and a password of this file, which contains hashes.",
)
@click.option(
    "--token-file", metavar="FILE", type=FILE, help="Require the token in this file: `Authorization: Bearer TOKEN`."
)
@click.option(
    "--add-user", metavar="NAME", help="Add NAME to the password file, or change the password of NAME. Serve nothing."
)
@from_option
@history_option
def serve(given: CommandOptions) -> None:
    """Serve the history to web browsers: running sessions, the latest culprits, a list of all sessions, and a page for
    each session.

    \b
    Examples:
      bisect serve                         show the local history
      bisect serve --port 8042 --open      use port 8042, and open a browser
      bisect serve --sql                   SQL in Datasette; install it with: pip install 'perfbisect[serve]'
      bisect serve --from central          the central history of a team; see bisect push --help
      bisect serve --add-user NAME --password-file users   add a user
      bisect serve --password-file users   require a login

    \b
    The server only reads the history. Hunts may write to the history at the same time. Ctrl-C ends the server.
    Passwords need a proxy with TLS in front of this server: see docs/serve.md.
    """
    from perfbisect.cli.guard import LoginGuard
    from perfbisect.store.central import central_connection
    from perfbisect.store.connection import default_history_path, open_reader

    if given.add_user is not None:
        store_user_password(given.add_user, given.password_file)
        return
    central, address = given.central, given.address
    path = (given.history or default_history_path()).absolute()
    if central is None:
        open_reader(path).close()  # raises an error if the history cannot be read
    elif given.sql:
        raise click.UsageError(
            "--sql and --from exclude each other. For SQL on a central history: bisect query SQL --from URL"
        )
    else:
        with central_connection(central):
            pass
    guard = LoginGuard(given.password_file, given.token_file, address)
    login = guard.has_login()
    try:
        resolved = socket.getaddrinfo(address, given.port)
    except (OSError, UnicodeError):
        text = f"{printable(address)} is not an address of this machine."
        raise UsageError(text, "Give another --address, or omit this option.") from None
    only_this_machine = all(ip_address(socket_address[4][0]).is_loopback for socket_address in resolved)
    if not only_this_machine and not login:
        raise UsageError(
            f"At the address {printable(address)}, every machine of the network could read the history.",
            "Require a login with --token-file FILE or --password-file FILE; `bisect serve --add-user NAME --password-file FILE`"
            " writes that file. Or omit --address, to serve only this machine.",
        )
    if not only_this_machine:
        note(
            "Warning: pages and passwords are sent unencrypted. Use a proxy with TLS in front of this server (docs/serve.md)."
        )
    elif central is None and not login and path.stat().st_mode & 0o077 == 0:
        note(
            f"Warning: other users of this machine cannot read {printable(str(path))}, but they can read the served pages."
        )
    from perfbisect.cli.pages import Pages, serve_datasette, serve_pages

    if given.sql:
        serve_datasette(path, given.port, guard, open_browser=given.opens)
        return
    serve_pages(resolved[0][0], given.port, guard, Pages(given.history, central), open_browser=given.opens)


def store_user_password(name: str, file: Path | None) -> None:
    """Ask for the password of the user ``name``, or read it from standard input; write it (as a hash) into the password
    file."""
    from perfbisect.cli.guard import add_user

    if file is None:
        raise click.UsageError("--add-user needs --password-file FILE: the user is added to FILE.")
    if sys.stdin.isatty():
        password = getpass.getpass(f"Password of {printable(name)}: ")
        if getpass.getpass("Once more: ") != password:
            raise UsageError("The two passwords differ.", "Run the command again.")
    else:
        password = sys.stdin.readline().rstrip("\n")
    new = add_user(file, name, password)
    say(printable(f"{name} {'can log in' if new else 'has a new password'}: {file}"))
