"""Comparisons of whole texts with files below tests/."""

from collections.abc import Callable
from pathlib import Path

import pytest


def pinned(name: str, text: str, blurred: Callable[[str], str] = str) -> None:
    """Compare ``text`` with the file ``name``, both after ``blurred``. If it is missing, write it and fail."""
    path = Path(__file__).parent / name
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        pytest.fail(f"{name} was missing and has been written: look at it, and run again")
    assert blurred(text) == blurred(path.read_text())
