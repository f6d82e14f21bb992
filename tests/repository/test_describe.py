from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.core.domain.events import Commit
from perfbisect.repository.describe import Change, describe, describe_all, touched
from perfbisect.repository.resolve import open_repository

pytestmark = pytest.mark.tools

Git = Callable[..., str]
LINES = "".join(f"{number}\n" for number in range(20))


@pytest.fixture
def folder(git: Git, tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    (folder / "doc").mkdir()
    (folder / "a.c").write_text(LINES)
    (folder / "picture").write_bytes(bytes(range(256)))
    git("add", "-A")
    git("commit", "-qm", "one")
    git("mv", "a.c", "b c\té.c")
    (folder / "b c\té.c").write_text(LINES.replace("19\n", "nineteen\ntwenty\n"))
    (folder / "picture").write_bytes(bytes(range(256)) * 2)
    (folder / "doc/x").write_text("x\n")
    git("add", "-A")
    git("commit", "-qm", "two: “quoted”\twith tab\n\nand a body", "--author=Zoë Ö <z@example.org>")
    return folder


def test_a_commit_is_described(git: Git, folder: Path) -> None:
    head = git("rev-parse", "HEAD")
    assert describe(open_repository(folder), head) == Commit(head, "2020-01-02", "Zoë Ö", "two: “quoted”\twith tab")


def test_many_commits_are_described_in_order(git: Git, folder: Path) -> None:
    first, second = git("rev-parse", "HEAD~1"), git("rev-parse", "HEAD")
    repo = open_repository(folder)
    subjects = [commit.subject[:3] for commit in describe_all(repo, [second, first, second])]
    assert subjects == ["two", "one", "two"]
    assert describe_all(repo, []) == []


def test_an_old_encoding_is_read(git: Git, folder: Path) -> None:
    message = folder / "message"
    message.write_bytes("größer".encode("latin-1"))
    git("-c", "i18n.commitEncoding=ISO-8859-1", "commit", "-q", "--allow-empty", "-F", str(message))
    assert describe(open_repository(folder), git("rev-parse", "HEAD")).subject == "größer"


def test_an_empty_message_is_no_obstacle(git: Git, folder: Path) -> None:
    git("commit", "-q", "--allow-empty", "--allow-empty-message", "-m", "")
    assert describe(open_repository(folder), git("rev-parse", "HEAD")).subject == ""


def test_touched_files_are_counted(git: Git, folder: Path) -> None:
    repo, head = open_repository(folder), git("rev-parse", "HEAD")
    changes = {change.path: change for change in touched(repo, head)}
    assert changes == {
        "b c\té.c": Change("b c\té.c", 2, 1),
        "doc/x": Change("doc/x", 1, 0),
        "picture": Change("picture", None, None),
    }
    assert [change.path for change in touched(repo, head, ["doc/**", "picture"])] == ["b c\té.c"]


def test_a_root_touches_everything(git: Git, folder: Path) -> None:
    changes = touched(open_repository(folder), git("rev-parse", "HEAD~1"))
    assert changes == [Change("a.c", 20, 0), Change("picture", None, None)]


def test_a_merge_is_compared_with_its_first_parent(git: Git, folder: Path) -> None:
    git("switch", "-qc", "side", "HEAD~1")
    (folder / "side.c").write_text("s\n")
    git("add", "-A")
    git("commit", "-qm", "side")
    git("switch", "-q", "main")
    git("merge", "-q", "--no-ff", "-m", "merge", "side")
    assert touched(open_repository(folder), git("rev-parse", "HEAD")) == [Change("side.c", 1, 0)]


def test_files_without_their_contents_are_still_named(git: Git, folder: Path) -> None:
    blob = git("rev-parse", "HEAD:doc/x")
    (folder / ".git/objects" / blob[:2] / blob[2:]).unlink()
    changes = touched(open_repository(folder), git("rev-parse", "HEAD"))
    assert Change("doc/x", None, None) in changes
