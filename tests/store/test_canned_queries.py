"""The queries of `bisect serve`: all run on a history, and say what its reports say."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import sample_hunt as sample
from perfbisect.store.canned_queries import QUERIES, configuration
from perfbisect.store.history import History

Rows = list[dict[str, Any]]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """A hunt that has ended, and one that runs."""
    with closing(History.open(tmp_path / "history.db")) as opened:
        sample.write(opened)
        sample.begin(opened)
        yield opened


def rows(history: History, name: str, hunt: str = "") -> Rows:
    with closing(sqlite3.connect(history.path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(QUERIES[name][1], {"hunt": hunt})]


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_is_one_statement_that_names_its_columns_once(history: History, name: str) -> None:
    with closing(sqlite3.connect(history.path)) as connection:
        found = connection.execute(QUERIES[name][1], {"hunt": ""})
        names = [column[0] for column in found.description]
    assert len(set(names)) == len(names)


def test_no_query_has_the_address_of_a_table(history: History) -> None:
    taken = {
        name for (name,) in history.connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
    }
    assert "hunts" in taken
    assert not taken & set(QUERIES)


def test_hunts(history: History) -> None:
    running, found = rows(history, "latest_hunts")
    assert (running["id"], running["verdict"], running["culprit"], running["minutes"]) == (2, "none yet", None, None)
    assert (found["verdict"], found["culprit"]) == ("Found", sample.CANDIDATES[sample.CULPRIT][:10])
    assert (found["sure_percent"], found["ratio"], found["builds"], found["runs"]) == (97.3, 0.718, 6, 16)


def test_builds_and_candidates_of_a_hunt(history: History) -> None:
    assert len(rows(history, "builds_of_hunt")) == len(rows(history, "builds_of_hunt", "1")) == 6
    assert not rows(history, "builds_of_hunt", "2")
    assert [row["node"] for row in rows(history, "candidates_of_hunt", "1")] == [0, 4, 5, 6, 7, 8, 10]


def test_culprits(history: History) -> None:
    [row] = rows(history, "named_culprits")
    assert (row["hunt_id"], row["subject"]) == (1, sample.SUBJECTS[sample.CULPRIT])


def test_spread_of_runs(history: History) -> None:
    [row] = rows(history, "spread_by_host")
    assert (row["host"], row["hunts"], row["runs"]) == ("local", 1, 16)
    assert 0 < row["mean_deviation"] < row["largest"] < 2


def test_where_each_version_of_datasette_reads_the_queries() -> None:
    old, new = configuration("history", 0), configuration("history", 1)
    assert set(old["--metadata"]["databases"]["history"]["queries"]) == set(QUERIES)
    assert set(new["--config"]["databases"]["history"]["queries"]) == set(QUERIES)
    assert "queries" not in new["--metadata"]["databases"]["history"]
    assert json.loads(json.dumps(new)) == new
