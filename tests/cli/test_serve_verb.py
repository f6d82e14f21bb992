"""`bisect serve`: its pages, and Datasette (`--sql`), also while a hunt writes to the history."""

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

import sample_hunt as sample
from perfbisect.cli.commands.nightly import branch_page_name
from perfbisect.cli.guard import add_user
from perfbisect.cli.pages import Pages
from perfbisect.store.history import History
from program import PROGRAM, asked, exits, served

pytestmark = pytest.mark.tools

SOURCES = Path(__file__).parents[2] / "bisect"


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """A history that stays open for writing."""
    with closing(History.open(tmp_path / "history.db")) as opened:
        sample.write(opened)
        yield opened


Started = tuple[mock.Mock, mock.Mock]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Mocks of Datasette's application class and of `uvicorn.run`, because neither package is installed."""
    application, serve = mock.Mock(), mock.Mock()
    for name, content in {
        "datasette": {}, "datasette.app": {"Datasette": application}, "datasette.version": {"__version__": "1.0a19"},
        "uvicorn": {"run": serve},
    }.items():  # fmt: skip
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**content))
    return application, serve


def test_sql_starts_datasette_on_the_given_address(history: History, started: Started) -> None:
    sql = ["serve", "--sql", "--history", str(history.path)]
    for address in ("127.0.0.1", "127.0.0.7", "localhost", "::1"):
        exits(0, *sql, "--port", "8042", "--address", address)
        (args, how), (_, listening) = (made.call_args for made in started)
        assert args == ([str(history.path)],)
        assert "latest_hunts" in how["config"]["databases"]["history"]["queries"]
        assert listening == {"host": address, "port": 8042, "ws": "none"}
    assert "is not an address" in exits(3, *sql, "--address", "a" * 70)
    with mock.patch.dict(sys.modules, {"datasette.app": None}):
        assert "pip install 'perfbisect[serve]'" in exits(3, *sql)


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_address_for_other_machines_requires_a_login(history: History, address: str, tmp_path: Path) -> None:
    words, users = ("serve", "--sql", "--address", address, "--history", str(history.path)), tmp_path / "users"
    said = exits(3, *words)
    assert "--password-file FILE" in said and "--token-file FILE" in said
    words = (*words, "--password-file", str(users))
    said = exits(3, *words)
    assert f"{users} cannot be read" in said and f"--add-user NAME --password-file {users}" in said
    users.touch(0o600)
    assert "has no users" in exits(3, *words)
    add_user(users, "reader", "correct horse")
    assert "a proxy with TLS" in exits(0, *words)
    users.chmod(0o640)
    assert f"chmod 600 {users}" in exits(3, *words)


def refuses_strangers(port: int, path: str) -> None:
    """Check that only requests whose Host header names this machine are answered."""
    for host, status in {"localhost:1": 200, "[::1]:8001": 200, "LOCALHOST": 200, "127.9.9.9": 200, "evil.example": 421,
                         "127.0.0.1.evil.example:80": 421, "192.0.2.1": 421, "[": 421, "": 421}.items():  # fmt: skip
        found, text = asked(port, path, host)
        assert (found, "only requests from its own machine" in text) == (status, status == 421), host


def test_nights_with_different_settings_are_separate_lines(history: History) -> None:
    """There are two lines of four nights, as in `bisect nightly`. Each line links to its latest night."""
    for number in range(8):
        night = sample.write_trial(history, sample.night(number // 2), number + 1.0)
        if number % 2:
            history.update_settings(night, replace(history.settings(night), configure=("--with-debug",)))
    lines = Pages(history.path, None).dashboard_charts(history.hunts_and_trials())
    found = [(line.title, len(line.ratios), line.link) for line in lines]
    assert found == [("scan, main", 4, "c8.html"), ("scan, main", 4, "c9.html")]
    names = ["main", "a-b", "a/b", "a.b", "a/-b", "hunt-12"]
    pages = [*map(branch_page_name, names)]
    assert pages[:2] == ["main.html", "a-b.html"]
    assert len({*pages, "hunt-12.html"}) == len(names) + 1, "each branch has a page of its own"


def test_page_shows_the_history_at_the_time_of_the_request(history: History) -> None:
    with served("--history", str(history.path)) as port:
        refuses_strangers(port, "/all")
        assert 'href="hunt-1.html"' in asked(port, "/all")[1]
        assert "hunt-2.html" not in asked(port, "/all")[1]
        assert "0 sessions run" in asked(port, "/")[1]
        assert [asked(port, path, verb="HEAD") for path in ("/", "/none")] == [(200, ""), (404, "")]
        sample.begin(history)
        assert 'href="hunt-2.html"' in asked(port, "/all")[1]
        assert "1 session runs" in asked(port, "/")[1]
        assert "The culprit is 6da84d17ef" in asked(port, "/hunt-1.html?x")[1]
        assert "There is no verdict yet." in asked(port, "/hunt-2.html")[1]
        for path, said in {
            "/hunt-99.html": "no hunt 99", "/c2.html": "no comparison c2", "/hunt-desk3%3A1.html": "is an id of a central history",
            "/etc/passwd": "This page does not exist", "http://[": "This page does not exist",
        }.items():  # fmt: skip
            status, text = asked(port, path)
            assert (status, said in text) == (404, True), text
        for _ in range(5):  # a client that disconnects before the response is no error
            with closing(socket.create_connection(("127.0.0.1", port))) as gone:
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                gone.sendall(b"GET /all HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert f"The server cannot listen on port {port} of 127.0.0.1: " in exits(
            4, "serve", "--history", str(history.path), "--port", str(port)
        )
        history.connection.execute("update events set body = '{' where session_id = 1 and id = 3")
        history.connection.commit()
        assert asked(port, "/hunt-1.html")[0] == 500


def test_login_by_name_or_token_opens_any_page(history: History, tmp_path: Path) -> None:
    """A changed password counts at once. `test_guard.py` tests refused logins."""
    users, token = tmp_path / "users", tmp_path / "token"
    add_user(users, "reader", "correct horse")
    token.touch(0o600)
    token.write_text("0123456789abcdef" * 2)
    with served("--history", str(history.path), "--password-file", str(users), "--token-file", str(token)) as port:
        admitted, bearer = "reader:correct horse", f"Bearer {token.read_text()}"
        for login, status in {"": 401, "Basic %": 401, admitted: 200, bearer: 200}.items():
            found, text = asked(port, "/hunt-1.html", "history.example", login)
            assert (found, "6da84d17ef" in text) == (status, status == 200), login
        assert [asked(port, "/", login=login)[0] for login in ("", admitted)] == [401, 200]
        add_user(users, "reader", "battery staple")
        assert [asked(port, "/", login=login)[0] for login in (admitted, "reader:battery staple")] == [401, 200]
        users.chmod(0o644)
        assert asked(port, "/", login="reader:battery staple")[0] == 401


@contextmanager
def datasette(history: History, packages: Path, *options: str) -> Iterator[int]:
    """The port of a real Datasette, started by the program."""
    argv = [*PROGRAM, "serve", "--sql", "--history", str(history.path), "--port", "0", *options]
    env = {**os.environ, "PYTHONPATH": f"{packages}:{SOURCES}"}
    with subprocess.Popen(argv, env=env, start_new_session=True, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr
            found = (re.search(r"http://127\.0\.0\.1:(\d+)", line) for line in process.stderr)
            yield next(int(each[1]) for each in found if each)
        finally:
            os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize("version", ["datasette~=0.65.0", "datasette~=1.0a13"])
def test_datasette_reads_the_history_while_a_hunt_writes(history: History, version: str, tmp_path: Path) -> None:
    """Without a network, the test is skipped."""
    packages, users = tmp_path / "packages", tmp_path / "users"
    argv = [sys.executable, "-m", *f"pip install -q --no-compile {version} --target".split(), str(packages)]
    installed = subprocess.run(argv, check=False, capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(f"pip cannot install {version}: {installed.stderr.strip()[-200:]}")

    def get(path: str, **query: str) -> Any:
        asked_for = urllib.parse.urlencode(query | {"_shape": "array"})
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/history{path}.json?{asked_for}") as answer:
            return json.load(answer)

    with datasette(history, packages) as port:
        assert [row["verdict"] for row in get("/latest_hunts")] == ["Found"]
        sample.begin(history)
        assert [row["id"] for row in get("/latest_hunts")] == [2, 1]
        assert [len(get("/builds_of_hunt", hunt=hunt)) for hunt in "12"] == [6, 0]
        assert get("/spread_by_host")[0]["host"] == "local"
        refuses_strangers(port, "/-/versions.json")
        with pytest.raises(urllib.error.HTTPError):
            get("", sql="delete from hunts")
        assert len(history.hunts()) == 2
    add_user(users, "reader", "correct horse")
    with datasette(history, packages, "--password-file", str(users)) as port:
        for login, status in {"": 401, "reader:wrong horse": 401, "reader:correct horse": 200}.items():
            assert asked(port, "/history/latest_hunts.json", login=login)[0] == status
