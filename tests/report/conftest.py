"""Histories at the default path, so that the commands in a report need no `--history`; times in UTC."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from perfbisect.store.history import History


@pytest.fixture(autouse=True)
def utc(seal: Path) -> None:
    """Apply the time zone of the sealed home, UTC."""
    assert seal
    time.tzset()


@pytest.fixture
def history(utc: None) -> Iterator[History]:
    """A new history in the sealed home."""
    with closing(History.open()) as opened:
        yield opened
