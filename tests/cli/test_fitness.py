"""Fitness of hosts as a user meets it: a script in place of a system, whose rate is in a file that it reads."""

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import checked
from perfbisect.core.domain.events import TrialEnded
from perfbisect.host.lock import hold
from perfbisect.host.registry import connect
from perfbisect.recipes.inventory import load_host
from perfbisect.store.history import History
from program import SCRIPT, exits, printed, rows, run

pytestmark = pytest.mark.tools

HOSTS = """
[hosts.a]
address = "local"
root = "{root}/a"
[hosts.b]
address = "local"
root = "{root}/b"
[hosts.gone]
through = ["false"]
[leases.pool]
acquire = ["sh", "-ec", '''
cd {root}; for each in n1 n2; do
    if [ -z "$(ls -d "$each".* 2>/dev/null)" ]; then mkdir "$each.{{job}}"; echo "$each"; exit; fi
done
echo all are taken >&2; exit 1''']
release = ["sh", "-c", "cd {root}; rmdir *.{{job}}"]
[leases.pool.host]
through = ["env"]
root = "{root}/{{address}}"
"""
CHECKS = "select host from trials where json_extract(settings, '$.name') = 'fitness check' order by id"


class Fleet:
    """Hosts of this machine, and what is known of them."""

    def __init__(self, folder: Path, commit: str) -> None:
        self.folder, self.commit, self.path = folder, commit, folder / "h.db"
        self.kept = ("--history", str(self.path))

    def noise(self, host: str) -> list[str]:
        """An A/A of a host."""
        short = ["--visits", "2", "--runs", "1", "--pairing", "turns"]
        return ["noise", host, *SCRIPT, "--rev", self.commit, *short, *self.kept]

    def rate(self, value: float) -> None:
        """What the script prints from now on."""
        (self.folder / "rate").write_text(f"{value}\n")

    def wait_a_day(self) -> None:
        """All that was measured began a day earlier."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("UPDATE sessions SET started = started - 86400")

    def repeat(self, times: int) -> None:
        """The latest trial, as if it had been made again as often, each time a day later."""
        with closing(History.open(self.path)) as history:
            number = max(int(name) for (name,) in history.select("SELECT id FROM trials"))
            trial, settings = history.read_trial(number), history.settings(number)
            [end] = [entry.event for entry in history.events(number) if isinstance(entry.event, TrialEnded)]
        for _ in range(times):
            self.wait_a_day()
            with closing(History.open(self.path)) as history:
                again = history.begin_trial(settings, trial.request, trial.host, trial.started)
                history.append(again, end, trial.started)


@pytest.fixture
def fleet(script: Callable[[str], str], tmp_path: Path) -> Fleet:
    """The hosts, and an A/A on one of them, n1."""
    (tmp_path / "hosts.toml").write_text(HOSTS.format(root=tmp_path))
    for each in ("a", "b", "n1", "n2"):
        (tmp_path / each).mkdir()
    made = Fleet(tmp_path, script(f'echo "rate $(cat {tmp_path}/rate)"'))
    made.rate(100)
    printed(*made.noise("a"))
    return made


def test_a_host_that_is_slower_in_two_checks_is_unfit_until_that_is_accepted(fleet: Fleet) -> None:
    assert "a                  local\nb                  local\n" in printed("hosts", *fleet.kept), (
        "not checked: a list"
    )
    first = printed("hosts", "--check", "a", "--like", "n1", *fleet.kept)
    assert re.search(r"^a +local +20\S+ +– +0\.00 % +▄ +new baseline$", first, re.MULTILINE)
    printed("hosts", "--check", *fleet.kept)
    again = run("hosts", "--check", "a", *fleet.kept)
    assert again.status == 0 and "Host a was checked within 20 hours, so it is not checked again." in again.err
    assert rows(fleet.path, CHECKS) == [("a",)], "within a day none is due"
    fleet.repeat(3)
    fleet.wait_a_day()
    fleet.rate(90)
    assert "unfit" not in printed("hosts", "--check", *fleet.kept)
    fleet.wait_a_day()
    status, out, err = run("hosts", "--check", *fleet.kept)
    assert status == 4 and "bisect hosts --accept a" in err
    assert re.search(
        r"^a +local +\S+ +90\.0 % +0\.00 % +▄▄▄▄▁▁ +unfit: its level fell by 10 %, since 20", out, re.MULTILINE
    )
    assert "Host a is unfit: its level fell by 10 %" in exits(0, *fleet.noise("a"))
    assert len(printed("history", *fleet.kept).splitlines()) == 3, "the A/As that are no checks"
    assert "b is not unfit: there is nothing to accept." in exits(3, "hosts", "--accept", "a", "b", *fleet.kept)
    assert "unfit: its level" in printed("hosts", *fleet.kept), "and a is not accepted, either"
    assert "unfit" not in printed("hosts", "--accept", "a", *fleet.kept)
    exits(3, "hosts", "--accept", "a", *fleet.kept)
    assert "n2" in printed("show", "n2", *fleet.kept)


@pytest.mark.slow
def test_a_new_host_is_checked_like_the_others_and_one_that_cannot_be_is_told(fleet: Fleet) -> None:
    """It is a sentence, and stops no other."""
    printed("hosts", "--check", "a", "--like", "n1", *fleet.kept)
    status, out, err = run("hosts", "--check", "gone", "b", *fleet.kept)
    assert status == 4 and "Host gone is not checked: " in err and "How fit host b is, measured once a day: " in err
    assert rows(fleet.path, CHECKS) == [("a",), ("b",)]
    assert "b  " in out and "gone  " in out
    fleet.wait_a_day()
    with hold(connect(load_host("b", "hosts.toml")), "a hunt"):
        status, _, err = run("hosts", "--check", *fleet.kept)
        assert status == 0 and "Host b is not checked: host b is busy: a hunt of " in err
        assert run("hosts", "--check", "b", *fleet.kept).status == 4, "it was asked for"
    fleet.wait_a_day()
    suite = fleet.folder / "workloads" / "script" / "suite.toml"
    suite.write_text(suite.read_text().replace('"{prefix}/run.sh", "one"', '"{prefix}/run.sh", "other"'))
    assert "new baseline: another build" in printed("hosts", "--check", "b", *fleet.kept)


@pytest.mark.slow
def test_an_unfit_machine_is_leased_for_checks_alone(fleet: Fleet) -> None:
    out = printed("hosts", "--check", "pool:", "--like", "n1", *fleet.kept)
    assert re.search(r"^n1 +leased +pool: +20", out, re.MULTILINE)
    with closing(History.open(fleet.path)) as history:
        checked.write_fall(history, "pool:", node="n1", settings=history.settings(2))
    _, _, err = run(*fleet.noise("pool:"))
    assert "n1 is unfit: its level fell by 10 %" in err and "given back once another is leased" in err
    nodes = "select json_extract(hosts.settings, '$.node') from trials join hosts on hosts.id = host_id order by trials.id desc"
    assert rows(fleet.path, nodes)[0] == ("n2",)
    run("hosts", "--check", "pool:", *fleet.kept)
    assert rows(fleet.path, nodes)[0] == ("n1",)


def test_what_cannot_be_asked(fleet: Fleet) -> None:
    run(*fleet.noise("a"), "--metric", "cpu/o")
    for words, said in {
        ("--check",): "No host was checked before",
        ("--like", "n1"): "--like goes with --check",
        ("--accept",): "--accept NAME",
        ("--accept", "a"): "a is not unfit: there is nothing to accept.",
        ("--check", "a", "--like", "n9"): "There is no n9",
        ("--check", "--accept", "a"): "Give one of",
    }.items():
        assert said in exits(3, "hosts", *words, *fleet.kept)
    status, _, err = run("hosts", "--check", "c", "--like", "n1", *fleet.kept)
    assert status == 4 and "Host c is not checked: There is no host 'c'" in err
    assert "It is not known what to measure" in run("hosts", "--check", "a", *fleet.kept).err
    assert "cpu/o does not show how fast a host is" in run("hosts", "--check", "a", "--like", "n2", *fleet.kept).err
