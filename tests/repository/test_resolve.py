import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.repository.git import environment
from perfbisect.repository.resolve import UnknownRevision, is_dirty, open_repository, releases, resolve

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


def test_bare_clones_and_linked_trees_are_repositories(git: Git, repo: Path, tmp_path: Path) -> None:
    git("clone", "-q", "--bare", str(repo), str(tmp_path / "bare"))
    git("worktree", "add", "-q", str(tmp_path / "linked"), "HEAD~1")
    for name in ("bare", "linked"):
        assert resolve(open_repository(tmp_path / name), "8.0.28", TAGS) == git("rev-parse", "HEAD~2")
    assert resolve(open_repository(tmp_path / "linked"), "HEAD", TAGS) == git("rev-parse", "HEAD~1")


def test_without_git_that_is_said(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFailure, match="git is not installed"):
        open_repository(repo)


def test_what_git_says_is_passed_on(repo: Path) -> None:
    opened = open_repository(repo)
    (repo / ".git/HEAD").unlink()
    with pytest.raises(EnvironmentFailure, match=r"git cat-file failed in .*: fatal: not a git repository"):
        resolve(opened, "HEAD", [])


def test_the_way_to_remotes_stays_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_SSH_COMMAND", "ssh -v")
    monkeypatch.setenv("GIT_DIR", "/x")
    assert environment()["GIT_SSH_COMMAND"] == "ssh -v"
    assert "GIT_DIR" not in environment()


def test_a_checkout_with_changes_is_dirty_and_one_with_new_files_is_not(git: Git, repo: Path) -> None:
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
