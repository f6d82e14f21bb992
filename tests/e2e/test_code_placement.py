"""A commit that only moves code, and slows a program down by that: real links show it, and real counts what it executes."""

import shutil
from pathlib import Path

import pytest
from moved_code import MAKEFILE, main, steps

from program import bisect
from repos import Repo

pytestmark = [pytest.mark.e2e, pytest.mark.tools, pytest.mark.slow]

COMMITS, MOVED, SLOWER = 8, 3, 5
RUN = ["--build", "make", "--run", "./bench", "--rate", r"rounds/s: (\d+)", "--no-explain"]


@pytest.fixture
def repository(git: Repo) -> Path:
    """Its history: one commit moves the functions, a later one works more, the others change nothing that is executed."""
    git.write({"Makefile": MAKEFILE})
    git.history(
        {
            "steps.c": steps(number >= MOVED),
            "main.c": main(700 if number >= SLOWER else 500),
            "version.c": f"int version = {100 + number};\n",
        }
        for number in range(COMMITS)
    )
    return git.path


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind: apt-get install valgrind")
def test_a_commit_that_only_moves_code_is_no_culprit(tmp_path: Path, repository: Path) -> None:
    history = str(tmp_path / "history.db")
    ended = bisect("run", "v0", f"v{SLOWER - 1}", *RUN, "--plain", "--history", history, cwd=repository)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "Code placement: " in ended.stdout
    assert f"“change {MOVED}”" in ended.stdout
    assert "It moves code, and executes the same instructions as the code before it." in ended.stdout
    replayed = bisect("replay", "--history", history, cwd=repository).stdout
    assert "It moves code, and executes the same instructions" in replayed


def test_what_costs_more_is_named_in_spite_of_it(tmp_path: Path, repository: Path) -> None:
    history = str(tmp_path / "history.db")
    ended = bisect("run", "v0", f"v{COMMITS - 1}", *RUN, "--plain", "--history", history, cwd=repository)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"“change {SLOWER}”" in ended.stdout.partition("The culprit is ")[2].splitlines()[0]
