"""A machine for hunts over SSH, and a Slurm."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from machine import Machine
from slurm import Slurm


@pytest.fixture
def machine(seal: Path, make_machine: Callable[..., Machine]) -> Machine:
    """Another machine: the host "far" of hosts.toml."""
    made = make_machine()
    config = seal / ".config" / "perfbisect"
    config.mkdir(parents=True)
    (config / "hosts.toml").write_text(f'[hosts.far]\naddress = "{made.address}"\nroot = "{made.root}"\n')
    return made


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    made = Slurm()
    yield made
    made.end()


@pytest.fixture
def slurm(cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """The cluster without jobs."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.configuration))
    yield cluster
    assert cluster.jobs() in ({}, {"other": "RUNNING"})
    cluster.cancel()
