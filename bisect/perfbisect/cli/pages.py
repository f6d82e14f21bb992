"""Serves the pages of a history over HTTP: the start page, the list of sessions, and a page for each hunt and trial. A
page is made when a browser requests it.

With --sql, Datasette serves the history instead, protected by the same login.
"""

import asyncio
import re
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import click

from perfbisect.cli.guard import HEADERS, Answer, LoginGuard
from perfbisect.cli.options.common import say
from perfbisect.cli.options.stored import opened_history, opened_session
from perfbisect.errors import EnvironmentFailure, PerfBisectError, UsageError
from perfbisect.masking import mask_credentials
from perfbisect.store.central import ORIGIN, CentralFailure
from perfbisect.store.history import History
from perfbisect.store.listing import SessionSummary

if TYPE_CHECKING:
    from perfbisect.core.domain.session_state import SessionState
    from perfbisect.report.document import Cell
    from perfbisect.report.page.pages import LineChart

OF_ORIGIN = rf"(?:{ORIGIN.pattern}:)?"
PAGE = re.compile(rf"/(?:hunt-({OF_ORIGIN}\d{{1,18}})|({OF_ORIGIN}[cnp]\d{{1,18}}))\.html", re.ASCII)
NOTHING = "This page does not exist. The page / shows running sessions, and has a link to the list of all sessions.\n"
AWAY = "The central history cannot be reached now.\n"
LONGEST = 10_000  # milliseconds of a query in Datasette
PATIENCE = 60.0  # seconds after which a silent client is cut off


@dataclass(eq=False)
class Pages:
    """The pages of a local history (``history`` is its path as the user gave it), or of a central history (``central``
    is its address).
    """

    history: Path | None
    central: str | None
    # Ids of ended trials → the lines that these trials show.
    drawn_charts: "dict[tuple[str, ...], list[LineChart]]" = field(default_factory=dict)

    def answer(self, path: str) -> Answer:
        """The answer to a request for ``path``: the page, or the status 404 and a sentence if there is no such page."""
        from perfbisect.cli.commands.report import session_page_html
        from perfbisect.report.page.pages import dashboard_page, index_page

        named = PAGE.fullmatch(unquote(path))
        try:
            if named:
                with self.opened_session(named[1] or named[2]) as (history, session_id, _):
                    return 200, {}, session_page_html(history, session_id, self.history, index="./")
            if path in ("/", "/all"):
                with opened_history(self.history, self.central) as opened:
                    sessions = opened.hunts_and_trials()
                if path == "/all":
                    return 200, {}, index_page(sessions, self.id_cell, parent_address="./")
                return 200, {}, dashboard_page(sessions, self.dashboard_charts(sessions), self.id_cell, time.time())
        except CentralFailure:
            return 503, {}, AWAY
        except PerfBisectError as trouble:
            sentence = f"{trouble} {trouble.advice}\n"
            status = 404 if isinstance(trouble, UsageError) else 500
            return status, {}, sentence.replace(f" {mask_credentials(self.central)}", "") if self.central else sentence
        return 404, {}, NOTHING

    def id_with_origin_if_central(self, session: SessionSummary) -> str:
        """The id of a session, such as 12 or c3; in a central history with the session's origin, such as desk3:12."""
        return str(session.id) if self.central is None else f"{session.origin}:{session.id}"

    def opened_session(self, session_id: str) -> AbstractContextManager[tuple[History, int | str, int | str]]:
        """A context with three values: the history that contains the session, the id of the session in this history,
        and its id in the history in which it was made.

        Raises UsageError if there is no such session.
        """
        if self.central is None and ":" in session_id:
            raise UsageError(f"{session_id} is an id of a central history, but this server has a local history.")
        return opened_session(int(session_id) if session_id.isdecimal() else session_id, self.history, self.central)

    def id_cell(self, session: SessionSummary) -> "Cell":
        """The id of a session, with a link to its page."""
        from perfbisect.cli.commands.report import page_name
        from perfbisect.report.document import Cell

        name = self.id_with_origin_if_central(session)
        return Cell(name, link=quote(page_name(name)))

    def dashboard_charts(self, sessions: Sequence[SessionSummary]) -> "list[LineChart]":
        """The line charts of the watched branches, then of the newest series of releases. A chart shows the trials of
        one branch or series that have the same builder, host, metric and workloads.
        """
        from perfbisect.core.stats.watched_branch import LONGEST
        from perfbisect.report.page.pages import LINES

        groups: dict[object, list[SessionSummary]] = {}
        for session in sessions:
            if session.state == "done" and (session.branch or session.series):
                how = session.origin, session.builder, session.variant, session.host, session.metric, session.workloads
                groups.setdefault((*how, session.branch, session.series), []).append(session)
        newest = sorted(groups.values(), key=lambda trials: (bool(trials[-1].branch), trials[-1].started), reverse=True)
        shown = [trials[-LONGEST if trials[-1].branch else -1 :] for trials in newest[:LINES]]
        by_names = {tuple(map(self.id_with_origin_if_central, trials)): trials for trials in shown}
        self.drawn_charts = drawn = {
            key: self.drawn_charts.get(key) or self.charts_of_trials(trials) for key, trials in by_names.items()
        }
        return [chart for charts in drawn.values() for chart in charts]

    def charts_of_trials(self, trials: Sequence[SessionSummary]) -> "list[LineChart]":
        """The line charts of the trials of a series or a branch; trials with different settings are on different
        charts.

        Damaged sessions are left out.
        """
        from perfbisect.hunt.nightly import line_key
        from perfbisect.report.page.pages import branch_or_series_charts

        read: dict[str, list[tuple[SessionSummary, SessionState]]] = {}
        for session in trials:
            session_id = self.id_with_origin_if_central(session)
            with suppress(PerfBisectError), self.opened_session(session_id) as (history, name, _):
                trial = history.trial(str(name))
                read.setdefault(repr(line_key(history.settings(trial.id))), []).append((session, trial))
        charts = (
            branch_or_series_charts([trial for _, trial in pairs], self.id_cell(pairs[-1][0]).link)
            for pairs in read.values()
        )
        return [chart for charts_of_key in charts for chart in charts_of_key]


def serve_pages(family: int, port: int, guard: LoginGuard, pages: Pages, *, open_browser: bool) -> None:
    """Serve the pages until Ctrl-C. Raises EnvironmentFailure if the port is in use."""

    class PageServer(ThreadingHTTPServer):
        address_family = family

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE
        server_version, sys_version = "perfbisect", ""

        def handle(self) -> None:
            with suppress(ConnectionError):  # raised if the browser has closed the connection
                super().handle()

        def do_GET(self) -> None:
            refused = guard.refusal(self.headers.get("Host", ""), self.headers.get("Authorization", ""))
            status, headers, text = refused or pages.answer(self.path.partition("?")[0])
            kind = f"text/{'html' if status == 200 else 'plain'}; charset=utf-8"
            self.send_response(status)
            for name, value in ({"Content-Type": kind} | HEADERS | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text.encode(errors="backslashreplace"))

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Print nothing, because requests are not logged."""

    try:
        server = PageServer((guard.address, port), Handler)
    except OSError as trouble:
        sentence = f"The server cannot listen on port {port} of {guard.address}: {trouble.strerror}."
        raise EnvironmentFailure(sentence, "Give another --port.") from None
    with server, suppress(KeyboardInterrupt):
        address = guard.page_address(server.server_port)
        say(address)
        if open_browser:
            click.launch(address)
        server.serve_forever()


def serve_datasette(path: Path, port: int, guard: LoginGuard, *, open_browser: bool) -> None:
    """Serve a history until Ctrl-C. Raises UsageError if Datasette is not installed."""
    try:
        import uvicorn
        from datasette.app import Datasette
        from datasette.version import __version__
    except ImportError:
        raise UsageError("Datasette is not installed.", "Install it: pip install 'perfbisect[serve]'") from None
    from perfbisect.store.query import datasette_arguments

    options = datasette_arguments(path.stem, int(__version__.partition(".")[0]))
    datasette_app = Datasette([str(path)], settings={"sql_time_limit_ms": LONGEST}, **options)
    if open_browser:
        click.launch(guard.page_address(port))
    # Without WebSockets: the guard handles only requests of HTTP.
    uvicorn.run(guarded_app(datasette_app.app(), guard), host=guard.address, port=port, ws="none")


def guarded_app(app: Any, guard: LoginGuard) -> Any:
    """An ASGI application that passes to ``app`` only the requests that ``guard`` admits."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        from datasette import Response

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                added = {name.lower().encode(): value.encode() for name, value in HEADERS.items()}
                other_headers = (pair for pair in message["headers"] if pair[0].lower() not in added)
                message = {**message, "headers": [*other_headers, *added.items()]}
            await send(message)

        if scope["type"] == "http":
            sent_headers = {name.lower(): value.decode("latin-1") for name, value in scope.get("headers", ())}
            sent = sent_headers.get(b"host", ""), sent_headers.get(b"authorization", "")
            if refused := await asyncio.to_thread(guard.refusal, *sent):
                status, headers, text = refused
                await Response.text(text, status=status, headers=headers).asgi_send(send_guarded)
                return
        await app(scope, receive, send_guarded)

    return answer
