"""A lab for the small library in C; and a ``Yard``, which builds commits."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from labs import BUILDER, HERE, Open, lab_of, workload
from perfbisect.host.local import LocalHost
from perfbisect.lab.host_lab import HostLab
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.workload import Option
from repos import Repo
from sharing import Yard


@pytest.fixture
def commits(git: Repo) -> tuple[str, ...]:
    """Commits: fast, half as fast, with the code of the fast commit, not compiling, and an end."""
    shutil.copy(HERE / "library.c", git.path)
    rounds = ("20000", "40000", "20000 // as before", "rounds", "80000")
    return tuple(git.commit({"rounds.h": f"#define ROUNDS {each}\n"}) for each in rounds)


@pytest.fixture
def open_lab(host: LocalHost, commits: tuple[str, ...], tmp_path: Path) -> Open:
    def lab(args: dict[str, Option] | None = None, builder: Builder = BUILDER, **more: Any) -> HostLab:
        asked = {"host": host, "commits": commits, **more}
        return lab_of(builder=builder, workload=workload(args), repository=tmp_path / "repo", **asked)

    return lab


@pytest.fixture
def yard(tmp_path: Path, git: Repo) -> Yard:
    return Yard(tmp_path, git)
