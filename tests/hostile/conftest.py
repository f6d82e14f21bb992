from collections.abc import Iterator
from pathlib import Path

import pytest

from traps import Trap


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Trap]:
    """Whatever a test does, nothing of the trap may run."""
    trap = Trap(tmp_path / "sprung")
    yield trap
    assert trap.sprung == []
