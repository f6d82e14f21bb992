"""Commits by release or revision, in sets, described, and by the paths that they touch."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from perfbisect.core.domain.events import Commit
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.repository.commits import (
    LONGEST,
    UnknownRevision,
    ambiguous,
    describe,
    ends_of,
    first_commit,
    joined,
    members,
    releases,
    resolve,
    touched,
)
from perfbisect.repository.discovery import open_repository
from traps import OddTrees

pytestmark = pytest.mark.tools

Git = Callable[..., str]
TAGS = ["mysql-{version}", "REL_{version:_}"]


@pytest.fixture
def repo(git: Git, tmp_path: Path) -> Path:
    for number, tags in enumerate([["mysql-8.0.28", "8.0.28-note"], ["mysql-8.0.29"], ["REL_16_0", "plain"]]):
        git("commit", "-q", "--allow-empty", "-m", f"{number}")
        for tag in tags:
            git("tag", "-a", "-m", "annotated", tag)
    return tmp_path / "repo"


def test_the_first_commit_is_that_of_the_main_line(git: Git, repo: Path) -> None:
    """Another history was merged."""
    first = git("rev-list", "--max-parents=0", "HEAD")
    git("switch", "-q", "--orphan", "other")
    git("commit", "-q", "--allow-empty", "-m", "another beginning")
    git("switch", "-q", "main")
    git("merge", "-q", "--allow-unrelated-histories", "-m", "both", "other")
    assert len(git("rev-list", "--max-parents=0", "HEAD").split()) == 2
    assert first_commit(open_repository(repo), "HEAD") == first


def test_releases_and_revisions(git: Git, repo: Path) -> None:
    opened = open_repository(repo)
    for name, revision in {
        "8.0.28": "mysql-8.0.28",
        "8.0.29": "HEAD~1",
        "16.0": "REL_16_0",
        "REL_16_0": "REL_16_0",
        "plain": "HEAD",
        "HEAD~2": "HEAD~2",
        "main@{0}": "HEAD",
    }.items():
        assert resolve(opened, name, TAGS) == git("rev-parse", f"{revision}^{{commit}}"), name


def test_a_hash_is_a_revision_short_or_long(git: Git, repo: Path) -> None:
    commit = git("rev-parse", "HEAD~1")
    opened = open_repository(repo)
    assert {resolve(opened, commit, []), resolve(opened, commit[:8], [])} == {commit}


def test_a_release_wins_over_a_branch_of_its_name(git: Git, repo: Path) -> None:
    git("branch", "8.0.28", "HEAD")
    assert resolve(open_repository(repo), "8.0.28", TAGS) == git("rev-parse", "HEAD~2")


def test_a_commit_is_found_by_the_text_of_its_message(git: Git, repo: Path) -> None:
    git("commit", "-q", "--allow-empty", "-m", "Read ahead one page^{commit}")
    opened = open_repository(repo)
    assert resolve(opened, ":/^Read .* one", TAGS) == git("rev-parse", "HEAD")
    assert resolve(opened, "HEAD^{/1}", TAGS) == git("rev-parse", "HEAD~2")
    with pytest.raises(UnknownRevision, match="':/nothing of it' is neither"):
        resolve(opened, ":/nothing of it", TAGS)


def test_names_of_a_tag_and_a_branch_are_known(git: Git, repo: Path) -> None:
    git("branch", "plain", "HEAD~2")
    opened = open_repository(repo)
    assert resolve(opened, "plain", TAGS) == git("rev-parse", "tags/plain^{commit}")
    assert resolve(opened, "heads/plain", TAGS) == git("rev-parse", "HEAD~2")
    assert ambiguous(opened, ["main", "8.0.28..plain~1", "plain@lto", ":/0", "heads/plain", ""]) == ["plain"]


def test_an_unknown_release_names_the_nearest(repo: Path) -> None:
    with pytest.raises(UnknownRevision, match=r"'8\.0\.20' is neither a release nor a revision in .*/repo") as caught:
        resolve(open_repository(repo), "8.0.20", TAGS)
    assert "8.0.28" in caught.value.advice
    assert caught.value.exit_status == 3


def test_odd_names_are_only_unknown(repo: Path) -> None:
    opened = open_repository(repo)
    options = ["-x", "--help", "--all", "--stdin"]
    for odd in [*options, "a b", "", "'", '"', "$(x)", "x\ny", "\0", "..", "^HEAD", "HEAD^{tree}", "HEAD:"]:
        with pytest.raises(UnknownRevision):
            resolve(opened, odd, TAGS)


def test_a_hash_that_is_too_short_is_refused(history: Callable[..., tuple[Any, dict[str, str]]]) -> None:
    """Of so many commits, some share their first four digits."""
    repo, hashes = history({f"c{number}": ([], {}, None) for number in range(600)})
    beginnings = sorted(commit[:4] for commit in hashes.values())
    shared = next(one for one, other in pairwise(beginnings) if one == other)
    with pytest.raises(UsageError, match=f"'{shared}' is the beginning of several hashes"):
        resolve(repo, shared, [])


def test_releases_are_read_back_from_tags() -> None:
    tags = ["mysql-8.0.28", "REL_16_0", "REL_16_BETA1", "other"]
    assert releases(tags, TAGS) == ["8.0.28", "16.0", "16.BETA1"]


def test_what_git_says_is_passed_on(repo: Path) -> None:
    opened = open_repository(repo)
    (repo / ".git/HEAD").unlink()
    with pytest.raises(EnvironmentFailure, match=r"git cat-file failed in .*: fatal: not a git repository"):
        resolve(opened, "HEAD", [])


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


@pytest.mark.parametrize(
    ("text", "ends"),
    [("v1.0", ("v1.0",)), ("8.0.28..8.0.29", ("8.0.28", "8.0.29")), ("HEAD~3..x^", ("HEAD~3", "x^")), ("..", None),
     ("a..", None), ("..b", None), ("a...b", None), ("a..b..c", None), ("", None)],
)  # fmt: skip
def test_a_revision_or_a_range_of_two(text: str, ends: tuple[str, ...] | None) -> None:
    if ends is None:
        with pytest.raises(UsageError, match=r"neither a revision nor a range of two"):
            ends_of(text)
    else:
        assert ends_of(text) == ends
        assert joined(ends) == text


@pytest.mark.tools
def test_the_commits_of_the_newer_that_the_older_lacks(git: Callable[..., str], tmp_path: Path) -> None:
    """A side branch that was merged into the range belongs to it."""

    def commit(name: str) -> str:
        git("commit", "-q", "--allow-empty", "-m", name)
        return git("rev-parse", "HEAD")

    root = commit("root")
    git("checkout", "-qb", "side")
    side = commit("side")
    git("checkout", "-q", "main")
    first = commit("first")
    git("merge", "-q", "--no-ff", "-m", "merge", "side")
    merge = git("rev-parse", "HEAD")
    repo = open_repository(tmp_path / "repo")
    assert members(repo, f"{first}..{merge}") == {side, merge}
    assert members(repo, f"{root}..{merge}") == {side, first, merge}
    assert members(repo, f"{merge}..{root}") == set()
    assert members(repo, side) == {side}


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
