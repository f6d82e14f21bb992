"""Which releases lie between two, in which order, and which of them are left out."""

from pathlib import Path

import pytest

from perfbisect.errors import UsageError
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.git import Repository, git
from perfbisect.repository.release_range import ReleaseRange, number_of, plain, release_range


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    """main: 1.9 1.10-rc1 1.10 2.0; beside it, from 1.10: 1.10.1. Tags of other forms, too, and dates out of order."""
    import subprocess

    def run(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *words], cwd=tmp_path, check=True)

    def commit(*tags: str) -> None:
        run("commit", "-q", "--allow-empty", "-m", tags[0])
        for tag in tags:
            run("tag", tag)

    run("init", "-q", "-b", "main")
    commit("v1.8")
    commit("v1.9", "nightly", "v-odd")
    commit("v1.10-rc1")
    commit("v1.10")
    run("checkout", "-q", "-b", "fixes")
    commit("v1.10.1")
    run("checkout", "-q", "main")
    commit("v2.0", "2.0")
    commit("v2.1")
    return open_repository(tmp_path)


def test_versions_in_order_without_pre_releases_and_other_branches(repo: Repository) -> None:
    found = release_range(repo, "1.9..2.0", ["v{version}"])
    assert found == ReleaseRange(
        ("1.9", "1.10", "2.0"), (("1.10-rc1", "a pre-release"), ("1.10.1", "2.0 does not contain it"))
    )
    assert release_range(repo, "1.9..2.0", []) == found, "the tags themselves say how they are written"


def test_ends_may_be_tags_and_may_lie_on_a_branch(repo: Repository) -> None:
    assert release_range(repo, "v1.9..v1.10.1", ["v{version}"]).taken == ("1.9", "1.10", "1.10.1")
    assert release_range(repo, "1.10.1..2.1", ["v{version}"]).taken == ("1.10.1", "2.0", "2.1")


def test_a_release_of_two_tags_is_taken_once(repo: Repository) -> None:
    assert release_range(repo, "1.10..2.1", ["v{version}", "{version}"]).taken == ("1.10", "2.0", "2.1")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2.0..1.9", "not before"),
        ("1.9..1.9", "not before"),
        ("1.9", "no range"),
        ("1.9..", "no range"),
        ("..2.0", "no range"),
        ("1.9...2.0", "no range"),
        ("1.9..2.7", "'2.7' is no release"),
        ("1.10-rc1..2.0", "is no release"),
        ("main..2.0", "'main' is no release"),
    ],
)
def test_what_is_no_range(repo: Repository, text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        release_range(repo, text, ["v{version}"])


def test_a_repository_without_releases(tmp_path: Path) -> None:
    import subprocess

    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    repo = open_repository(tmp_path)
    assert not git(repo, "tag")
    with pytest.raises(UsageError, match="no common way"):
        release_range(repo, "1.0..2.0", [])


def test_the_order_of_versions() -> None:
    versions = ["8.0.9", "8.0.10", "8.0.36-28", "8.0.36-29", "8.1.0-alpha"]
    assert sorted(["8.1.0-alpha", *versions[:-1]], key=number_of) == versions
    assert [plain(version) for version in versions] == [True, True, True, True, False]
