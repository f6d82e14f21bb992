"""The history in Datasette: how it is started, and the guard within it."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from perfbisect.cli.serving.guard import Guard
from perfbisect.errors import UsageError

LONGEST = 10_000  # milliseconds of a query
GUARD = "PERFBISECT_GUARD"  # in the environment of Datasette: files and address of the guard, as JSON
PLUGIN = """from datasette import hookimpl
from perfbisect.cli.serving.datasette import guarded
asgi_wrapper = hookimpl(guarded, specname="asgi_wrapper")
"""


def installed_version() -> int:
    """The first number of Datasette's version. Raises UsageError where it is not installed."""
    try:
        return int(metadata.version("datasette").partition(".")[0])
    except metadata.PackageNotFoundError:
        raise UsageError("Datasette is not installed.", "Install it: pip install 'perfbisect[serve]'") from None


def serve_datasette(path: Path, port: int, guard: Guard, *, opens: bool) -> int:
    """Serve a history until Ctrl-C; returns the exit status. Raises UsageError where Datasette is not installed."""
    first = installed_version()
    with tempfile.TemporaryDirectory(prefix="perfbisect-") as folder:
        argv = [
            *(sys.executable, "-m", "datasette", "serve", str(path), *configured(Path(folder), path.stem, first)),
            *("--host", guard.address, "--port", str(port), "--setting", "sql_time_limit_ms", str(LONGEST)),
            *(["--open"] if opens else []),
        ]
        files = (str(file.absolute()) if file else None for file in (guard.passwords, guard.token))
        env = {**os.environ, GUARD: json.dumps([*files, guard.address])}
        try:
            return subprocess.run(argv, check=False, env=env).returncode
        except KeyboardInterrupt:  # Datasette gets it, too
            return 0


def configured(folder: Path, database: str, first: int) -> list[str]:
    """Write Datasette's files and the plugin into a folder; returns the options that name them."""
    from perfbisect.store.canned_queries import configuration

    options = []
    for option, contents in configuration(database, first).items():
        file = folder / f"{option.removeprefix('--')}.json"
        file.write_text(json.dumps(contents), encoding="utf-8")
        options += [option, str(file)]
    (folder / "plugins").mkdir()
    (folder / "plugins" / "guarded.py").write_text(PLUGIN, encoding="utf-8")
    return [*options, "--plugins-dir", str(folder / "plugins")]


def guarded() -> Any:
    """Wrap Datasette: only requests are answered that the guard of its environment admits."""
    passwords, token, address = json.loads(os.environ[GUARD])
    guard = Guard(passwords and Path(passwords), token and Path(token), address)

    def wrap(app: Any) -> Any:
        async def answer(scope: Any, receive: Any, send: Any) -> None:
            from datasette import Response

            if scope["type"] == "http":
                found = {name.lower(): value.decode("latin-1") for name, value in scope.get("headers", ())}
                sent = found.get(b"host", ""), found.get(b"authorization", "")
                if refused := await asyncio.to_thread(guard.refusal, *sent):
                    status, headers, text = refused
                    await Response.text(text, status=status, headers=headers).asgi_send(send)
                    return
            await app(scope, receive, send)

        return answer

    return wrap
