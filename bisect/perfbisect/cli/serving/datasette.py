"""The history in Datasette, behind the guard."""

import asyncio
from pathlib import Path
from typing import Any

import click

from perfbisect.cli.serving.guard import HEADERS, Guard
from perfbisect.errors import UsageError

LONGEST = 10_000  # milliseconds of a query


def serve_datasette(path: Path, port: int, guard: Guard, *, opens: bool) -> None:
    """Serve a history until Ctrl-C. Raises UsageError where Datasette is not installed."""
    try:
        import uvicorn
        from datasette.app import Datasette
        from datasette.version import __version__
    except ImportError:
        raise UsageError("Datasette is not installed.", "Install it: pip install 'perfbisect[serve]'") from None
    from perfbisect.store.query import configuration

    options = configuration(path.stem, int(__version__.partition(".")[0]))
    made = Datasette([str(path)], settings={"sql_time_limit_ms": LONGEST}, **options)
    if opens:
        click.launch(guard.place(port))
    # Without WebSockets: the guard knows requests of HTTP alone.
    uvicorn.run(guarded(made.app(), guard), host=guard.address, port=port, ws="none")


def guarded(app: Any, guard: Guard) -> Any:
    """An application of ASGI of which only requests are answered that the guard admits."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        from datasette import Response

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower().encode(): value.encode() for name, value in HEADERS.items()}
                kept = (pair for pair in message["headers"] if pair[0].lower() not in own)
                message = {**message, "headers": [*kept, *own.items()]}
            await send(message)

        if scope["type"] == "http":
            found = {name.lower(): value.decode("latin-1") for name, value in scope.get("headers", ())}
            sent = found.get(b"host", ""), found.get(b"authorization", "")
            if refused := await asyncio.to_thread(guard.refusal, *sent):
                status, headers, text = refused
                await Response.text(text, status=status, headers=headers).asgi_send(send_guarded)
                return
        await app(scope, receive, send_guarded)

    return answer
