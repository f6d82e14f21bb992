"""The program as a process of its own, and in this process, by the same entry (``run``)."""

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

from perfbisect.cli.main import main
from perfbisect.errors import USAGE

PROGRAM = [sys.executable, "-c", "from perfbisect.cli.main import main; main()"]
# The words of a hunt for the script of tests/cli/conftest.py, in its clone; and those that make it short.
SCRIPT = ["--builder", "script", "--workload", "one", "--repo", "repo"]
HUNT = [*SCRIPT, "--plain", "--no-explain"]
LIMIT = 3000  # seconds; far beyond what is needed, on a busy machine too

Process = subprocess.Popen[str]


def bisect(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run([*PROGRAM, *words], capture_output=True, text=True, check=False, timeout=LIMIT, cwd=cwd)


def bisect_watched(
    words: list[str], see: Callable[[str, Process], object], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run it to its end; ``see`` is called with each line of its output and errors, and with the process."""
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
    """Run it to its end; at the first line that contains ``sign`` it gets a signal, or ``act`` is called."""
    waiting = [act]

    def see(line: str, process: Process) -> None:
        if sign in line and waiting:
            todo = waiting.pop()
            process.send_signal(todo) if isinstance(todo, signal.Signals) else todo(process)

    return bisect_watched(words, see, cwd)


def rows(history: Path, sql: str) -> list[tuple[Any, ...]]:
    """The answer to a query about a history."""
    with closing(sqlite3.connect(history)) as connection:
        return connection.execute(sql).fetchall()


class Ended(NamedTuple):
    """How the program ended."""

    status: int
    out: str
    err: str


def run(*args: str) -> Ended:
    """Run it with these arguments. Its streams have the encodings that they have outside of tests."""
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
    """Write a program, in a folder that may have to be made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def exits(status: int, *args: str) -> str:
    """Run it in this process; it ends with that status, without a traceback. What it prints; of mistakes the errors alone."""
    ended = run(*args)
    assert ended.status == status, ended.err
    assert "Traceback" not in ended.err
    return ended.err if status == USAGE else ended.out + ended.err


def printed(*args: str, status: int = 0) -> str:
    """Run it in this process; it ends with that status. What it prints on standard output."""
    ended = run(*args)
    assert ended.status == status, ended.err
    return ended.out


@contextmanager
def served(*options: str) -> Iterator[int]:
    """The port of a program that serves a history, and ends at Ctrl-C without having said anything."""
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
    """The status and the text of an answer; ``login`` is a name with its password, or the header itself."""
    if ":" in login:
        login = f"Basic {base64.b64encode(login.encode()).decode()}"
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as other:
        other.request(verb, path, headers={"Host": host} | ({"Authorization": login} if login else {}))
        answer = other.getresponse()
        assert "Python" not in answer.headers.get("Server", "")
        guarded = ("X-Frame-Options", "Cache-Control", "X-Content-Type-Options")
        assert [answer.headers.get_all(name) for name in guarded] == [["DENY"], ["no-store"], ["nosniff"]]
        return answer.status, answer.read().decode()
