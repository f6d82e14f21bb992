"""Whole texts, compared with files below tests/."""

from pathlib import Path

import pytest


def pinned(name: str, text: str) -> None:
    """Compare with the file of that name."""
    path = Path(__file__).parent / name
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        pytest.fail(f"{name} was missing and has been written: look at it, and run again")
    assert text == path.read_text()
