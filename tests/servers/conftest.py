"""Labs for the recipes of servers, extended by a build that installs what the machine has."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from labs import lab_of
from perfbisect.host import jobs
from perfbisect.host.local import LocalHost
from perfbisect.lab.host_lab import Earlier, HostLab
from perfbisect.recipes.builder_reader import load_builder
from perfbisect.recipes.workload import Workload
from repos import Repo

Open = Callable[..., HostLab]


@pytest.fixture
def host() -> Iterator[LocalHost]:
    """A short root, for the sake of the socket, and one that nobody but us may enter."""
    with tempfile.TemporaryDirectory(prefix="lab") as root:
        host = LocalHost("here", PurePosixPath(root))
        yield host
        assert not (*jobs.running(host), *jobs.orphaned(host)), "nothing is left behind"


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[[str], None]:
    """Write the builder ``mine``."""

    def write(text: str) -> None:
        folder = tmp_path / "builders" / "mine"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "builder.toml").write_text(text)

    return write


@pytest.fixture
def commits(git: Repo) -> Callable[..., tuple[str, ...]]:
    """Commit these contents of the file ``extra.conf``, one after the other."""

    return lambda *texts: tuple(git.commit({"extra.conf": text}) for text in texts)


@pytest.fixture
def open_lab(host: LocalHost, tmp_path: Path) -> Open:
    def lab(workload: Workload, hashes: tuple[str, ...], **more: Any) -> HostLab:
        earlier = Earlier(memory_mib=600, cores=3)  # rounded down
        asked = {"host": host, "earlier": earlier, **more}
        builder = load_builder("mine", tmp_path / "builders")
        return lab_of(builder=builder, workload=workload, repository=tmp_path / "repo", commits=hashes, **asked)

    return lab
