"""Whole hunts on two hosts at once: two places on this machine, each with builds, data and compiler cache of its own."""

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from program import Process, bisect, bisect_until, bisect_watched, rows

pytestmark = [pytest.mark.e2e, pytest.mark.tools]


def hosts(folder: Path, **more: str) -> list[str]:
    """The options that name two hosts; ``more`` are further lines of their entries."""
    entries = [
        f'[hosts.{name}]\nroot = "{folder}/{name}"\njobs = 1\n{more.get(name, more.get("both", ""))}\n'
        for name in ("one", "two")
    ]
    (folder / "hosts.toml").write_text("\n".join(entries))
    return ["--hosts", str(folder / "hosts.toml"), "--host", "one", "--host", "two"]


def demo(folder: Path, *options: str) -> list[str]:
    planted = ["demo", "--seed", "3", "--drop", "60%", "--no-explain", "--folder", str(folder / "demo")]
    return [*planted, "--history", str(folder / "h.db"), *options]


def running(root: Path) -> list[str]:
    """Jobs below ``root`` that have no status."""
    return [str(status) for status in root.glob("jobs/*/status") if not status.read_text().strip()]


def planted(folder: Path) -> str:
    commit: str = json.loads((folder / "demo" / "answer.json").read_text())["commit"]
    return commit


@pytest.mark.slow
def test_killed_and_interrupted_and_gone_on_with(tmp_path: Path) -> None:
    """Nothing is lost or counted twice; Ctrl-C leaves nothing running on either host."""
    begin = demo(tmp_path, *hosts(tmp_path, both='class = "pair"'), "--json")
    assert bisect_until(begin, '"BuildProgress"', signal.SIGKILL).returncode == -signal.SIGKILL
    resume = ["resume", "--history", str(tmp_path / "h.db"), "--json"]
    assert bisect_until(resume, '"RunProgress"', signal.SIGINT).returncode == 130
    assert not [job for name in ("one", "two") for job in running(tmp_path / name)]

    ended = bisect("resume", "--history", str(tmp_path / "h.db"), "--plain")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert rows(tmp_path / "h.db", "select culprit from culprits") == [(planted(tmp_path),)]
    made = Counter(rows(tmp_path / "h.db", "select host, commit_hash from builds where not reused"))
    assert set(made.values()) == {1}
    assert {host for host, _ in made} == {"one", "two"}
    for host, times in rows(tmp_path / "h.db", "select host, count(*) from runs group by 1"):
        logs = rows(tmp_path / "h.db", f"select count(distinct event_id) from runs where host = '{host}'")
        assert logs == [(times,)]
    shown = bisect("show", "--history", str(tmp_path / "h.db"), "--json")
    assert [host["name"] for host in json.loads(shown.stdout)["hosts"]] == ["one", "two"]


@pytest.mark.slow
def test_a_host_that_vanishes(tmp_path: Path) -> None:
    """Its folder is moved away in the middle of the hunt: the other one finds the culprit alone."""
    options = demo(tmp_path, *hosts(tmp_path, both='class = "pair"'), "--json")
    events = []

    def see(line: str, _: Process) -> None:
        if not line.startswith("{"):
            return
        events.append(json.loads(line))
        if events[-1]["event"] == "RunFinished" and events[-1]["host"] == "two" and (tmp_path / "two").is_dir():
            (tmp_path / "two").rename(tmp_path / "gone")

    assert bisect_watched(options, see).returncode == 0
    assert [event["text"] for event in events if event["event"] == "Warned" and "no further part" in event["text"]]
    assert rows(tmp_path / "h.db", "select culprit from culprits") == [(planted(tmp_path),)]


@pytest.mark.slow
def test_hosts_of_different_classes(tmp_path: Path) -> None:
    """By default each is of its own: the verdict tells the effect on both."""
    ended = bisect(*demo(tmp_path, *hosts(tmp_path), "--plain"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "On one: 0." in ended.stdout
    assert "On two: 0." in ended.stdout
    shown = json.loads(bisect("show", "--history", str(tmp_path / "h.db"), "--json").stdout)
    assert [effect["host_class"] for effect in shown["cases"][0]["effects"]] == ["one", "two"]


def test_a_host_named_twice(tmp_path: Path) -> None:
    named = hosts(tmp_path)
    twice = bisect(*demo(tmp_path, *named[:4], "--host", "one"))
    assert twice.returncode == 3
    assert "Host one is given twice" in twice.stderr
