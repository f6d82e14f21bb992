"""Hosts that share builds, and where these are."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sharing import Fleet


@pytest.fixture
def fleet(tmp_path: Path, git: Callable[..., str]) -> Fleet:
    return Fleet(tmp_path, git)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store that is a folder."""
    place = tmp_path / "store"
    place.mkdir()
    return place
