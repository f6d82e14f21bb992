import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from perfbisect.errors import EnvironmentFailure
from perfbisect.host import lock
from perfbisect.host.local import LocalHost
from perfbisect.host.lock import Owner, hold, holder, wait
from perfbisect.process import this_process
from waiting import until

pytestmark = pytest.mark.tools

ELSEWHERE = "another-boot pid:[1] 12 34"  # a process that cannot be seen from here


def rewrite(host: LocalHost, **changes: object) -> None:
    lock = Path(host.root, "lock")
    owner = msgspec.json.decode(lock.read_bytes(), type=Owner)
    lock.write_bytes(msgspec.json.encode(msgspec.structs.replace(owner, **changes)))


def test_the_second_is_reported_who_has_it(host: LocalHost) -> None:
    with hold(host, "hunt 7"):
        owner = holder(host)
        assert owner is not None
        assert owner.purpose == "hunt 7"
        with (
            pytest.raises(EnvironmentFailure, match=r"here is busy: hunt 7 \(process \d+ on .*, since 20"),
            hold(host, "hunt 8"),
        ):
            raise AssertionError("got a lock that somebody holds")
        assert holder(host) == owner
    assert holder(host) is None
    with hold(host, "hunt 8"):
        pass


def test_a_failure_inside_releases_it(host: LocalHost) -> None:
    with pytest.raises(KeyboardInterrupt), hold(host, "hunt 7"):
        raise KeyboardInterrupt
    assert holder(host) is None


def test_a_killed_owner_leaves_a_stale_lock(host: LocalHost) -> None:
    script = (
        "import os, sys; from pathlib import PurePosixPath\n"
        "from perfbisect.host.local import LocalHost; from perfbisect.host.lock import hold\n"
        "with hold(LocalHost('here', PurePosixPath(sys.argv[1])), 'hunt 6'): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(host.root)], check=False).returncode == -9
    assert Path(host.root, "lock").exists()
    assert holder(host) is None
    with hold(host, "hunt 7"):
        owner = holder(host)
        assert owner is not None
        assert owner.purpose == "hunt 7"


def test_a_pid_alone_proves_nothing(host: LocalHost) -> None:
    with hold(host, "hunt 6"):
        rewrite(host, process=f"{this_process().rpartition(' ')[0]} 1")
        with hold(host, "hunt 7"):
            pass


def test_the_name_of_a_machine_proves_nothing(host: LocalHost) -> None:
    """Of two controllers called localhost one cannot see the other's processes."""
    with hold(host, "hunt 6"):
        rewrite(host, process=ELSEWHERE)
        with pytest.raises(EnvironmentFailure, match="is busy"), hold(host, "hunt 7"):
            pass


def test_an_owner_on_another_machine_is_respected(host: LocalHost) -> None:
    with hold(host, "hunt 6"):
        rewrite(host, machine="elsewhere", process=ELSEWHERE)
        with pytest.raises(EnvironmentFailure, match="elsewhere") as caught, hold(host, "hunt 7"):
            pass
        assert str(Path(host.root, "lock")) in caught.value.advice


def test_an_owner_on_another_machine_that_shows_no_life_is_gone(host: LocalHost) -> None:
    with hold(host, "hunt 6") as held:
        rewrite(host, machine="elsewhere", process=ELSEWHERE)
        silent = time.time() - lock.ABANDONED - 5
        os.utime(Path(host.root, "lock"), (silent + 60, silent + 60))
        assert holder(host) is not None
        os.utime(Path(host.root, "lock"), (silent, silent))
        assert holder(host) is None
        with hold(host, "hunt 7"):
            owner = holder(host)
            assert owner is not None
            assert owner.purpose == "hunt 7"
        held.confirm()  # until it asks again it cannot know
        held.seen -= lock.ABANDONED  # as after a long sleep
        with pytest.raises(EnvironmentFailure, match="another process measures there now"):
            held.confirm()


def test_an_owner_shows_life_and_notices_when_it_is_the_owner_no_more(
    host: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "BEAT", 0.02)
    with hold(host, "hunt 6") as held:
        long_ago = time.time() - 3600
        os.utime(Path(host.root, "lock"), (long_ago, long_ago))
        until(lambda: Path(host.root, "lock").stat().st_mtime > long_ago + 60)
        held.confirm()
        rewrite(host, machine="elsewhere", process=ELSEWHERE)
        until(lambda: held.lost)
        with pytest.raises(EnvironmentFailure, match="another process measures there now"):
            held.confirm()


def test_one_who_waits_gets_it_when_it_is_free(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "POLL", 0.02)
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
        owner = holder(host)
        assert owner is not None
        assert owner.purpose == "hunt 7"
    assert told.pop() is None
    assert len(told) >= 3
    assert {one.purpose for one in told if one} == {"hunt 6"}


def test_a_lock_cut_short_is_nobodys(host: LocalHost) -> None:
    Path(host.root, "lock").write_text('{"pid": 12')
    with hold(host, "hunt 7"):
        assert holder(host) is not None


def test_releasing_never_takes_anothers(host: LocalHost) -> None:
    with hold(host, "hunt 6"):
        rewrite(host, machine="elsewhere", process=ELSEWHERE)
    owner = holder(host)
    assert owner is not None
    assert owner.machine == "elsewhere"
