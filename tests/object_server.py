"""A small server that stores what it is given over HTTP, with a password, as a WebDAV server does."""

import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


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
