"""A history for the hunts of a test."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from perfbisect.store.history import History


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with closing(History.open(tmp_path / "history.db")) as history:
        yield history
