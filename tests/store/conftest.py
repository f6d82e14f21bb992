"""A history to write."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from perfbisect.store.history import History


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the history of this test is, or will be."""
    return tmp_path / "state" / "history.db"


@pytest.fixture
def history(path: Path) -> Iterator[History]:
    """A new history, open for writing."""
    with closing(History.open(path)) as opened:
        yield opened
