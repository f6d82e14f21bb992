"""`bisect serve`: its pages; what `--sql` starts; and real Datasettes, beside a hunt that is writing."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import sample_hunt as sample
from perfbisect.cli.commands.serve import configured
from perfbisect.store.history import History
from program import PROGRAM, exits, run

pytestmark = pytest.mark.tools

SOURCES = Path(__file__).parents[2] / "bisect"


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """A history that stays open for writing."""
    with closing(History.open(tmp_path / "history.db")) as opened:
        sample.write(opened)
        yield opened


def test_what_is_started(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def start(argv: list[str], check: bool, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        started.append([*argv, env["PERFBISECT_ADDRESS"]])
        assert "latest_hunts" in Path(argv[argv.index("--config") + 1]).read_text()
        if "--plugins-dir" in argv:
            assert Path(argv[argv.index("--plugins-dir") + 1], "own_names.py").exists()
        return subprocess.CompletedProcess(argv, 7)

    monkeypatch.setattr(metadata, "version", lambda name: {"datasette": "1.0a19"}[name])
    monkeypatch.setattr(subprocess, "run", start)
    status, out, _ = run("serve", "--sql", "--port", "8042", "--history", str(history.path))
    assert (status, out) == (7, "")
    [argv] = started
    assert argv[:5] == [sys.executable, "-m", "datasette", "serve", str(history.path)]
    assert argv[argv.index("--host") + 1] == "127.0.0.1"
    assert argv[argv.index("--port") + 1] == "8042"
    assert not Path(argv[argv.index("--config") + 1]).exists()
    for address, guarded in {"127.0.0.7": True, "localhost": True, "::1": True, "0.0.0.0": False, "::": False}.items():
        run("serve", "--sql", "--address", address, "--history", str(history.path))
        argv = started.pop()
        assert (argv[-1], "--plugins-dir" in argv) == (address, guarded)


def test_without_datasette_and_without_a_history(
    history: History, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert "pip install 'perfbisect[serve]'" in exits(3, "serve", "--sql", "--history", str(history.path))
    assert "There are no hunts yet" in exits(3, "serve", "--history", str(tmp_path / "none.db"))


def test_the_files_are_where_the_options_say(tmp_path: Path) -> None:
    option, file = configured(tmp_path, "kept", 0, own=False)
    assert option == "--metadata"
    assert "kept" in json.loads(Path(file).read_text())["databases"]


def ask(port: int, path: str, host: str = "localhost") -> tuple[int, str]:
    """The status and the text of an answer."""
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as other:
        other.request("GET", path, headers={"Host": host})
        answer = other.getresponse()
        return answer.status, answer.read().decode()


def refuses_strangers(port: int, path: str) -> None:
    """Only requests that name this machine are answered."""
    for host, status in {"localhost:1": 200, "[::1]:8001": 200, "LOCALHOST": 200, "127.9.9.9": 200, "evil.example": 421,
                         "127.0.0.1.evil.example:80": 421, "192.0.2.1": 421, "[": 421, "": 421}.items():  # fmt: skip
        found, text = ask(port, path, host)
        assert (found, "Open it as localhost" in text) == (status, status == 421), host


def test_pages_are_made_when_they_are_asked_for(history: History) -> None:
    argv = [*PROGRAM, "serve", "--history", str(history.path), "--port", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            port = int(process.stdout.readline().rstrip("/\n").rpartition(":")[2])
            refuses_strangers(port, "/")
            assert 'href="hunt-1.html"' in ask(port, "/")[1]
            assert "hunt-2.html" not in ask(port, "/")[1]
            sample.begin(history)
            assert 'href="hunt-2.html"' in ask(port, "/")[1]
            assert "The culprit is 6da84d17ef" in ask(port, "/hunt-1.html?x")[1]
            assert "There is no verdict yet." in ask(port, "/hunt-2.html")[1]
            for path, said in {
                "/hunt-99.html": "no hunt 99",
                "/c2.html": "no c2",
                "/etc/passwd": "no such page",
            }.items():
                status, text = ask(port, path)
                assert (status, said in text) == (404, True), text
            assert f"Port {port} of 127.0.0.1" in exits(4, *argv[len(PROGRAM) : -1], str(port))
            history.connection.execute("update events set body = '{' where session_id = 1 and id = 3")
            history.connection.commit()
            assert ask(port, "/hunt-1.html")[0] == 500
        finally:
            process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 0


@pytest.fixture(params=["datasette~=0.65.0", "datasette~=1.0a13"])
def packages(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder with a real Datasette; without a network, the test is skipped."""
    folder = tmp_path / "packages"
    argv = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", str(folder), request.param]
    installed = subprocess.run(argv, check=False, capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(f"pip cannot install {request.param}: {installed.stderr.strip()[-200:]}")
    return str(folder)


@pytest.mark.slow
def test_a_real_datasette_beside_a_hunt_that_is_written(history: History, packages: str) -> None:
    def get(path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{place}/{path}?{urllib.parse.urlencode(query)}") as answer:
            return json.load(answer)

    argv = [*PROGRAM, "serve", "--sql", "--history", str(history.path), "--port", "0"]
    env = {**os.environ, "PYTHONPATH": f"{packages}:{SOURCES}"}
    with subprocess.Popen(argv, env=env, start_new_session=True, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr
            place = next(found[0] for line in process.stderr if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
            first = get("history/latest_hunts.json", _shape="array")
            assert [row["verdict"] for row in first] == ["Found"]
            sample.begin(history)
            assert [row["id"] for row in get("history/latest_hunts.json", _shape="array")] == [2, 1]
            assert len(get("history/builds_of_hunt.json", _shape="array", hunt="1")) == 6
            assert len(get("history/builds_of_hunt.json", _shape="array", hunt="2")) == 0
            assert get("history/spread_by_host.json", _shape="array")[0]["host"] == "local"
            refuses_strangers(int(place.rpartition(":")[2]), "/-/versions.json")
            with pytest.raises(urllib.error.HTTPError):
                get("history.json", sql="delete from hunts", _shape="array")
            assert len(history.hunts()) == 2
        finally:
            os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 0
