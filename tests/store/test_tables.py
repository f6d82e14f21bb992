"""Tables and views repeat the log in columns; the queries of `bisect serve` and of users read them."""

import json
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sample_hunt as sample
from perfbisect.core.domain.events import BuildFinished, CandidateSkipped, RunFinished, SessionEnded
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.orders import Inconclusive, Interval, Reason, Several, Step, UnsettledRange
from perfbisect.core.domain.settings import TrialType
from perfbisect.errors import UsageError
from perfbisect.store.history import History
from perfbisect.store.query import QUERIES, datasette_arguments
from perfbisect.store.schema import TABLES, VIEWS
from perfbisect.store.transfer import all_session_numbers, copy_sessions


def ask(history: History, sql: str) -> list[tuple[object, ...]]:
    """All rows of a query."""
    return list(history.query(sql).rows)


def test_tables_are_derived_from_the_log_alone(sampled: History, tmp_path: Path) -> None:
    """The tables that a copy of the log makes equal the tables that were written during the sessions."""
    trial = sample.begin_trial(sampled, replace(sample.comparison(2, ["scan", "load"]).request, kind=TrialType.NOISE))
    assert not sampled.select("SELECT * FROM build_phases"), "as of earlier versions"
    phases = {"configure": 2.5, "compile": 10.0}
    sampled.append(trial, BuildFinished(0, replace(sample.build(0), phases=phases), None), 2.0)
    select = (
        f"SELECT phase, seconds FROM build_phases WHERE session_id = {trial} AND commit_hash = '{sample.CANDIDATES[0]}'"
    )
    assert dict(sampled.select(select)) == phases
    sampled.append(trial, BuildFinished(1, sample.build(1, binary=sample.build(0).binary), 0), 2.5)
    same = sampled.select(f"SELECT commit_hash, same_as FROM builds WHERE session_id = {trial} ORDER BY event_id")
    assert same == [(sample.CANDIDATES[0], None), (sample.CANDIDATES[1], sample.CANDIDATES[0])]
    sampled.append(trial, CandidateSkipped(1, sample.skip(1, "run"), workload=1, round=1), 3.0)
    for number in range(4):
        facts = sample.run(0, 10.0 * number, qps=20_000.0 + 100 * number)
        sampled.append(trial, RunFinished(0, facts, workload=1, round=number // 2), 13.0 * number)
    sampled.append(trial, SessionEnded(), 99.0)
    with closing(History.open(tmp_path / "copy.db")) as copied:
        copy_sessions(sampled, copied, all_session_numbers(sampled), "")
        for name in {*TABLES, *VIEWS} - {"attempts"}:
            made, again = (sorted(each.select(f"SELECT * FROM {name}"), key=repr) for each in (sampled, copied))
            assert made == again, name
            assert made or name.startswith("batch"), name


CULPRIT = sample.COMMITS[sample.CULPRIT]
SAID: dict[str, list[tuple[object, ...]]] = {
    "select hunt_id, culprit, date, subject, probability, ratio, low, high from culprits": [
        (1, CULPRIT.sha, CULPRIT.date, CULPRIT.subject, 0.9731, 0.718, 0.706, 0.731)
    ],
    "select host, builder, variant, builds, fastest, slowest, hit_rate from build_costs": [
        ("local", "engine", "o2nofp", 6, 7.5, 31.0, pytest.approx(36 * 5 / (40 * 6)))
    ],
    "select distinct value from counters where name = 'dTLB-load-misses'": [(None,)],  # it is missing
    "select value / operations from counters join runs on event_id = run_id where name = 'instructions' and node = 5 limit 1": [
        (pytest.approx(280_000),)
    ],
    "select min(cost), max(cost) from runs where node = 5": [(12.5, 12.5)],  # with its warm-up
    "select node, builds, runs, same_as, skipped from candidates where node in (4, 6, 8)": [
        (4, 0, 0, None, "compile: src/pager.c:88: 'cursor' undeclared"),
        (6, 1, 3, sample.CANDIDATES[5], None),
        (8, 1, 5, None, None),
    ],
    "select node, commit_hash from candidates": [(node, sample.CANDIDATES[node]) for node in (0, 4, 5, 6, 7, 8, 10)],
    "select node, rqps from rqps where node in (0, 5, 8) order by node": [  # the drift of the host cancels
        (0, pytest.approx(1, abs=0.001)), (5, pytest.approx(1, abs=0.006)), (8, pytest.approx(0.72, abs=0.006)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("sql", SAID)
def test_queries_of_the_sample_hunt(asked: History, sql: str) -> None:
    assert ask(asked, sql) == SAID[sql]


def test_rqps_compares_runs_that_were_made_in_the_same_way(history: History) -> None:
    """Paired runs if there are any, otherwise interleaved runs; null if good has no runs of the same kind."""
    sample.write_ways(history)
    expected = [(0, 1.0), (1, 0.8), (2, None), (3, None), (5, 0.9), (6, None), (8, pytest.approx(0.7))]
    for view in ("candidates", "rqps"):
        assert ask(history, f"select node, rqps from {view} order by node") == expected
    history.append(1, RunFinished(4, sample.run(4, sample.BEGAN + 30, qps=101)), 9e9)
    assert ask(history, "select rqps from rqps where node = 4") == [(1.0,)]  # between two runs of good


def test_metric_of_the_hunt_has_a_column(history: History) -> None:
    """Also for runs from before a change of the metric."""
    hunt = sample.begin(history)
    counters = {"instructions": 10.0, "cycles": 5.0}
    run = replace(sample.run(0, 0.0, qps=100.0), reported=7.2, latency={"avg": 1.0, "p95": 1.5}, counters=counters)
    history.append(hunt, RunFinished(0, run), 9.0)
    measured = {"latency": 1.0, "qps": run.qps, "p95": 1.5, "rate": 7.2, "ipc": 2.0}
    for metric, value in {**measured, "instructions/o": 10.0 / run.operations}.items():
        history.update_settings(hunt, replace(sample.SETTINGS, metric=metric))
        for table in ("runs", "candidates"):
            assert ask(history, f"select metric_value from {table} where node = 0") == [(value,)], metric


def test_unsettled_subrange_has_a_reason_and_no_culprit(sampled: History) -> None:
    """Several culprits come oldest first."""
    steps = tuple(Step(node, 0.9, Interval(0.7, 0.8, 0.9), (node - 1,)) for node in (2, 5))
    known = Inconclusive((5, 6), (0.5, 0.4), Interval(0.7, 0.8, 0.9), Reason.UNBUILDABLE)
    for verdict, culprits, reason, state in (
        (Several(steps[:1], (), (UnsettledRange(4, 6, known),)), (2,), "unbuildable", "unsettled"),
        (Several(steps), (2, 5), None, "several"),
    ):
        sampled.append(1, SessionEnded(verdict), 9e9)
        assert ask(sampled, "select reason from verdicts") == [(reason,)]
        assert ask(sampled, "select culprit from culprits") == [(sample.CANDIDATES[node],) for node in culprits]
        assert sampled.session_summary(1).state == state


def test_rows_of_visits_merge_base_and_skips(history: History) -> None:
    """Runs of a visit share a row; the merge base, outside of the range, has no node; a skip may have runs."""
    hunt = sample.begin(history)
    for at in (1.0, 20.0):
        history.append(hunt, RunFinished(1, replace(sample.run(1, at), visit="one")), at + 10)
    assert ask(history, "select runs, name, dataset_key from visits") == [(2, "one", "data-1")]
    history.append(hunt, BuildFinished(1, replace(sample.build(1), commit="f" * 40), None), 5.0)
    assert ask(history, "select node from builds") == [(None,)]
    history.append(hunt, CandidateSkipped(1, sample.skip(1, "run")), 12.0)
    assert ask(history, "select runs, skipped like 'run:%' from candidates where node = 1") == [(2, 1)]


def test_changed_host_is_stored_as_another_host(history: History) -> None:
    for at, kernel in ((7.0, "6.1"), (5.0, "6.2"), (9.0, "6.1")):
        history.begin_session(sample.SETTINGS, replace(sample.started(), host=replace(sample.HOST, kernel=kernel)), at)
    assert ask(history, "select kernel, first_seen from hosts order by kernel") == [("6.1", 7.0), ("6.2", 5.0)]


def test_costs_and_ratios_are_of_the_same_host(history: History) -> None:
    hunt = sample.begin(history)
    good, other = sample.CANDIDATES[0], sample.CANDIDATES[1]
    for at, host, commit, operations in (
        (10, "a", good, 100), (12, "b", good, 900), (20, "a", other, 50), (21, "b", other, 810),
    ):  # fmt: skip
        facts = RunFacts(commit, "key", f"{at}", host, float(at - 1), 1.0, operations, {}, (), {}, {})
        history.append(hunt, RunFinished(0, facts, host), 1000.0 + at)
    assert ask(history, f"select host, cost from runs where commit_hash != '{good}'") == [("a", 10.0), ("b", 9.0)]
    relative = ask(history, f"select host, rqps from rqps where commit_hash = '{other}' order by 1")
    assert relative == [("a", 0.5), ("b", 0.9)]
    assert ask(history, "select distinct host from events where kind = 'RunFinished' order by 1") == [("a",), ("b",)]


def canned(both: History, name: str, hunt: str = "") -> list[dict[str, Any]]:
    """The rows of a canned query, whose columns have different names."""
    with closing(sqlite3.connect(both.path)) as connection:
        found = connection.execute(QUERIES[name][1], {"hunt": hunt})
        names = [column[0] for column in found.description]
        assert len(set(names)) == len(names), name
        return [dict(zip(names, row, strict=True)) for row in found]


def test_canned_queries_of_an_ended_hunt_and_a_running_hunt(sampled: History) -> None:
    """No query has the name of a table. Each version of Datasette finds the queries."""
    sample.begin(sampled)
    rows = {name: canned(sampled, name) for name in QUERIES}
    running, found = rows["latest_hunts"]
    assert (running["id"], running["verdict"], running["culprit"], running["minutes"]) == (2, "none yet", None, None)
    assert (found["verdict"], found["culprit"]) == ("Found", sample.CANDIDATES[sample.CULPRIT][:10])
    assert (found["probability_percent"], found["ratio"], found["builds"], found["runs"]) == (97.3, 0.718, 6, 16)
    assert len(rows["builds_of_hunt"]) == len(canned(sampled, "builds_of_hunt", "1")) == 6
    assert not canned(sampled, "builds_of_hunt", "2")
    assert [row["node"] for row in canned(sampled, "candidates_of_hunt", "1")] == [0, 4, 5, 6, 7, 8, 10]
    [named], [spread] = rows["named_culprits"], rows["spread_by_host"]
    assert (named["hunt_id"], named["subject"]) == (1, sample.SUBJECTS[sample.CULPRIT])
    assert (spread["host"], spread["hunts"], spread["runs"]) == ("local", 1, 16)
    assert 0 < spread["mean_deviation"] < spread["largest"] < 2
    taken = {name for (name,) in sampled.select("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
    assert "hunts" in taken and not taken & set(QUERIES)
    old, new = datasette_arguments("history", 0), datasette_arguments("history", 1)
    assert set(old["metadata"]["databases"]["history"]["queries"]) == set(QUERIES)
    assert set(new["config"]["databases"]["history"]["queries"]) == set(QUERIES)
    assert "queries" not in new["metadata"]["databases"]["history"]
    assert json.loads(json.dumps(new)) == new


@pytest.fixture
def asked(written: Path) -> Iterator[History]:
    """The sample hunt, opened read-only."""
    with closing(History.open(written, read_only=True)) as opened:
        yield opened


READS = (
    "select json_extract(settings, '$.overrides.time') from hunts",
    "with recursive n(i) as (select 1 union all select i + 1 from n where i < 5) select sum(i) from n",
    "pragma table_info(runs)",
    "explain query plan select * from rqps",
    "select value from json_each('[1,2]')",
    *(f"select * from pragma_{what}_list" for what in ("function", "module", "pragma", "collation")),
)
WRITES = (
    "delete from hunts",
    "update runs set qps = 1",
    "drop table runs",
    "create temp table x (y)",
    "attach 'other.db' as other",
    "vacuum into 'copy.db'",
    "pragma query_only = 0",
    "pragma writable_schema = 1",
    "begin",
)


def test_queries_can_read_but_not_write(asked: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = asked.query("select id, good || '..' || bad as range from hunts")
    assert answer.columns == ("id", "range")
    assert list(answer.rows) == [(1, "1.0..1.1")]
    for sql in READS:
        assert list(asked.query(sql).rows), sql
    assert list(asked.query("select 1 where 0").rows) == []
    before = asked.path.read_bytes()
    for sql in WRITES:
        with pytest.raises(UsageError, match="only read"):
            list(asked.query(sql).rows)
    assert asked.path.read_bytes() == before
    assert list(tmp_path.iterdir()) == []


MISTAKES = {
    "selec 1": "selec",
    "select * from hunt": "hunt",
    "select 1; select 2": r"one statement at a time\.$",
    "": "empty",
    "-- only a remark": "empty",
    "select json('{')": "JSON",
    "select 'a\0b": "wrong",
    "select abs(-9223372036854775807 - 1)": "overflow",
    "select ?": "wrong",
    "select '\udce4'": "not valid UTF-8",
}


def test_mistake_in_a_query_is_one_sentence(asked: History) -> None:
    for sql, says in MISTAKES.items():
        with pytest.raises(UsageError, match=says) as wrong:
            list(asked.query(sql).rows)
        assert not str(wrong.value).endswith("..")
        if sql in ("select 1; select 2", "select ?"):
            assert wrong.value.advice == "Give a single statement without parameters."


def test_ctrl_c_ends_an_endless_query(asked: History) -> None:
    answer = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"
    alarm = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        alarm.start()
        list(asked.query(answer).rows)
    alarm.join()
