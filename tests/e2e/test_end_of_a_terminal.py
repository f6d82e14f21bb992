"""The terminal of a hunt is closed: nothing goes on without it, and the hunt can."""

import os
import signal
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.host import jobs
from perfbisect.host.registry import connect
from perfbisect.recipes.inventory import load_host
from program import LIMIT, PROGRAM
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.tools]

# Whoever runs the tests under nohup has told all that they start to ignore the end of a terminal.
HEARING = ["env", "--default-signal=HUP"]


@pytest.fixture
def hunt(git: Callable[..., str], tmp_path: Path) -> list[str]:
    """A hunt whose runs take so long that they do not end."""
    for number in range(2):
        (tmp_path / "repo" / "number").write_text(f"{number}")
        git("add", "-A")
        git("commit", "-qm", "change")
    repo, history = str(tmp_path / "repo"), str(tmp_path / "history.db")
    asked = ["run", "HEAD~1", "HEAD", "--build", "true", "--run", "sleep 300", "--repo", repo]
    return [*PROGRAM, *asked, "--plain", "--history", history]


def start(argv: list[str]) -> subprocess.Popen[str]:
    """The program, in its first run."""
    process = subprocess.Popen(
        [*HEARING, "PYTHONUNBUFFERED=1", *argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    until(lambda: in_a_run() or process.poll() is not None)
    assert process.poll() is None, process.communicate()[0]
    return process


def in_a_run() -> bool:
    """Whether its job has begun: by the file of its leader, since asking for jobs starts processes each time."""
    return any(Path.home().glob(".cache/perfbisect/jobs/*-run-*/pid"))


def test_its_end_is_a_clean_interruption(hunt: list[str]) -> None:
    """The shell tells of it a second time, while we stop."""
    process, host = start(hunt), connect(load_host("local"))
    assert Path(host.root, "visit").exists()
    process.send_signal(signal.SIGHUP)
    for _ in range(50):
        time.sleep(0.02)
        process.send_signal(signal.SIGHUP)
    said, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, said
    assert "go on with: bisect resume 1" in said
    assert not jobs.running(host)
    assert not Path(host.root, "visit").exists(), "the copy of the data goes, too"


@pytest.mark.slow
def test_its_end_takes_the_log_excerpt_with_it(hunt: list[str]) -> None:
    """What is then written to a real one is an error."""
    ours, theirs = os.openpty()
    argv = [*HEARING, "setsid", "--ctty", *(word for word in hunt if word != "--plain")]
    process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    host = connect(load_host("local"))
    until(lambda: in_a_run() or process.poll() is not None)
    assert process.poll() is None, os.read(ours, 10_000)
    os.close(ours)
    assert process.wait(timeout=LIMIT) == 130
    assert not jobs.running(host)
    assert not Path(host.root, "visit").exists()


@pytest.mark.slow
def test_ctrl_c_is_not_printed_into_the_picture(hunt: list[str]) -> None:
    ours, theirs = os.openpty()
    assert prints_control(ours)
    argv = ["env", "TERM=xterm", "setsid", "--ctty", *(word for word in hunt if word != "--plain")]
    process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs)
    until(lambda: in_a_run() or process.poll() is not None)
    assert not prints_control(ours)
    os.write(ours, b"\x03")
    assert process.wait(timeout=LIMIT) == 130
    assert prints_control(ours), "it is as it was"
    said = os.read(ours, 1_000_000)
    assert b"\x1b[?1049h" in said and b"^C" not in said


def prints_control(terminal: int) -> bool:
    """Whether a terminal prints ^C where Ctrl-C is typed."""
    return bool(termios.tcgetattr(terminal)[3] & termios.ECHOCTL)


@pytest.mark.slow
def test_with_nohup_it_goes_on(hunt: list[str]) -> None:
    process, host = start(["nohup", *hunt]), connect(load_host("local"))
    try:
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=2)
        assert jobs.running(host)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT)
    assert not jobs.running(host)
