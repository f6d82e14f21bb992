"""Recipes for a single test, in temporary folders."""

from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the recipes of this machine and of this checkout."""
    monkeypatch.setattr("perfbisect.recipes.configuration.config_folder", lambda: tmp_path)
    monkeypatch.setattr("perfbisect.recipes.configuration.SHIPPED", ())
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file below the test's folder, which is the user's configuration folder and the current folder."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


@pytest.fixture
def small() -> str:
    """A builder recipe with only what is required."""
    return Path(__file__).with_name("small.toml").read_text()
