"""The parts of a commit's diff, and commits that contain some of the parts."""

import difflib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.core.search.parts import CommitDiff, Entry, FileDiff, split_lines
from perfbisect.repository.commits import describe_commit
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.git import Repository
from perfbisect.repository.git import git as ask
from perfbisect.repository.range import partial_diff_commits, parts_of_file
from repos import Repo

FUNCTIONS = '#include "a.h"\n\n/* Adds. */\nint add(int a)\n{\n    return a + 1;\n}\n\nstatic int table[] = {\n    1,\n};\n\nint twice(int a)\n{\n    return 2 * a;\n}\n'
lines = st.lists(
    st.sampled_from([b"a\n", b"b\n", b"\n", b"int f(int x)\n", b"{\n", b"}\n", b"c\r\n", b"#if X\n", b"#endif\n"]),
    max_size=30,
)


@given(lines, lines, st.booleans(), st.booleans(), st.randoms())
def test_any_parts_of_a_file_can_be_applied(
    old: list[bytes], new: list[bytes], cut_old: bool, cut_new: bool, drawn: Random
) -> None:
    """No parts give the old file, and all parts give the new file. The order of the parts does not matter."""
    old, new = (
        [*each[:-1], each[-1].rstrip(b"\n") or b"x"] if cut and each else each
        for each, cut in ((old, cut_old), (new, cut_new))
    )
    before, after = (Entry("a.c", "100644", b"".join(each)) for each in (old, new))
    codes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    file, pieces = parts_of_file(0, before, after, [(*code[1:], "") for code in codes if code[0] != "equal"])
    if not any(piece.edits for piece in pieces):
        return
    assert file.with_parts([]) == before and file.with_parts(pieces) == after
    some = [piece for piece in pieces if drawn.random() < 0.5]
    made = file.with_parts(some)
    assert made and made == file.with_parts(some[::-1])
    size = len(old) + sum(
        sum(len(edit.lines) for edit in piece.edits) - (piece.edits[0].end - piece.edits[0].first) for piece in some
    )
    assert len(split_lines(made.content)) <= size


def test_new_file_is_divided_into_its_functions_and_the_rest() -> None:
    entry = Entry("a.c", "100644", FUNCTIONS.encode())
    file, [frame, add, twice] = parts_of_file(0, None, entry, [(0, 0, 0, len(split_lines(entry.content)), "")])
    assert [piece.shown.title for piece in (frame, add, twice)] == [
        "a.c:1-12",
        "a.c:3-8 in add()",
        "a.c:13-16 in twice()",
    ]
    with_add = file.with_parts([frame, add])
    assert (
        with_add
        and b"return 2" not in with_add.content
        and b"return a + 1" in with_add.content
        and b"table" in with_add.content
    )
    assert file.with_parts([]) is None


@pytest.fixture
def odd(git: Repo) -> tuple[Repository, str, str]:
    """A repository, a parent, and a commit that changes files in every way."""
    module = Repo(git.path.parent / "module")
    first, second = (module.commit({"m.c": text}) for text in ("one\n", "two\n"))
    text = [f"line {number}\n" for number in range(60)]
    git.commit(
        {
            "gone.c": "gone\n",
            "moved.c": "".join(text),
            "edited.c": "".join(text),
            "run.sh": "#!/bin/sh\n",
            "docs/a.md": "a\n",
            "end.c": "a\nb",
        }
    )
    (git.path / "binary").write_bytes(bytes(range(256)))
    git.add_module(str(module.path), "module", first)
    parent = git.commit(title="parent")
    changed = ["new\n", *text[:20], *text[22:50], "line\r\n", *text[50:]]
    git.write({"gone.c": None, "moved.c": None, "new name.c": "".join([*text[:30], "more\n", *text[30:]]), "edited.c": "".join(changed),
               "docs/a.md": "b\n", "new.c": FUNCTIONS, "empty": "", 'odd "\n\r\\ name': "x", "end.c": "a\nb\nc"})  # fmt: skip
    (git.path / "binary").write_bytes(bytes(range(255, -1, -1)))
    (git.path / "run.sh").chmod(0o755)
    (git.path / "link").symlink_to("new.c")
    git("checkout", "-q", second, cwd=git.path / "module")
    return open_repository(git.path), parent, git.commit(title="culprit")


def listed(repo: Repository, commit: str) -> dict[str, str]:
    """Path → mode and hash of each file of a commit."""
    rows = ask(repo, "ls-tree", "-r", "-z", commit, errors="surrogateescape").split("\0")
    return {path: about for about, _, path in (row.partition("\t") for row in rows if row)}


@pytest.mark.tools
def test_sets_of_parts_are_made_into_commits(odd: tuple[Repository, str, str]) -> None:
    repo, parent, commit = odd
    before = {path: path.read_bytes() for path in repo.git_dir.rglob("*") if path.is_file() and path.name != "index"}
    with partial_diff_commits(repo, parent, commit, ["docs/**"]) as made:
        diff, drawn = made.diff, Random(1)
        assert {
            *["binary", "edited.c", "empty", "end.c", "gone.c", "link", "module", "new.c", "run.sh"],
            *["new name.c", 'odd "\n\r\\ name'],
        } == {each.shown.path for each in diff.pieces}
        assert sum(piece.shown.path == "edited.c" for piece in diff.pieces) == 3
        assert sum(piece.shown.path == "new name.c" for piece in diff.pieces) == 2, "its name, and a line"
        order = drawn.sample(sorted(diff.all_parts), len(diff.all_parts))
        states = [frozenset(order[:size]) for size in range(len(order) + 1)]
        shas = made.hashes(states)
        assert (shas[0], shas[-1]) == (parent, commit) and len({*shas}) == len(shas)
        assert shas == made.hashes(states)
        trees = [listed(made.repository, sha) for sha in shas]
        # All parts and a part that changes nothing give the tree of the commit, except for ignored paths.
        more = CommitDiff(
            (*diff.files, FileDiff(None, None, by_lines=True)),
            (*diff.pieces, diff.pieces[0].__class__(len(diff.files), diff.pieces[0].shown)),
        )
        made.diff, made._made = more, {}
        [whole] = made.hashes([diff.all_parts])
        assert whole != commit
        assert listed(made.repository, whole) == trees[-1] | {"docs/a.md": trees[0]["docs/a.md"]}
        own = {path for path in trees[0].keys() | trees[-1].keys() if trees[0].get(path) != trees[-1].get(path)}
        for tree in trees[1:-1]:
            assert {path for path in tree if tree[path] != trees[0].get(path)} <= own
        assert describe_commit(made.repository, shas[1]).subject.startswith(f"{parent[:10]} with ")
        assert describe_commit(made.repository, shas[-2]).subject.startswith(f"{commit[:10]} without ")
    assert before == {
        path: path.read_bytes() for path in repo.git_dir.rglob("*") if path.is_file() and path.name != "index"
    }
