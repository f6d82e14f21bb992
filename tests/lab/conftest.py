"""A lab for the small library."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from labs import lab_of
from machine import PROJECT, Machine, why_not
from perfbisect.host.local import LocalHost
from perfbisect.host.registry import connect
from perfbisect.host.ssh import SshHost
from perfbisect.lab.host_lab import HostLab
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Option
from small import BUILDER, HERE, Open, workload


@pytest.fixture
def commits(tmp_path: Path, git: Callable[..., str]) -> tuple[str, ...]:
    """A fast commit, one half as fast, one with the fast one's code, one that does not compile, one that crashes; and an end."""
    repo = tmp_path / "repo"
    shutil.copy(HERE / "library.c", repo)
    hashes = []
    for text in (
        "#define ROUNDS 20000\n",
        "#define ROUNDS 40000\n",
        "/* as before */\n#define ROUNDS 20000\n",
        "#define ROUNDS rounds\n",
        "#define ROUNDS (*(volatile uint64_t *)0)\n",
        "#define ROUNDS 80000\n",
    ):
        (repo / "rounds.h").write_text(text)
        git("add", ".")
        git("commit", "-q", "-m", "change")
        hashes.append(git("rev-parse", "HEAD"))
    return tuple(hashes)


@pytest.fixture
def open_lab(host: LocalHost, commits: tuple[str, ...], tmp_path: Path) -> Open:
    def lab(args: dict[str, Option] | None = None, builder: Builder = BUILDER, **more: Any) -> HostLab:
        asked = {"host": host, "commits": commits, **more}
        return lab_of(builder=builder, workload=workload(args), repository=tmp_path / "repo", **asked)

    return lab


@pytest.fixture
def far(seal: Path) -> Iterator[tuple[SshHost, Machine]]:
    """A machine of its own, reached over SSH."""
    if reason := why_not():
        pytest.skip(reason)
    machine = Machine(seal / ".ssh", hidden=[PROJECT])
    try:
        machine.make_known()
        host = connect(HostEntry(name="far", address=machine.address, root=machine.root))
        assert isinstance(host, SshHost)
        yield host, machine
        host.release()
    finally:
        machine.remove()
