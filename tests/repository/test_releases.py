"""Which tags name releases, and in which order."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.repository.releases import Tag, by_pattern
from perfbisect.repository.resolve import tags_of


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
