"""A machine for hunts over SSH."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from machine import PROJECT, Machine, why_not


@pytest.fixture
def machine(seal: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine that sees nothing of this project and of the tests; the host "far" of hosts.toml."""
    if reason := why_not():
        pytest.skip(reason)
    made = Machine(seal / ".ssh", hidden=[PROJECT, tmp_path_factory.getbasetemp()])
    try:
        made.make_known()
        config = seal / ".config" / "perfbisect"
        config.mkdir(parents=True)
        (config / "hosts.toml").write_text(f'[hosts.far]\naddress = "{made.address}"\nroot = "{made.root}"\n')
        yield made
    finally:
        made.remove()
