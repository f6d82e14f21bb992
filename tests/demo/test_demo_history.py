"""The repository that the demo writes, looked at with git."""

from pathlib import Path

import msgspec
import pytest

from histories import git
from perfbisect.demo.history import BAD, GOOD, Answer, write_history
from perfbisect.errors import UsageError


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answer]:
    folder = tmp_path_factory.mktemp("demo") / "repository"
    return folder, write_history(folder, 1)


def test_the_answer_is_a_commit_of_the_range(written: tuple[Path, Answer]) -> None:
    folder, answer = written
    commits = git(folder, "rev-list", f"{GOOD}..{BAD}").split()
    assert len(commits) == answer.commits == 60
    assert answer.commit in commits
    assert set(answer.broken) < set(commits)
    assert git(folder, "rev-parse", f"{answer.commit}^") == answer.parent
    assert git(folder, "log", "-1", "--format=%s", answer.commit) == answer.subject
    assert git(folder, "diff", "--name-only", answer.parent, answer.commit).split() == [
        "src/api.c",
        "src/demo.h",
        "src/index.c",
        "src/index.h",
    ]
    dates = git(folder, "log", "--format=%ct %H", f"{GOOD}..{BAD}").splitlines()
    assert sorted(dates)[answer.position - 1].split()[1] == answer.commit


def test_every_commit_but_a_merge_changes_something(written: tuple[Path, Answer]) -> None:
    folder, _ = written
    assert git(folder, "rev-list", "--merges", "--count", f"{GOOD}..{BAD}") == "2"
    changed = git(folder, "log", "--no-merges", "--shortstat", "--format=", f"{GOOD}..{BAD}").splitlines()
    assert len([line for line in changed if line]) == 58
    touched = git(folder, "log", "--format=%H", f"{GOOD}..{BAD}", "--", "src/api.c").split()
    assert len(touched) > 10, "a commit is not known by the files that it touches"


def test_the_repository_is_sound_and_clean(written: tuple[Path, Answer]) -> None:
    folder, answer = written
    git(folder, "fsck", "--strict")
    assert git(folder, "status", "--porcelain") == ""
    assert git(folder, "for-each-ref", "--format=%(refname)").split() == [
        "refs/heads/main",
        "refs/tags/v1.0",
        "refs/tags/v1.1",
    ]
    assert git(folder, "show", f"{BAD}:VERSION") == "1.1"
    telling = [path for path in (folder / ".git").rglob("*") if path.is_file() and path.suffix not in {".pack", ".idx"}]
    assert not [path for path in telling if answer.commit.encode() in path.read_bytes()], "nothing points to the answer"


def test_the_same_seed_gives_the_same_commits(
    written: tuple[Path, Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text("[user]\nname = Someone\n[core]\nautocrlf = true\n[init]\ndefaultBranch = other\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Someone else")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert write_history(tmp_path / "again", 1) == written[1]
    assert git(tmp_path / "again", "rev-parse", BAD) == git(written[0], "rev-parse", BAD)


def test_another_seed_or_drop_gives_others(written: tuple[Path, Answer], tmp_path: Path) -> None:
    other = write_history(tmp_path / "seed", 2)
    smaller = write_history(tmp_path / "drop", 1, drop=0.08)
    assert len({answer.commit for answer in (written[1], other, smaller)}) == 3
    assert smaller.drop == 0.08
    assert smaller.position == written[1].position


def test_the_answer_can_be_kept_as_json(written: tuple[Path, Answer]) -> None:
    assert msgspec.json.decode(msgspec.json.encode(written[1]), type=Answer) == written[1]


def test_what_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not empty"):
        write_history(tmp_path, 1)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
    for commits, drop in ((5, None), (60, 0.9)):
        with pytest.raises(UsageError, match="No demo history can be written"):
            write_history(tmp_path / "new", 1, commits=commits, drop=drop)
        assert not (tmp_path / "new").exists()
