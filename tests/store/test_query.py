"""SQL of users: executed when it reads, refused in one sentence when it writes."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from perfbisect.errors import UsageError
from perfbisect.store.history import History


@pytest.fixture
def sampled(written: Path) -> Iterator[History]:
    """The sample hunt, opened read-only."""
    with closing(History.open(written, read_only=True)) as opened:
        yield opened


def test_an_answer_has_columns_and_rows(sampled: History) -> None:
    answer = sampled.query("select id, good || '..' || bad as range from hunts")
    assert answer.columns == ("id", "range")
    assert list(answer.rows) == [(1, "1.0..1.1")]


def test_no_rows(sampled: History) -> None:
    assert list(sampled.query("select 1 where 0").rows) == []


@pytest.mark.parametrize(
    "sql",
    [
        "select json_extract(settings, '$.overrides.time') from hunts",
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < 5) select sum(i) from n",
        "select * from pragma_table_info('runs')",
        "pragma table_info(runs)",
        "explain query plan select * from rqps",
        "select value from json_each('[1,2]')",
        "values (1)",
    ],
)
def test_all_reading_is_allowed(sampled: History, sql: str) -> None:
    assert list(sampled.query(sql).rows)


@pytest.mark.parametrize(
    "sql",
    [
        "delete from hunts",
        "insert into commits (commit_hash) values ('x')",
        "update runs set qps = 1",
        "drop table runs",
        "create table x (y)",
        "create temp table x (y)",
        "attach 'other.db' as other",
        "vacuum",
        "vacuum into 'copy.db'",
        "pragma query_only = 0",
        "pragma writable_schema = 1",
        "pragma journal_mode = delete",
        "begin",
    ],
)
def test_all_writing_is_refused(sampled: History, sql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = sampled.path.read_bytes()
    with pytest.raises(UsageError, match="only read"):
        list(sampled.query(sql).rows)
    assert sampled.path.read_bytes() == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("selec 1", "selec"),
        ("select * from hunt", "hunt"),
        ("select 1; select 2", r"one statement at a time\.$"),
        ("", "empty"),
        ("-- only a remark", "empty"),
        ("select json('{')", "JSON"),
        ("select 'a\0b", "wrong"),
        ("select abs(-9223372036854775807 - 1)", "overflow"),
        ("select ?", "wrong"),
        ("select '\udce4'", "wrong"),
    ],
)
def test_mistakes_are_one_sentence(sampled: History, sql: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        list(sampled.query(sql).rows)


@pytest.mark.parametrize("sql", ["select 1; select 2", "select ?"])
def test_what_to_do_about_it_is_no_list_of_tables(sampled: History, sql: str) -> None:
    with pytest.raises(UsageError) as wrong:
        sampled.query(sql)
    assert not str(wrong.value).endswith("..")
    assert wrong.value.advice == "Give one statement, without parameters."


def test_what_sqlite_has_is_listed(sampled: History) -> None:
    for name in ("function_list", "module_list", "pragma_list", "collation_list", "compile_options"):
        assert [*sampled.query(f"select * from pragma_{name}").rows], name


def test_ctrl_c_ends_a_query_that_does_not(sampled: History) -> None:
    answer = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"
    alarm = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        alarm.start()
        list(sampled.query(answer).rows)
    alarm.join()
