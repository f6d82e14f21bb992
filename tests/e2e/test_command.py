"""A hunt in a repository without any recipe, as people do it who know `git bisect run`."""

import json
import signal
from pathlib import Path

import pytest

from machine import Machine
from program import Process, bisect, bisect_watched, rows
from repos import Repo
from small_hunt import OPERATIONS, RATE, Hunt

pytestmark = [pytest.mark.e2e, pytest.mark.tools]

COMMITS, CULPRIT, BROKEN, FAILING = 16, 10, 6, 12


@pytest.fixture
def odd(tmp_path: Path) -> Hunt:
    """One commit does not compile, and with another one the program fails."""
    return Hunt(tmp_path, commits=COMMITS, culprit=CULPRIT, status={BROKEN: "broken(", FAILING: "3"})


def test_a_slow_commit_is_found_with_nothing_but_two_commands(odd: Hunt, tmp_path: Path) -> None:
    """Killed in mid-hunt and resumed from another folder; the commits that fail are skipped."""
    elsewhere, asked = tmp_path / "elsewhere", ["run", "v0", f"v{odd.last}", *odd.asked, "--operations", OPERATIONS]
    elsewhere.mkdir()

    def kill(line: str, process: Process) -> None:
        if '"RunFinished"' in line:
            process.send_signal(signal.SIGKILL)

    killed = bisect_watched([*asked, "--no-explain", "--json", *odd.kept()], kill, cwd=odd.repo)
    assert killed.returncode == -signal.SIGKILL
    odd.check(bisect(*odd.resumed("--plain"), cwd=elsewhere))
    reported = (
        "select operations from runs join counters on run_id = event_id where source = 'command' and name = 'reported'"
    )
    assert set(odd.ask(reported)) == {(20000,)}
    skipped = set(odd.ask("select commit_hash, stage from skips"))
    assert skipped <= {(odd.hashes[BROKEN], "compile"), (odd.hashes[FAILING], "run")}
    told = json.loads(bisect("show", "--json", *odd.kept(), cwd=elsewhere).stdout)
    assert told["settings"]["metric"] == "rate"
    shown = bisect("show", *odd.kept(), cwd=elsewhere).stdout
    assert odd.culprit[:10] in shown
    assert f"--build make --run ./bench --rate '{RATE}' --operations '{OPERATIONS}'" in shown


@pytest.mark.slow
def test_clones_at_other_paths_use_the_same_builds(tmp_path: Path, git: Repo) -> None:
    """In turns, from one root; each clone has a commit that the other lacks."""
    git.history([{"bench.sh": "echo rate 1\n", "number": f"{number}\n"} for number in range(2)])
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


def test_what_failed_once_is_remembered_for_the_same_commands_only(odd: Hunt) -> None:
    """The culprit, which lies between the ends, does not build with the first command, and does with the second."""
    refusing = f"sh -c '! grep -q \"/. {CULPRIT} \" work.h && make'"
    asked = ["run", f"v{CULPRIT - 1}", f"v{CULPRIT + 1}", "--run", "./bench", "--plain", "--max-runs", "16"]
    asked += ["--no-explain", *odd.kept()]
    culprit = odd.culprit[:10]
    first = bisect(*asked, "--build", refusing, cwd=odd.repo).stdout
    assert f"skipped   {culprit}  compile" in first
    again = bisect(*asked, "--build", refusing, cwd=odd.repo).stdout
    assert f"skipped   {culprit}  compile" in again
    assert f"building  {culprit}" not in again
    other = bisect(*asked, "--build", "make", cwd=odd.repo).stdout.partition("confirmation")[0]
    assert "an earlier build is used again" not in other
    assert f"built     {culprit}" in other


def test_on_another_machine(machine: Machine, odd: Hunt) -> None:
    asked = ["run", f"v{CULPRIT - 2}", f"v{CULPRIT + 1}", "--build", "make", "--run", "./bench", "--metric", "latency"]
    ended = bisect(*asked, "--no-explain", "--host", "far", "--plain", *odd.kept(), cwd=odd.repo)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"The culprit is {odd.culprit[:10]}" in ended.stdout


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
def test_a_command_that_became_quadratic_is_stopped_and_found(git: Repo, tmp_path: Path) -> None:
    """It would take minutes; the workload's own time limit of an hour is never reached. Resumed where it was killed."""
    repo, history = git.path, tmp_path / "history.db"
    loops = ("3000000" if number >= 5 else "3000" for number in range(8))
    hashes = git.history({"bench.c": QUADRATIC % (number, loop)} for number, loop in enumerate(loops))
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
