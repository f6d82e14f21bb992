"""`bisect serve`: the history in Datasette."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from perfbisect.cli.options.common import history_option
from perfbisect.ui.stream import note
from perfbisect.wording.text import printable

EPILOG = """\b
Examples:
  bisect serve
  bisect serve --port 8042 --open
  bisect serve --history ~/shared/history.db

\b
Needs Datasette: pip install 'perfbisect[serve]'
The history is only read, also beside a hunt that is writing it. Ctrl-C ends serving.
"""

LOOPBACK = "127.0.0.1"
LONGEST = 10_000  # milliseconds of a query
PLUGIN = """from datasette import hookimpl
from perfbisect.cli.commands.serve import own_names
asgi_wrapper = hookimpl(own_names, specname="asgi_wrapper")
"""
REFUSAL = "This is served to this machine alone. Open it as localhost, with the same port.\n"


@click.command(epilog=EPILOG)
@click.option("--port", type=click.IntRange(0, 65535), default=8001, show_default=True, help="Port to listen on.")
@click.option(
    "--address", default=LOOPBACK, show_default=True, help="Address to listen on; others can read everything."
)
@click.option("--open", "opens", is_flag=True, help="Open it in a web browser.")
@history_option
def serve(port: int, address: str, opens: bool, history: Path | None) -> int:
    """Browse and query the history in a web browser, with queries for hunts, culprits, builds and noise by host."""
    from perfbisect.store.connection import default_place, open_reader

    path = (history or default_place()).absolute()
    open_reader(path).close()  # says what is wrong with it
    version = installed_version()
    own = all(ip_address(found[4][0]).is_loopback for found in socket.getaddrinfo(address, port))
    if path.stat().st_mode & 0o077 == 0:
        note(f"Other users cannot read {printable(str(path))}, but on this machine they can read what is served.")
    with tempfile.TemporaryDirectory(prefix="perfbisect-") as folder:
        options = configured(Path(folder), path.stem, version, own=own)
        argv = [
            *(sys.executable, "-m", "datasette", "serve", str(path), *options),
            *("--host", address, "--port", str(port), "--setting", "sql_time_limit_ms", str(LONGEST)),
            *(["--open"] if opens else []),
        ]
        try:
            return subprocess.run(argv, check=False, env={**os.environ, "PERFBISECT_ADDRESS": address}).returncode
        except KeyboardInterrupt:  # Datasette gets it, too
            return 0


def installed_version() -> int:
    """The first number of Datasette's version. Raises UsageError where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    from perfbisect.errors import UsageError

    try:
        return int(version("datasette").partition(".")[0])
    except PackageNotFoundError:
        raise UsageError("Datasette is not installed.", "Install it: pip install 'perfbisect[serve]'") from None


def configured(folder: Path, database: str, version: int, *, own: bool) -> list[str]:
    """Write Datasette's files into a folder, with ``own`` also a plugin; returns the options that name them."""
    from perfbisect.store.canned_queries import configuration

    options = []
    for option, contents in configuration(database, version).items():
        file = folder / f"{option.removeprefix('--')}.json"
        file.write_text(json.dumps(contents), encoding="utf-8")
        options += [option, str(file)]
    if own:
        (folder / "plugins").mkdir()
        (folder / "plugins" / "own_names.py").write_text(PLUGIN, encoding="utf-8")
        options += ["--plugins-dir", str(folder / "plugins")]
    return options


def own_names() -> Any:
    """Wrap Datasette: on a loopback address only requests are answered that name this machine.

    A page of a stranger can have its own name lead to 127.0.0.1 (DNS rebinding). The browser of a user of this machine
    would then let it read what is served here; but the name stands in each request.
    """

    def wrap(app: Any) -> Any:
        async def answer(scope: Any, receive: Any, send: Any) -> None:
            from datasette import Response

            own = scope["type"] != "http" or is_own(dict(scope["headers"]).get(b"host", b"").decode("latin-1"))
            await (app(scope, receive, send) if own else Response.text(REFUSAL, status=421).asgi_send(send))

        return answer

    return wrap


def is_own(host: str) -> bool:
    """Whether the header Host names this machine: as localhost, by a loopback address, or as `bisect serve --address` does."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name in ("localhost", os.environ.get("PERFBISECT_ADDRESS", "").lower()) or ip_address(name).is_loopback
    except ValueError:
        return False
