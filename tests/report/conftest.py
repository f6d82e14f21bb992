"""Histories in the default place, so that the commands in a report need not name them, in UTC."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from perfbisect.store.history import History


@pytest.fixture(autouse=True)
def utc(seal: Path) -> None:
    """The sealed home says UTC; let the clock hear it."""
    assert seal
    time.tzset()


@pytest.fixture
def history(utc: None) -> Iterator[History]:
    """A new history in the sealed home."""
    with closing(History.open()) as opened:
        yield opened
