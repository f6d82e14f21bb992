from collections.abc import Callable
from pathlib import Path

import pytest

from odd_trees import OddTrees
from perfbisect.core.domain.events import Commit
from perfbisect.repository.describe import LONGEST, describe
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


def test_what_a_damaged_commit_lacks_is_empty(git: Git, folder: Path) -> None:
    """Objects that git would not write; it reads them."""
    odd, repo = OddTrees(folder), open_repository(folder)
    author, committer = b"author A <a> 0 +0000\n", b"committer C <c> 0 +0000\n"
    tree = b"tree %s\n" % git("rev-parse", "HEAD^{tree}").encode()
    for body, expected in {
        author + committer + b"\nx\n": ("1970-01-01", "A", "x"),
        committer + b"\nx\n": ("1970-01-01", "", "x"),
        author + b"\nx\n": ("", "A", "x"),
        b"\nx\n": ("", "", "x"),
        author + b"committer C <c> -5 +0000\n\nx\n": ("", "A", "x"),
        b"author A\0B <a> 0 +0000\n" + committer + b"\nx\0y\n": ("1970-01-01", "", "x"),
        author + committer + b"\nx\0y\n\nz\n": ("1970-01-01", "A", "x"),
        author + committer + b"encoding nonsense\n\n\xff\xfe\n": ("1970-01-01", "A", "\N{REPLACEMENT CHARACTER}" * 2),
        author + committer + b"\n" + b"x" * 2_000_000: ("1970-01-01", "A", "x" * LONGEST + "…"),
        b"author " + b"A" * 9_000 + b" <a> 0 +0000\n" + committer + b"\nx\n": ("1970-01-01", "A" * LONGEST + "…", "x"),
    }.items():
        sha = odd.write("commit", tree + body)
        assert describe(repo, sha) == Commit(sha, *expected), body[:100]
