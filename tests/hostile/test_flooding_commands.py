"""Short commands that print without end, on this machine and over ssh, and those that are too long to be started."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from machine import PROJECT, Machine, why_not
from perfbisect.errors import EnvironmentFailure, TooMuchOutput
from perfbisect.host import jobs
from perfbisect.host.local import LocalHost
from perfbisect.host.protocol import HEAD, PRINTED, TAIL, Host
from perfbisect.host.registry import connect
from perfbisect.recipes.inventory import HostEntry
from waiting import finish, processes, until

pytestmark = pytest.mark.tools

MARK = 5_000_000 + os.getpid()


@pytest.fixture(params=["local", "ssh"])
def host(request: pytest.FixtureRequest, tmp_path: Path, seal: Path) -> Iterator[Host]:
    if request.param == "local":
        (tmp_path / "root").mkdir()
        yield LocalHost("here", PurePosixPath(tmp_path / "root"))
        return
    if reason := why_not():
        pytest.skip(reason)
    machine = Machine(seal / ".ssh", hidden=[PROJECT])
    try:
        machine.make_known()
        with connect(HostEntry(name="here", address=machine.address, root=machine.root)) as there:
            yield there
    finally:
        machine.remove()


@pytest.mark.parametrize("redirect", ["", ">&2", "| tr -d '\\n'", "2>&1 >&2"])
def test_a_command_that_prints_without_end_is_ended(host: Host, redirect: str) -> None:
    sentence = rf"on host here, sh -c .* printed more than {PRINTED >> 20} MiB, and was"
    for check in (True, False):
        with pytest.raises(TooMuchOutput, match=sentence):
            host.run(["sh", "-c", f"yes {MARK} {redirect}"], check=check)
        until(lambda: not processes(f"yes\0{MARK}"))
    assert host.run(["echo", "still there"]).stdout == "still there\n"


def test_a_listing_that_has_room_comes_whole(host: Host) -> None:
    printed = host.run(
        ["sh", "-c", "yes 123456789 | head -c 30000000; yes abc | head -c 4000000 >&2; exit 3"], check=False
    )
    assert (len(printed.stdout), len(printed.stderr), printed.status) == (30_000_000, 4_000_000, 3)


def test_stdin_of_any_length_reaches_a_command_that_prints_meanwhile(host: Host) -> None:
    text = "0123456789" * 300_000
    assert host.run(["cat"], stdin=text).stdout == text
    assert host.run(["head", "-c", "5"], stdin=text).stdout == "01234"
    assert host.run(["true"], stdin=text).stdout == ""


def test_time_runs_out_for_what_prints_a_little_for_ever(host: Host) -> None:
    slow = host.run(["sh", "-c", "while echo x; do sleep 0.01; done"], timeout=0.5, check=False)
    assert slow.status == 124


def test_a_stream_whose_errors_flood_ends(host: Host) -> None:
    with host.stream(["sh", "-c", "yes error | head -c 50000000 >&2; cat; echo done >&2"]) as stream:
        stream.sendall(b"data")
        stream.shutdown(1)
        assert stream.recv(99) == b"data"


def test_a_probe_that_floods_has_failed(host: Host) -> None:
    probed = jobs.run(host, ["sh", "-c", f"yes {MARK}"], timeout=30)
    assert not probed.ok
    assert "printed more than" in probed.stderr
    until(lambda: not processes(f"yes\0{MARK}"))


def test_a_job_that_floods_is_kept_in_bounds_there(host: Host) -> None:
    job = jobs.start(host, ["sh", "-c", "yes a line | head -c 49000000; echo end"], name="x", timeout=60)
    lines, status = finish(jobs.wait(host, job))
    assert (lines[0], lines[-1], status) == ("a line", "end", 0)
    printed = jobs.printed(host, job)
    assert printed.left == 49_000_004 - HEAD - TAIL
    assert printed.text.endswith("a line\nend\n")


@pytest.mark.parametrize("length", [130_000, 200_000, 3_000_000])
def test_a_build_command_of_any_length_gets_a_sentence(host: Host, length: int) -> None:
    argv = ["sh", "-c", f"printf '%s\\n' {'x' * length}"]
    if length < 131_000:
        job = jobs.start(host, argv, name="x", timeout=60)
        assert jobs.end(host, job) == 0
        assert jobs.printed(host, job).text == "x" * length + "\n"
        return
    with pytest.raises(EnvironmentFailure, match="a command is too long to be started"):
        jobs.start(host, argv, name="x", timeout=60)
    with pytest.raises(EnvironmentFailure, match="a command is too long to be started"):
        jobs.run(host, argv, timeout=60)


MEASURE = """\
import resource, sys
from pathlib import PurePosixPath
from perfbisect.errors import TooMuchOutput
from perfbisect.host.local import LocalHost
host = LocalHost("here", PurePosixPath(sys.argv[1]))
try:
    host.run(["sh", "-c", "yes line | head -c " + sys.argv[2]])
except TooMuchOutput:
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_output(tmp_path: Path) -> None:
    def peak(size: int) -> int:
        """KiB."""
        words = [sys.executable, "-c", MEASURE, str(tmp_path), str(size)]
        return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)

    assert peak(2_000_000_000) < 1.3 * peak(PRINTED + 1)
