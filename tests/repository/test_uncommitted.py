from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.repository.discovery import open_repository
from perfbisect.repository.uncommitted import is_dirty

pytestmark = pytest.mark.tools

Git = Callable[..., str]


def test_a_checkout_with_changes_is_dirty_and_one_with_new_files_is_not(git: Git, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    (repo / "file").write_text("1")
    git("add", "file")
    git("commit", "-qm", "file")
    (repo / "new").write_text("1")
    assert not is_dirty(open_repository(repo))
    (repo / "file").write_text("2")
    assert is_dirty(open_repository(repo))
    git("clone", "-q", "--bare", str(repo), str(repo.parent / "bare"))
    assert not is_dirty(open_repository(repo.parent / "bare"))
    (repo.parent / "bare" / "config").unlink()
    assert not is_dirty(open_repository(repo.parent / "bare")), "a mirror without a configuration has no checkout"
