"""Fixtures: new histories, and histories with the sample hunt."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import sample_hunt as sample
from perfbisect.store.history import History


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of the history of this test, which may not exist yet."""
    return tmp_path / "state" / "history.db"


@pytest.fixture(scope="session")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history without hunts, created once: creating its tables takes longer than most tests."""
    path = tmp_path_factory.mktemp("blank") / "history.db"
    History.open(path).close()
    return path


def copied(original: Path, path: Path) -> Iterator[History]:
    """A copy of a history, open for writing."""
    path.parent.mkdir(parents=True)
    shutil.copy(original, path)
    with closing(History.open(path)) as opened:
        yield opened


@pytest.fixture
def history(blank: Path, path: Path) -> Iterator[History]:
    """A new history, open for writing."""
    yield from copied(blank, path)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history with the sample hunt in it, written once; never changed."""
    path = tmp_path_factory.mktemp("written") / "history.db"
    with closing(History.open(path)) as opened:
        sample.write(opened)
    return path


@pytest.fixture
def sampled(written: Path, path: Path) -> Iterator[History]:
    """A history with the sample hunt in it, open for writing."""
    yield from copied(written, path)
