"""Functions that run perfbisect, as a separate process or in this process (``run``)."""

import base64
import http.client
import io
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from threading import Timer
from typing import IO, Any, NamedTuple
from unittest import mock

import pytest

from perfbisect.cli.main import main
from perfbisect.errors import USAGE

PROGRAM = [sys.executable, "-c", "from perfbisect.cli.main import main; main()"]
# Arguments of a hunt with the script of tests/cli/conftest.py; those of HUNT give a short hunt with plain output.
SCRIPT = ["--builder", "script", "--workload", "one", "--repo", "repo"]
HUNT = [*SCRIPT, "--plain", "--no-explain"]
LIMIT = 3000  # seconds; far beyond what is needed, on a busy machine too

Process = subprocess.Popen[str]


def run_first(statements: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the program run Python statements before it begins, for example to shorten a pause of many seconds."""
    monkeypatch.setitem(globals(), "PROGRAM", [sys.executable, "-c", f"{statements}; {PROGRAM[-1]}"])


def bisect(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the program to its end."""
    return subprocess.run([*PROGRAM, *words], capture_output=True, text=True, check=False, timeout=LIMIT, cwd=cwd)


def bisect_watched(
    words: list[str], see: Callable[[str, Process], object], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the program to its end; ``see`` is called with each line of its output and errors, and with the process."""
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    pipe = subprocess.PIPE
    with (
        subprocess.Popen([*PROGRAM, *words], stdout=pipe, stderr=pipe, text=True, env=env, cwd=cwd) as process,
        ThreadPoolExecutor() as readers,
    ):
        late = Timer(LIMIT, process.kill)
        late.start()

        def read(stream: IO[str]) -> str:
            lines = []
            try:
                for line in stream:
                    lines.append(line)
                    see(line, process)
            except BaseException:
                process.kill()
                raise
            return "".join(lines)

        assert process.stdout is not None
        assert process.stderr is not None
        try:
            out, errors = readers.map(read, (process.stdout, process.stderr))
        finally:
            late.cancel()
    return subprocess.CompletedProcess(words, process.returncode, out, errors)


def bisect_until(
    words: list[str], sign: str, act: signal.Signals | Callable[[Process], object], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the program to its end. At the first line that contains ``sign``, send the signal ``act`` or call ``act``."""
    waiting = [act]

    def see(line: str, process: Process) -> None:
        if sign in line and waiting:
            todo = waiting.pop()
            process.send_signal(todo) if isinstance(todo, signal.Signals) else todo(process)

    return bisect_watched(words, see, cwd)


def rows(history: Path, sql: str) -> list[tuple[Any, ...]]:
    """The rows that an SQL query on a history returns."""
    with closing(sqlite3.connect(history)) as connection:
        return connection.execute(sql).fetchall()


class Ended(NamedTuple):
    """How the program ended."""

    status: int
    out: str
    err: str


def run(*args: str) -> Ended:
    """Run the program in this process. Its streams have the encodings of a separate process."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
    status: object = None
    time.tzset()
    with mock.patch.object(sys, "argv", ["bisect", *args]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as leave:
            status = leave.code
        out.flush()
    assert isinstance(status, int)
    return Ended(status, *(stream.buffer.getvalue().decode() for stream in (out, err)))  # type: ignore[attr-defined]


def executable(path: Path, text: str) -> Path:
    """Write an executable script. Its folder is created if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def exits(status: int, *args: str) -> str:
    """Run the program in this process, check its status, and return its output; after a usage error only its errors."""
    ended = run(*args)
    assert ended.status == status, ended.err
    assert "Traceback" not in ended.err
    return ended.err if status == USAGE else ended.out + ended.err


def printed(*args: str, status: int = 0) -> str:
    """Run the program in this process, check its status, and return its standard output."""
    ended = run(*args)
    assert ended.status == status, ended.err
    return ended.out


@contextmanager
def served(*options: str) -> Iterator[int]:
    """The port of `bisect serve`, which Ctrl-C ends at the end, and which must print no errors."""
    argv = [*PROGRAM, "serve", "--port", "0", *options]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield int(process.stdout.readline().rstrip("/\n").rpartition(":")[2])
        finally:
            process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 0


def asked(port: int, path: str, host: str = "localhost", login: str = "", verb: str = "GET") -> tuple[int, str]:
    """The status and the text of a response; ``login`` is NAME:PASSWORD, or the Authorization header itself."""
    if ":" in login:
        login = f"Basic {base64.b64encode(login.encode()).decode()}"
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as other:
        other.request(verb, path, headers={"Host": host} | ({"Authorization": login} if login else {}))
        answer = other.getresponse()
        assert "Python" not in answer.headers.get("Server", "")
        guarded = ("X-Frame-Options", "Cache-Control", "X-Content-Type-Options")
        assert [answer.headers.get_all(name) for name in guarded] == [["DENY"], ["no-store"], ["nosniff"]]
        return answer.status, answer.read().decode()
