"""Whole hunts on another machine, whatever happens to the way there."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from machine import Machine

pytestmark = [pytest.mark.e2e, pytest.mark.tools]

PROGRAM = [sys.executable, "-c", "from perfbisect.cli import main; main()"]
LIMIT = 300  # seconds; far beyond what a hunt takes


@dataclass
class Hunt:
    """A demo hunt on the host "far", with its history."""

    folder: Path

    @property
    def history(self) -> Path:
        return self.folder / "history.db"

    def begin(self) -> list[str]:
        return ["demo", "--seed", "3", "--host", "far", "--folder", str(self.folder / "demo"), "--json", *self.kept()]

    def resume(self) -> list[str]:
        return ["resume", "--json", *self.kept()]

    def kept(self) -> Sequence[str]:
        return ["--history", str(self.history)]

    def run(self, argv: list[str], then: Callable[[str, "subprocess.Popen[str]"], None] | None = None) -> int:
        """Run the program; ``then`` is called with the kind of every event and the process."""
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        with subprocess.Popen([*PROGRAM, *argv], stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if then:
                    then(json.loads(line)["event"], process)
            return process.wait(timeout=LIMIT)

    def ask(self, sql: str) -> list[tuple[object, ...]]:
        connection = sqlite3.connect(self.history)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()

    def check(self) -> None:
        """The planted commit is named, nothing was skipped for the weather, no run was counted twice."""
        answer = json.loads((self.folder / "demo" / "answer.json").read_text())
        assert self.ask("select culprit from culprits") == [(answer["commit"],)]
        skipped = {commit for (commit,) in self.ask("select commit_hash from skips")}
        assert skipped <= set(answer["broken"])
        assert self.ask("select started, count(*) from runs group by started having count(*) > 1") == []
        twice = "select commit_hash from builds where not reused group by 1 having count(*) > 1"
        assert self.ask(twice) == []


@pytest.fixture
def far(machine: Machine, tmp_path: Path) -> Hunt:
    return Hunt(tmp_path)


class Once:
    """Does something at the ``number``-th event of a kind, and never again."""

    def __init__(self, kind: str, action: Callable[["subprocess.Popen[str]"], None], number: int = 1) -> None:
        self.kind, self.action, self.left = kind, action, number

    def __call__(self, kind: str, process: "subprocess.Popen[str]") -> None:
        if kind == self.kind:
            self.left -= 1
            if self.left == 0:
                self.action(process)


def test_a_hunt_survives_a_cut_link_and_a_restart_of_sshd(far: Hunt, machine: Machine) -> None:
    def cut(_: object) -> None:
        machine.link("down")
        time.sleep(1)
        machine.link("up")

    weather = [
        Once("BuildStarted", cut),
        Once("RunStarted", cut),
        Once("BuildStarted", lambda _: machine.kill_sshd(), 2),
        Once("RunStarted", lambda _: machine.kill_sshd(), 2),
    ]

    def then(kind: str, process: "subprocess.Popen[str]") -> None:
        for each in weather:
            each(kind, process)

    assert far.run(far.begin(), then) == 0
    far.check()
    assert not any(each.left > 0 for each in weather)


@pytest.mark.parametrize(("kind", "number"), [("BuildProgress", 1), ("RunStarted", 2)])
def test_a_hunt_survives_a_restart_of_the_host(far: Hunt, machine: Machine, kind: str, number: int) -> None:
    def restart(_: object) -> None:
        machine.power_off()
        machine.power_on()

    assert far.run(far.begin(), Once(kind, restart, number)) == 0
    far.check()


@pytest.mark.parametrize(("kind", "number"), [("BuildProgress", 2), ("RunStarted", 1), ("RunFinished", 3)])
def test_a_killed_controller_goes_on(far: Hunt, machine: Machine, kind: str, number: int) -> None:
    kill = Once(kind, lambda process: process.send_signal(signal.SIGKILL), number)
    assert far.run(far.begin(), kill) == -signal.SIGKILL
    assert far.run(far.resume()) == 0
    far.check()
