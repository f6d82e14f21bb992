"""Where commits are built."""

from pathlib import Path

import pytest

from repos import Repo
from sharing import Yard


@pytest.fixture
def yard(tmp_path: Path, git: Repo) -> Yard:
    return Yard(tmp_path, git)
