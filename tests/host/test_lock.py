"""The lock of a machine, with real files: sessions, roots of two names, damaged or forged tickets, clock jumps."""

import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest

import tickets
from machine import Machine
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.host import lock, registry
from perfbisect.host.local import LocalHost
from perfbisect.host.lock import ABANDONED, LockOwner, hold_lock, lock_owner, wait_for_turn
from perfbisect.host.protocol import Host
from perfbisect.host.through import Shell, ThroughHost
from perfbisect.hunt.session_hosts import lock_hosts
from perfbisect.process import MonotonicClock, this_process_identity
from perfbisect.process import machine_identity as this_boot
from perfbisect.recipes.inventory import HostEntry
from program import executable
from tickets import folder, uptime, write_ticket
from waiting import until

pytestmark = pytest.mark.tools


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "POLL", 0.02)


@pytest.fixture(autouse=True)
def no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has the lock state of a new process."""
    monkeypatch.setattr(lock, "_waited", {})
    monkeypatch.setattr(lock, "SESSION", lock.secrets.token_hex(8))


def another(tmp_path: Path, name: str = "there") -> LocalHost:
    """This machine with another root folder, as of another user."""
    root = tmp_path / f"root of {name}"
    root.mkdir(exist_ok=True)
    return LocalHost(name, PurePosixPath(root))


def refused(host: Host, match: str, asked: str = "hunt 7", session: str = "") -> str:
    """The advice of the error that refuses the lock for the reason ``match``."""
    with pytest.raises(EnvironmentFailure, match=match) as caught, hold_lock(host, asked, session=session):
        raise AssertionError("got a lock that somebody holds")
    return caught.value.advice


def had(host: Host, asked: str = "hunt 7", session: str = "") -> list[str]:
    """Take the lock; returns the tickets that exist at that time."""
    with hold_lock(host, asked, session=session):
        owner = lock_owner(host)
        assert owner and owner.purpose == asked
        return tickets.names()


def test_second_session_is_refused_with_the_owner_for_each_root(host: LocalHost, tmp_path: Path) -> None:
    with hold_lock(host, "a hunt for demo point") as held:
        for other in (host, another(tmp_path)):
            told = rf"{other.name} is busy: a hunt for demo point of \w+ \(process {os.getpid()} on .*, since 20"
            refused(other, told, "a hunt for demo scan")
            assert lock_owner(other) == lock_owner(host) is not None
        before = held.place
        held.set_session_name("12")
        assert str(lock_owner(host)).startswith("hunt 12 for demo point of ")
        assert held.place == before
    assert lock_owner(host) is None
    assert tickets.names() == []
    had(another(tmp_path))


def test_ticket_is_readable_by_all_users_and_removed_after_a_failure(host: LocalHost) -> None:
    with pytest.raises(KeyboardInterrupt), hold_lock(host, "hunt 7"):
        [name] = tickets.names()
        assert stat.S_IMODE((folder() / name).stat().st_mode) == 0o444
        assert stat.S_IMODE(folder().stat().st_mode) == 0o1777
        raise KeyboardInterrupt
    assert tickets.names() == []


def test_ticket_of_a_killed_owner_does_not_count(host: LocalHost) -> None:
    script = (
        "import os, sys; from pathlib import PurePosixPath\n"
        "from perfbisect.host.local import LocalHost; from perfbisect.host.lock import hold_lock\n"
        "with hold_lock(LocalHost('here', PurePosixPath(sys.argv[1])), 'hunt 6'): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(host.root)], check=False).returncode == -9
    assert len(tickets.names()) == 1
    assert lock_owner(host) is None
    had(host)


def test_owner_whose_process_is_invisible_keeps_the_lock(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner may be on another machine of the same name, or /proc may be mounted with hidepid."""
    write_ticket()
    assert "10 minutes" in refused(host, "is busy: hunt 6 of eve")
    write_ticket(process=f"{this_process_identity().rpartition(' ')[0]} 1")
    assert lock_owner(host) is None
    monkeypatch.setattr(lock, "start_ticks", lambda pid: "")
    assert lock_owner(host) is not None


def test_heartbeat_keeps_a_ticket_and_restores_it(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT", 0.05)
    with hold_lock(host, "hunt 6") as held:
        ticket = folder() / held.ticket
        os.utime(ticket, (0, 0))
        until(lambda: ticket.stat().st_mtime > 0)
        ticket.unlink()  # as a clean-up of temporary files does
        until(ticket.exists)
        held.check_held()
        write_ticket()
        ticket.unlink()
        until(lambda: held.lost)
        with pytest.raises(EnvironmentFailure, match="another session has taken the host"):
            held.check_held()
    assert tickets.names() == ["perfbisect-lock.0000000000000000"]


def test_ticket_of_another_user_does_not_end_a_running_hunt(host: LocalHost) -> None:
    with hold_lock(host, "hunt 7") as held:
        write_ticket(place=0)
        held._sign()
        held.check_held()


@pytest.mark.usefixtures("quick")
def test_waiting_sessions_get_the_lock_in_order_of_arrival(host: LocalHost, tmp_path: Path) -> None:
    """One session at a time has the lock. Each learns for which owner it waits, and when the wait ends."""
    inside, got = threading.Lock(), list[str]()
    seen: dict[str, list[LockOwner | None]] = {name: [] for name in ("d", "b", "a", "c")}

    def session(name: str) -> None:
        with hold_lock(another(tmp_path, name), name, seen[name].append):
            assert inside.acquire(blocking=False)
            got.append(name)
            inside.release()

    with ThreadPoolExecutor() as sessions:
        with hold_lock(host, "first"):
            ends = []
            for name in seen:
                ends.append(sessions.submit(session, name))
                until(partial(seen.get, name))
            refused(host, "is busy: first", "impatient")
        for end in ends:
            end.result()
    assert got == [*seen]
    for owners in seen.values():
        assert owners[0] and owners[0].purpose == "first" and owners[-1] is None


def test_session_is_next_between_its_wait_and_its_lock(host: LocalHost, tmp_path: Path) -> None:
    wait_for_turn(host, lambda _: None)
    other = another(tmp_path)
    refused(other, r"is busy: a session of .* is next in the queue")
    assert len(had(host, session=lock.SESSION)) == 1
    had(other)


@pytest.mark.usefixtures("quick")
def test_session_that_waits_for_a_second_host_lets_others_pass(host: LocalHost, tmp_path: Path) -> None:
    """Otherwise, two sessions that need the same two machines could wait for each other."""
    wait_for_turn(host, lambda _: None)
    [first] = tickets.names()
    other, seen = write_ticket(), list[bool]()

    def waiting(owner: LockOwner | None) -> None:
        if owner:
            seen.append(first in tickets.names())
            other.unlink(missing_ok=True)

    wait_for_turn(another(tmp_path), waiting)
    assert seen[0] is False
    assert first in had(host, session=lock.SESSION)


def test_owner_takes_another_root_before_waiting_sessions(host: LocalHost, tmp_path: Path) -> None:
    """The waiting session waits for the owner, so the owner would otherwise wait for itself."""
    with hold_lock(host, "hunt 6", session="s"):
        waits = lock.HostLock(another(tmp_path, "waits"), "hunt 7")
        waits._write_ticket("644")
        assert len(had(another(tmp_path), "hunt 6", session="s")) == 3
        write_ticket()
        refused(host, "is busy: hunt 6 of eve", session="s")


def test_relative_folder_of_locks_is_refused(host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default folders and a symbolic link are accepted."""
    monkeypatch.setenv("PERFBISECT_LOCKS", "")
    assert lock._folders() == lock.FOLDERS
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.setenv("PERFBISECT_LOCKS", str(tmp_path / "link"))
    assert len(had(host)) == len(list((tmp_path / "real").iterdir())) + 1 == 1
    monkeypatch.setenv("PERFBISECT_LOCKS", "locks")
    with pytest.raises(UsageError, match="The variable PERFBISECT_LOCKS is not an absolute path: locks"):
        lock._folders()


@pytest.mark.skipif(os.getuid() != 0, reason="namespaces are made by root")
def test_container_with_own_uptime_and_users_sees_the_locks(host: LocalHost, tmp_path: Path) -> None:
    """The name of a user may have blanks."""
    (tmp_path / "uptime").write_text("5.00 3.00\n")  # as lxcfs writes it
    (tmp_path / "passwd").write_text("root:x:0:0::/root:/bin/sh\nDOM\\jane doe:x:12345:0::/:/bin/sh\n")
    mounts = f'mount --bind "{tmp_path}/uptime" /proc/uptime && mount --bind "{tmp_path}/passwd" /etc/passwd'
    led = ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "led"]
    with ThroughHost("box", host.root, Shell("box", led)) as inside:
        for one in (host, inside):
            with hold_lock(one, "hunt 6"):
                assert lock_owner(inside) == lock_owner(host) is not None
        os.chown(write_ticket(), 12345, 0)
        assert (lock_owner(inside) or tickets.ELSEWHERE).account == "DOM\\jane doe"


@pytest.mark.skipif(os.getuid() != 0, reason="file systems are mounted by root")
def test_next_folder_is_used_if_one_is_full(host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, second, both = tmp_path / "full", tmp_path / "second", lambda: (str(full), str(second))
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "none", str(full)], check=True)
    try:
        (full / "much").write_bytes(b"x" * 8192)
        monkeypatch.setattr(lock, "_folders", both)
        with hold_lock(host, "a clean-up"):
            assert len(list(second.iterdir())) == 1
            refused(host, "is busy: a clean-up")
        assert [each.name for each in (*full.iterdir(), *second.iterdir())] == ["much"]
        monkeypatch.setattr(lock, "_folders", lambda: (str(full),))
        (full / "much").write_bytes(b"")
        held = lock.HostLock(host, "hunt 8")
        held._write_ticket("644")
        (full / "much").write_bytes(b"x" * 4096)
        with pytest.raises(EnvironmentFailure, match="the disk of host here is full"):
            held._write_ticket("444")  # otherwise no other session would see the lock
        monkeypatch.setattr(lock, "_folders", both)
        held._write_ticket("444")
        assert [path.parent for path in (*full.glob("perf*"), *second.glob("perf*"))] == [second]
    finally:
        subprocess.run(["umount", str(full)], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="namespaces are made by root")
@pytest.mark.parametrize(("apart", "shares"), [(False, True), (True, True), (True, False)])
def test_container_with_its_own_lock_folder_sees_no_other_lock(
    host: LocalHost, apart: bool, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFBISECT_LOCKS", "/dev/shm" if shares else "/")
    command = ["env"] + apart * ["unshare", "--pid", "--fork", "--mount-proc"]
    with ThroughHost("box", host.root, Shell("box", command)) as inside:
        assert lock.has_private_lock_folder(inside) == (apart and not shares)


# --- One root under two names ---------------------------------------------------------------------------------------


def connect(name: str, root: Path | str) -> Host:
    return registry.connect(HostEntry(name=name, root=str(root)))


def sites_of(*hosts: Host, build_host: Host | None = None) -> Any:
    """The part of a session's hosts that ``lock_hosts`` needs."""
    makers = [SimpleNamespace(host=build_host)] if build_host else []
    return [SimpleNamespace(host=host, build_hosts=makers) for host in hosts]


def are_one(sites: Any) -> str:
    """The advice of the error if two hosts of a hunt are one machine. The hunt does not wait for itself."""
    said = r"Hosts (one and two|two and one) are the same machine: both use the root"
    with pytest.raises(UsageError, match=said) as caught, lock_hosts(sites, "a hunt", pytest.fail):  # type: ignore[arg-type]
        raise AssertionError("both hold it")
    return caught.value.advice


def test_one_root_under_two_names_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "above").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to("one")
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path)
    one = connect("one", tmp_path / "one")
    for spelling in ("x/../one/", "above/link"):
        two = connect("two", spelling)
        are_one(sites_of(one, two))
        assert lock_owner(one) is None
    assert "build_hosts" in are_one(sites_of(one, build_host=two))


def test_session_without_wait_is_refused_on_its_busy_build_host(host: LocalHost) -> None:
    """The host is also its own build host. The refused session leaves no ticket for either role."""
    itself = sites_of(host, build_host=host)
    with hold_lock(host, "a hunt of eve"):
        said = f"host {host.name} is busy: a hunt of eve .* measures there"
        with pytest.raises(EnvironmentFailure, match=said), lock_hosts(itself, "a hunt", None):
            raise AssertionError("two measure")
    assert lock_owner(host) is None
    with lock_hosts(itself, "a hunt", None) as held:
        assert [*held] == [host.name]


def test_session_holds_two_roots_and_their_common_build_host_once(tmp_path: Path) -> None:
    one, two, maker = (connect(name, tmp_path / name) for name in ("one", "two", "maker"))
    with lock_hosts(sites_of(one, two, build_host=maker), "a hunt", None) as held:
        assert sorted(held) == ["maker", "one", "two"]


@pytest.mark.slow
def test_one_root_with_two_addresses_or_on_two_machines_is_refused(machine: Machine) -> None:
    (machine.keys / "config").write_text(f"Host alias\n  HostName {machine.address}\n  User root\n")
    entries = [
        HostEntry(name="one", address=machine.address, root=machine.root),
        HostEntry(name="two", address="ssh://alias", root=f"{machine.root}/../root"),
        HostEntry(name="two", address="local", root=machine.root),  # as a file system that both mount
    ]
    one, *others = map(registry.connect, entries)
    for other in others:
        are_one(sites_of(one, other))
        other.close_connection()
    one.close_connection()


def test_sessions_of_the_same_second_are_different(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda *_: "2026-01-02T03:04:05Z")
    with hold_lock(host, "a hunt"):
        refused(host, "is busy: a hunt", "a hunt")


Set = Callable[[float], None]


FIND = """\
#!/bin/sh
for each do shift; {later}; set -- "$@" "$each"; done
exec /usr/bin/find "$@"
"""


@pytest.fixture
def set_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Set:
    """``set_clock(seconds)`` sets the clocks of the host (``date``) and of this process ahead."""
    programs, real = tmp_path / "programs", time.time
    monkeypatch.setenv("PATH", str(programs), prepend=":")

    def jump(seconds: float) -> None:
        later = '[ "$each" != +1440 ] || each=-1440' if seconds > 86400 else ":"  # minutes; new files are old by then
        executable(programs / "date", f'#!/bin/sh\nexec /bin/date -d "{seconds:+.0f} seconds" "$@"\n')
        executable(programs / "find", FIND.format(later=later))
        monkeypatch.setattr(time, "time", lambda: real() + seconds)

    return jump


# --- Tickets that are damaged or forged ------------------------------------------------------------------------------


def test_ticket_with_invalid_text_or_heartbeat_is_no_lock(host: LocalHost) -> None:
    """Also, lines of a file cannot look like a second ticket."""
    line = "perfbisect-lock.1111111111111111 444 root 99999999999 "
    texts = ["", "{", "[]", "{}", '{"process": 1}', "null", "\0", "a" * 100_000, f"{line}\n{line}eA==\n"]
    begins = ["", f"{tickets.boot()} 1.0 ", f"{tickets.boot()} x ", f"\n{tickets.boot()} 1.0 "]
    for number, content in enumerate(begin + text for begin in begins for text in texts):
        write_ticket(content=content, name=f"{number:016}")
    for number, silence in enumerate((-120, -86400, -1e9, *[ABANDONED + 5] * 1000)):
        write_ticket(silence=silence, name=f"1{number:015}")
    assert lock_owner(host) is None
    had(host)


def test_ticket_with_an_impossible_process_ends_no_hunt(host: LocalHost) -> None:
    here = ("x 1", "1 0", "-1 5", "99999999999999999999 1", "../self 1", "1/task/1 1")
    strange = ("", "a", "a b c", "x 99999999999999999999 1", "boot pid:[1] -1 5", "boot pid:[1] 0x1 5")
    for process in (*strange, *(f"{this_boot()} {words}" for words in here)):
        write_ticket(process=process)
        try:
            had(host)
        except EnvironmentFailure as busy:
            assert "is busy: hunt 6" in str(busy)


def test_a_forged_heartbeat_is_no_lock(host: LocalHost, set_clock: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ticket is an hour old, with a current heartbeat. The test sets the clock ahead by an hour."""
    monkeypatch.setattr(lock, "BEAT", 2.0)  # on a busy machine a look at tickets takes a second
    monkeypatch.setattr(lock, "POLL", 0.1)
    write_ticket()
    set_clock(3600)
    assert lock_owner(host) is None
    had(host)


def test_link_pipe_folder_or_misnamed_file_is_no_lock(host: LocalHost, tmp_path: Path) -> None:
    good = write_ticket()
    assert lock_owner(host) is not None
    for make in (
        lambda: good.symlink_to(write_ticket(name="1" * 15).rename(tmp_path / "elsewhere")),
        lambda: os.mkfifo(good),
        lambda: good.mkdir(),
        lambda: write_ticket(name="0" * 15 + "\n"),
        lambda: write_ticket(name="0" * 17),
        lambda: write_ticket(of="another-boot"),
    ):
        shutil.rmtree(folder())
        folder().mkdir()
        make()
        with suppress(FileNotFoundError):
            os.utime(good, (uptime(), uptime()))
        assert lock_owner(host) is None


def test_ticket_is_not_written_through_links_of_other_users(host: LocalHost, tmp_path: Path) -> None:
    precious, elsewhere = tmp_path / "precious", tmp_path / "elsewhere"
    precious.write_text("kept")
    elsewhere.mkdir()
    with hold_lock(host, "a hunt for demo point") as held:
        ticket = folder() / held.ticket
        ticket.with_name(f"{ticket.name}.new").symlink_to(precious)
        held.set_session_name("12")
        ticket.unlink()
        ticket.symlink_to(elsewhere)
        held.set_session_name("13")
        assert (precious.read_text(), list(elsewhere.iterdir())) == ("kept", [])
        assert not ticket.is_symlink()


@pytest.mark.skipif(os.getuid() != 0, reason="files are given away by root")
def test_owner_of_a_ticket_file_is_named_beside_a_claimed_user(host: LocalHost) -> None:
    os.chown(write_ticket(user="alice"), 65534, 65534)
    assert "hunt 6 of alice (process 12 on elsewhere, as nobody, since" in str(lock_owner(host))


# --- Clocks that jump ------------------------------------------------------------------------------------------------


def test_heartbeat_keeps_lock_in_clock_jumps(host: LocalHost, set_clock: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT", 2.0)  # see test_a_forged_heartbeat_is_no_lock
    monkeypatch.setattr(lock, "POLL", 0.1)
    for jump in (86400 * 365, -3600):
        with hold_lock(host, "hunt 6") as held:
            set_clock(jump)
            assert lock_owner(host) is not None
            refused(host, "is busy")
            held.check_held()


def test_clock_jump_removes_only_tickets_without_a_heartbeat(host: LocalHost, set_clock: Set) -> None:
    there, gone = write_ticket(), write_ticket(silence=ABANDONED + 100, name="1" * 16)
    set_clock(3 * 86400)
    lock._tickets(host)
    assert (there.exists(), gone.exists()) == (True, False)


@pytest.mark.skipif(uptime() < ABANDONED + 200, reason="the machine has just been started")
def test_lock_without_a_heartbeat_is_abandoned_if_the_clock_jumps(host: LocalHost, set_clock: Set) -> None:
    for jump in (0, -3600):
        set_clock(jump)
        for more in (-60, 60):
            write_ticket(silence=ABANDONED + more)
            assert (lock_owner(host) is None) == (more > 0)


def test_owner_silent_for_ten_minutes_loses_the_lock_at_any_clock(host: LocalHost, set_clock: Set) -> None:
    with hold_lock(host, "hunt 7") as held:
        held.seen -= 2 * ABANDONED
        held.check_held()  # no other session came in the meantime
        set_clock(-3600)
        write_ticket()  # it lives again, and takes it for its own
        held.check_held()  # until it asks it cannot know
        held.seen -= ABANDONED  # as after a long sleep
        with pytest.raises(EnvironmentFailure, match="another session has taken the host"):
            held.check_held()


def test_monotonic_clock_never_jumps(set_clock: Set) -> None:
    clock = MonotonicClock()
    began = clock.now()
    assert abs(began - time.time()) < 60
    for jump in (3600, -3600, -1e9):
        set_clock(jump)
        now = clock.now()
        assert 0 <= now - began < 60
    clock.advance_to(began - 1000)
    assert clock.now() - began < 60
    clock.advance_to(began + 1000)
    assert 1000 <= clock.now() - began < 1060
