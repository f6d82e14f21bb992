"""The releases of a repository, by its tags, and those from one to another."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.errors import UsageError
from perfbisect.repository.commits import tags_of
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.git import Repository
from perfbisect.repository.releases import ReleaseRange, Tag, by_pattern, number_of, plain, release_range
from repos import Repo


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
def repo(git: Repo) -> Repository:
    """main: 1.9 1.10-rc1 1.10 2.0; beside it, from 1.10: 1.10.1. Tags of other forms, too, and dates out of order."""
    for tag in ("v1.8", "v1.9", "v1.10-rc1", "v1.10", "v1.10.1", "v2.0", "v2.1"):
        git.commit(title=tag, tag=tag)
        if tag == "v1.10":
            git("checkout", "-q", "-b", "fixes")
        if tag == "v1.10.1":
            git("checkout", "-q", "main")
    for tag, at in (("nightly", "v1.9"), ("v-odd", "v1.9"), ("2.0", "v2.0")):
        git("tag", tag, at)
    return open_repository(git.path)


def test_versions_in_order_without_pre_releases_and_other_branches(repo: Repository) -> None:
    found = release_range(repo, "1.9..2.0", ["v{version}"])
    left_out = (("1.10-rc1", "a pre-release"), ("1.10.1", "2.0 does not contain it"))
    assert found == ReleaseRange(("1.9", "1.10", "2.0"), left_out)
    by_tags = release_range(repo, "1.9..2.0", [])
    assert by_tags.taken == ("v1.9", "v1.10", "v2.0"), "a recipe without patterns knows tags, but no versions"
    assert dict(by_tags.left_out).keys() == {"v1.10-rc1", "v1.10.1"}


def test_ends(repo: Repository) -> None:
    for text, patterns, taken in (
        ("v1.9..v1.10.1", ["v{version}"], ("1.9", "1.10", "1.10.1")),
        ("1.10.1..2.1", ["v{version}"], ("1.10.1", "2.0", "2.1")),  # on a branch
        ("1.10..2.1", ["v{version}", "{version}"], ("1.10", "2.0", "2.1")),  # a release of two tags
    ):
        assert release_range(repo, text, patterns).taken == taken


def test_what_is_no_range(repo: Repository) -> None:
    for text, reason in {
        "2.0..1.9": "not before",
        "1.9..1.9": "not before",
        "1.9": "no range",
        "1.9..": "no range",
        "..2.0": "no range",
        "1.9...2.0": "no range",
        "1.9..2.7": "'2.7' is no release",
        "1.10-rc1..2.0": "is no release",
        "main..2.0": "'main' is no release",
    }.items():
        with pytest.raises(UsageError, match=reason):
            release_range(repo, text, ["v{version}"])


def test_a_repository_without_releases(git: Repo) -> None:
    with pytest.raises(UsageError, match="no common way"):
        release_range(open_repository(git.path), "1.0..2.0", [])


def test_the_order_of_versions() -> None:
    versions = ["8.0.9", "8.0.10", "8.0.36-28", "8.0.36-29", "8.1.0-alpha"]
    assert sorted(["8.1.0-alpha", *versions[:-1]], key=number_of) == versions
    assert [plain(version) for version in versions] == [True, True, True, True, False]
