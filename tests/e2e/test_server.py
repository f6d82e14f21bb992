"""A whole hunt on a real database server: what changes from commit to commit is its configuration."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import postgres
from program import bisect, rows

pytestmark = [pytest.mark.e2e, pytest.mark.dbms, pytest.mark.tools, postgres.needs_postgres]

COMMITS, CULPRIT = 6, 4


def test_a_setting_that_slows_queries_is_found(tmp_path: Path, git: Callable[..., str]) -> None:
    """From one commit on, PostgreSQL reads the whole table for each row."""
    files = {"builders/pg/builder.toml": postgres.RECIPE, "workloads/pg/suite.toml": postgres.SUITE}
    hashes = []
    for number in range(COMMITS):
        slow = "enable_indexscan = off\nenable_bitmapscan = off\n" if number >= CULPRIT else ""
        files["repo/server.conf"] = f"listen_addresses = ''\nfsync = off\nwork_mem = {4 + number}MB\n{slow}"
        postgres.write(tmp_path, files)
        git("add", ".")
        git("commit", "-qm", f"change {number}")
        hashes.append(git("rev-parse", "HEAD"))
    history = tmp_path / "history.db"
    with tempfile.TemporaryDirectory(prefix="lab") as root:  # short, for the sake of the socket
        (tmp_path / "hosts.toml").write_text(f'[hosts.here]\nroot = "{root}"\n')
        words = ["run", hashes[0], hashes[-1], "--builder", "pg", "--workload", "one-row", "--host", "here", "--plain"]
        words += ["--repo", str(tmp_path / "repo"), "--history", str(history)]
        folders = ["--builders", "builders", "--workloads", "workloads", "--hosts", "hosts.toml"]
        ended = bisect(*words, *folders, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert rows(history, "select culprit from culprits") == [(hashes[CULPRIT],)]
    assert rows(
        history, "select count(distinct json_extract(body, '$.facts.dataset')) from events where kind = 'RunFinished'"
    ) == [(1,)]
    asked = rows(history, "select json_extract(body, '$.candidate') from events where kind = 'Planned'")
    assert {(CULPRIT - 1,), (CULPRIT,)} <= set(asked)
    assert len(asked) == len(set(asked))  # others, too, as far as the time for the reason allows
    shown = bisect("show", "--history", str(history), cwd=tmp_path).stdout
    assert f"Since {hashes[CULPRIT][:10]}, 1 statement of the workload has another plan." in shown
    assert (
        """\
  select k from t where id = ?
    before  Index Scan using t_pkey on t
              Index Cond: (id = 777)
    since   Seq Scan on t
              Filter: (id = 777)
"""
        in shown
    )
