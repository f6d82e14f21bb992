"""Whole hunts on two hosts at once: two places on this machine, each with builds, data and compiler cache of its own."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.tools]

PROGRAM = [sys.executable, "-c", "from perfbisect.cli.main import main; main()"]
LIMIT = 900  # seconds; far beyond what a hunt takes


def hosts(folder: Path, **more: str) -> list[str]:
    """The options that name two hosts; ``more`` are further lines of their entries."""
    entries = [
        f'[hosts.{name}]\nroot = "{folder}/{name}"\njobs = 1\n{more.get(name, more.get("both", ""))}\n'
        for name in ("one", "two")
    ]
    (folder / "hosts.toml").write_text("\n".join(entries))
    return ["--hosts", str(folder / "hosts.toml"), "--host", "one", "--host", "two"]


def demo(folder: Path, *options: str) -> list[str]:
    return ["demo", "--seed", "3", "--history", str(folder / "h.db"), "--folder", str(folder / "demo"), *options]


def bisect(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *args], capture_output=True, text=True, timeout=LIMIT, check=False)


def until(args: list[str], sign: str, act: signal.Signals) -> int:
    """Run the program until a line holds ``sign``, send it ``act``; the exit status."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([*PROGRAM, *args], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if sign in line:
                process.send_signal(act)
                break
        process.stdout.read()
        return process.wait(timeout=60)


def ask(history: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(history)) as connection:
        return connection.execute(sql).fetchall()


def running(root: Path) -> list[str]:
    """Jobs below ``root`` that have no status."""
    return [str(status) for status in root.glob("jobs/*/status") if not status.read_text().strip()]


def planted(folder: Path) -> str:
    commit: str = json.loads((folder / "demo" / "answer.json").read_text())["commit"]
    return commit


def test_killed_and_interrupted_and_gone_on_with(tmp_path: Path) -> None:
    """Nothing is lost or counted twice; Ctrl-C leaves nothing running on either host."""
    begin = demo(tmp_path, *hosts(tmp_path, both='class = "pair"'), "--json")
    assert until(begin, '"BuildProgress"', signal.SIGKILL) == -signal.SIGKILL
    resume = ["resume", "--history", str(tmp_path / "h.db"), "--json"]
    assert until(resume, '"RunProgress"', signal.SIGINT) == 130
    assert not [job for name in ("one", "two") for job in running(tmp_path / name)]

    ended = bisect("resume", "--history", str(tmp_path / "h.db"), "--plain")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ask(tmp_path / "h.db", "select culprit from culprits") == [(planted(tmp_path),)]
    made = Counter(ask(tmp_path / "h.db", "select host, commit_hash from builds where not reused"))
    assert set(made.values()) == {1}
    assert {host for host, _ in made} == {"one", "two"}
    for host, times in ask(tmp_path / "h.db", "select host, count(*) from runs group by 1"):
        logs = ask(tmp_path / "h.db", f"select count(distinct event_id) from runs where host = '{host}'")
        assert logs == [(times,)]
    shown = bisect("show", "--history", str(tmp_path / "h.db"), "--json")
    assert [host["name"] for host in json.loads(shown.stdout)["hosts"]] == ["one", "two"]


def test_a_host_that_vanishes(tmp_path: Path) -> None:
    """Its folder is moved away in the middle of the hunt: the other one finds the culprit alone."""
    options = demo(tmp_path, *hosts(tmp_path, both='class = "pair"'), "--json")
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    told = []
    with subprocess.Popen([*PROGRAM, *options], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            told.append(json.loads(line))
            if told[-1]["event"] == "RunFinished" and told[-1]["host"] == "two" and (tmp_path / "two").is_dir():
                (tmp_path / "two").rename(tmp_path / "gone")
        assert process.wait(timeout=60) == 0
    assert [event["text"] for event in told if event["event"] == "Warned" and "no further part" in event["text"]]
    assert ask(tmp_path / "h.db", "select culprit from culprits") == [(planted(tmp_path),)]


def test_hosts_of_different_classes(tmp_path: Path) -> None:
    """By default each is of its own: the verdict tells the effect on both."""
    ended = bisect(*demo(tmp_path, *hosts(tmp_path), "--plain"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "On one: 0." in ended.stdout
    assert "On two: 0." in ended.stdout
    shown = json.loads(bisect("show", "--history", str(tmp_path / "h.db"), "--json").stdout)
    assert [effect["kind"] for effect in shown["cases"][0]["effects"]] == ["one", "two"]


def test_one_builds_for_the_other(tmp_path: Path) -> None:
    """Compilers run on one host only; what the other measures came as a tar stream."""
    named = hosts(tmp_path, one='class = "pair"', two='class = "pair"\nbuild_host = "one"')
    ended = bisect(*demo(tmp_path, *named, "--plain"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    shipped = {place.name for place in (tmp_path / "two" / "builds").iterdir()}
    assert shipped
    assert shipped <= {place.name for place in (tmp_path / "one" / "builds").iterdir()}
    assert not (tmp_path / "two" / "work" / "demo" / "source").exists()
    assert ask(tmp_path / "h.db", "select count(*) from runs where host = 'two'") > [(0,)]


def test_a_host_named_twice(tmp_path: Path) -> None:
    named = hosts(tmp_path)
    twice = bisect(*demo(tmp_path, *named[:4], "--host", "one"))
    assert twice.returncode == 3
    assert "Host one is named twice" in twice.stderr
