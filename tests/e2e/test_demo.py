"""Whole hunts on the demo history, with real compilers, ccache, sysbench and perf."""

import signal
from pathlib import Path

import pytest

from program import bisect, bisect_until, rows

pytestmark = [pytest.mark.e2e, pytest.mark.tools]


def test_the_planted_commit_is_named_after_a_kill_and_an_interrupt(tmp_path: Path) -> None:
    """Killed while it builds, interrupted while it measures, resumed to the right verdict, nothing done twice."""
    history = tmp_path / "history.db"
    place = ["--folder", str(tmp_path / "demo"), "--history", str(history), "--json"]
    demo = ["demo", "--seed", "3", "--drop", "60%", *place]
    assert bisect_until(demo, '"BuildProgress"', signal.SIGKILL).returncode == -signal.SIGKILL
    resume = ["resume", "--history", str(history), "--json"]
    assert bisect_until(resume, '"RunProgress"', signal.SIGINT).returncode == 130

    ended = bisect("resume", "--history", str(history), "--plain")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    planted = (tmp_path / "demo" / "answer.json").read_text()
    shown = bisect("show", "--history", str(history))
    assert shown.returncode == 0
    [(culprit,)] = rows(history, "select culprit from culprits")
    assert str(culprit) in planted
    assert str(culprit)[:10] in shown.stdout
    twice = "select commit_hash, count(*) from builds where not reused group by 1 having count(*) > 1"
    assert rows(history, twice) == []
    assert rows(history, "pragma integrity_check") == [("ok",)]


@pytest.mark.slow
def test_one_command_names_three_commits_planted_in_three_workloads(tmp_path: Path) -> None:
    """`compare --hunt`: a table, a hunt for each drop, together; then the table has the commits."""
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
