"""A machine for hunts over SSH."""

from collections.abc import Callable
from pathlib import Path

import pytest

from machine import Machine


@pytest.fixture
def machine(seal: Path, make_machine: Callable[..., Machine]) -> Machine:
    """Another machine: the host "far" of hosts.toml."""
    made = make_machine()
    config = seal / ".config" / "perfbisect"
    config.mkdir(parents=True)
    (config / "hosts.toml").write_text(f'[hosts.far]\naddress = "{made.address}"\nroot = "{made.root}"\n')
    return made
