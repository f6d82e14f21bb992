from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.resolve import UnknownRevision, ambiguous, first_commit, releases, resolve

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
