"""Hosts: the behaviour that all kinds share, this machine, and the kind of host of an address."""

import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path, PurePosixPath
from unittest.mock import Mock

import pytest

from machine import Machine, here
from perfbisect.errors import CommandFailed, EnvironmentFailure, TooMuchOutput, UsageError
from perfbisect.host import jobs, local, protocol, registry, ssh, through
from perfbisect.host.local import LocalHost
from perfbisect.host.packages import missing_programs, require_programs
from perfbisect.host.protocol import ARGUMENT, HEAD, TAIL, Host
from perfbisect.host.registry import CONNECTIONS, connect
from perfbisect.recipes.inventory import HostEntry
from waiting import finish, processes, until

MARK = 5_000_000 + os.getpid()
ODD = ["a b", "'", '"', "$(touch hit)", "`touch hit`", ";touch hit", "-n", "\\n", "line\nline", "!x", "é→", "*", "~", "#",
       "../x", ""]  # fmt: skip


@pytest.fixture(
    params=["here", pytest.param("box", marks=pytest.mark.tools), pytest.param("far", marks=pytest.mark.tools)]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    """A host of each kind: ``here``, this machine; ``box``, behind a command (`env`); ``far``, over SSH."""
    if request.param == "here":
        yield here(tmp_path / "root")
    elif request.param == "far":
        yield request.getfixturevalue("far")
    else:
        with connect(HostEntry(name="box", through=["env", "BOX=1"], root=str(tmp_path / "root"))) as box:
            yield box


def test_output_status_and_stdin(place: Host) -> None:
    done = place.run(["sh", "-c", "cat; echo two >&2; exit 3"], stdin="one\n\0x", check=False)
    assert (done.status, done.stdout, done.stderr, done.ok) == (3, "one\n\0x", "two\n", False)
    assert place.run(["printf", r"a\377b"]).stdout == "a\ufffdb"


def arrives(host: Host) -> None:
    """Assert that no shell interprets the words of a command, of a job or of a folder."""
    odd = "|".join(ODD)
    folder = host.root / odd.replace("/", "")
    host.run(["mkdir", "--", str(folder)])
    show = ["sh", "-c", 'pwd; printf "%s|" "$ODD" "$@"; cat', odd, *ODD]
    printed = host.run(show, cwd=folder, env={"ODD": odd}, stdin=odd).stdout
    assert printed == f"{folder}\n{odd}|{'|'.join(ODD)}|{odd}"
    job = jobs.start(host, ["printf", "%s|", *ODD], name=odd, cwd=folder, env={"ODD": odd}, timeout=60)
    assert job.folder.parent == host.root / "jobs"
    assert "\n".join(jobs.follow_stdout(host, job)) == "|".join(ODD) + "|"
    assert host.run(["find", str(host.root), "-name", "hit"]).stdout == ""


def test_no_shell_interprets_the_words_of_a_command(place: Host) -> None:
    arrives(place)
    assert place.run(["sh", "-c", 'echo "$A:${PATH:+kept}"'], env={"A": "a b; echo no"}).stdout == "a b; echo no:kept\n"


@pytest.mark.tools
@pytest.mark.parametrize("shell", ["/bin/bash", "/usr/bin/zsh", "/usr/bin/tcsh", "/usr/bin/fish"])
def test_login_shell_interprets_no_word_of_a_command(make_machine: Callable[..., Machine], shell: str) -> None:
    if not Path(shell).exists():
        pytest.skip(f"no {shell}")
    machine = make_machine(shell=shell)
    with connect(HostEntry(name="far", address=machine.address, root=machine.root)) as host:
        arrives(host)
        with pytest.raises(ValueError, match="BAD NAME"):
            host.run(["env"], env={"BAD NAME": ""})
    assert machine.inside(f"find {machine.folder} / /root -maxdepth 2 -name hit") == ""


def test_commands_run_without_the_locale_of_the_user(place: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_ALL", "LC_NUMERIC", "LANGUAGE"):
        monkeypatch.setenv(name, "de_DE.UTF-8")
    say = ["sh", "-c", "echo $LC_ALL $LANGUAGE"]
    assert place.run(say).stdout == "C.UTF-8 C\n"
    with place.stream(say) as stream:
        assert stream.makefile().read() == "C.UTF-8 C\n"
    assert place.run(say, env={"LC_ALL": "C"}).stdout == "C C\n", "an explicit environment counts"


def test_failures_of_commands_have_different_errors(place: Host) -> None:
    with pytest.raises(CommandFailed, match=rf"host {place.name}, sh -c.*status 7: no such luck") as caught:
        place.run(["sh", "-c", "echo no such luck >&2; exit 7"])
    assert caught.value.status == 7
    with pytest.raises(EnvironmentFailure, match=f"no-such-program is not installed on host {place.name}"):
        place.run(["no-such-program"])
    # A missing folder is not reported as a missing program.
    with pytest.raises(EnvironmentFailure, match=f"folder /nonexistent does not exist on host {place.name}"):
        place.run(["true"], cwd=PurePosixPath("/nonexistent"))
    with pytest.raises(EnvironmentFailure, match=f"the disk of host {place.name} is full"):
        place.run(["sh", "-c", "cat /proc/version >/dev/full"], check=False)
    if place.name != "here":  # a signal becomes a status if a shell is in between
        assert place.run(["kill", "-s", "KILL", "0"], check=False).status == 128 + 9


def test_slow_command_is_killed_with_its_children(place: Host) -> None:
    for limit in (0.2, 2, 20):  # on a busy machine, the first may be over before its child has begun
        with pytest.raises(
            CommandFailed, match=rf"ended with status 124: the command took more than {limit} s"
        ) as caught:
            place.run(["sh", "-c", f"sleep 4321 & echo $! >{place.root}/pid; wait"], timeout=limit)
        assert caught.value.status == 124
        if pid := place.run(["cat", f"{place.root}/pid"], check=False).stdout.strip():
            break
    script = 'case $(cut -d " " -f 3 "/proc/$1/stat" 2>/dev/null) in ""|Z|X) echo ended;; esac'
    until(lambda: place.run(["sh", "-c", script, "x", pid]).stdout == "ended\n")


def test_stream_transfers_both_ways_and_reports_failures(place: Host) -> None:
    data = bytes(range(256)) * 4000
    both = ["sh", "-c", "yes error | head -c 20000000 >&2; cat; echo done >&2"]
    with place.stream(both) as end, ThreadPoolExecutor(1) as pool:
        came = pool.submit(lambda: b"".join(iter(lambda: end.recv(1 << 16), b"")))
        end.sendall(data)
        end.shutdown(1)
        assert came.result() == data
    for status in (3, 124):  # 124 is also the status of a command that took too long
        failing = ["sh", "-c", f"echo why >&2; exit {status}"]
        with pytest.raises(CommandFailed, match=f"status {status}: why"), place.stream(failing) as end:
            assert end.recv(1) == b""
    with pytest.raises(EnvironmentFailure, match="no-such-program is not installed"), place.stream(["no-such-program"]):
        pass


@pytest.mark.tools
def test_job_outlives_the_command_that_started_it(place: Host) -> None:
    endless = jobs.start(place, ["sleep", "1000"], name="endless", timeout=2000)
    assert jobs.status(place, endless) is None
    jobs.kill(place, endless)
    assert jobs.status(place, endless) is not None


def test_many_commands_run_at_once(place: Host) -> None:
    """Each command waits for all other commands."""
    gate = f"{place.root}/gate"
    place.run(["mkfifo", gate])
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(place.run, ["sh", "-c", f"read x <{gate}; echo {n}"]) for n in range(7)]
        place.run(["sh", "-c", f"exec 3<>{gate}; for n in 1 2 3 4 5 6 7; do echo >&3; done; sleep 1"])
        assert [each.result().stdout for each in waiting] == [f"{n}\n" for n in range(7)]


# Large outputs and long commands


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lower limit of the output of short commands: 2 MiB."""
    for module in (local, protocol, ssh, through):
        monkeypatch.setattr(module, "PRINTED", 2 << 20)


def test_command_that_prints_without_end_is_ended(bounded: None, place: Host) -> None:
    with pytest.raises(
        TooMuchOutput, match=rf"on host {place.name}, sh -c .* printed more than 2 MiB, so perfbisect ended"
    ):
        place.run(["sh", "-c", f"yes {MARK} | tr -d '\\n'"], check=False)
    probed = jobs.run(place, ["sh", "-c", f"yes {MARK} >&2"], timeout=30)
    assert not probed.ok
    assert "printed more than" in probed.stderr
    until(lambda: not processes(f"yes\0{MARK}"))
    assert place.run(["echo", "still there"]).stdout == "still there\n"


def test_output_below_the_limit_is_returned_completely(place: Host) -> None:
    listing = ["sh", "-c", "yes 123456789 | head -c 12000000; yes abc | head -c 4000000 >&2; exit 3"]
    printed = place.run(listing, check=False)
    assert (len(printed.stdout), len(printed.stderr), printed.status) == (12_000_000, 4_000_000, 3)
    text = "0123456789" * 300_000
    for command, stdout in (("cat", text), ("head -c 5", "01234"), ("true", "")):
        assert place.run(command.split(), stdin=text).stdout == stdout
    slow = place.run(["sh", "-c", "while echo x; do sleep 0.01; done"], timeout=0.5, check=False)
    assert slow.status == 124


def test_output_of_a_job_is_limited_on_the_host(place: Host) -> None:
    job = jobs.start(place, ["sh", "-c", "yes a line | head -c 21000000; echo end"], name="x", timeout=60)
    lines, status = finish(jobs.follow_stdout(place, job))
    assert (lines[0], lines[-1], status) == ("a line", "end", 0)
    printed = jobs.job_output(place, job)
    assert printed.omitted_bytes == 21_000_004 - HEAD - TAIL
    assert printed.text.endswith("a line\nend\n")


def test_too_long_command_is_refused_with_advice(place: Host) -> None:
    def echo(length: int) -> list[str]:
        return ["sh", "-c", f"printf '%s\n' {'x' * length}"]

    for fits, said in ((echo(130_000), 130_001), (["true", "x" * ARGUMENT], 0), (["true", *["x" * 100_000] * 5], 0)):
        job = jobs.start(place, fits, name="x", timeout=60)
        assert jobs.wait_for_status(place, job) == 0
        assert len(jobs.job_output(place, job).text) == said
    long = r"a command is too long: it has [\d,]+ characters"
    for length in (200_000, 3_000_000):
        for argv, env in ((echo(length), {}), (["true"], {"LONG": "x" * length})):
            with pytest.raises(EnvironmentFailure, match=long):
                jobs.start(place, argv, name="x", timeout=60, env=env)
        with pytest.raises(EnvironmentFailure, match=long) as caught:
            jobs.run(place, echo(length), timeout=60)
        assert "beside the recipe" in caught.value.advice


# This machine


def test_missing_programs_are_all_named_with_their_packages(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_programs(host, ["sh", "no-such-a", "cat", "no such b"]) == ("no-such-a", "no such b")
    require_programs(host, ["sh"])
    with pytest.raises(EnvironmentFailure, match="no-such-a, no-such-b are not installed"):
        require_programs(host, ["no-such-a", "sh", "no-such-b"])
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(EnvironmentFailure, match="ninja is not installed on host here") as caught:
        host.run(["ninja", "--version"])
    assert caught.value.advice.startswith("Install with: apt-get install ninja-build ")


def test_connect_makes_the_root_folder(seal: Path) -> None:
    host = connect(HostEntry(name="here", root="~/our root"))
    assert host.root == PurePosixPath(seal / "our root")
    assert Path(host.root).is_dir()


LEADS = {
    "local": ("local", ""),
    "me@far": ("ssh", "me@far"),
    "ssh://me@far": ("ssh", "me@far"),
    "batch://queue/fast": ("batch", "queue/fast"),
}


def test_scheme_of_an_address_selects_the_kind_of_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(kind: str, entry: HostEntry, rest: str) -> LocalHost:
        assert LEADS[entry.address] == (kind, rest)
        return here(tmp_path, entry.name)

    with pytest.raises(UsageError, match="no connection of the kind 'batch'") as caught:
        connect(HostEntry(name="one", address="batch://queue"))
    known = ", ".join(CONNECTIONS)
    assert caught.value.advice == f"Correct `hosts.one.address` in hosts.toml. Kinds of connections: {known}."
    monkeypatch.setattr(registry, "CONNECTIONS", {name: partial(made, name) for name in (*CONNECTIONS, "batch")})
    for address in LEADS:
        assert connect(HostEntry(name="one", address=address)).name == "one"


def gone() -> Mock:
    """A channel whose connection is lost during a read: paramiko must acknowledge the data, and cannot write."""
    ends = {"recv.side_effect": [b"half of it", EOFError], "sendall.side_effect": EOFError}
    return Mock(spec_set=["recv", "sendall"], **ends)


def test_data_before_a_lost_connection_is_kept_and_both_ends_are_closed() -> None:
    assert ssh._read(gone().recv, lambda: None) == b"half of it"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        ssh.copy_stream(gone().recv, theirs.sendall, lambda: theirs.shutdown(socket.SHUT_WR))
        assert (ours.recv(99), ours.recv(99)) == (b"half of it", b"")
        ours.sendall(b"some")
        ssh.copy_stream(theirs.recv, gone().sendall, lambda: theirs.shutdown(socket.SHUT_RD))
        with pytest.raises(BrokenPipeError):
            ours.sendall(b"more")
