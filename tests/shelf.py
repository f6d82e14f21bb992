"""Archives, and a server of archives over HTTP that can send parts of files and break off."""

import hashlib
import io
import re
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Shelf:
    """The files of a server, and the requests that it has got."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)  # by path
    asked: list[tuple[str, str]] = field(default_factory=list)  # path, range
    cuts: list[int] = field(default_factory=list)  # bytes after which the next answers break off
    parts: bool = True  # the server supports ranges


def packed(files: Mapping[str, str]) -> bytes:
    """A tar.gz archive of ``files``."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


class Quiet(BaseHTTPRequestHandler):
    """A handler that logs nothing to the terminal."""

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[ThreadingHTTPServer]:
    """A server in its own thread, at a free port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def sum_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def shelf(files: Mapping[str, bytes]) -> Iterator[Shelf]:
    state = Shelf(files=dict(files))

    class Handler(Quiet):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            state.asked.append((self.path, wanted))
            content = state.files.get(self.path)
            if content is None:
                return self.send_error(404, "Not Found")
            begin = int(found[1]) if state.parts and (found := re.fullmatch(r"bytes=(\d+)-", wanted)) else 0
            if begin and begin >= len(content):
                return self.send_error(416)
            rest = content[begin:]
            self.send_response(206 if begin else 200)
            self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            self.wfile.write(rest[: state.cuts.pop(0) if state.cuts else None])
            return None

    with serving(Handler) as server:
        state.address = f"http://127.0.0.1:{server.server_port}"
        yield state
