"""Every test is sealed off: its own home, no git configuration of the machine, fixed names and dates."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

# Whoever is started in the background of a script inherits that Ctrl-C is ignored, and so would every program that
# a test interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new folder at each step. pytest's own numbering reads all names again for each new one."""
    place = tmp_path_factory.mktemp("homes")
    return (place / str(number) for number in count())


@pytest.fixture(autouse=True)
def seal(homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh home folder for each test; returns it."""
    home = next(homes)
    home.mkdir()
    for name in list(os.environ):
        if name.startswith(("GIT_", "XDG_", "CCACHE_", "PERFBISECT_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "Test")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "test@example.org")
        monkeypatch.setenv(f"GIT_{who}_DATE", "2020-01-02T03:04:05Z")
    return home


Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """``git(*args)`` in a new repository at ``tmp_path/repo``; returns what it prints."""
    folder = tmp_path / "repo"
    folder.mkdir()

    def run(*args: str, cwd: Path = folder) -> str:
        done = subprocess.run(["git", *args], cwd=cwd, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    run("init", "-q", "-b", "main")
    return run
