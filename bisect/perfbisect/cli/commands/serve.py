"""`bisect serve`: the history as pages, and with `--sql` in Datasette."""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from perfbisect.cli.options.common import history_option, say
from perfbisect.errors import EnvironmentFailure, PerfBisectError, UsageError
from perfbisect.ui.stream import note
from perfbisect.wording.text import printable

EPILOG = """\b
Examples:
  bisect serve
  bisect serve --port 8042 --open
  bisect serve --sql                     with SQL, in Datasette: pip install 'perfbisect[serve]'

\b
The history is only read, also beside a hunt that is writing it. Ctrl-C ends serving.
"""

LOOPBACK = "127.0.0.1"
PAGE = re.compile(r"/(?:hunt-(\d{1,18})|([cnp]\d{1,18}))\.html")
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
@click.option("--sql", is_flag=True, help="Serve it in Datasette, with queries for hunts, builds and noise by host.")
@history_option
def serve(port: int, address: str, opens: bool, sql: bool, history: Path | None) -> int:
    """Browse the history in a web browser: a list of all hunts and comparisons, and the page of each."""
    from perfbisect.store.connection import default_place, open_reader

    path = (history or default_place()).absolute()
    open_reader(path).close()  # says what is wrong with it
    version = installed_version() if sql else 0
    found = socket.getaddrinfo(address, port)
    own = all(ip_address(each[4][0]).is_loopback for each in found)
    if path.stat().st_mode & 0o077 == 0:
        note(f"Other users cannot read {printable(str(path))}, but on this machine they can read what is served.")
    if not sql:
        serve_pages(found[0][0], address, port, path, history, own=own, opens=opens)
        return 0
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


def serve_pages(
    family: int, address: str, port: int, path: Path, given: Path | None, *, own: bool, opens: bool
) -> None:
    """Serve the pages until Ctrl-C; each is made when it is asked for. Raises EnvironmentFailure for a port in use."""

    class Server(ThreadingHTTPServer):
        address_family = family

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            refused = own and not is_own(self.headers.get("Host", ""), address)
            status, text = (421, REFUSAL) if refused else answer(urlsplit(self.path).path, path, given)
            self.send_response(status)
            self.send_header("Content-Type", f"text/{'html' if status == 200 else 'plain'}; charset=utf-8")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            with suppress(ConnectionError):  # the browser has gone on
                self.wfile.write(text.encode(errors="backslashreplace"))

        def log_message(self, *_: object) -> None:
            """Requests are not listed."""

    try:
        server = Server((address, port), Pages)
    except OSError as trouble:
        sentence = f"Port {port} of {address} cannot be listened on: {trouble.strerror}."
        raise EnvironmentFailure(sentence, "Choose another one with --port.") from None
    with server, suppress(KeyboardInterrupt):
        place = f"http://{f'[{address}]' if ':' in address else address}:{server.server_port}/"
        say(place)
        if opens:
            click.launch(place)
        server.serve_forever()


def answer(place: str, path: Path, given: Path | None) -> tuple[int, str]:
    """The status and the page at a place: the list of all, or a hunt or trial; 404 and a sentence where there is none."""
    from perfbisect.cli.commands.report import page_name, page_of
    from perfbisect.report.page.pages import index_page
    from perfbisect.store.history import History

    named = PAGE.fullmatch(place)
    try:
        with closing(History.open(path, read_only=True)) as opened:
            if named:
                return 200, page_of(opened, named[2] or int(named[1]), given, index="/")
            if place == "/":
                return 200, index_page(opened.hunts(), opened.trials(), page_name)
    except PerfBisectError as trouble:
        return 404 if isinstance(trouble, UsageError) else 500, f"{trouble} {trouble.advice}\n"
    return 404, "There is no such page. / lists all hunts and comparisons.\n"


def installed_version() -> int:
    """The first number of Datasette's version. Raises UsageError where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

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

            host = dict(scope.get("headers", ())).get(b"host", b"").decode("latin-1")
            own = scope["type"] != "http" or is_own(host, os.environ.get("PERFBISECT_ADDRESS", ""))
            await (app(scope, receive, send) if own else Response.text(REFUSAL, status=421).asgi_send(send))

        return answer

    return wrap


def is_own(host: str, address: str) -> bool:
    """Whether the header Host names this machine: as localhost, by a loopback address, or by the ``address`` of --address."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name in ("localhost", address.lower()) or ip_address(name).is_loopback
    except ValueError:
        return False
