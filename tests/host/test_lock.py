"""The lock of a machine, by real files: sessions of this process, of killed ones, and tickets as others could write them."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path, PurePosixPath

import pytest

import tickets
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.host import lock
from perfbisect.host.local import LocalHost
from perfbisect.host.lock import Owner, hold, holder, wait
from perfbisect.host.through import Shell, ThroughHost
from perfbisect.process import this_process
from tickets import write_ticket
from waiting import until

pytestmark = pytest.mark.tools


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "POLL", 0.02)


@pytest.fixture(autouse=True)
def no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test is a process of its own."""
    monkeypatch.setattr(lock, "_waited", {})
    monkeypatch.setattr(lock, "SESSION", lock.secrets.token_hex(8))


def another(tmp_path: Path, name: str = "there") -> LocalHost:
    """This machine with another root, as another user would have it."""
    root = tmp_path / f"root of {name}"
    root.mkdir(exist_ok=True)
    return LocalHost(name, PurePosixPath(root))


def purpose(host: LocalHost) -> str:
    """What the host is held for, "" if it is free."""
    owner = holder(host)
    return owner.purpose if owner else ""


def test_the_second_is_told_who_has_it_wherever_its_root_is(host: LocalHost, tmp_path: Path) -> None:
    with hold(host, "a hunt for demo point"):
        for other in (host, another(tmp_path)):
            told = rf"{other.name} is busy: a hunt for demo point of \w+ \(process {os.getpid()} on .*, since 20"
            with pytest.raises(EnvironmentFailure, match=told), hold(other, "a hunt for demo scan"):
                raise AssertionError("got a lock that somebody holds")
            assert holder(other) == holder(host) is not None
    assert holder(host) is None
    assert tickets.names() == []
    with hold(another(tmp_path), "hunt 8"):
        pass


def test_others_see_the_number_of_the_hunt_as_soon_as_it_has_one(host: LocalHost) -> None:
    with hold(host, "a hunt for demo point") as held:
        before = held.place
        held.number("12")
        assert str(holder(host)).startswith("hunt 12 for demo point of ")
        assert held.place == before


def test_every_user_can_read_a_ticket_and_nobody_else_can_write_it_and_a_failure_removes_it(host: LocalHost) -> None:
    with pytest.raises(KeyboardInterrupt), hold(host, "hunt 7"):
        [name] = tickets.names()
        assert stat.S_IMODE((tickets.folder() / name).stat().st_mode) == 0o444
        assert stat.S_IMODE(tickets.folder().stat().st_mode) == 0o1777
        raise KeyboardInterrupt
    assert tickets.names() == []


def test_a_killed_owner_leaves_a_ticket_that_counts_no_more(host: LocalHost) -> None:
    script = (
        "import os, sys; from pathlib import PurePosixPath\n"
        "from perfbisect.host.local import LocalHost; from perfbisect.host.lock import hold\n"
        "with hold(LocalHost('here', PurePosixPath(sys.argv[1])), 'hunt 6'): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(host.root)], check=False).returncode == -9
    assert len(tickets.names()) == 1
    assert holder(host) is None
    with hold(host, "hunt 7"):
        assert purpose(host) == "hunt 7"


def test_a_process_that_is_hidden_is_not_known_to_have_ended(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where /proc is mounted with hidepid: not even the first process is seen."""
    write_ticket(process=f"{this_process().rpartition(' ')[0]} 1")
    assert holder(host) is None
    monkeypatch.setattr(lock, "start_time", lambda pid: "")
    assert holder(host) is not None


def test_the_name_of_a_machine_proves_nothing(host: LocalHost) -> None:
    """Of two controllers called localhost one cannot see the other's processes."""
    write_ticket()
    with pytest.raises(EnvironmentFailure, match="is busy: hunt 6 of eve") as caught, hold(host, "hunt 7"):
        pass
    assert "10 minutes" in caught.value.advice


def test_an_owner_that_shows_no_life_for_ten_minutes_is_gone(host: LocalHost) -> None:
    write_ticket(silence=lock.ABANDONED - 30)
    assert holder(host) is not None
    write_ticket(silence=lock.ABANDONED + 30)
    assert holder(host) is None
    with hold(host, "hunt 7") as held:
        held.seen -= 2 * lock.ABANDONED
        held.confirm()  # nobody came meanwhile
        write_ticket()  # it lives again, and takes it for its own
        held.confirm()  # until it asks it cannot know
        held.seen -= lock.ABANDONED  # as after a long sleep
        with pytest.raises(EnvironmentFailure, match="another process measures there now"):
            held.confirm()


def test_a_heartbeat_keeps_a_ticket_alive_and_writes_it_again_when_it_was_removed(
    host: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "BEAT", 0.05)
    with hold(host, "hunt 6") as held:
        ticket = tickets.folder() / held.ticket
        os.utime(ticket, (0, 0))
        until(lambda: ticket.stat().st_mtime > 0)
        ticket.unlink()  # as old temporary files are
        until(ticket.exists)
        held.confirm()
        write_ticket()
        ticket.unlink()
        until(lambda: held.lost)
        with pytest.raises(EnvironmentFailure, match="another process measures there now"):
            held.confirm()
    assert tickets.names() == ["perfbisect-lock.0000000000000000"]


def test_a_ticket_that_another_user_leaves_does_not_end_a_hunt_that_measures(host: LocalHost) -> None:
    with hold(host, "hunt 7") as held:
        write_ticket(place=0)
        held._sign()
        held.confirm()


@pytest.mark.usefixtures("quick")
def test_one_who_waits_gets_it_when_it_is_free(host: LocalHost) -> None:
    told: list[Owner | None] = []
    release = threading.Event()

    def first() -> None:
        with hold(host, "hunt 6"):
            got.set()
            release.wait(30)

    got = threading.Event()
    other = threading.Thread(target=first)
    other.start()
    got.wait(30)

    def waiting(owner: Owner | None) -> None:
        told.append(owner)
        if len(told) == 3:
            release.set()

    wait(host, waiting)
    other.join()
    with hold(host, "hunt 7", waiting):
        assert purpose(host) == "hunt 7"
    assert told.pop() is None
    assert len(told) >= 3
    assert {one.purpose for one in told if one} == {"hunt 6"}


@pytest.mark.usefixtures("quick")
def test_who_waits_gets_it_in_the_order_of_arrival(host: LocalHost, tmp_path: Path) -> None:
    got: list[str] = []
    queued: list[str] = []

    def session(name: str) -> None:
        def waiting(owner: Owner | None) -> None:
            if owner and name not in queued:
                queued.append(name)

        with hold(another(tmp_path, name), name, waiting):
            got.append(name)

    names = ["f", "b", "d", "a", "c", "e"]
    threads = [threading.Thread(target=session, args=(name,)) for name in names]
    with hold(host, "first"):
        for name, thread in zip(names, threads, strict=True):
            thread.start()
            until(lambda name=name: name in queued)
        with pytest.raises(EnvironmentFailure, match="is busy: first"), hold(host, "impatient"):
            pass
    for thread in threads:
        thread.join()
    assert got == names


@pytest.mark.usefixtures("quick")
def test_of_many_that_come_at_once_one_at_a_time_has_it(host: LocalHost, tmp_path: Path) -> None:
    inside: list[str] = []
    had: list[str] = []

    def session(name: str) -> None:
        with hold(another(tmp_path, name), name, lambda _: None):
            inside.append(name)
            had.append(name)
            assert inside == [name]
            inside.remove(name)

    threads = [threading.Thread(target=session, args=(f"s{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(had) == [f"s{number}" for number in range(8)]


def test_who_had_its_turn_is_next_while_it_makes_ready(host: LocalHost, tmp_path: Path) -> None:
    wait(host, lambda _: None)
    other = another(tmp_path)
    with pytest.raises(EnvironmentFailure, match=r"is busy: a session of .* is next there"), hold(other, "hunt 8"):
        pass
    with hold(host, "hunt 7", session=lock.SESSION):
        assert len(tickets.names()) == 1
    with hold(other, "hunt 8"):
        pass


@pytest.mark.usefixtures("quick")
def test_who_waits_elsewhere_lets_others_pass(host: LocalHost, tmp_path: Path) -> None:
    """Else two sessions that want the same two machines could wait for each other."""
    wait(host, lambda _: None)
    [first] = tickets.names()
    other, seen = write_ticket(), list[bool]()

    def waiting(owner: Owner | None) -> None:
        if owner:
            seen.append(first in tickets.names())
            other.unlink(missing_ok=True)

    wait(another(tmp_path), waiting)
    assert seen[0] is False
    with hold(host, "hunt 7", session=lock.SESSION):
        assert first in tickets.names()


def test_a_session_that_has_the_machine_takes_it_for_another_root_before_who_waits(
    host: LocalHost, tmp_path: Path
) -> None:
    """Who came between the two waits for the first: the second would wait for it forever."""
    with hold(host, "hunt 6", session="s"):
        waits = lock.HostLock(another(tmp_path, "waits"), "hunt 7")
        waits._write("644")
        with hold(another(tmp_path), "hunt 6", session="s"):
            assert len(tickets.names()) == 3
        write_ticket()
        with pytest.raises(EnvironmentFailure, match="is busy: hunt 6 of eve"), hold(host, "hunt 6", session="s"):
            pass


def test_no_folder_is_the_usual_one_and_a_relative_one_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFBISECT_LOCKS", "")
    assert lock._folders() == lock.FOLDERS
    monkeypatch.setenv("PERFBISECT_LOCKS", "locks")
    with pytest.raises(UsageError, match="PERFBISECT_LOCKS names no absolute path: locks"):
        lock._folders()


def test_a_folder_may_be_a_link(host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.setenv("PERFBISECT_LOCKS", str(tmp_path / "link"))
    with hold(host, "hunt 6"):
        assert holder(host) is not None
        assert len(list((tmp_path / "real").iterdir())) == 1


def within(root: PurePosixPath, source: Path, target: str) -> ThroughHost:
    """This machine with another file in the place of one."""
    if os.getuid() != 0:
        pytest.skip("namespaces are made by root")
    mount = 'mount --bind "$0" "$1" && shift && exec "$@"'
    return ThroughHost("box", root, Shell("box", ["unshare", "--mount", "sh", "-c", mount, str(source), target]))


def test_a_container_with_an_uptime_of_its_own_sees_the_locks_of_the_machine(host: LocalHost, tmp_path: Path) -> None:
    (tmp_path / "uptime").write_text("5.00 3.00\n")  # as lxcfs writes it
    inside = within(host.root, tmp_path / "uptime", "/proc/uptime")
    with inside:
        with hold(host, "hunt 6"):
            assert holder(inside) == holder(host) is not None
        with hold(inside, "hunt 7"):
            assert holder(inside) == holder(host) is not None


def test_the_name_of_a_user_may_have_blanks(host: LocalHost, tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("root:x:0:0::/root:/bin/sh\nDOM\\jane doe:x:12345:0::/:/bin/sh\n")
    inside = within(host.root, tmp_path / "passwd", "/etc/passwd")
    os.chown(write_ticket(), 12345, 0)
    with inside:
        assert (holder(inside) or tickets.ELSEWHERE).account == "DOM\\jane doe"


def test_releasing_never_takes_anothers(host: LocalHost) -> None:
    with hold(host, "hunt 6"):
        write_ticket()
    assert tickets.names() == ["perfbisect-lock.0000000000000000"]


def test_where_the_first_folder_is_full_the_second_has_the_ticket(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getuid() != 0:
        pytest.skip("file systems are mounted by root")
    full, second = tmp_path / "full", tmp_path / "second"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "none", str(full)], check=True)
    try:
        (full / "much").write_bytes(b"x" * 8192)
        monkeypatch.setattr(lock, "_folders", lambda: (str(full), str(second)))
        with hold(host, "a clean-up"):
            assert len(list(second.iterdir())) == 1
            with pytest.raises(EnvironmentFailure, match="is busy: a clean-up"), hold(host, "hunt 7"):
                pass
        assert [each.name for each in (*full.iterdir(), *second.iterdir())] == ["much"]
        monkeypatch.setattr(lock, "_folders", lambda: (str(full),))
        with pytest.raises(EnvironmentFailure, match="no space left on host here"), hold(host, "hunt 7"):
            pass
        (full / "much").write_bytes(b"")
        held = lock.HostLock(host, "hunt 8")
        held._write("644")
        (full / "much").write_bytes(b"x" * 4096)
        with pytest.raises(EnvironmentFailure, match="no space left on host here"):
            held._write("444")  # nobody else would see that it is taken
        monkeypatch.setattr(lock, "_folders", lambda: (str(full), str(second)))
        held._write("444")
        assert [path.parent for path in (*full.glob("perf*"), *second.glob("perf*"))] == [second]
    finally:
        subprocess.run(["umount", str(full)], check=True)


@pytest.mark.parametrize(("apart", "shares"), [(False, True), (True, True), (True, False)])
def test_a_container_with_a_folder_of_its_own_sees_no_other_lock(
    host: LocalHost, tmp_path: Path, apart: bool, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getuid() != 0:
        pytest.skip("namespaces are made by root")
    monkeypatch.setenv("PERFBISECT_LOCKS", "/" if not shares else "/dev/shm")
    command = ["env"] + apart * ["unshare", "--pid", "--fork", "--mount-proc"]
    inside = ThroughHost("box", host.root, Shell("box", command))
    with inside:
        assert lock.is_apart(inside) == (apart and not shares)
