"""The fitness of hosts, by the checks in a history, and the exclusion of unfit hosts."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

import sample_hunt as sample
from perfbisect.core.domain.events import RunFinished, SessionEnded
from perfbisect.core.domain.settings import TrialBuild, TrialRequest, TrialType, TrialWorkload
from perfbisect.core.stats.fitness import fitness_facts
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.host import leases
from perfbisect.hunt.batch import Task, remove_unfit_choice, state_text
from perfbisect.hunt.fitness import accept_speeds_as_normal, fitness_by_machine, unfit_hosts
from perfbisect.hunt.session_hosts import LeaseTerms, hold_leases
from perfbisect.store.history import History
from perfbisect.store.listing import FITNESS_CHECK


def check(
    history: History, host: str, day: float, level: float = 1.0, *,
    node: str = "", ended: bool = True, name: str = FITNESS_CHECK,
) -> int:  # fmt: skip
    """Store a check of a host, or of the leased machine ``node``, on a day. ``level`` is relative to 20,000 QPS."""
    at, shape = sample.BEGAN + 86400 * day, (-1.5, -0.5, -0.1, 0.1, 0.5, 1.5)
    builds, works = (
        (TrialBuild("1.0", "a" * 40, key="key-1"),),
        (TrialWorkload("update-index", "all", 1.0, 10.0, "hash"),),
    )
    request = TrialRequest(TrialType.NOISE, "engine", "o2nofp", host, "qps", {}, builds, works, len(shape), 1)
    facts = replace(sample.HOST, name=host, settings={"node": node} if node else {})
    number = sample.begin_trial(history, request, at, replace(sample.SETTINGS, host=host, name=name), facts)
    for place, each in enumerate(shape):
        run = sample.run(0, at + 10 * place, qps=20_000 * level * math.exp(0.005 * each))
        history.append(number, RunFinished(0, run, round=place), at + 10 * place)
    if ended:
        history.append(number, SessionEnded(fitness=fitness_facts(history.read_trial(number))), at + 100)
    return number


def checks(history: History, host: str, *levels: float, first: int = 0, node: str = "") -> None:
    """Store one check per day, from day ``first`` on."""
    for day, level in enumerate(levels, first):
        check(history, host, day, level, node=node)


FALL = (1.0, 1.0, 1.0, 1.0, 0.9, 0.9)


def unfit(history: History) -> list[str]:
    return [*unfit_hosts(history.path)]


def test_each_machine_has_its_own_checks(history: History) -> None:
    """A leased machine is identified by its node, not by its number in the lease."""
    checks(history, "a", *FALL)
    checks(history, "pool:", *[1.0] * 6, node="n2")
    checks(history, "pool:/1", *FALL, node="n1")
    found = fitness_by_machine(history.path)
    assert [*found] == ["a", "n2", "n1"]
    assert unfit(history) == ["a", "n1"]
    assert found["n1"][-1].check.host == "pool:/1"
    assert [len(each) for each in found.values()] == [6, 6, 6]
    why = (
        "a is unfit: since 2023-11-18 it is 10 % slower in fitness checks. Look for other load, throttling or changed"
        " settings. If the change is intended: bisect hosts --accept a --history " + str(history.path)
    )
    assert unfit_hosts(history.path, ["n2", "a", "nobody"]) == {"a": why}


def test_trial_that_is_no_complete_check_does_not_count(history: History, tmp_path: Path) -> None:
    checks(history, "a", *FALL[:4])
    check(history, "a", 4, 0.5, name="")  # an A/A test without a check
    check(history, "a", 5, 0.5, ended=False)
    damaged = check(history, "a", 6, 0.5)
    with history.transaction() as db:
        db.execute("UPDATE events SET body = '{}}' WHERE session_id = ? AND kind = 'TrialEnded'", [damaged])
    empty = check(history, "a", 7, 0.5, ended=False)
    history.append(empty, SessionEnded(), 1.0)  # its runs have shown nothing
    assert len(fitness_by_machine(history.path)["a"]) == 4
    assert fitness_by_machine(tmp_path / "none.db") == {}
    assert not (tmp_path / "none.db").exists()


def test_accepted_level_is_stored_with_the_checks(history: History) -> None:
    checks(history, "a", *FALL)
    checks(history, "b", *FALL)
    accept_speeds_as_normal(history.path, ["a"])
    assert unfit(history) == ["b"]
    checks(history, "a", 0.9, 0.9, 0.9, first=6)
    assert fitness_by_machine(history.path)["a"][-1].level == pytest.approx(1.0)
    with pytest.raises(UsageError, match="c is not unfit, so --accept has no effect"):
        accept_speeds_as_normal(history.path, ["b", "c"])
    assert unfit(history) == ["b"], "no level is accepted"


def test_listing_omits_fitness_checks(history: History) -> None:
    """A check can still be shown by its number."""
    checks(history, "a", *FALL)
    accept_speeds_as_normal(history.path, ["a"])
    other = check(history, "a", 9, name="")
    assert [each.id for each in history.trials_except_fitness_checks()] == [f"n{other}"]
    assert history.session_summary(1).state == "done"


def task(*choices: str) -> Task:
    return Task("t", (), "", tuple((each,) for each in choices), "")


def test_hunt_with_a_choice_of_hosts_excludes_unfit_hosts(history: History) -> None:
    """An unfit host is used if there is no choice. If all hosts of a choice are unfit, the hunt fails."""
    checks(history, "a", *FALL)
    one = task("a", "b")
    assert [remove_unfit_choice(one, (host,), history) for host in ("b", "a", "b")] == [False, True, False]
    assert one.choices == (("b",),)
    one.stage, one.hosts = one.stage.RUNNING, ("b",)
    assert state_text(one, history) == "starting on b, not on a, which is unfit"
    [why] = one.unfit.values()
    assert "bisect hosts --accept a" in why
    assert not remove_unfit_choice(task("a"), ("a",), history)
    checks(history, "b", *FALL)
    both = task("a", "b")
    assert remove_unfit_choice(both, ("a",), history)
    with pytest.raises(EnvironmentFailure, match="none of its hosts is fit"):
        remove_unfit_choice(both, ("b",), history)
    assert [*both.unfit] == ["a", "b"]


LEASE = (Path(__file__).parent / "given" / "lease.toml").read_text()


@pytest.mark.tools
def test_unfit_machines_are_released_after_another_is_leased(tmp_path: Path) -> None:
    hosts, said = tmp_path / "hosts.toml", list[str]()
    hosts.write_text(LEASE.format(folder=tmp_path))
    bad = {"n1": "n1 is unfit: slow.", "n2": "n2 is unfit: loud."}
    with hold_leases(["pool:"], hosts, lambda *_: None, said.append, LeaseTerms({"pool:": "n2"}, unfit=lambda: bad)):
        assert leases.leased_machine("pool:").address == "n3"
        assert [each.name.partition(".")[0] for each in tmp_path.glob("n?.*")] == ["n3"]
    assert not [*tmp_path.glob("n?.*")] and not leases.is_leased_by_this_process("pool:")
    assert said == [
        f"This machine is not used, and is released once another is leased: {each}" for each in bad.values()
    ]
    assert set((tmp_path / "asked").read_text().splitlines()) == {" "}, "no unfit machine is requested again"


@pytest.mark.tools
def test_no_machine_stays_leased_if_all_are_unfit(tmp_path: Path) -> None:
    hosts, free = tmp_path / "hosts.toml", '[ -z "$(ls -d "$each".* 2>/dev/null)" ]'
    lease = LEASE.format(folder=tmp_path)
    for text, why in (
        (lease.replace("n1 n2 n3", "n1"), "all are taken"),
        (lease.replace(free, "true"), "pool: cannot be leased, because only unfit machines are lent"),
    ):
        hosts.write_text(text)
        lent = hold_leases(["pool:"], hosts, lambda *_: None, print, LeaseTerms(unfit=lambda: {"n1": "n1 is unfit."}))
        with pytest.raises(EnvironmentFailure, match=why), lent:
            pass
    assert not [*tmp_path.glob("n?.*")] and leases.records_with_running() == []
