"""One root under two names, clocks that jump, and tickets that are damaged or forged."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from machine import Machine
from perfbisect.clock import Clock
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.host import lock, registry
from perfbisect.host.local import LocalHost
from perfbisect.host.lock import ABANDONED, Owner, hold, holder
from perfbisect.host.protocol import Host
from perfbisect.hunt.host_locks import lock_hosts
from perfbisect.process import machine as this_boot
from perfbisect.recipes.inventory import HostEntry
from program import run
from tickets import folder, uptime, write_ticket

pytestmark = pytest.mark.tools


def connect(name: str, root: Path | str) -> Host:
    return registry.connect(HostEntry(name=name, root=str(root)))


def setup_of(*hosts: Host, build_host: Host | None = None) -> SimpleNamespace:
    """What of a hunt's setup the locks need."""
    makers = [SimpleNamespace(host=build_host)] if build_host else []
    sites = [SimpleNamespace(host=host, build_hosts=makers) for host in hosts]
    return SimpleNamespace(hosts=sites, purpose="a hunt")


# --- One root under two names ---------------------------------------------------------------------------------------


@pytest.fixture
def spellings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ways to write one folder."""
    (tmp_path / "link").symlink_to("one")
    (tmp_path / "above").symlink_to(tmp_path)
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "x"))
    ways = ["one", "one/", "./one", "x/../one", "link", "above/one", "above/link"]
    return [f"{tmp_path}/one", *ways, "~/../one", f"{tmp_path}//one/."]


@pytest.mark.parametrize("way", range(10))
@pytest.mark.parametrize("waits", [False, True])
def test_one_root_twice_in_a_hunt(spellings: list[str], way: int, waits: bool) -> None:
    one, two = connect("one", spellings[0]), connect("two", spellings[way])

    def waiting(owner: Owner | None) -> None:
        raise AssertionError(f"it waits for itself: {owner}")

    with (
        pytest.raises(UsageError, match="Hosts one and two are one: both lead to the root folder"),
        lock_hosts(setup_of(one, two), waiting if waits else None),  # type: ignore[arg-type]
    ):
        raise AssertionError("both hold it")
    assert holder(one) is None


def test_a_build_host_that_is_the_host_itself(tmp_path: Path) -> None:
    one, two = connect("one", tmp_path / "one"), connect("two", tmp_path / "one")
    with pytest.raises(UsageError, match="Hosts one and two are one") as caught:
        ExitStack().enter_context(lock_hosts(setup_of(one, build_host=two), None))  # type: ignore[arg-type]
    assert "build_hosts" in caught.value.advice


def test_two_roots_of_one_machine_are_one_session_and_one_that_builds_for_both_is_held_once(tmp_path: Path) -> None:
    one, two, maker = (connect(name, tmp_path / name) for name in ("one", "two", "maker"))
    with lock_hosts(setup_of(one, two, build_host=maker), None) as held:  # type: ignore[arg-type]
        assert sorted(held) == ["maker", "one", "two"]


def test_the_program_refuses_it(tmp_path: Path) -> None:
    from perfbisect.demo.history import write_history

    (tmp_path / "root").mkdir()
    (tmp_path / "link").symlink_to("root")
    write_history(tmp_path / "repo", 1)
    measured = ["--repo", str(tmp_path / "repo"), "--builder", "demo", "--workload", "update-index"]
    hosts, builder = tmp_path / "hosts.toml", 'build_hosts = ["two"]'
    for words, more in (
        (["demo", "--folder", str(tmp_path / "demo"), "--host", "one", "--host", "two"], ""),
        (["compare", "v1.0", "v1.1", *measured, "--host", "one"], builder),
        (["noise", "one", "--rev", "v1.0", *measured], builder),
    ):
        places = (f'[hosts.one]\nroot = "{tmp_path}/root"\n{more}\n', f'[hosts.two]\nroot = "{tmp_path}/link"\n')
        hosts.write_text("".join(places))
        (tmp_path / "root" / "lock").unlink(missing_ok=True)  # each is a session of its own
        ended = run(*words, "--hosts", str(hosts), "--history", str(tmp_path / "h.db"))
        assert ended.status == 3, ended.out + ended.err
        assert "Hosts one and two are one" in ended.err


@pytest.mark.slow
def test_one_machine_by_two_addresses_and_one_root_on_two_machines(machine: Machine) -> None:
    (machine.keys / "config").write_text(f"Host alias\n  HostName {machine.address}\n  User root\n")
    entries = [
        HostEntry(name="one", address=machine.address, root=machine.root),
        HostEntry(name="two", address="ssh://alias", root=f"{machine.root}/../root"),
        HostEntry(name="two", address="local", root=machine.root),  # as a file system that both mount
    ]
    hosts = [registry.connect(entry) for entry in entries]
    for other in hosts[1:]:
        with (
            pytest.raises(UsageError, match=r"Hosts (one and two|two and one) are one"),
            lock_hosts(setup_of(hosts[0], other), None),  # type: ignore[arg-type]
        ):
            raise AssertionError("both hold it")
    for host in hosts:
        host.release()


def test_two_sessions_that_begin_in_the_same_second_are_two(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda *_: "2026-01-02T03:04:05Z")
    with hold(host, "a hunt"), pytest.raises(EnvironmentFailure, match="is busy: a hunt"), hold(host, "a hunt"):
        raise AssertionError("both hold it")


# --- Tickets that are damaged or forged ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"process": 1}', "null", "\0", "a" * 100_000])
@pytest.mark.parametrize("begin", ["", "{boot} 1.0 ", "{boot} x ", "\n{boot} 1.0 "])
def test_a_damaged_ticket_is_nobodys(host: LocalHost, text: str, begin: str) -> None:
    write_ticket(content=begin + text)
    assert holder(host) is None
    with hold(host, "hunt 7"):
        assert holder(host) is not None


@pytest.mark.parametrize(
    "process",
    ["", "a", "a b", "a b c", "x 99999999999999999999 1", "boot pid:[1] -1 5", "boot pid:[1] 0x1 5"]
    + [
        f"{this_boot()} {words}"
        for words in ("x 1", "1 0", "-1 5", "99999999999999999999 1", "../self 1", "1/task/1 1")
    ],
)
def test_an_owner_with_a_process_that_cannot_be_ends_no_hunt(host: LocalHost, process: str) -> None:
    write_ticket(process=process)
    holder(host)
    with ExitStack() as stack:
        try:
            stack.enter_context(hold(host, "hunt 7"))
        except EnvironmentFailure as busy:
            assert "is busy: hunt 6" in str(busy)


@pytest.mark.parametrize("silence", [ABANDONED + 5, -120, -86400, -1e9])
def test_no_file_keeps_others_out_by_a_heartbeat_in_the_past_or_to_come(host: LocalHost, silence: float) -> None:
    write_ticket(silence=silence)
    assert holder(host) is None
    with hold(host, "hunt 7"):
        pass


def test_no_file_keeps_others_out_by_a_heartbeat_that_was_forged(
    host: LocalHost, set_clock: "Set", monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written an hour ago, with a heartbeat of now; the clock stands for that hour."""
    monkeypatch.setattr(lock, "BEAT", 0.2)
    monkeypatch.setattr(lock, "POLL", 0.02)
    write_ticket()
    set_clock(3600)
    assert holder(host) is None
    with hold(host, "hunt 7"):
        pass


def test_no_file_keeps_others_out_that_is_none(host: LocalHost, tmp_path: Path) -> None:
    good = write_ticket()
    assert holder(host) is not None
    for make in (
        lambda: good.symlink_to(write_ticket(name="1" * 15).rename(tmp_path / "elsewhere")),
        lambda: os.mkfifo(good),
        lambda: good.mkdir(),
        lambda: write_ticket(name="0" * 15 + "\n"),
        lambda: write_ticket(name="0" * 17),
        lambda: write_ticket(of="another-boot"),
    ):
        for each in good.parent.iterdir():
            each.rmdir() if each.is_dir() and not each.is_symlink() else each.unlink()
        make()
        if not good.is_symlink() and not good.is_fifo():
            os.utime(good.parent / next(good.parent.iterdir()).name, (uptime(), uptime()))
        assert holder(host) is None


def test_nothing_is_written_through_a_name_that_another_user_made(host: LocalHost, tmp_path: Path) -> None:
    precious, elsewhere = tmp_path / "precious", tmp_path / "elsewhere"
    precious.write_text("kept")
    elsewhere.mkdir()
    with hold(host, "a hunt for demo point") as held:
        ticket = folder() / held.ticket
        ticket.with_name(f"{ticket.name}.new").symlink_to(precious)
        held.number("12")
        ticket.unlink()
        ticket.symlink_to(elsewhere)
        held.number("13")
        assert (precious.read_text(), list(elsewhere.iterdir())) == ("kept", [])
        assert not ticket.is_symlink()


def test_a_ticket_with_lines_of_others_is_one(host: LocalHost) -> None:
    """What a user writes into a file cannot look like a second one."""
    line = "perfbisect-lock.1111111111111111 444 root 99999999999 "
    write_ticket(content=f"{line}\n{line}eA==\n")
    assert holder(host) is None


def test_another_user_cannot_take_the_name_of_the_owner(host: LocalHost) -> None:
    if os.getuid() != 0:
        pytest.skip("files are given away by root")
    path = write_ticket(user="alice")
    os.chown(path, 65534, 65534)
    owner = holder(host)
    assert "hunt 6 of alice (process 12 on elsewhere, as nobody, since" in str(owner)


def test_several_thousand_tickets_of_the_past_keep_nobody_out(host: LocalHost) -> None:
    for number in range(3000):
        write_ticket(silence=ABANDONED + 100, name=f"{number:016}")
    with hold(host, "hunt 7"):
        pass


# --- Clocks that jump ------------------------------------------------------------------------------------------------


Set = Callable[[float], None]


@pytest.fixture
def set_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Set]:
    """``set_clock(seconds)``: what ``date`` prints on the host, and what this process reads, is so much ahead."""
    programs = tmp_path / "programs"
    programs.mkdir()
    real = time.time

    def jump(seconds: float) -> None:
        (programs / "date").write_text(f'#!/bin/sh\nexec /bin/date -d "{seconds:+.0f} seconds" "$@"\n')
        later = '[ "$each" != +1440 ] || each=-1440' if seconds > 86400 else ":"  # minutes: what is new is old by then
        (programs / "find").write_text(
            f'#!/bin/sh\nfor each do shift; {later}; set -- "$@" "$each"; done\nexec /usr/bin/find "$@"\n'
        )
        for program in programs.iterdir():
            program.chmod(0o755)
        monkeypatch.setattr(time, "time", lambda: real() + seconds)

    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    yield jump


@pytest.mark.parametrize("jump", [3600, 86400 * 365, -3600, -86400 * 365])
def test_a_lock_with_a_heartbeat_stays_when_the_clock_jumps(
    host: LocalHost, set_clock: Set, jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "BEAT", 2.0)  # on a busy machine a look at tickets takes a second
    monkeypatch.setattr(lock, "POLL", 0.1)
    with hold(host, "hunt 6") as held:
        set_clock(jump)
        assert holder(host) is not None
        with pytest.raises(EnvironmentFailure, match="is busy"), hold(host, "hunt 7"):
            raise AssertionError("it is taken")
        held.confirm()


def test_a_clock_set_by_days_removes_no_ticket_but_those_without_a_heartbeat(host: LocalHost, set_clock: Set) -> None:
    there, gone = write_ticket(), write_ticket(silence=ABANDONED + 100, name="1" * 16)
    set_clock(3 * 86400)
    lock._tickets(host)
    assert (there.exists(), gone.exists()) == (True, False)


@pytest.mark.parametrize("jump", [0, -3600])
def test_a_lock_without_a_heartbeat_is_abandoned_after_the_same_time_when_the_clock_jumps(
    host: LocalHost, set_clock: Set, jump: float
) -> None:
    if uptime() < ABANDONED + 200:
        pytest.skip("the machine has just been started")
    set_clock(jump)
    for silence, gone in ((ABANDONED - 60, False), (ABANDONED + 60, True)):
        write_ticket(silence=silence)
        assert (holder(host) is None) == gone


@pytest.mark.parametrize("jump", [3600, -3600])
def test_an_owner_that_was_out_of_touch_notices_whatever_the_clock_shows(
    host: LocalHost, set_clock: Set, jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hold(host, "hunt 6") as held:
        write_ticket()
        set_clock(jump)
        held.confirm()  # the heartbeat is due in a minute
        real = lock.elapsed
        monkeypatch.setattr(lock, "elapsed", lambda: real() + ABANDONED)  # as after a suspension
        with pytest.raises(EnvironmentFailure, match="another process measures there now"):
            held.confirm()


def test_the_clock_of_a_process_never_jumps(set_clock: Set) -> None:
    clock = Clock()
    began = clock.now()
    assert abs(began - time.time()) < 60
    for jump in (3600, -3600, -1e9):
        set_clock(jump)
        now = clock.now()
        assert 0 <= now - began < 60
    clock.go_on_from(began - 1000)
    assert clock.now() - began < 60
    clock.go_on_from(began + 1000)
    assert 1000 <= clock.now() - began < 1060
