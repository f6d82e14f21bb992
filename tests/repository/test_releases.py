"""The releases of a repository, by its tags, and those from one to another."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.errors import UsageError
from perfbisect.repository.commits import tags_of
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.git import Repository, git
from perfbisect.repository.releases import ReleaseRange, Tag, by_pattern, number_of, plain, release_range


@pytest.mark.parametrize(
    ("tags", "pattern", "versions"),
    [
        (["1.6.18", "1.6.9"], "{version}", ["1.6.18", "1.6.9"]),
        (["v1.9", "v1.10", "v1.10-rc1"], "v{version}", ["1.10", "1.9"]),
        (["REL_16_0", "REL_17_1", "REL_17_BETA1"], "REL_{version:_}", ["17.1", "16.0"]),
        (["REL9_6_1"], "REL{version:_}", ["9.6.1"]),
        (["lib2-1.0", "lib2-1.1"], "lib2-{version}", ["1.1", "1.0"]),
        (["v255", "v256"], "v{version}", ["256", "255"]),
        (["kv/v1.0"], "kv/v{version}", ["1.0"]),
    ],
)
def test_patterns(tags: list[str], pattern: str, versions: list[str]) -> None:
    found = by_pattern(Tag(tag, 0) for tag in tags)
    assert list(found) == [pattern]
    assert [release.version for release in found[pattern]] == versions


def test_no_release() -> None:
    assert by_pattern(Tag(tag, 0) for tag in ("2024", "nightly", "v1-rc1", "a{b}1.0", 'v1";x')) == {}


def test_the_pattern_in_use_is_first() -> None:
    old = [Tag(f"old-{number}.0", number) for number in range(9)]
    new = [Tag("v1.0", 100), Tag("v1.1", 101), Tag("once-1.0", 200)]
    assert list(by_pattern([*old, *new])) == ["v{version}", "old-{version}", "once-{version}"]


@given(
    st.lists(st.from_regex(re.compile(r"[A-Za-z0-9._/-]{0,8}[0-9](?:[._][0-9]{1,3}){0,3}", re.ASCII), fullmatch=True))
)
def test_each_release_leads_back_to_its_tag(tags: list[str]) -> None:
    for pattern, releases in by_pattern(Tag(tag, 0) for tag in tags).items():
        for release in releases:
            assert tags_of(release.version, [pattern]) == [release.tag]
            assert release.tag in tags


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
