"""Shipped suites without a server: SQLite, RocksDB by a simulated db_bench, and all workloads of pgbench and db_bench.

SQLite is the library that Python uses. pgbench and db_bench compare two equal builds that are installed.
"""

import ctypes.util
import json
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from perfbisect.recipes.output_pattern import find_number
from perfbisect.recipes.workload import load_workloads, read_suite
from postgres import BIN, needs_postgres
from program import bisect, executable

pytestmark = pytest.mark.tools

WORKLOADS = Path(__file__).parents[2] / "workloads"
SUITE = read_suite(WORKLOADS / "sqlite" / "suite.toml")
SIZE = 1000


def sysbench(script: str, command: str, data: Path, options: dict[str, object], **sql: str) -> str:
    """The output of sysbench. Raises CalledProcessError if sysbench fails."""
    library = ctypes.util.find_library("sqlite3")
    if library is None:
        pytest.skip("no shared libsqlite3 on this machine")
    given = {
        f"PERFBISECT_{key.upper()}": value for key, value in {**sql, "library": library, "data": str(data)}.items()
    }
    argv = ["sysbench", WORKLOADS / "sqlite" / script, *(f"--{key}={value}" for key, value in options.items()), command]
    env = {**os.environ, "LUA_PATH": f"{WORKLOADS}/?.lua;;", **given}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, "sysbench", done.stdout + done.stderr)
    return done.stdout


def run(name: str, data: Path, events: int) -> str:
    workload = SUITE.workloads[name]
    limits: dict[str, object] = {"events": events, "time": 0}
    if not workload.script:
        return sysbench("sql.lua", "run", data, limits, setup=workload.setup, statement=workload.statement)
    args = {key: str(value).lower() if isinstance(value, bool) else value for key, value in workload.args.items()}
    return sysbench(workload.script, "run", data, {**args, "table-size": SIZE, **limits})


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loaded")
    sysbench("prepare.lua", "prepare", folder, {"table-size": SIZE})
    return folder


@pytest.fixture
def data(loaded: Path, tmp_path: Path) -> Path:
    """A copy of the loaded database."""
    shutil.copy(loaded / "data.db", tmp_path)
    return tmp_path


def query(data: Path, sql: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(data / "data.db")
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_sqlite_suite_has_the_usual_operations() -> None:
    assert {"point-query", "range-notcovered-pk", "scan", "update-index", "update-nonindex"} <= SUITE.workloads.keys()
    assert {workload.group for workload in SUITE.workloads.values()} == {"point", "range", "scan", "write", "join"}


def test_sqlite_table_has_the_form_of_sysbenchs_table(data: Path) -> None:
    shape = "-".join(["[0-9]" * 11] * 10)
    for sql, found in (
        ("SELECT count(*), min(id), max(id), max(k) <= 1000, min(k) >= 1 FROM sbtest1", (SIZE, 1, SIZE, 1, 1)),
        ("SELECT DISTINCT length(c), length(pad) FROM sbtest1", (119, 59)),
        (f"SELECT count(*) FROM sbtest1 WHERE c GLOB '{shape}'", (SIZE,)),
        ("PRAGMA index_info(k_1)", (0, 1, "k")),
    ):
        assert query(data, sql) == [found]


def test_sqlite_datasets_are_identical(loaded: Path, tmp_path: Path) -> None:
    sysbench("prepare.lua", "prepare", tmp_path, {"table-size": SIZE})
    assert (tmp_path / "data.db").read_bytes() == (loaded / "data.db").read_bytes()


def test_each_sqlite_workload_counts_its_operations(data: Path) -> None:
    for workload in SUITE.workloads:
        assert "total number of events:              20\n" in run(workload, data, events=20), workload


def test_sqlite_updates_change_their_column_and_keep_the_index_correct(data: Path) -> None:
    ((before,),) = query(data, "SELECT sum(k) FROM sbtest1")
    for workload in ("update-index", "update-nonindex"):
        run(workload, data, events=50)
        assert query(data, "SELECT sum(k) FROM sbtest1") == [(before + 50,)]  # type: ignore[operator]
    assert query(data, "PRAGMA integrity_check") == [("ok",)]
    ((changed,),) = query(data, "SELECT count(*) FROM sbtest1 WHERE c NOT GLOB '*-*'")
    assert 1 < changed <= 50  # type: ignore[operator]


def test_wrong_sql_ends_with_the_message_of_sqlite(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failure:
        sysbench("sql.lua", "run", tmp_path, {"events": 1}, setup="", statement="SELECT a FROM nowhere")
    assert "no such table: nowhere" in failure.value.output


SCRIPT = WORKLOADS / "rocksdb" / "db_bench"
NEW = "readrandom   :  2.437 micros/op 410340 ops/sec 10.000 seconds 4103999 operations;  45.3 MB/s (9 of 9 found)"
OLD = "readrandom   :       2.437 micros/op 410340 ops/sec;   45.3 MB/s (9 of 9 found)"
OLD_FILL = "fillseq      :       2.437 micros/op 410340 ops/sec;   45.3 MB/s"


def asked(folder: Path, line: str, *words: str, status: int = 0) -> tuple[list[str], str]:
    """The arguments that the script gives to a db_bench that prints ``line``, and the output of the script."""
    program = f'#!/bin/sh\nprintf "%s\\n" "$@" >{folder}/given\necho "{line}"\nexit {status}\n'
    executable(folder / "bin" / "db_bench", program)
    done = subprocess.run([SCRIPT, folder, "2", *words], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return (folder / "given").read_text().splitlines(), done.stdout


def test_db_bench_may_ignore_only_the_options_that_the_script_sets(tmp_path: Path) -> None:
    (first, *given), _ = asked(tmp_path, NEW, "--write_buffer_size=1 --sync=*", "--num=5", "--format_version=4")
    wanted = ["--cache_size=2097152", "--num=5", "--format_version=4", "--write_buffer_size=1", "--sync=*"]
    assert given[-5:] == wanted, "db_bench uses the last value of an option"
    pinned = [option.removeprefix("--").partition("=")[0] for option in given[:-5]]
    assert first == f"--undefok={','.join(pinned)}"
    assert {"write_buffer_size", "format_version", "stats_dump_period_sec"} <= {*pinned}


def test_operations_of_every_db_bench_version_are_read(tmp_path: Path) -> None:
    [workload] = [each for each in load_workloads() if each.name == "readrandom" and each.driver == "rocksdb"]
    for line, operations in ((NEW, 4103999), (OLD, 4103400), (OLD_FILL, 77)):
        output = asked(tmp_path, f"Read rate: 0 ops/second\n{line}", "", "--duration=10", "--num=11", "--threads=7")[1]
        assert find_number(workload.rate, output) == 410340
        assert find_number(workload.operations, output) == operations


def test_db_bench_script_ends_with_the_status_of_db_bench(tmp_path: Path) -> None:
    asked(tmp_path, "Unknown benchmark", "", status=3)


def compared(builder: str, suite: str, setting: str, *installed: Path) -> Any:
    """The result of a short comparison of two installations."""
    same = [f"{name}={folder}" for name, folder in zip(("one", "two"), installed, strict=True)]
    short = ["--visits", "1", "--runs", "1", "--time", "1", "--set", setting, "--json"]
    done = bisect("compare", *same, "--builder", builder, "--workload", suite, *short)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert all(row["ratios"][0]["ratio"] > 0 for row in result["workloads"])
    return result


@pytest.mark.calibrate
@pytest.mark.dbms
@needs_postgres
def test_pgbench_suite_compares_two_installations() -> None:
    result = compared("postgres", "pgbench", "scale=1", BIN.parent, BIN.parent)
    assert [row["work"] for row in result["workloads"]] == ["pgbench-select", "pgbench-simple-update", "pgbench-tpcb"]


@pytest.mark.calibrate
@pytest.mark.dbms
@pytest.mark.skipif(not shutil.which("db_bench"), reason="no db_bench: apt-get install rocksdb-tools")
def test_db_bench_suite_compares_two_installations(tmp_path: Path, seal: Path) -> None:
    """Installed builds need no section [build]."""
    found = shutil.which("db_bench")
    assert found
    for name in ("one", "two"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "db_bench").symlink_to(found)
    result = compared("rocksdb", "rocksdb", "num=5000", tmp_path / "one", tmp_path / "two")
    names = {each.name for each in load_workloads() if each.driver == "rocksdb"}
    assert {row["work"] for row in result["workloads"]} == names
    assert all(row["counters"]["cpu/o"][0] > 0 for row in result["workloads"])
    assert result["settings"]["subjects"][0]["version"].count(".") == 2
    assert len(list((seal / ".cache" / "perfbisect" / "datasets").iterdir())) == 1, "all workloads share one dataset"
