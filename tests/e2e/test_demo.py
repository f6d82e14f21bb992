"""Whole hunts on the demo history, with real compilers, ccache, sysbench and perf."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.tools]

PROGRAM = [sys.executable, "-c", "from perfbisect.cli.main import main; main()"]
LIMIT = 900  # seconds; far beyond what a hunt takes


def bisect(*args: str) -> subprocess.CompletedProcess[str]:
    """Run the program to its end."""
    return subprocess.run([*PROGRAM, *args], capture_output=True, text=True, timeout=LIMIT, check=False)


def stop_when(args: list[str], sign: str, kill: signal.Signals) -> int:
    """Run the program, send it ``kill`` when a line holds ``sign``, and return its exit status."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([*PROGRAM, *args], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if sign in line:
                process.send_signal(kill)
                break
        process.stdout.read()
        return process.wait(timeout=60)


def ask(history: Path, sql: str) -> list[tuple[object, ...]]:
    """Rows of ``sql`` from a history."""
    connection = sqlite3.connect(history)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_the_planted_commit_is_named_after_a_kill_and_an_interrupt(tmp_path: Path) -> None:
    """Killed while it builds, interrupted while it measures, resumed to the right verdict, nothing done twice."""
    history = tmp_path / "history.db"
    demo = ["demo", "--seed", "3", "--history", str(history), "--json", "--folder", str(tmp_path / "demo")]
    assert stop_when(demo, '"BuildProgress"', signal.SIGKILL) == -signal.SIGKILL
    resume = ["resume", "--history", str(history), "--json"]
    assert stop_when(resume, '"RunProgress"', signal.SIGINT) == 130

    ended = bisect("resume", "--history", str(history), "--plain")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    planted = (tmp_path / "demo" / "answer.json").read_text()
    shown = bisect("show", "--history", str(history))
    assert shown.returncode == 0
    [(culprit,)] = ask(history, "select culprit from culprits")
    assert str(culprit) in planted
    assert str(culprit)[:10] in shown.stdout
    assert (
        ask(history, "select commit_hash, count(*) from builds where not reused group by 1 having count(*) > 1") == []
    )
    assert ask(history, "pragma integrity_check") == [("ok",)]
