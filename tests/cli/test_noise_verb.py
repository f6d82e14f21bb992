"""`bisect noise` on real builds of the demo's engine, as a user meets it."""

import json
import math
import signal
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import postgres
from perfbisect.core.domain.settings import Settings
from perfbisect.demo.history import write_history
from perfbisect.store.history import History
from perfbisect.store.prior_data import read_noise
from program import bisect, bisect_until

pytestmark = pytest.mark.tools


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    write_history(tmp_path / "repo", 3)
    given = ["--builder", "demo", "--workload", "update-index", "--rev", "v1.0", "--repo", str(tmp_path / "repo")]
    return ["noise", "local", *given, "--history", str(tmp_path / "history.db"), "--warmup", "0"]


def runs(tmp_path: Path) -> list[tuple[int, int]]:
    with closing(sqlite3.connect(tmp_path / "history.db")) as history:
        return history.execute("select round, count(*) from runs group by round order by round").fetchall()


def test_an_aa_tells_the_noise_and_hunts_begin_with_it(arguments: list[str], tmp_path: Path) -> None:
    done = bisect(*arguments, "--visits", "2", "--runs", "3", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["noise"]["visits"], told["noise"]["runs"] + told["noise"]["wild"]) == (2, 6)
    assert told["noise"]["run"] > 0
    drops = [row["drop"] for row in told["detectable"]]
    assert drops == sorted(drops, reverse=True)
    assert told["advice"]["runs"] == 1  # an embedded library is opened for each run
    assert runs(tmp_path) == [(0, 3), (1, 3)]
    with closing(History.open(tmp_path / "history.db")) as history:
        wanted = Settings("v1.0", "v1.1", "", "demo", "update-index", "local", "o2nofp", overrides={"warmup": 0.0})
        assert read_noise(history, wanted) == pytest.approx(told["noise"]["run"])


def test_the_failure_of_the_build_itself_ends_it(exits: Callable[..., str], script: Callable[[str], str]) -> None:
    commit = script("exit 7")
    words = ["noise", "--builder", "script", "--workload", "one", "--repo", "repo", "--rev", commit]
    assert f"Nothing was measured: {commit} fails in one" in exits(4, *words, "--visits", "2")


def test_ctrl_c_keeps_what_was_measured(arguments: list[str], tmp_path: Path) -> None:
    """And it goes on as a hunt does: with the rounds that are still to be made."""
    cut = bisect_until([*arguments, "--visits", "3", "--runs", "2", "--time", "1"], "run 4 of 6", signal.SIGINT)
    assert cut.returncode == 130
    assert "Interrupted. What was measured is kept; go on with: bisect resume n1 --history" in cut.stderr
    assert "Smallest detectable drop" in cut.stdout
    before = runs(tmp_path)
    again = bisect("resume", "n1", "--history", str(tmp_path / "history.db"))
    assert again.returncode == 0, again.stderr
    assert "Smallest detectable drop" in again.stdout
    assert sum(count == 2 for _, count in runs(tmp_path)) == 3
    assert runs(tmp_path)[: len(before)] == before


@pytest.mark.dbms
@postgres.needs_postgres
def test_runs_of_one_visit_share_a_start_of_the_server(tmp_path: Path, git: Callable[..., str]) -> None:
    postgres.write(
        tmp_path,
        {
            "repo/server.conf": "listen_addresses = ''\nfsync = off\n",
            "builders/pg/builder.toml": postgres.RECIPE,
            "workloads/pg/suite.toml": postgres.SUITE,
        },
    )
    git("add", ".")
    git("commit", "-qm", "a configuration")
    with tempfile.TemporaryDirectory(prefix="lab") as root:  # short, for the sake of the socket
        (tmp_path / "hosts.toml").write_text(f'[hosts.here]\nroot = "{root}"\n')
        words = ["noise", "here", "--builder", "pg", "--workload", "one-row", "--rev", "HEAD", "--visits", "3"]
        words += ["--runs", "2", "--json", "--repo", str(tmp_path / "repo"), "--history", str(tmp_path / "history.db")]
        folders = ["--builders", "builders", "--workloads", "workloads", "--hosts", "hosts.toml"]
        done = bisect(*words, *folders, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    noise = json.loads(done.stdout)["noise"]
    assert noise["shared"]
    assert noise["run"] == pytest.approx(math.hypot(noise["between"], noise["within"]))
    with closing(sqlite3.connect(tmp_path / "history.db")) as history:
        shares = history.execute("select round, count(distinct visit) from runs group by round").fetchall()
    assert shares == [(0, 1), (1, 1), (2, 1)]


def test_a_revision_that_does_not_exist(arguments: list[str]) -> None:
    wrong = [word if word != "v1.0" else "v9.9" for word in arguments]
    done = bisect(*wrong)
    assert done.returncode == 3
    assert "v9.9" in done.stderr
