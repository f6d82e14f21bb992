"""ccache of two hosts on one store, which a small HTTP server or Redis keeps."""

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath

import pytest

from perfbisect.host.local import LocalHost
from perfbisect.lab.build import ccache

pytestmark = [pytest.mark.tools, pytest.mark.skipif(not shutil.which("ccache"), reason="no ccache")]


@pytest.fixture(params=["http", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield from {"http": over_http, "redis": over_redis}[request.param](tmp_path)


def over_redis(folder: Path) -> Iterator[str]:
    if not shutil.which("redis-server"):
        pytest.skip("no redis-server")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    argv = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--requirepass", "secret", "--save", ""]
    with subprocess.Popen([*argv, "--dir", str(folder)], stdout=subprocess.DEVNULL) as server:
        deadline = time.monotonic() + 20
        while not answers(port):
            assert server.poll() is None and time.monotonic() < deadline, "Redis does not start"
            time.sleep(0.02)
        yield f"redis://default:secret@127.0.0.1:{port}"
        server.terminate()


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def over_http(_: Path) -> Iterator[str]:
    kept: dict[str, bytes] = {}

    class Store(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.answer(200 if self.path in kept else 404, kept.get(self.path, b""))

        def do_HEAD(self) -> None:
            self.answer(200 if self.path in kept else 404)

        def do_PUT(self) -> None:
            kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(201)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://user:secret@127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def compiled(host: LocalHost) -> tuple[int, int]:
    """Hits and misses of one compilation."""
    work = host.root / "work"
    environment = ccache.environment(host.root, work, "1G")
    script = (
        'mkdir -p "$1" && cd "$1" && echo "int f(void) { return 1; }" >f.c && ccache gcc -c f.c && ' + ccache.EVENTS
    )
    return ccache.count(host.run(["sh", "-c", script, "compile", str(work)], env=environment).stdout)


def test_what_one_host_compiled_the_other_finds(store: str, tmp_path: Path) -> None:
    one, two = (LocalHost(name, PurePosixPath(tmp_path / name)) for name in ("one", "two"))
    for host in (one, two):
        ccache.share(host, store)
    assert compiled(one) == (0, 1)
    assert compiled(two) == (1, 0)
    settings = tmp_path / "one" / "ccache" / "ccache.conf"
    assert settings.stat().st_mode & 0o077 == 0
    assert "secret" not in str(ccache.environment(one.root, one.root / "work", "1G"))


def test_the_users_own_settings_stay_and_ours_go(store: str, tmp_path: Path) -> None:
    host = LocalHost("one", PurePosixPath(tmp_path))
    settings = tmp_path / "ccache" / "ccache.conf"
    settings.parent.mkdir()
    settings.write_text("compression_level = 3\n")
    ccache.share(host, store)
    assert store in settings.read_text()
    ccache.share(host, "")
    assert settings.read_text() == "compression_level = 3\n"
