"""`bisect doctor` on this machine; fitness checks of `bisect hosts`, with a script that reads its rate from a file."""

import json
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from perfbisect.cli.commands.doctor import needs_no_sysbench
from perfbisect.core.domain.events import SessionEnded, SessionStarted
from perfbisect.host.lock import hold_lock
from perfbisect.host.registry import connect
from perfbisect.recipes.builder_reader import load_builder
from perfbisect.recipes.inventory import load_host
from perfbisect.store.history import History
from program import SCRIPT, exits, printed, rows, run

pytestmark = pytest.mark.tools


def inventory(folder: Path, roots: dict[str, str], **build_hosts: Sequence[str]) -> list[str]:
    """The option for a hosts.toml with these hosts, whose root folders are in ``folder``."""
    entries = [
        f'[hosts.{name}]\nroot = "{folder}/{root}"\nbuild_hosts = {json.dumps(build_hosts.get(name, []))}\n'
        for name, root in roots.items()
    ]
    (folder / "hosts.toml").write_text("".join(entries))
    return ["--hosts", str(folder / "hosts.toml")]


def test_doctor_prints_each_finding_with_advice() -> None:
    """The owner of the lock is a finding, too. `--json` has the findings as objects."""
    report = json.loads(exits(0, "doctor", "--json"))
    assert report["host"]["name"] == "local"
    assert {"level", "topic", "text", "advice"} == set(report["findings"][0])
    assert {"tools", "disk", "perf", "pairs"} <= {finding["topic"] for finding in report["findings"]}
    assert any("no other session measures on the host" in finding["text"] for finding in report["findings"])
    with hold_lock(connect(load_host("local")), "a hunt of another session"):
        said = exits(0, "doctor", "--builder", "demo", "--workload", "update-index")
    for part in ("local is fit to measure on: 0 refusals", "sysbench 1", "GiB are free", "a hunt of another session"):
        assert part in said
    assert "all build dependencies of demo are installed" in said


def test_workloads_of_the_driver_decide_if_doctor_needs_sysbench(tmp_path: Path) -> None:
    """If a suite is broken, doctor assumes that sysbench is needed."""
    drivers = [load_builder(name).driver for name in ("rocksdb", "command", "demo", "postgres")]
    assert [needs_no_sysbench(driver, None) for driver in drivers] == [True, True, False, False]
    suite = tmp_path / "mine" / "suite.toml"
    suite.parent.mkdir()
    broken = 'summary = "s"\ndriver = "demo"\n[workloads]\none.script = "no-such.lua"\n'
    for text in (broken, "what is this"):
        suite.write_text(text)
        assert not needs_no_sysbench("demo", tmp_path)


def test_doctor_checks_all_hosts(tmp_path: Path, seal: Path) -> None:
    """A host or a store of builds that cannot be used is a finding."""
    (tmp_path / "file").touch()
    configuration = seal / ".config" / "perfbisect" / "config.toml"
    configuration.parent.mkdir(parents=True)
    configuration.write_text(f'[shared]\nbuilds = "{tmp_path}/file/store"\n')
    hosts = inventory(tmp_path, {"quiet": "quiet", "b1": "b1", "odd": "file/root"}, quiet=["b1", "nobody"])
    report = json.loads(exits(4, "doctor", "--all", "--json", *hosts))
    of_host = {host["name"]: host for host in report["hosts"]}
    verdicts = {name: host["verdict"] for name, host in of_host.items() if name != "local"}
    assert verdicts == {"quiet": "not fit", "b1": "fit", "odd": "cannot be used"}
    assert of_host["b1"]["builds_for"] == ["quiet"]
    assert of_host["quiet"]["findings"][0]["text"] == "nobody, a build host of quiet, is not in hosts.toml"
    assert {finding["topic"] for finding in of_host["b1"]["findings"]}.isdisjoint({"perf", "governor", "load"})
    assert [finding["level"] for finding in report["shared"]] == ["warning"]
    said = exits(4, "doctor", "--all", *hosts)
    assert f"\nshared builds:\n  warning  the shared builds in {tmp_path}/file/store cannot be used" in said
    assert "b1     builds for quiet  fit" in said and re.search("quiet(,| and) odd", said)
    [finding] = json.loads(exits(4, "doctor", "odd", "--json", *hosts))["findings"]
    assert finding["level"] == "refused" and "cannot be created" in finding["text"]


def test_build_hosts_with_different_root_folders_are_refused(tmp_path: Path) -> None:
    hosts = inventory(tmp_path, {"local": "quiet", "b1": "b1", "b2": "b2"}, local=["b1", "b2"])
    said = exits(4, "doctor", "--all", *hosts)
    of_roots = "the build hosts of local have different root folders, and builds contain these paths: "
    assert f"{of_roots}{tmp_path}/b1 on b1" in said
    assert "3 hosts: 1 problem with build hosts must be solved." in said


# Fitness.

CHECKS = "select host from trials where json_extract(settings, '$.name') = 'fitness check' order by id"


class Fleet:
    """Hosts on this machine, and their history."""

    def __init__(self, folder: Path, commit: str) -> None:
        self.path, self.kept = folder / "h.db", ("--history", str(folder / "h.db"))
        self.aa = [*SCRIPT, "--rev", commit, "--visits", "2", "--runs", "1", "--pairing", "interleaved", *self.kept]

    def rate(self, value: float) -> None:
        """Set the rate that the script prints."""
        self.path.with_name("rate").write_text(f"{value}\n")

    def wait_a_day(self) -> None:
        """Move the start of all sessions to a day earlier."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("UPDATE sessions SET started = started - 86400")

    def repeat(self, level: float) -> None:
        """Store the latest trial again, a day later, with its level multiplied by ``level``."""
        self.wait_a_day()
        with closing(History.open(self.path)) as history:
            number = max(int(name) for (name,) in history.select("SELECT id FROM trials"))
            trial, settings = history.read_trial(number), history.settings(number)
            [end] = [one.event for one in history.events(number) if isinstance(one.event, SessionEnded)]
            assert end.fitness
            end = replace(end, fitness=replace(end.fitness, level=end.fitness.level * level))
            again = history.begin_session(
                settings, SessionStarted(0, trial.host, False, request=trial.request), trial.began
            )
            history.append(again, end, trial.began)


@pytest.fixture
def fleet(script: Callable[[str], str], tmp_path: Path) -> Fleet:
    """The hosts, and the A/A test n1 on host a."""
    hosts = Path(__file__).with_name("hosts") / "fleet.toml"
    (tmp_path / "hosts.toml").write_text(hosts.read_text().replace("ROOT", str(tmp_path)))
    for each in "ab":
        (tmp_path / each).mkdir()
    made = Fleet(tmp_path, script(f'echo "rate $(cat {tmp_path}/rate)"'))
    made.rate(100)
    printed("noise", "a", *made.aa)
    return made


@pytest.mark.slow
def test_host_slower_in_two_checks_is_unfit_until_the_level_is_accepted(fleet: Fleet) -> None:
    assert "a                  local\nb                  local\n" in printed("hosts", *fleet.kept), "not checked"
    first = printed("hosts", "--check", "a", "--like", "n1", *fleet.kept)
    assert re.search(r"^a +local +20\S+ +– +0\.00 % +▄ +new baseline$", first, re.MULTILINE)
    again = run("hosts", "--check", "a", *fleet.kept)
    assert again.status == 0 and "Host a was checked in the last 20 hours, so it is not checked now." in again.err
    assert rows(fleet.path, CHECKS) == [("a",)], "no check is due within a day"
    for level in (1, 1, 1, 0.9):
        fleet.repeat(level)
    assert "unfit" not in printed("hosts", *fleet.kept)
    fleet.wait_a_day()
    fleet.rate(90)
    status, out, err = run("hosts", "--check", *fleet.kept)
    assert status == 4 and "bisect hosts --accept a" in err
    unfit = r"^a +local +\S+ +90\.0 % +0\.00 % +▄▄▄▄▁▁ +unfit: since 20\S+ it is 10 % slower"
    assert re.search(unfit, out, re.MULTILINE)
    assert "it is 10 % slower in fitness checks" in exits(0, "noise", "a", *fleet.aa)
    assert len(re.findall(r"^n\d+ ", printed("history", *fleet.kept), re.MULTILINE)) == 2, "A/A tests without checks"
    assert "b is not unfit, so --accept has no effect." in exits(3, "hosts", "--accept", "a", "b", *fleet.kept)
    assert "it is 10 % slower" in printed("hosts", *fleet.kept), "the level of a is not accepted"
    assert "unfit" not in printed("hosts", "--accept", "a", *fleet.kept)
    exits(3, "hosts", "--accept", "a", *fleet.kept)
    assert "n2" in printed("show", "n2", *fleet.kept)


@pytest.mark.slow
def test_new_host_is_checked_like_others_and_failed_checks_are_named(fleet: Fleet) -> None:
    """A check that fails is reported, and does not stop other checks."""
    printed("hosts", "--check", "a", "--like", "n1", *fleet.kept)
    status, out, err = run("hosts", "--check", "gone", "b", *fleet.kept)
    assert status == 4 and "Host gone is not checked: " in err and "Fitness check of host b, once a day: " in err
    assert rows(fleet.path, CHECKS) == [("a",), ("b",)]
    assert "b  " in out and "gone  " in out
    fleet.wait_a_day()
    with hold_lock(connect(load_host("b", "hosts.toml")), "a hunt"):
        status, _, err = run("hosts", "--check", *fleet.kept)
        assert status == 0 and "Host b is not checked: host b is busy: a hunt of " in err
        assert run("hosts", "--check", "b", *fleet.kept).status == 4, "the command names host b"
    fleet.wait_a_day()
    suite = fleet.path.parent / "workloads" / "script" / "suite.toml"
    suite.write_text(suite.read_text().replace('"{prefix}/run.sh", "one"', '"{prefix}/run.sh", "other"'))
    assert "new baseline for another build" in printed("hosts", "--check", "b", *fleet.kept)


def test_wrong_options_of_hosts_are_refused(fleet: Fleet) -> None:
    run("noise", "a", *fleet.aa, "--metric", "cpu/o")
    for words, status, said in (
        (["--check"], 3, "No host was checked before"),
        (["--like", "n1"], 3, "--like works only with --check"),
        (["--accept"], 3, "--accept needs the name of a host"),
        (["--accept", "a"], 3, "a is not unfit, so --accept has no effect."),
        (["--check", "a", "--like", "n9"], 3, "There is no A/A test n9"),
        (["--check", "--accept", "a"], 3, "Give only one of"),
        (["--check", "c", "--like", "n1"], 4, "Host c is not checked: There is no host 'c'"),
        (["--check", "a"], 4, "No host was checked before"),
        (["--check", "a", "--like", "n2"], 4, "cpu/o does not show how fast a host is"),
    ):
        assert said in exits(status, "hosts", *words, *fleet.kept)
