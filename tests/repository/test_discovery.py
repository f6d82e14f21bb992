"""The repository that a path means, and whether its checkout has changes."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.repository.commits import resolve
from perfbisect.repository.discovery import is_dirty, open_repository

pytestmark = pytest.mark.tools

Git = Callable[..., str]


@pytest.fixture
def repo(git: Git, tmp_path: Path) -> Path:
    for tag in ("v1", "v2"):
        git("commit", "-q", "--allow-empty", "-m", tag)
        git("tag", tag)
    return tmp_path / "repo"


def test_what_is_no_repository(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a git repository"):
        open_repository(tmp_path)
    with pytest.raises(UsageError, match=r"There is no folder .*nowhere"):
        open_repository(tmp_path / "nowhere")


def test_a_shallow_clone_is_refused(repo: Path, tmp_path: Path) -> None:
    shallow = tmp_path / "shallow"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{repo}", shallow], check=True)
    with pytest.raises(UsageError, match="is a shallow clone") as caught:
        open_repository(shallow)
    assert caught.value.advice.endswith(f"git -C {shallow} fetch --unshallow")


def test_every_place_of_a_repository_leads_to_it(git: Git, repo: Path, tmp_path: Path) -> None:
    git("clone", "-q", "--bare", str(repo), str(tmp_path / "bare"))
    git("worktree", "add", "-q", str(tmp_path / "linked"), "HEAD~1")
    (repo / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(repo)
    places = {"bare": None, "repo/.git": None, "linked": "linked", "repo": "repo", "repo/a/b": "repo", "link": "repo"}
    for place, work_tree in places.items():
        opened = open_repository(tmp_path / place)
        assert resolve(opened, "v1", []) == git("rev-parse", "HEAD~1"), place
        assert opened.work_tree == (tmp_path / work_tree if work_tree else None)
        assert opened.objects == tmp_path / ("bare/objects" if place == "bare" else "repo/.git/objects")
    assert resolve(open_repository(tmp_path / "linked"), "HEAD", []) == git("rev-parse", "HEAD~1")


def test_odd_paths_are_only_paths(repo: Path, tmp_path: Path) -> None:
    for name in ("a\nb", " -c x=y", "é\\'\"$(touch hit)\n", "--bare"):
        place = tmp_path / name
        repo.rename(place)
        assert open_repository(place).folder == place
        assert resolve(open_repository(place), "v1", [])
        place.rename(repo)


def test_a_path_that_is_not_utf8_is_refused(repo: Path, tmp_path: Path) -> None:
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    repo.rename(place)
    link = Path(f"{place}.link")
    link.symlink_to(tmp_path)
    (tmp_path / "link").symlink_to(place)
    for path in (place, place / ".git", tmp_path / "link", link / "other"):
        with pytest.raises(UsageError, match=r"The path of the repository .*/caf\\xe9\S* is not UTF-8"):
            open_repository(path)


def test_the_search_above_ends_where_git_ends_it(
    git: Git, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = repo / "a" / "b"
    inner.mkdir(parents=True)
    assert open_repository(inner).folder == repo
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(repo / "a"))
    with pytest.raises(UsageError, match="is not a git repository"):
        open_repository(inner)
    assert open_repository(repo).folder == repo


def test_a_variable_of_a_hook_leads_nowhere(
    git: Git, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git("init", "-q", "--bare", str(tmp_path / "other"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    assert open_repository(repo).git_dir == repo / ".git"


def test_a_bare_repository_that_is_only_found_obeys_the_users_setting(
    git: Git, repo: Path, tmp_path: Path, seal: Path
) -> None:
    git("clone", "-q", "--bare", str(repo), str(tmp_path / "bare"))
    (seal / ".gitconfig").write_text("[safe]\nbareRepository = explicit\n")
    assert open_repository(tmp_path / "bare").git_dir == tmp_path / "bare"
    for path, named in ((tmp_path / "bare", False), (tmp_path / "bare" / "refs", True)):
        with pytest.raises(EnvironmentFailure, match="cannot use bare repository") as caught:
            open_repository(path, named=named)
        assert "--repo" in caught.value.advice


def test_without_git_that_is_said(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFailure, match="git is not installed"):
        open_repository(repo)


def test_a_checkout_with_changes_is_dirty_and_one_with_new_files_is_not(git: Git, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    (repo / "file").write_text("1")
    git("add", "file")
    git("commit", "-qm", "file")
    (repo / "new").write_text("1")
    assert not is_dirty(open_repository(repo))
    (repo / "file").write_text("2")
    assert is_dirty(open_repository(repo))
    git("clone", "-q", "--bare", str(repo), str(repo.parent / "bare"))
    assert not is_dirty(open_repository(repo.parent / "bare"))
    (repo.parent / "bare" / "config").unlink()
    assert not is_dirty(open_repository(repo.parent / "bare")), "a mirror without a configuration has no checkout"
