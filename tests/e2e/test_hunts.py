"""Whole hunts with real compilers, ccache, sysbench and perf: the demo, quick commands, another machine, a server.

If the terminal of a hunt is closed, the hunt ends, and none of its jobs continues.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import postgres
import program
from machine import PROJECT, Machine
from perfbisect.host import jobs
from perfbisect.host.registry import connect
from perfbisect.recipes.inventory import load_host
from program import LIMIT, PROGRAM, Process, bisect, bisect_until, bisect_watched, exits, rows
from repos import Repo
from small_hunt import OPERATIONS, RATE, Hunt
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.tools]


# Half the commits of `bisect demo`, to save time and one step of the search.
SHORTER = "from perfbisect.demo import history; history.write_history.__defaults__ = (30, None, 1); "


def test_demo_hunt_names_the_planted_commit_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed during a build and resumed, the hunt builds no commit twice. Its runs are shorter than in the demo."""
    monkeypatch.setattr(program, "PROGRAM", [sys.executable, "-c", SHORTER + PROGRAM[-1]])
    suite = Path(shutil.copytree(PROJECT / "workloads" / "demo", tmp_path / "workloads" / "demo"), "suite.toml")
    suite.write_text(suite.read_text().replace("time = 1.0", "time = 0.4"))
    history = tmp_path / "history.db"
    place = ["--folder", str(tmp_path / "demo"), "--history", str(history), "--json"]
    demo = ["demo", "--seed", "3", "--drop", "60%", "--pairing", "paired", "--no-explain", *place]
    assert bisect_until(demo, '"BuildProgress"', signal.SIGKILL, tmp_path).returncode == -signal.SIGKILL
    ended = bisect("resume", "--history", str(history), "--plain")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    planted = (tmp_path / "demo" / "answer.json").read_text()
    [(culprit,)] = rows(history, "select culprit from culprits")
    assert str(culprit) in planted
    assert str(culprit)[:10] in exits(0, "show", "--history", str(history))
    twice = "select commit_hash, count(*) from builds where not reused group by 1 having count(*) > 1"
    assert rows(history, twice) == []
    assert rows(history, "pragma integrity_check") == [("ok",)]


@pytest.mark.calibrate
def test_demo_with_three_changes_names_three_commits(tmp_path: Path) -> None:
    """The demo runs `compare --hunt`: a hunt for each slower workload. The table then has the culprits."""
    history = tmp_path / "history.db"
    place = ["--folder", str(tmp_path / "demo"), "--history", str(history)]
    done = bisect("demo", "--changes", "3", "--seed", "3", "--drop", "60%", "--no-explain", *place)
    assert done.returncode == 0, done.stdout + done.stderr
    planted = (tmp_path / "demo" / "answer.json").read_text()
    culprits = [str(culprit) for (culprit,) in rows(history, "select culprit from culprits")]
    assert len(set(culprits)) == 3
    assert all(culprit in planted for culprit in culprits)
    table = bisect("show", "c1", "--tsv", "--history", str(history)).stdout
    assert all(f"\t{culprit}\t" in table for culprit in culprits)


COMMITS, CULPRIT, BROKEN, FAILING = 7, 5, 3, 2


@pytest.fixture
def odd(tmp_path: Path) -> Hunt:
    """A history in which one commit does not compile, and the program of another commit fails."""
    return Hunt(tmp_path, commits=COMMITS, culprit=CULPRIT, status={BROKEN: "broken(", FAILING: "3"})


def test_quick_hunt_finds_the_culprit_after_a_kill(odd: Hunt, tmp_path: Path) -> None:
    """Resumed from another folder. The commits that fail are skipped."""
    elsewhere, asked = tmp_path / "elsewhere", ["run", "v0", f"v{odd.last}", *odd.asked, "--operations", OPERATIONS]
    elsewhere.mkdir()
    options = ["--no-explain", "--json", *odd.kept()]
    killed = bisect_until([*asked, "--repo", str(odd.repo), *options], '"RunFinished"', signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    odd.check(bisect(*odd.resumed("--plain"), cwd=elsewhere))
    reported = (
        "select operations from runs join counters on run_id = event_id where source = 'command' and name = 'reported'"
    )
    assert set(odd.ask(reported)) == {(20000,)}
    skipped = set(odd.ask("select commit_hash, stage from skips"))
    assert skipped <= {(odd.hashes[BROKEN], "compile"), (odd.hashes[FAILING], "run")}
    assert json.loads(exits(0, "show", "--json", *odd.kept()))["settings"]["metric"] == "rate"
    shown = exits(0, "show", *odd.kept())
    assert odd.culprit[:10] in shown
    assert f"--build make --run ./bench --rate '{RATE}' --operations '{OPERATIONS}'" in shown


@pytest.mark.slow
def test_clones_in_different_folders_share_builds(tmp_path: Path, git: Repo) -> None:
    """The clones have the same name and use one root folder. Each clone has a commit that the other clone lacks."""
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


def test_hunt_on_a_remote_host_finds_the_culprit(machine: Machine, tmp_path: Path) -> None:
    """By the duration of a run, in which the program mostly sleeps."""
    hunt = Hunt(tmp_path, commits=3, culprit=1, pause=0.05, longer=0.6)
    asked = ["run", "v0", "v2", "--build", "make", "--run", "./bench", "--metric", "latency"]
    quick = ["--no-explain", "--pairing", "interleaved", "--no-layouts", "--plain"]
    ended = bisect(*asked, *quick, "--host", "far", *hunt.kept(), cwd=hunt.repo)
    hunt.check(ended)
    assert f"The culprit is {hunt.culprit[:10]}" in ended.stdout


@pytest.mark.slow
def test_slow_after_option_stops_endless_runs_and_finds_the_culprit(git: Repo, tmp_path: Path) -> None:
    """No run reaches the time limit of the workload, an hour. The hunt is killed and resumed."""
    repo, history = git.path, tmp_path / "history.db"
    naps = ("3000" if number >= 5 else "0.1" for number in range(8))
    hashes = git.history({"bench.sh": f"sleep {nap} # {number}\n"} for number, nap in enumerate(naps))
    asked = ["run", "v0", "v7", "--build", "true", "--run", "sh {prefix}/bench.sh", "--slow-after", "10"]
    asked += ["--repo", str(repo), "--no-explain", "--plain", "--history", str(history)]
    killed = bisect_until(asked, "slower than 10 × good (stopped after", signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    ended = bisect("resume", "--json", "--history", str(history), cwd=repo)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert rows(history, "select culprit from culprits") == [(hashes[5],)]
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    assert {each["facts"]["slower_than"] for each in events if each["event"] == "RunFinished"} == {0.0, 10.0}
    stopped = "select distinct commit_hash from runs join counters on run_id = event_id where name = 'slower_than'"
    assert {sha for (sha,) in rows(history, stopped)} <= set(hashes[5:])
    assert rows(history, "select count(*) from skips") == [(0,)]
    shown = exits(0, "show", "--history", str(history))
    assert "times slower" in shown
    assert "is slower than 10 × good (stopped after" in shown
    exits(0, "replay", "--history", str(history))


@pytest.mark.dbms
@postgres.needs_postgres
def test_hunt_finds_a_setting_that_changes_a_plan(tmp_path: Path, git: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL then reads the whole table for each row. Ctrl-C ends the explanation after the plans."""
    postgres.write(tmp_path, {"builders/pg/builder.toml": postgres.RECIPE, "workloads/pg/suite.toml": postgres.SUITE})
    slow = "enable_indexscan = off\nenable_bitmapscan = off\n"
    texts = (f"listen_addresses = ''\nfsync = off\n{slow * number}" for number in range(2))
    hashes = git.history({"server.conf": text} for text in texts)
    history = tmp_path / "history.db"
    monkeypatch.chdir(tmp_path)
    with tempfile.TemporaryDirectory(prefix="lab") as root:  # short, because the path of a socket is limited
        (tmp_path / "hosts.toml").write_text(f'[hosts.here]\nroot = "{root}"\n')
        words = ["run", "v0", "v1", "--builder", "pg", "--workload", "one-row", "--host", "here", "--json"]
        words += [
            "--repo",
            "repo",
            "--history",
            str(history),
            "--pairing",
            "interleaved",
            "--time",
            "1",
            *postgres.FOLDERS,
        ]
        planned = []

        def see(line: str, process: Process) -> None:
            planned.extend(["plan"] * ('"event":"Planned"' in line))
            if len(planned) == 2:
                planned.append("enough")
                process.send_signal(signal.SIGINT)

        ended = bisect_watched(words, see)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert rows(history, "select culprit from culprits") == [(hashes[1],)]
    datasets = "select count(distinct json_extract(body, '$.facts.dataset')) from events where kind = 'RunFinished'"
    assert rows(history, datasets) == [(1,)]
    asked = rows(history, "select json_extract(body, '$.candidate') from events where kind = 'Planned'")
    assert sorted(asked) == [(0,), (1,)]
    shown = exits(0, "show", "--history", str(history))
    assert f"Since {hashes[1][:10]}, 1 statement of the workload has another query plan." in shown
    assert (
        """\
  select k from t where id = ?
    before  Index Scan using t_pkey on t
              Index Cond: (id = 777)
    after   Seq Scan on t
              Filter: (id = 777)
"""
        in shown
    )


# Under nohup, the tests and all their child processes would ignore SIGHUP: this prefix restores the default.
WITH_SIGHUP = ["env", "--default-signal=HUP"]


@pytest.fixture
def hunt(git: Callable[..., str], tmp_path: Path) -> list[str]:
    """The command of a hunt whose runs take 300 s, so that no run ends during a test."""
    for number in range(2):
        (tmp_path / "repo" / "number").write_text(f"{number}")
        git("add", "-A")
        git("commit", "-qm", "change")
    repo, history = str(tmp_path / "repo"), str(tmp_path / "history.db")
    asked = ["run", "HEAD~1", "HEAD", "--build", "true", "--run", "sleep 300", "--repo", repo]
    return [*PROGRAM, *asked, "--plain", "--history", history]


def start(argv: list[str]) -> subprocess.Popen[str]:
    """Start the program, and wait for its first run."""
    process = subprocess.Popen(
        [*WITH_SIGHUP, "PYTHONUNBUFFERED=1", *argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    until(lambda: in_a_run() or process.poll() is not None)
    assert process.poll() is None, process.communicate()[0]
    return process


def in_a_run() -> bool:
    """Whether the job of a run has started: its pid file exists. A query for jobs would start processes each time."""
    return any(Path.home().glob(".cache/perfbisect/jobs/*-run-*/pid"))


def test_closed_terminal_interrupts_the_hunt_cleanly(hunt: list[str]) -> None:
    """The shell sends SIGHUP again while the hunt stops."""
    process, host = start(hunt), connect(load_host("local"))
    assert Path(host.root, "visit").exists()
    process.send_signal(signal.SIGHUP)
    for _ in range(50):
        time.sleep(0.02)
        process.send_signal(signal.SIGHUP)
    output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, output
    assert "To continue: bisect resume 1" in output
    assert not jobs.running_jobs(host)
    assert not Path(host.root, "visit").exists(), "the copy of the dataset is deleted"


@pytest.mark.slow
def test_hunt_with_a_live_view_ends_if_its_terminal_closes(hunt: list[str]) -> None:
    """Writing to the closed terminal is an error."""
    ours, theirs = os.openpty()
    argv = [*WITH_SIGHUP, "setsid", "--ctty", *(word for word in hunt if word != "--plain")]
    process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    host = connect(load_host("local"))
    until(lambda: in_a_run() or process.poll() is not None)
    assert process.poll() is None, os.read(ours, 10_000)
    os.close(ours)
    assert process.wait(timeout=LIMIT) == 130
    assert not jobs.running_jobs(host)
    assert not Path(host.root, "visit").exists()


@pytest.mark.slow
def test_ctrl_c_is_not_echoed_into_the_live_view(hunt: list[str]) -> None:
    ours, theirs = os.openpty()
    assert prints_control(ours)
    argv = ["env", "TERM=xterm", "setsid", "--ctty", *(word for word in hunt if word != "--plain")]
    process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs)
    until(lambda: in_a_run() or process.poll() is not None)
    assert not prints_control(ours)
    os.write(ours, b"\x03")
    assert process.wait(timeout=LIMIT) == 130
    assert prints_control(ours), "the setting is restored"
    output = os.read(ours, 1_000_000)
    assert b"\x1b[?1049h" in output and b"^C" not in output


def prints_control(terminal: int) -> bool:
    """Whether a terminal prints ^C if Ctrl-C is typed."""
    return bool(termios.tcgetattr(terminal)[3] & termios.ECHOCTL)


@pytest.mark.slow
def test_hunt_under_nohup_continues_after_sighup(hunt: list[str]) -> None:
    process, host = start(["nohup", *hunt]), connect(load_host("local"))
    try:
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=2)
        assert jobs.running_jobs(host)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT)
    assert not jobs.running_jobs(host)
