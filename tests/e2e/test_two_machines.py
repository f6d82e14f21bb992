"""Whole hunts on two machines at once, each at the end of a link of its own, with an sshd of its own."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from machine import Machine
from program import bisect, rows

pytestmark = [pytest.mark.e2e, pytest.mark.tools, pytest.mark.slow]

COMPILES = "echo 'int x;' | gcc -x c -c -o /dev/null - && echo yes"


Make = Callable[..., Machine]


class Hunt:
    """A demo hunt with an inventory and a history of its own."""

    def __init__(self, folder: Path, **entries: tuple[Machine, str]) -> None:
        """``entries``: the machine behind each name, and further lines of its entry."""
        self.folder, self.history = folder, folder / "history.db"
        (folder / "hosts.toml").write_text(
            "\n".join(
                f'[hosts.{name}]\naddress = "{machine.address}"\nroot = "{machine.root}"\njobs = 1\n{more}\n'
                for name, (machine, more) in entries.items()
            )
        )

    def run(self, *hosts: str, explain: bool = False) -> None:
        """Run it; the planted commit is named, and no run was counted twice."""
        kept = ["--hosts", self.folder / "hosts.toml", "--history", self.history, "--folder", self.folder / "demo"]
        named = [word for host in hosts for word in ("--host", host)]
        how = ["--plain", "--explain" if explain else "--no-explain"]
        ended = bisect("demo", "--seed", "3", "--drop", "60%", *how, *map(str, kept), *named)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        answer = json.loads((self.folder / "demo" / "answer.json").read_text())
        assert self.ask("select culprit from culprits") == [(answer["commit"],)]
        assert self.ask("select host, started from runs group by 1, 2 having count(*) > 1") == []

    def ask(self, sql: str) -> list[tuple[object, ...]]:
        return rows(self.history, sql)


def names(machine: Machine, place: str) -> set[str]:
    """What is in a folder below the root of a machine."""
    return {path.name for path in Path(machine.root, place).glob("*")}


def test_two_machines_share_a_hunt(make_machine: Make, tmp_path: Path) -> None:
    a, b = make_machine(), make_machine()
    hunt = Hunt(tmp_path, a=(a, 'class = "pair"'), b=(b, 'class = "pair"'))
    hunt.run("a", "b", explain=True)
    assert hunt.ask("select distinct host from runs order by 1") == [("a",), ("b",)]
    assert names(a, "builds")
    assert names(b, "builds")
    measured = "select distinct json_extract(body, '$.facts.host'), json_extract(body, '$.candidate') from events"
    reason = hunt.ask(f"{measured} where kind in ('Counted', 'Profiled')")
    assert len({host for host, _ in reason}) == 1, "of both commits on the same machine"
    assert len({candidate for _, candidate in reason}) == 2


def test_one_machine_builds_and_the_other_measures(make_machine: Make, tmp_path: Path) -> None:
    """What is measured came as a tar stream to a machine that cannot compile."""
    cc1 = subprocess.run(["gcc", "-print-prog-name=cc1"], capture_output=True, text=True, check=True).stdout.strip()
    a, b = make_machine(), make_machine(Path(cc1).parent)
    assert [machine.inside(COMPILES) for machine in (a, b)] == ["yes\n", ""]
    hunt = Hunt(tmp_path, a=(a, ""), b=(b, 'build_hosts = ["a"]'))
    hunt.run("b")
    assert hunt.ask("select distinct host from runs") == [("b",)]
    assert names(b, "builds")
    assert names(b, "builds") <= names(a, "builds")
    assert "source" not in names(b, "work/demo")
