"""Commits that are reverted without a checkout, and conflicts between adjacent lines."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.errors import EnvironmentFailure
from perfbisect.repository.commits import describe_commit
from perfbisect.repository.derived import MARKER, CannotRevert, settle_conflicts, settle_lines, temporary_revert
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.git import Repository
from perfbisect.repository.git import git as ask
from repos import Repo

pytestmark = pytest.mark.tools

LINES = [f"line {number}" for number in range(40)]


def text(**changed: str) -> str:
    """Forty lines, some of them (l7="other") changed."""
    return "".join(f"{changed.get(f'l{number}', line)}\n" for number, line in enumerate(LINES))


@pytest.fixture
def repo(git: Repo) -> Repository:
    return open_repository(git.path)


def state(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def tree(repo: Repository, commit: str) -> dict[str, str]:
    """Path → content of a commit."""
    paths = ask(repo, "ls-tree", "-r", "-z", "--name-only", commit).split("\0")
    return {path: ask(repo, "show", f"{commit}:{path}") for path in paths if path}


def after(repo: Repository, tip: str, *which: str, ignore: tuple[str, ...] = ()) -> dict[str, str]:
    """The tree of ``tip`` after the commits ``which`` are reverted."""
    with temporary_revert(repo, tip, list(which), list(ignore)) as made:
        return tree(made.repository, made.commit)


def refused(repo: Repository, tip: str, *which: str, ignore: tuple[str, ...] = ()) -> str:
    """The reason why the commits ``which`` cannot be reverted."""
    with pytest.raises(CannotRevert) as caught:
        after(repo, tip, *which, ignore=ignore)
    assert caught.value.exit_status == 2
    return str(caught.value)


def test_revert_removes_the_change_only(repo: Repository, git: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file was renamed and changed later. An added file is removed, and a removed file returns. The clone stays."""
    git.commit({"src/a.c": text(), "src/old.c": "old\n", "other.c": "other\n"})
    culprit = git.commit({"src/a.c": text(l7="slow"), "src/new.c": "new\n", "src/old.c": None})
    git("mv", "src/a.c", "src/b.c")
    tip = git.commit({"src/b.c": text(l7="slow", l30="later")})
    before = state(repo.folder)
    with temporary_revert(repo, tip, [culprit], []) as made:
        found = tree(made.repository, made.commit)
        assert made.merges == ()
        assert describe_commit(made.repository, made.commit).subject == f"Revert {culprit[:10]}"
        assert ask(made.repository, "rev-list", "--parents", "--max-count=1", made.commit).split()[1:] == [tip]
    assert found == {"src/b.c": text(l30="later"), "src/old.c": "old\n", "other.c": "other\n"}
    assert state(repo.folder) == before
    with pytest.raises(EnvironmentFailure):
        describe_commit(repo, made.commit)
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Another")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2022-02-02T02:02:02Z")
    with temporary_revert(repo, tip, [culprit], []) as again:
        assert again.commit == made.commit, "the hash does not depend on the user"


def test_conflict_names_the_files(repo: Repository, git: Repo) -> None:
    files = [f"src/{number}.c" for number in range(12)]
    trees = [dict.fromkeys(files, each) for each in (text(), text(l7="slow"), text(l7="slower still"), None)]
    _, culprit, tip, gone = git.history([*trees[:3], trees[3] | {"b.c": "something else\n"}])
    said = refused(repo, tip, culprit)
    assert f"The revert of {culprit[:10]} has conflicts in src/0.c, src/1.c, src/10.c, " in said
    assert said.endswith(" and 2 more.")
    assert "conflicts in src/0.c, src/1.c" in refused(repo, gone, culprit), "a file that is gone"


def test_ignored_paths_are_unchanged_and_cause_no_conflicts(repo: Repository, git: Repo) -> None:
    git.commit({"a.c": text(), "docs/x/a.md": "first\n", "docs/b.md": "b\n", "top.md": "top\n"})
    culprit = git.commit({"a.c": text(l7="slow"), "docs/x/a.md": "second\n", "docs/b.md": "c\n", "top.md": "other\n"})
    tip = git.commit({"docs/x/a.md": "third\n"})
    assert "conflicts in docs/x/a.md" in refused(repo, tip, culprit)
    found = after(repo, tip, culprit, ignore=("docs/**", "*.md", "no/such/path/**"))
    assert found == {"a.c": text(), "docs/x/a.md": "third\n", "docs/b.md": "c\n", "top.md": "other\n"}


def test_revert_that_changes_nothing_is_refused(repo: Repository, git: Repo) -> None:
    trees = [{"a.c": text(), "a.md": "a\n"}, {"a.c": text(l7="slow")}, {"a.md": "b\n"}, {"a.c": text()}]
    _, *undone, tip = git.history(trees)
    for which in undone:
        assert f"The revert of {which[:10]} changes nothing in {tip[:10]}" in refused(
            repo, tip, which, ignore=("**/*.md",)
        )


def test_merge_is_reverted_relative_to_its_first_parent(repo: Repository, git: Repo) -> None:
    base, _ = git.history([{"a.c": text()}, {"a.c": text(l3="mainline")}])
    git("checkout", "-q", "-b", "side", base)
    git.commit({"a.c": text(l30="side")})
    git("checkout", "-q", "main")
    git("merge", "-q", "--no-ff", "-m", "merge", "side")
    merge, tip = git.head, git.commit({"b.c": "b\n"})
    with temporary_revert(repo, tip, [merge], []) as made:
        assert made.merges == (merge,)
        assert tree(made.repository, made.commit) == {"a.c": text(l3="mainline"), "b.c": "b\n"}


def test_revert_of_a_root_commit_removes_its_files(repo: Repository, git: Repo) -> None:
    """For example, the root commit of a history that was merged into another history."""
    git.commit({"a.c": text()})
    git("checkout", "-q", "--orphan", "other")
    root = git.commit({"lib/b.c": "b\n", "a.c": None})
    git("checkout", "-q", "main")
    git("merge", "-q", "--allow-unrelated-histories", "-m", "join", "other")
    assert after(repo, git.head, root) == {"a.c": text()}


def test_several_commits_are_reverted_newest_first(repo: Repository, git: Repo) -> None:
    """Both commits changed the same line: the reverse order has conflicts. Conflicts in ignored paths do not count."""
    trees = (text(), text(l7="slow"), text(l7="slower"), text(l7="slower", l30="later"))
    _, first, second, tip = git.history({"a.c": tree, "a.md": f"{n}\n"} for n, tree in enumerate(trees))
    assert after(repo, tip, second, first, ignore=("*.md",)) == {"a.c": text(l30="later"), "a.md": "3\n"}
    assert refused(repo, tip, first, second, ignore=("*.md",))


def test_revert_keeps_lines_of_later_commits_beside_its_lines(repo: Repository, git: Repo) -> None:
    """For git this is a conflict. For example, each commit adds a function at the end of a file."""
    base, commits = "caf\udce9 \r\n".encode(errors="surrogateescape") + text().encode(), []
    for more in (b"", b"slow\nslower\n", b"slow\nslower\nlater\nlatest\n"):
        (git.path / "a.c").write_bytes(base + more)
        commits.append(git.commit())
    with temporary_revert(repo, commits[2], [commits[1]], []) as made:
        assert made.adjacent_paths == ("a.c",)
        found = ask(made.repository, "show", f"{made.commit}:a.c", errors="surrogateescape")
    lines = (base + b"later\nlatest\n").replace(b"\r\n", b"\n")
    assert found.encode(errors="surrogateescape").replace(b"\r\n", b"\n") == lines


def test_revert_works_if_the_clone_lacks_an_object_of_another_file(repo: Repository, git: Repo) -> None:
    """For example, mirrors lack large test files, which the recipe leaves out of the checkout."""
    git.commit({"src/a.c": text(), "test/large": "large\n", "test/new": "old\n"})
    culprit = git.commit({"src/a.c": text(l7="slow"), "test/new": "new\n"})
    tip = git.commit({"src/a.c": text(l7="slow", l30="later")})
    blob = git("rev-parse", "HEAD:test/large")
    (git.path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with temporary_revert(repo, tip, [culprit], ["test/**"]) as made:
        assert ask(made.repository, "show", f"{made.commit}:src/a.c") == text(l30="later")


lines = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n"]), max_size=4)


def conflict(ours: bytes, base: bytes, theirs: bytes) -> bytes:
    """A conflict in the format of git."""
    head, middle, other, end = (sign * MARKER for sign in (b"<", b"|", b"=", b">"))
    return head + b" ours\n" + ours + middle + b" base\n" + base + other + b"\n" + theirs + end + b" theirs\n"


@pytest.mark.parametrize(
    ("ours", "base", "theirs", "result"),
    [
        ("old new", "old", "", "new"),
        ("before old after", "old", "changed", "before changed after"),
        ("changed", "old", "back old", "back changed"),
        ("mine", "old", "", None),
        ("mine", "", "theirs", None),
        ("old x old", "old", "", None),
    ],
    ids=["added behind", "added around", "reverted beside a change", "same line", "same place", "which one"],
)
def test_conflict_of_adjacent_lines_is_settled(ours: str, base: str, theirs: str, result: str | None) -> None:
    *parts, expected = (
        [f"{word}\n".encode() for word in (side or "").split()] for side in (ours, base, theirs, result)
    )
    assert settle_lines(*parts) == (None if result is None else expected)
    whole = b"top\n" + conflict(*map(b"".join, parts)) + b"bottom\n"
    assert settle_conflicts(whole) == (None if result is None else b"top\n" + b"".join(expected) + b"bottom\n")


def test_file_is_settled_only_if_all_its_conflicts_are() -> None:
    good, bad = conflict(b"old\nnew\n", b"old\n", b""), conflict(b"mine\n", b"old\n", b"")
    assert [settle_conflicts(text) for text in (good + b"x\n" + good, good + bad, b"x\n")] == [
        b"new\nx\nnew\n",
        None,
        b"x\n",
    ]


@given(before=lines, base=lines, after=lines, replacement=lines)
def test_settled_conflict_keeps_all_added_lines(
    before: list[bytes], base: list[bytes], after: list[bytes], replacement: list[bytes]
) -> None:
    """The added lines have capital letters."""
    one = [line.upper() for line in before] + base + [line.upper() for line in after]
    found = settle_lines(one, base, replacement)
    if base and found is not None:
        assert [line for line in found if line.isupper()] == [line.upper() for line in before + after]
