"""Commits of the demo's history, built with the Makefile that they carry."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from histories import git
from perfbisect.demo.history import BAD, GOOD, Answer, write_history

pytestmark = pytest.mark.tools

Make = Callable[..., subprocess.CompletedProcess[str]]
SAMPLE = 9  # every so many commits of the range, besides the interesting ones


@pytest.mark.parametrize("seed", [1, 5])  # broken commits side by side, and apart
def test_all_commits_compile_but_two(
    seed: int, tmp_path: Path, run_make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    answer = write_history(repository, seed)
    commits = git(repository, "rev-list", "--reverse", "--topo-order", f"{GOOD}..{BAD}").split()
    around = {c for broken in answer.broken for c in git(repository, "rev-list", "-2", broken).split()}
    fixed = {c for c in commits if set(git(repository, "rev-parse", f"{c}^").split()) & set(answer.broken)}
    chosen = [*commits[::SAMPLE], commits[-1], answer.commit, answer.parent, *around, *fixed]
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "ccache"))
    failed = set()
    for commit in dict.fromkeys(chosen):
        git(repository, "checkout", "-q", commit)
        done = run_make(repository, tmp_path / "build" / commit, ["CC=ccache gcc"])
        if done.returncode:
            failed.add(commit)
            assert "error:" in done.stdout
    assert failed == set(answer.broken)


def test_a_comment_leaves_the_binary_as_it_was(tmp_path: Path, run_make: Make) -> None:
    repository = tmp_path / "repository"
    write_history(repository, 1)
    commit = git(repository, "log", "--format=%H", "--grep=Say what the checksum is made for", BAD)
    binaries = set()
    for revision in (commit, f"{commit}^"):
        git(repository, "checkout", "-q", revision)
        assert run_make(repository, tmp_path / revision).returncode == 0
        binaries.add((tmp_path / revision / "libdemo.so").read_bytes())
    assert len(binaries) == 1


def test_an_answer_names_what_was_planted(tmp_path: Path) -> None:
    answers: list[Answer] = [write_history(tmp_path / str(seed), seed) for seed in (1, 2, 3)]
    for seed, answer in enumerate(answers, 1):
        diff = git(tmp_path / str(seed), "show", answer.commit, "--", "src/index.c", "src/index.h")
        assert "_EVERY 1\n" in diff
        assert "_EVERY 512" not in diff
