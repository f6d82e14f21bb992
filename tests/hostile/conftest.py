from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from traps import Trap


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Trap]:
    """Whatever a test does, nothing of the trap may run."""
    trap = Trap(tmp_path / "sprung")
    yield trap
    assert trap.sprung == []


@pytest.fixture
def give() -> Callable[[Path, str, Path], None]:
    """``give(folder, whose, root)``: builders, workloads and an inventory that say whose they are, in a folder."""
    given = Path(__file__).parent / "given"

    def give(folder: Path, whose: str, root: Path) -> None:
        for file in given.rglob("*.toml"):
            copy = folder / file.relative_to(given)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(file.read_text().replace("WHOSE", whose).replace("ROOT", str(root)))

    return give
