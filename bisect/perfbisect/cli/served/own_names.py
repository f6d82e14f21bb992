"""A plugin of Datasette: on a loopback address only requests are answered that name this machine.

A page of a stranger can have its own name lead to 127.0.0.1 (DNS rebinding). The browser of a user of this machine would then let
it read what is served here; but the name stands in each request.
"""

import os
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from datasette import Response, hookimpl

REFUSAL = "This is served to this machine alone. Open it as localhost, with the same port.\n"


@hookimpl  # type: ignore[untyped-decorator]
def asgi_wrapper() -> Any:
    """Wrap Datasette."""

    def wrap(app: Any) -> Any:
        async def answer(scope: Any, receive: Any, send: Any) -> None:
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
