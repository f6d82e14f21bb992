from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.core.domain.events import Commit
from perfbisect.repository.describe import describe
from perfbisect.repository.discovery import open_repository

pytestmark = pytest.mark.tools

Git = Callable[..., str]


@pytest.fixture
def folder(git: Git, tmp_path: Path) -> Path:
    git("commit", "-q", "--allow-empty", "-m", "one")
    message = "two: “quoted”\twith tab\n\nand a body"
    git("commit", "-q", "--allow-empty", "-m", message, "--author=Zoë Ö <z@example.org>")
    return tmp_path / "repo"


def test_a_commit_is_described(git: Git, folder: Path) -> None:
    first, head = git("rev-parse", "HEAD~1", "HEAD").split()
    repo = open_repository(folder)
    assert describe(repo, head) == Commit(head, "2020-01-02", "Zoë Ö", "two: “quoted”\twith tab")
    assert describe(repo, first).subject == "one"


def test_an_old_encoding_is_read(git: Git, folder: Path) -> None:
    message = folder / "message"
    message.write_bytes("größer".encode("latin-1"))
    git("-c", "i18n.commitEncoding=ISO-8859-1", "commit", "-q", "--allow-empty", "-F", str(message))
    assert describe(open_repository(folder), git("rev-parse", "HEAD")).subject == "größer"


def test_an_empty_message_is_no_obstacle(git: Git, folder: Path) -> None:
    git("commit", "-q", "--allow-empty", "--allow-empty-message", "-m", "")
    assert describe(open_repository(folder), git("rev-parse", "HEAD")).subject == ""
