import os
from pathlib import Path, PurePosixPath

import pytest

from perfbisect.errors import CommandFailed, EnvironmentFailure
from perfbisect.host.local import LocalHost
from perfbisect.host.packages import missing, require
from perfbisect.host.registry import connect
from perfbisect.recipes.inventory import HostEntry
from waiting import ended, until


def test_output_status_and_stdin(host: LocalHost) -> None:
    result = host.run(["sh", "-c", "cat; echo two >&2; exit 3"], stdin="one", check=False)
    assert (result.status, result.stdout, result.stderr, result.ok) == (3, "one", "two\n", False)


def test_nothing_is_read_by_a_shell(host: LocalHost) -> None:
    assert host.run(["printf", "%s", "$HOME; `id` 'a\" b\n*"]).stdout == "$HOME; `id` 'a\" b\n*"


def test_environment_is_added(host: LocalHost) -> None:
    assert host.run(["sh", "-c", 'echo "$A:${PATH:+kept}"'], env={"A": "a b; echo no"}).stdout == "a b; echo no:kept\n"


def test_undecodable_output_is_replaced(host: LocalHost) -> None:
    assert host.run(["printf", r"a\377b"]).stdout == "a\ufffdb"


def test_failure_says_command_status_and_reason(host: LocalHost) -> None:
    with pytest.raises(CommandFailed, match=r"here.*sh -c.*status 7: no such luck") as caught:
        host.run(["sh", "-c", "echo no such luck >&2; exit 7"])
    assert caught.value.status == 7


def test_a_slow_command_is_killed_with_its_children(host: LocalHost, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    for limit in (0.2, 2, 20):  # on a busy machine, the first may be over before its child has begun
        with pytest.raises(CommandFailed, match=rf"more than {limit} s") as caught:
            host.run(["sh", "-c", f"sleep 3000 & echo $! >{pid}; wait"], timeout=limit)
        assert caught.value.status == 124
        if pid.exists() and pid.read_text():
            break
    until(lambda: ended(int(pid.read_text())))


def test_a_missing_program_names_its_package(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(EnvironmentFailure, match="ninja is not installed on host here") as caught:
        host.run(["ninja", "--version"])
    assert caught.value.advice.startswith("Install with: apt-get install ninja-build ")


def test_a_missing_folder_is_not_a_missing_program(host: LocalHost) -> None:
    with pytest.raises(EnvironmentFailure, match="folder /nonexistent does not exist"):
        host.run(["true"], cwd=PurePosixPath("/nonexistent"))


@pytest.mark.skipif(not os.access("/dev/full", os.W_OK), reason="no /dev/full here")
def test_a_full_disk_is_the_environments_fault(host: LocalHost) -> None:
    with pytest.raises(EnvironmentFailure, match="no space left on host here"):
        host.run(["sh", "-c", "cat /proc/version >/dev/full"], check=False)


def test_missing_programs_are_all_named(host: LocalHost) -> None:
    assert missing(host, ["sh", "no-such-a", "cat", "no such b"]) == ("no-such-a", "no such b")
    require(host, ["sh"])
    with pytest.raises(EnvironmentFailure, match="no-such-a, no-such-b are not installed"):
        require(host, ["no-such-a", "sh", "no-such-b"])


def test_connect_makes_the_root_folder(seal: Path) -> None:
    host = connect(HostEntry(name="here", root="~/our root"))
    assert host.root == PurePosixPath(seal / "our root")
    assert Path(host.root).is_dir()


def test_connect_refuses_what_it_cannot_reach(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFailure, match="root folder"):
        connect(HostEntry(name="here", root=str(tmp_path / "file" / "root")))
