"""The diff that a report shows."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from perfbisect.errors import EnvironmentFailure
from perfbisect.repository import commits as module
from perfbisect.repository.commits import diff
from perfbisect.repository.discovery import open_repository

pytestmark = pytest.mark.tools

Git = Callable[..., str]


def commit(git: Git, folder: Path, files: Mapping[str, str]) -> str:
    """A commit of these files; an empty text removes one."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git("add", "-A")
    git("commit", "-q", "-m", "change")
    return git("rev-parse", "HEAD")


@pytest.fixture
def folder(git: Git, tmp_path: Path) -> Path:
    assert git
    return tmp_path / "repo"


def test_a_diff_has_files_hunks_and_their_functions(git: Git, folder: Path) -> None:
    body = "".join(f"\tx += {number};\n" for number in range(20))
    before = commit(git, folder, {"a b.c": f"int work(int x)\n{{\n{body}}}\n", "ü.txt": "one\n"})
    after = commit(git, folder, {"a b.c": f"int work(int x)\n{{\n{body}\treturn x;\n}}\n", "ü.txt": "two\n"})
    found = diff(open_repository(folder), before, after)
    assert found.left_out == 0
    assert "diff --git a/a b.c b/a b.c\n" in found.text
    assert "diff --git a/ü.txt b/ü.txt\n" in found.text
    assert "@@ int work(int x)\n" in found.text
    assert "+\treturn x;\n" in found.text


def test_a_path_may_be_any_bytes(git: Git, folder: Path) -> None:
    names = [os.fsdecode(name) for name in (b"caf\xe9.c", b"caf\xe8.c", b'a\n"\\b')]
    before = commit(git, folder, dict.fromkeys(names, "1\n"))
    after = commit(git, folder, dict.fromkeys(names[1:], "2\n"))
    found = diff(open_repository(folder), before, after)
    assert found.left_out == 0
    assert found.text.count("+2\n") == 2
    assert found.text.count("diff --git") == 2
    assert "caf\N{REPLACEMENT CHARACTER}.c" in found.text


def test_large_changes_are_left_out_and_counted(git: Git, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINES", 50)
    before = commit(git, folder, {"small": "1\n", "large": "x\n" * 40, "larger": "x\n" * 60})
    after = commit(git, folder, {"small": "2\n", "large": "y\n" * 40, "larger": "y\n" * 60})
    found = diff(open_repository(folder), before, after)
    assert found.left_out == 2
    assert "b/small" in found.text
    assert "b/large" not in found.text


def test_a_file_that_is_too_large_is_binary(git: Git, folder: Path) -> None:
    before = commit(git, folder, {"line": "x" * 600_000})
    after = commit(git, folder, {"line": "y" * 600_000})
    assert len(diff(open_repository(folder), before, after).text) < 1000


def test_programs_of_the_configuration_do_not_run(git: Git, folder: Path, tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    git("config", "diff.external", f"touch {trap}; false")
    git("config", "diff.evil.textconv", f"touch {trap}; cat")
    git("config", "diff.evil.command", f"touch {trap}; false")
    before = commit(git, folder, {".gitattributes": "*.c diff=evil\n", "a.c": "1\n"})
    after = commit(git, folder, {"a.c": "2\n"})
    assert "+2\n" in diff(open_repository(folder), before, after).text
    assert not trap.exists()


def test_paths_are_no_patterns(git: Git, folder: Path) -> None:
    before = commit(git, folder, {":(glob)*": "1\n", "[a].c": "1\n"})
    after = commit(git, folder, {":(glob)*": "2\n", "[a].c": "2\n"})
    assert diff(open_repository(folder), before, after).text.count("diff --git") == 2


def test_a_missing_commit_is_an_error(git: Git, folder: Path) -> None:
    only = commit(git, folder, {"a": "1\n"})
    with pytest.raises(EnvironmentFailure):
        diff(open_repository(folder), "0" * 40, only)


def test_equal_trees_have_no_diff(git: Git, folder: Path) -> None:
    only = commit(git, folder, {"a": "1\n"})
    assert diff(open_repository(folder), only, only) == module.Diff("", 0)
