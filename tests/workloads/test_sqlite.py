"""The SQLite workloads on the machine's own libsqlite3: what they write and what they refuse.

The library is the one Python itself uses, so nothing has to be built.
"""

import ctypes.util
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from perfbisect.recipes.workload import read_suite

pytestmark = pytest.mark.tools

WORKLOADS = Path(__file__).parents[2] / "workloads"
SUITE = read_suite(WORKLOADS / "sqlite" / "suite.toml")
SIZE = 1000


def sysbench(script: str, command: str, data: Path, options: dict[str, object], **sql: str) -> str:
    """What sysbench prints; raises CalledProcessError when it fails."""
    library = ctypes.util.find_library("sqlite3")
    if library is None:
        pytest.skip("no shared libsqlite3 on this machine")
    variables = {f"PERFBISECT_{key.upper()}": value for key, value in sql.items()}
    done = subprocess.run(
        ["sysbench", WORKLOADS / "sqlite" / script, *(f"--{key}={value}" for key, value in options.items()), command],
        env={
            **os.environ,
            "LUA_PATH": f"{WORKLOADS}/?.lua;;",
            "PERFBISECT_LIBRARY": library,
            "PERFBISECT_DATA": str(data),
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, "sysbench", done.stdout + done.stderr)
    return done.stdout


def run(workload: str, data: Path, events: int) -> str:
    spec = SUITE.workloads[workload]
    options = {key: str(value).lower() if isinstance(value, bool) else value for key, value in spec.args.items()}
    limits = {"table-size": SIZE, "events": events, "time": 0}
    script = spec.script or "sql.lua"
    given = {} if spec.script else {"setup": spec.setup, "statement": spec.statement}
    return sysbench(
        script, "run", data, {**options, **limits} if spec.script else {"events": events, "time": 0}, **given
    )


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loaded")
    sysbench("prepare.lua", "prepare", folder, {"table-size": SIZE})
    return folder


@pytest.fixture
def data(loaded: Path, tmp_path: Path) -> Path:
    """A copy of what is loaded."""
    shutil.copy(loaded / "data.db", tmp_path)
    return tmp_path


def query(data: Path, sql: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(data / "data.db")
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_the_suite_measures_the_fields_operations() -> None:
    assert {"point-query", "range-notcovered-pk", "scan", "update-index", "update-nonindex"} <= SUITE.workloads.keys()
    assert {workload.group for workload in SUITE.workloads.values()} == {"point", "range", "scan", "write", "join"}


def test_the_table_is_sysbenchs(data: Path) -> None:
    assert query(data, "SELECT count(*), min(id), max(id), max(k) <= 1000, min(k) >= 1 FROM sbtest1") == [
        (SIZE, 1, SIZE, 1, 1)
    ]
    assert query(data, "SELECT DISTINCT length(c), length(pad) FROM sbtest1") == [(119, 59)]
    pattern = "-".join(["[0-9]" * 11] * 10)
    assert query(data, f"SELECT count(*) FROM sbtest1 WHERE c GLOB '{pattern}'") == [(SIZE,)]
    assert query(data, "PRAGMA index_info(k_1)") == [(0, 1, "k")]


def test_every_dataset_is_the_same(loaded: Path, tmp_path: Path) -> None:
    sysbench("prepare.lua", "prepare", tmp_path, {"table-size": SIZE})
    assert (tmp_path / "data.db").read_bytes() == (loaded / "data.db").read_bytes()


def test_each_workload_counts_its_operations(data: Path) -> None:
    for workload in SUITE.workloads:
        assert "total number of events:              20\n" in run(workload, data, events=20), workload


def test_updates_change_what_they_say_and_keep_the_index_right(data: Path) -> None:
    ((before,),) = query(data, "SELECT sum(k) FROM sbtest1")
    for workload in ("update-index", "update-nonindex"):
        run(workload, data, events=50)
        assert query(data, "SELECT sum(k) FROM sbtest1") == [(before + 50,)], "one for each; and then none"  # type: ignore[operator]
    assert query(data, "PRAGMA integrity_check") == [("ok",)]
    ((changed,),) = query(data, "SELECT count(*) FROM sbtest1 WHERE c NOT GLOB '*-*'")
    assert 1 < changed <= 50  # type: ignore[operator]


def test_wrong_sql_ends_with_sqlites_own_message(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failure:
        sysbench("sql.lua", "run", tmp_path, {"events": 1}, setup="", statement="SELECT a FROM nowhere")
    assert "no such table: nowhere" in failure.value.output
