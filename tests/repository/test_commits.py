"""Commits by release, revision or set; their descriptions, paths and diffs; and the releases of a repository."""

import os
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.core.domain.events import Commit
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.repository import commits as module
from perfbisect.repository.commits import (
    LONGEST,
    ReleaseRange,
    Tag,
    UnknownRevision,
    commit_web_page,
    commits_in_set,
    commits_touching,
    describe_commit,
    is_numeric_version,
    possible_tags,
    releases_by_pattern,
    releases_in_range,
    resolve_commit,
    revision_or_range_ends,
    root_commit,
    tags_named_like_branches,
    unified_diff,
    version_sort_key,
    versions_of_tags,
)
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.git import Repository
from repos import Files, Repo
from traps import OddTrees

pytestmark = pytest.mark.tools

TAGS = ["mysql-{version}", "REL_{version:_}"]


@pytest.fixture
def repo(git: Repo) -> Repository:
    """Three commits with tags."""
    for number, tags in enumerate([["mysql-8.0.28", "8.0.28-note"], ["mysql-8.0.29"], ["REL_16_0", "plain"]]):
        git.commit(title=f"{number}")
        for tag in tags:
            git("tag", "-a", "-m", "annotated", tag)
    return open_repository(git.path)


def test_root_commit_is_on_the_main_line(git: Repo, repo: Repository) -> None:
    """A history with another root was merged."""
    first = git("rev-list", "--max-parents=0", "HEAD")
    git("switch", "-q", "--orphan", "other")
    git.commit(title="another beginning")
    git("switch", "-q", "main")
    git("merge", "-q", "--allow-unrelated-histories", "-m", "both", "other")
    assert len(git("rev-list", "--max-parents=0", "HEAD").split()) == 2
    assert root_commit(repo, "HEAD") == first


def test_releases_and_revisions_are_resolved_to_commits(git: Repo, repo: Repository) -> None:
    """A release precedes a branch with its name. `:/TEXT` finds a commit by its message."""
    git.commit(title="Read ahead one page^{commit}")
    commit = git("rev-parse", "HEAD~2")
    git("branch", "8.0.28", "HEAD")
    git("branch", "other", "HEAD~1")
    git("branch", "--set-upstream-to=main", "other")
    for name, revision in {
        commit: "HEAD~2",
        commit[:8]: "HEAD~2",
        "other@{upstream}": "HEAD",
        "8.0.28": "tags/mysql-8.0.28",
        "16.0": "REL_16_0",
        "REL_16_0": "REL_16_0",
        "main@{0}": "HEAD",
        ":/^Read .* one": "HEAD",
        "HEAD^{/1}": "HEAD~2",
    }.items():
        assert resolve_commit(repo, name, TAGS) == git("rev-parse", f"{revision}^{{commit}}"), name
    with pytest.raises(UnknownRevision, match="':/nothing of it' is neither"):
        resolve_commit(repo, ":/nothing of it", TAGS)


def test_name_of_a_tag_and_a_branch_is_ambiguous(git: Repo, repo: Repository) -> None:
    git("branch", "plain", "HEAD~2")
    assert resolve_commit(repo, "plain", TAGS) == git("rev-parse", "tags/plain^{commit}")
    assert resolve_commit(repo, "heads/plain", TAGS) == git("rev-parse", "HEAD~2")
    revisions = ["main", "8.0.28..plain~1", "plain@lto", ":/0", "heads/plain", ""]
    assert tags_named_like_branches(repo, revisions) == ["plain"]


def test_error_of_an_unknown_release_names_the_nearest_release(repo: Repository) -> None:
    with pytest.raises(UnknownRevision, match=r"'8\.0\.20' is neither a release nor a revision in .*/repo") as caught:
        resolve_commit(repo, "8.0.20", TAGS)
    assert "8.0.28" in caught.value.advice
    assert caught.value.exit_status == 3
    tags = ["mysql-8.0.28", "REL_16_0", "REL_16_BETA1", "other"]
    versions = [version for pattern in TAGS for version, _ in versions_of_tags(tags, pattern)]
    assert versions == ["8.0.28", "16.0", "16.BETA1"]


def test_odd_name_is_an_unknown_revision(repo: Repository) -> None:
    options = ["-x", "--help", "--all", "--stdin"]
    no_text = [os.fsdecode(name) for name in (b"caf\xe9", b"\xff", b"v0\xc3", b"\xed\xa0\x80")]
    for odd in [*options, *no_text, "a b", "", "'", '"', "$(x)", "x\ny", "\0", "..", "^HEAD", "HEAD^{tree}", "HEAD:"]:
        with pytest.raises(UnknownRevision):
            resolve_commit(repo, odd, TAGS)
    # A reflog that is too short, and a branch without an upstream.
    for odd, why in {"HEAD@{9}": "log for", "main@{upstream}": "no upstream", "@{push}": "branch '.*' has no"}.items():
        with pytest.raises(UnknownRevision, match=rf"'.*' is not a revision in .*/repo: ({why}|no upstream)"):
            resolve_commit(repo, odd, TAGS)


def test_ambiguous_short_hash_is_refused(history: Callable[..., tuple[Any, dict[str, str]]]) -> None:
    """Of 600 commits, some share their first four digits."""
    repo, hashes = history({f"c{number}": ([], {}, None) for number in range(600)})
    beginnings = sorted(commit[:4] for commit in hashes.values())
    shared = next(one for one, other in pairwise(beginnings) if one == other)
    with pytest.raises(UsageError, match=f"'{shared}' is the beginning of several hashes"):
        resolve_commit(repo, shared, [])


def test_diff_of_equal_trees_is_empty_and_a_missing_commit_is_an_error(git: Repo, repo: Repository) -> None:
    assert unified_diff(repo, git.head, git.head) == module.Diff("", 0)
    with pytest.raises(EnvironmentFailure):
        unified_diff(repo, "0" * 40, git.head)
    (repo.git_dir / "HEAD").unlink()
    with pytest.raises(EnvironmentFailure, match=r"git cat-file failed in .*: fatal: not a git repository"):
        resolve_commit(repo, "HEAD", [])


def test_commit_is_described_by_date_author_and_subject(git: Repo) -> None:
    """In any encoding, and without a message."""
    message = "two: “quoted”\twith tab\n\nand a body"
    git("commit", "-q", "--allow-empty", "-m", message, "--author=Zoë Ö <z@example.org>")
    repo, head = open_repository(git.path), git.head
    assert describe_commit(repo, head) == Commit(head, "2020-01-02", "Zoë Ö", "two: “quoted”\twith tab")
    (git.path / "message").write_bytes("größer".encode("latin-1"))
    git("-c", "i18n.commitEncoding=ISO-8859-1", "commit", "-q", "--allow-empty", "-F", "message")
    assert describe_commit(repo, git.head).subject == "größer"
    git("commit", "-q", "--allow-empty", "--allow-empty-message", "-m", "")
    assert describe_commit(repo, git.head).subject == ""


def test_missing_parts_of_a_damaged_commit_are_empty(git: Repo) -> None:
    """git reads these objects, but would not write them."""
    git.commit()
    odd, repo = OddTrees(git.path), open_repository(git.path)
    author, committer = b"author A <a> 0 +0000\n", b"committer C <c> 0 +0000\n"
    both, date, long = author + committer, "1970-01-01", b"A" * 9_000
    tree = b"tree %s\n" % git("rev-parse", "HEAD^{tree}").encode()
    for body, expected in {
        committer + b"\nx\n": (date, "", "x"),
        author + b"\nx\n": ("", "A", "x"),
        b"\nx\n": ("", "", "x"),
        author + b"committer C <c> -5 +0000\n\nx\n": ("", "A", "x"),
        b"author A\0B <a> 0 +0000\n" + committer + b"\nx\0y\n": (date, "", "x"),
        both + b"\nx\0y\n\nz\n": (date, "A", "x"),
        both + b"encoding nonsense\n\n\xff\xfe\n": (date, "A", "\N{REPLACEMENT CHARACTER}" * 2),
        both + b"\n" + b"x" * LONGEST: (date, "A", "x" * LONGEST),
        both + b"\n" + b"x" * 2_000_000: (date, "A", "x" * LONGEST + "…"),
        b"author %s <a> 0 +0000\n" % long + committer + b"\nx\n": (date, "A" * LONGEST + "…", "x"),
    }.items():
        sha = odd.write("commit", tree + body)
        assert describe_commit(repo, sha) == Commit(sha, *expected), body[:100]


def test_text_is_read_as_a_revision_or_as_two_ends() -> None:
    for ends in (("v1.0",), ("8.0.28", "8.0.29"), ("HEAD~3", "x^")):
        assert revision_or_range_ends("..".join(ends)) == ends
    for text in ("..", "a..", "..b", "a...b", "a..b..c", ""):
        with pytest.raises(UsageError, match=r"neither a revision nor a range of two"):
            revision_or_range_ends(text)


def test_set_of_a_range_has_the_commits_that_the_older_end_lacks(git: Repo) -> None:
    """Including a side branch that was merged in the range."""
    root = git.commit(title="root")
    git("checkout", "-qb", "side")
    side = git.commit(title="side")
    git("checkout", "-q", "main")
    first = git.commit(title="first")
    git("merge", "-q", "--no-ff", "-m", "merge", "side")
    merge, repo = git.head, open_repository(git.path)
    assert commits_in_set(repo, f"{first}..{merge}") == {side, merge}
    assert commits_in_set(repo, f"{root}..{merge}") == {side, first, merge}
    assert (commits_in_set(repo, f"{merge}..{root}"), commits_in_set(repo, side)) == (set(), {side})


def test_commits_that_touch_files_folders_and_globs_are_found(git: Repo) -> None:
    paths = ("start", "storage/inno/a.c", "sql/b.c", "storage/inno/deep/c.h", "sql/d.h")
    start, one, two, three, four = git.history([{path: path} for path in paths])
    found = commits_touching(open_repository(git.path), start, four, ["storage/inno", "**/*.h", "sql/b.c", "none"])
    assert found == {"storage/inno": {one, three}, "**/*.h": {three, four}, "sql/b.c": {two}, "none": frozenset()}


def shown(git: Repo, before: Files, after: Files) -> module.Diff:
    """The diff of two commits with these files."""
    return unified_diff(open_repository(git.path), git.commit(before), git.commit(after))


def test_diff_has_files_hunks_and_names_of_functions(git: Repo) -> None:
    body = "".join(f"\tx += {number};\n" for number in range(20))
    before, after = (f"int work(int x)\n{{\n{each}}}\n" for each in (body, body + "\treturn x;\n"))
    found = shown(git, {"a b.c": before, "ü.txt": "one\n"}, {"a b.c": after, "ü.txt": "two\n"})
    assert found.left_out == 0
    for line in ("diff --git a/a b.c b/a b.c", "diff --git a/ü.txt b/ü.txt", "+\treturn x;"):
        assert f"{line}\n" in found.text
    assert "@@ int work(int x)\n" in found.text


def test_path_in_a_diff_may_have_any_bytes_and_is_no_pattern(git: Repo) -> None:
    names = [os.fsdecode(name) for name in (b"caf\xe9.c", b"caf\xe8.c", b'a\n"\\b', b":(glob)*", b"[a].c")]
    found = shown(git, dict.fromkeys(names, "1\n"), dict.fromkeys(names[1:], "2\n"))
    assert (found.left_out, found.text.count("+2\n"), found.text.count("diff --git")) == (0, 4, 4)
    assert "caf\N{REPLACEMENT CHARACTER}.c" in found.text


def test_large_changes_are_left_out_of_a_diff_and_counted(git: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINES", 50)
    before, after = ({"small": f"{x}\n", "large": f"{x}\n" * 40, "larger": f"{x}\n" * 60} for x in "xy")
    found = shown(git, before, after)
    assert found.left_out == 2
    assert "b/small" in found.text
    assert "b/large" not in found.text
    assert len(shown(git, {"line": "x" * 600_000}, {"line": "y" * 600_000}).text) < 1000, "a long line counts as binary"


# URLs of remotes, each with the web page of a commit.
PAGES = [line.split("\t") for line in Path(__file__).with_name("pages.txt").read_text().splitlines()]


def test_web_page_of_a_commit_is_derived_from_the_remote(git: Repo, repo: Repository) -> None:
    assert commit_web_page(repo, "ab") == ""
    git("config", "url.https://github.com/.insteadOf", "mine:")
    for remote, page in PAGES:
        git("config", "remote.upstream.url", remote)
        assert commit_web_page(open_repository(git.path), "ab") == (f"{page}ab" if page else ""), remote


PATTERNS = {
    "{version}": ("1.6.18 1.6.9", "1.6.18 1.6.9"),
    "v{version}": ("v1.9 v1.10 v1.10-rc1", "1.10 1.9"),
    "REL_{version:_}": ("REL_16_0 REL_17_1 REL_17_BETA1", "17.1 16.0"),
    "lib2-{version}": ("lib2-1.0 lib2-1.1", "1.1 1.0"),
    "kv/v{version}": ("kv/v255 kv/v256", "256 255"),
}


def test_release_patterns_are_found_in_tags() -> None:
    for pattern, (tags, versions) in PATTERNS.items():
        found = releases_by_pattern(Tag(tag, 0) for tag in tags.split())
        assert list(found) == [pattern]
        assert " ".join(release.version for release in found[pattern]) == versions
    assert releases_by_pattern(Tag(tag, 0) for tag in ("2024", "nightly", "v1-rc1", "a{b}1.0", 'v1";x')) == {}


def test_release_pattern_in_present_use_is_first() -> None:
    old = [Tag(f"old-{number}.0", number) for number in range(9)]
    new = [Tag("v1.0", 100), Tag("v1.1", 101), Tag("once-1.0", 200)]
    assert list(releases_by_pattern([*old, *new])) == ["v{version}", "old-{version}", "once-{version}"]


@given(
    st.lists(st.from_regex(re.compile(r"[A-Za-z0-9._/-]{0,8}[0-9](?:[._][0-9]{1,3}){0,3}", re.ASCII), fullmatch=True))
)
def test_release_leads_back_to_its_tag(tags: list[str]) -> None:
    for pattern, found in releases_by_pattern(Tag(tag, 0) for tag in tags).items():
        for release in found:
            assert possible_tags(release.version, [pattern]) == [release.tag]
            assert release.tag in tags


@pytest.fixture
def tagged(git: Repo) -> Repository:
    """Branch main has the releases v1.8 to v2.1, a branch from v1.10 has v1.10.1. Other tags have other forms."""
    for branch, tags in (("main", "v1.8 v1.9 v1.10-rc1 v1.10"), ("fixes", "v1.10.1"), ("main", "v2.0 v2.1")):
        git("checkout", "-q", "-B", branch, *(["v1.10"] if "v1.8" not in tags else []))
        for tag in tags.split():
            git.commit(title=tag, tag=tag)
    for tag, at in (("nightly", "v1.9"), ("v-odd", "v1.9"), ("2.0", "v2.0")):
        git("tag", tag, at)
    return open_repository(git.path)


def test_releases_of_a_range_exclude_pre_releases_and_other_branches(tagged: Repository) -> None:
    left_out = (("1.10-rc1", "a pre-release"), ("1.10.1", "2.0 does not contain it"))
    assert releases_in_range(tagged, "1.9..2.0", ["v{version}"]) == ReleaseRange(("1.9", "1.10", "2.0"), left_out)
    by_tags = releases_in_range(tagged, "1.9..2.0", [])
    assert by_tags.included == ("v1.9", "v1.10", "v2.0"), "without patterns, releases are named by tags"
    assert dict(by_tags.left_out).keys() == {"v1.10-rc1", "v1.10.1"}


def test_release_range_includes_its_ends(tagged: Repository) -> None:
    """Also an end on a branch, and a release with two tags."""
    assert releases_in_range(tagged, "v1.9..v1.10.1", ["v{version}"]).included == ("1.9", "1.10", "1.10.1")
    assert releases_in_range(tagged, "1.10.1..2.1", ["v{version}"]).included == ("1.10.1", "2.0", "2.1")
    assert releases_in_range(tagged, "1.10..2.1", ["v{version}", "{version}"]).included == ("1.10", "2.0", "2.1")


def test_invalid_release_range_is_refused(tagged: Repository) -> None:
    for reason, texts in {
        "is not older than": "2.0..1.9 1.9..1.9",
        "not a range": "1.9 1.9.. ..2.0 1.9...2.0",
        "is not a release": "1.9..2.7 1.10-rc1..2.0 main..2.0",
    }.items():
        for text in texts.split():
            with pytest.raises(UsageError, match=reason):
                releases_in_range(tagged, text, ["v{version}"])


def test_release_range_without_any_release_is_refused(git: Repo) -> None:
    with pytest.raises(UsageError, match=r"\(none\)"):
        releases_in_range(open_repository(git.path), "1.0..2.0", [])


def test_versions_are_sorted_by_their_numbers() -> None:
    versions = ["8.0.9", "8.0.10", "8.0.36-28", "8.0.36-29", "8.1.0-alpha"]
    assert sorted(["8.1.0-alpha", *versions[:-1]], key=version_sort_key) == versions
    assert [is_numeric_version(version) for version in versions] == [True, True, True, True, False]
