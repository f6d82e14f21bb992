"""What a hunt does when its host changes, is taken, or is full: said, waited for, stopped and gone on with."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from program import LIMIT, PROGRAM, Process, bisect, bisect_until
from small_hunt import Hunt

pytestmark = [pytest.mark.e2e, pytest.mark.tools, pytest.mark.slow]


def until(args: list[str], sign: str, act: Callable[[Process], None]) -> tuple[int, str]:
    """Run the program and ``act`` at the first line that contains ``sign``; its exit status and all that it prints."""
    ended = bisect_until(args, sign, act)
    return ended.returncode, ended.stdout + ended.stderr


def interrupt(process: Process) -> None:
    process.send_signal(signal.SIGINT)


@pytest.fixture
def hunt(tmp_path: Path) -> Hunt:
    """A hunt on this machine."""
    return Hunt(tmp_path, f'[hosts.local]\nroot = "{tmp_path}/root"\n', pause=0.2)


def test_a_kernel_that_changed_between_two_sessions_is_said_and_shown(hunt: Hunt) -> None:
    assert until(hunt.words("--plain"), "  built ", interrupt)[0] == 130
    with closing(sqlite3.connect(hunt.folder / "h.db")) as db:
        [(number, body)] = db.execute("select id, body from events where kind = 'HuntStarted'").fetchall()
        told = json.loads(body)
        told["host"]["kernel"] = "5.10.0-1"
        db.execute("update events set body = ? where id = ?", [json.dumps(told), number])
        db.commit()
    _, said = until(hunt.resumed("--plain"), "has changed during this hunt", interrupt)
    assert "its kernel was 5.10.0-1 and is " in said
    assert "its kernel was 5.10.0-1 and is " in bisect("show", *hunt.kept()).stdout


def test_one_who_waits_begins_when_the_other_ends(hunt: Hunt) -> None:
    waiting: list[Process] = []
    words = hunt.words("--plain", history="second.db")

    def begin_another(first: Process) -> None:
        busy = bisect(*words)
        assert busy.returncode == 4
        assert "is busy: hunt 1 for repo-" in busy.stderr
        assert ", v0..v7, of " in busy.stderr
        assert "--wait" in busy.stderr
        environment, pipe = os.environ | {"PYTHONUNBUFFERED": "1"}, subprocess.PIPE
        waiting.append(
            subprocess.Popen([*PROGRAM, *words, "--wait"], stdout=pipe, stderr=pipe, text=True, env=environment)
        )
        assert waiting[0].stderr is not None
        assert any(line.startswith("Waiting for hunt 1 for repo-") for line in waiting[0].stderr)
        interrupt(first)

    assert until(hunt.words("--plain"), "  built ", begin_another)[0] == 130
    with waiting[0] as another:
        assert another.stdout is not None
        assert any("  ran " in line for line in another.stdout)
        interrupt(another)
        another.communicate(timeout=LIMIT)
        assert another.returncode == 130


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root, to mount a small file system")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(folder)], check=False)
    if done.returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_disk_that_fills_up_stops_the_hunt_which_goes_on_when_there_is_room(hunt: Hunt, small_disk: Path) -> None:
    (hunt.folder / "hosts.toml").write_text(f'[hosts.local]\nroot = "{small_disk}/root"\n')
    ballast = small_disk / "ballast"

    def fill(_process: Process) -> None:
        with ballast.open("wb") as file:
            file.truncate(0)
            os.posix_fallocate(file.fileno(), 0, 200 << 20)

    status, said = until(hunt.words("--plain"), "  ran ", fill)
    assert status == 4, said
    assert "no space left on host local" in said
    assert "bisect gc local" in said
    assert "go on with: bisect resume 1" in said
    assert hunt.ask("select count(*) from skips") == [(0,)]
    ballast.unlink()
    hunt.check(bisect(*hunt.resumed("--plain")))
