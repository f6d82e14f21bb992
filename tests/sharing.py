"""Hosts that share the builds of a small program, and a store for objects on this machine."""

import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath

import msgspec

from perfbisect.core.domain.events import Warned
from perfbisect.host.local import LocalHost
from perfbisect.lab.build import checkout
from perfbisect.lab.build.pipeline import build, build_context
from perfbisect.lab.build.plan import BuildContext, Built
from perfbisect.lab.build.shared_builds import SharedBuilds
from perfbisect.recipes.builder import Build, Builder, Variant
from perfbisect.recipes.inventory import HostEntry
from perfbisect.repository.discovery import open_repository
from waiting import finish

Git = Callable[..., str]

RECIPE = Builder(
    name="tiny",
    summary="a tiny program",
    driver="tiny",
    variants={"o2nofp": Variant(cflags="-O2"), "native": Variant(cflags="-O2 -march=native")},
    build=Build(
        compile=[
            ["sh", "-c", "for unit in main one; do $CC {cflags} -c {source}/$unit.c -o $unit.o || exit; done"],
            ["sh", "-c", "$CC main.o one.o -o tiny"],
        ],
        install=[["sh", "-c", "mkdir -p {prefix}/bin && cp tiny {prefix}/bin && ln -s tiny {prefix}/bin/small"]],
        artifacts=["bin/tiny"],
        env={"CC": "{cc}"},
        timeout=60.0,
    ),
)


@dataclass
class Fleet:
    """A repository, and hosts with folders of their own."""

    folder: Path
    git: Git

    def commit(self, value: int) -> str:
        repo = self.folder / "repo"
        (repo / "main.c").write_text("int one(void);\nint main(void) { return one(); }\n")
        (repo / "one.c").write_text(f"int one(void) {{ return {value}; }}\n")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "change")
        return self.git("rev-parse", "HEAD")

    def context(
        self, name: str, *, layouts: bool = False, variant: str = "", remote: str = "", **changes: object
    ) -> BuildContext:
        root = self.folder / name
        root.mkdir(exist_ok=True)
        host, repository = LocalHost(name, PurePosixPath(root)), open_repository(self.folder / "repo")
        bare = finish(checkout.mirror(host, repository, "tiny", []))[1]
        recipe = msgspec.structs.replace(RECIPE, folder=str(self.folder / "recipe"), **changes)
        return build_context(
            host, HostEntry(name=name, jobs=1, ccache_remote=remote), recipe, variant, bare, repository, layouts=layouts
        )

    def obtain(
        self, name: str, shared: SharedBuilds | None, sha: str, context: BuildContext | None = None, **more: object
    ) -> tuple[Built, list[str]]:
        """A build on the host of that name, and the warnings."""
        steps, built = finish(build(context or self.context(name, **more), sha, shared))  # type: ignore[arg-type]
        return built, [step.text for step in steps if isinstance(step, Warned)]


@dataclass
class ObjectServer:
    """What it has, and what was asked of it."""

    address: str = ""
    kept: dict[str, bytes] = field(default_factory=dict)  # by path
    asked: list[str] = field(default_factory=list)  # methods
    fails: Callable[[str], int] = lambda method: 0  # method → the status of an error; 0: none
    stop: Callable[[], None] = lambda: None


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    state = ObjectServer()
    login = "Basic " + base64.b64encode(b"user:secret").decode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def answer_any(self) -> None:
            state.asked.append(self.command)
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(length)
            if len(body) < length:  # cut off
                self.close_connection = True
            elif status := state.fails(self.command) or (401 if self.headers["Authorization"] != login else 0):
                self.answer(status)
            elif self.command == "PUT":
                state.kept[self.path] = body
                self.answer(201)
            elif self.path not in state.kept:
                self.answer(404)
            elif self.command == "DELETE":
                del state.kept[self.path]
                self.answer(204)
            else:
                self.answer(200, state.kept[self.path])

        do_GET = do_HEAD = do_PUT = do_DELETE = answer_any

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    state.address = f"http://user:secret@127.0.0.1:{server.server_port}"

    def stop() -> None:
        server.shutdown()
        server.server_close()

    state.stop = stop
    try:
        yield state
    finally:
        stop()
