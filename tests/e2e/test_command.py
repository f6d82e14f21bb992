"""A hunt in a repository without any recipe, as people do it who know `git bisect run`."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from machine import Machine
from program import Process, bisect, bisect_watched, rows

pytestmark = [pytest.mark.e2e, pytest.mark.tools]

COMMITS, CULPRIT, BROKEN, FAILING = 16, 10, 6, 12
BENCH = r"""
#include <stdio.h>
#include <time.h>
#include "work.h"

int main(void) {
    struct timespec from, to;
    volatile unsigned long sum = 1;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    for (long i = 0; i < 20000; i++)
        for (long j = 0; j < WORK; j++) sum = sum * 31 + j;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    double seconds = (to.tv_sec - from.tv_sec) + (to.tv_nsec - from.tv_nsec) / 1e9;
    printf("{\"host\": \"here\", \"results\": [{\"ops/s\": %.1f, \"operations\": 20000}]}\n", 20000 / seconds);
    return STATUS;
}
"""


@pytest.fixture
def commits(git: Callable[..., str], tmp_path: Path) -> list[str]:
    """A benchmark in C: from one commit on its loop takes three times as long; one commit does not compile, one fails."""
    repo, hashes = tmp_path / "repo", []
    (repo / "bench.c").write_text(BENCH)
    (repo / "Makefile").write_text("bench: bench.c work.h\n\t$(CC) -O1 -o $@ bench.c\n")
    for number in range(COMMITS):
        work = 3000 if number >= CULPRIT else 1000
        status = "3" if number == FAILING else "broken(" if number == BROKEN else "0"
        (repo / "work.h").write_text(f"/* {number} */\n#define WORK {work}\n#define STATUS {status}\n")
        git("add", "-A")
        git("commit", "-qm", f"change {number}")
        git("tag", f"v{number}")
        hashes.append(git("rev-parse", "HEAD"))
    return hashes


def test_a_slow_commit_is_found_with_nothing_but_two_commands(tmp_path: Path, commits: list[str]) -> None:
    """Killed in mid-hunt and resumed from another folder; the commits that fail are skipped."""
    repo, elsewhere, history = tmp_path / "repo", tmp_path / "elsewhere", tmp_path / "history.db"
    elsewhere.mkdir()
    paths = ["--rate", '$.results[0]["ops/s"]', "--operations", "$.results[0].operations"]
    asked = ["run", "v0", f"v{COMMITS - 1}", "--build", "make", "--run", "./bench", "--no-explain", *paths]

    def kill(line: str, process: Process) -> None:
        if '"RunFinished"' in line:
            process.send_signal(signal.SIGKILL)

    killed = bisect_watched([*asked, "--json", "--history", str(history)], kill, cwd=repo)
    assert killed.returncode == -signal.SIGKILL

    ended = bisect("resume", "--plain", "--history", str(history), cwd=elsewhere)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert rows(history, "select culprit from culprits") == [(commits[CULPRIT],)]
    reported = (
        "select operations from runs join counters on run_id = event_id where source = 'command' and name = 'reported'"
    )
    assert set(rows(history, reported)) == {(20000,)}
    skipped = set(rows(history, "select commit_hash, stage from skips"))
    assert skipped <= {(commits[BROKEN], "compile"), (commits[FAILING], "run")}

    told = json.loads(bisect("show", "--json", "--history", str(history), cwd=elsewhere).stdout)
    assert told["settings"]["metric"] == "rate"
    shown = bisect("show", "--history", str(history), cwd=elsewhere).stdout
    assert commits[CULPRIT][:10] in shown
    assert f"--build make --run ./bench --rate '{paths[1]}' --operations '{paths[3]}'" in shown


@pytest.mark.slow
def test_clones_at_other_paths_use_the_same_builds(tmp_path: Path, git: Callable[..., str]) -> None:
    """In turns, from one root; each clone has a commit that the other lacks."""
    (tmp_path / "repo" / "bench.sh").write_text("echo rate 1\n")
    for number in range(2):
        (tmp_path / "repo" / "number").write_text(f"{number}\n")
        git("add", "-A")
        git("commit", "-qm", f"change {number}")
    clones = [tmp_path / name / "store.git" for name in ("ours", "theirs")]
    for clone in clones:
        git("clone", "-q", f"{tmp_path}/repo", str(clone))
        (clone / "number").write_text(clone.parent.name)
        git("-C", str(clone), "commit", "-qam", f"of {clone.parent.name}")
    history = tmp_path / "history.db"

    def hunt(clone: Path, good: str, bad: str) -> list[tuple[int]]:
        words = ["--build", "true", "--run", "sh {prefix}/bench.sh", "--rate", r"rate (\d+)", "--max-runs", "6"]
        done = bisect("run", good, bad, "--repo", str(clone), *words, "--no-explain", "--history", str(history))
        assert done.returncode in (1, 2), done.stdout + done.stderr
        return rows(
            history, "select reused from builds where session_id = (select max(id) from hunts) order by event_id"
        )

    common = ("HEAD~2", "HEAD~1")
    assert hunt(clones[0], *common) == [(0,), (0,)]
    assert hunt(clones[1], *common) == [(1,), (1,)]
    assert sorted(hunt(clones[0], "HEAD~1", "HEAD")) == [(0,), (1,)]
    assert sorted(hunt(clones[1], "HEAD~1", "HEAD")) == [(0,), (1,)]
    assert hunt(clones[0], "HEAD~1", "HEAD") == [(1,), (1,)]


def test_what_failed_once_is_remembered_for_the_same_commands_only(tmp_path: Path, commits: list[str]) -> None:
    """The culprit, which lies between the ends, does not build with the first command, and does with the second."""
    refusing = f"sh -c '! grep -q \"/. {CULPRIT} \" work.h && make'"
    asked = ["run", f"v{CULPRIT - 1}", f"v{CULPRIT + 1}", "--run", "./bench", "--plain", "--max-runs", "16"]
    asked += ["--no-explain", "--history", str(tmp_path / "history.db")]
    culprit = commits[CULPRIT][:10]
    first = bisect(*asked, "--build", refusing, cwd=tmp_path / "repo").stdout
    assert f"skipped   {culprit}  compile" in first
    again = bisect(*asked, "--build", refusing, cwd=tmp_path / "repo").stdout
    assert f"skipped   {culprit}  compile" in again
    assert f"building  {culprit}" not in again
    other = bisect(*asked, "--build", "make", cwd=tmp_path / "repo").stdout.partition("confirmation")[0]
    assert "an earlier build is used again" not in other
    assert f"built     {culprit}" in other


def test_on_another_machine(tmp_path: Path, machine: Machine, commits: list[str]) -> None:
    asked = ["run", f"v{CULPRIT - 2}", f"v{CULPRIT + 1}", "--build", "make", "--run", "./bench", "--metric", "latency"]
    asked += ["--no-explain"]
    ended = bisect(*asked, "--host", "far", "--plain", "--history", str(tmp_path / "h.db"), cwd=tmp_path / "repo")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"The culprit is {commits[CULPRIT][:10]}" in ended.stdout


QUADRATIC = """
#include <stdio.h>

/* change %d */
int main(void) {
    unsigned long sum = 0;
    for (volatile long i = 0; i < 20000; i++)
        for (volatile long j = 0; j < %s; j++) sum += i ^ j;
    printf("%%lu\\n", sum);
    return 0;
}
"""


@pytest.mark.slow
def test_a_command_that_became_quadratic_is_stopped_and_found(git: Callable[..., str], tmp_path: Path) -> None:
    """It would take minutes; the workload's own time limit of an hour is never reached. Resumed where it was killed."""
    repo, history, hashes = tmp_path / "repo", tmp_path / "history.db", []
    for number in range(8):
        (repo / "bench.c").write_text(QUADRATIC % (number, "3000000" if number >= 5 else "3000"))
        git("add", "-A")
        git("commit", "-qm", f"change {number}")
        git("tag", f"v{number}")
        hashes.append(git("rev-parse", "HEAD"))
    asked = ["run", "v0", "v7", "--build", "cc -O1 -o bench bench.c", "--run", "./bench", "--slow-after", "10"]
    asked += ["--no-explain"]

    def kill(line: str, process: Process) -> None:
        if "slower than 10 × good (stopped after" in line:
            process.send_signal(signal.SIGKILL)

    killed = bisect_watched([*asked, "--plain", "--history", str(history)], kill, cwd=repo)
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    ended = bisect("resume", "--json", "--history", str(history), cwd=repo)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert rows(history, "select culprit from culprits") == [(hashes[5],)]
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    assert {each["facts"]["slower_than"] for each in events if each["event"] == "RunFinished"} == {0.0, 10.0}
    stopped = "select distinct commit_hash from runs join counters on run_id = event_id where name = 'slower_than'"
    assert {sha for (sha,) in rows(history, stopped)} <= set(hashes[5:])
    assert rows(history, "select count(*) from skips") == [(0,)]
    shown = bisect("show", "--history", str(history)).stdout
    assert "times slower" in shown
    assert "is slower than 10 × good (stopped after" in shown
    assert bisect("replay", "--history", str(history), cwd=repo).returncode == 0
