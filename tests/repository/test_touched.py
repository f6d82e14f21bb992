"""Which commits touch a path."""

from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.repository.discovery import open_repository
from perfbisect.repository.touched import touched

pytestmark = pytest.mark.tools


def test_files_folders_and_globs(git: Callable[..., str], tmp_path: Path) -> None:
    folder = tmp_path / "repo"
    made = []
    for path in ("start", "storage/inno/a.c", "sql/b.c", "storage/inno/deep/c.h", "sql/d.h"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
        git("add", ".")
        git("commit", "-qm", path)
        made.append(git("rev-parse", "HEAD"))
    _, one, two, three, four = made
    found = touched(open_repository(folder), made[0], four, ["storage/inno", "**/*.h", "sql/b.c", "none"])
    assert found == {
        "storage/inno": {one, three},
        "**/*.h": {three, four},
        "sql/b.c": {two},
        "none": frozenset(),
    }
