"""Every workload of pgbench and of db_bench, by recipes as they are shipped: two builds that are the same, as they are installed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from perfbisect.recipes.workload import load_workloads
from postgres import BIN, needs_postgres
from program import bisect

pytestmark = [pytest.mark.tools, pytest.mark.dbms, pytest.mark.calibrate]


def compared(builder: str, suite: str, setting: str, *installed: Path) -> Any:
    """What a short comparison of two installations tells."""
    same = [f"{name}={folder}" for name, folder in zip(("one", "two"), installed, strict=True)]
    short = ["--visits", "1", "--runs", "1", "--time", "1", "--set", setting, "--json"]
    done = bisect("compare", *same, "--builder", builder, "--workload", suite, *short)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert all(row["ratios"][0]["ratio"] > 0 for row in told["workloads"])
    return told


@needs_postgres
def test_of_pgbench() -> None:
    told = compared("postgres", "pgbench", "scale=1", BIN.parent, BIN.parent)
    assert [row["work"] for row in told["workloads"]] == ["pgbench-select", "pgbench-simple-update", "pgbench-tpcb"]


@pytest.mark.skipif(not shutil.which("db_bench"), reason="no db_bench: apt-get install rocksdb-tools")
def test_of_db_bench(tmp_path: Path, seal: Path) -> None:
    """What is installed needs no [build]."""
    found = shutil.which("db_bench")
    assert found
    for name in ("one", "two"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "db_bench").symlink_to(found)
    told = compared("rocksdb", "rocksdb", "num=5000", tmp_path / "one", tmp_path / "two")
    names = {each.name for each in load_workloads() if each.driver == "rocksdb"}
    assert {row["work"] for row in told["workloads"]} == names
    assert all(row["counters"]["cpu/o"][0] > 0 for row in told["workloads"])
    assert told["settings"]["subjects"][0]["version"].count(".") == 2
    assert len(list((seal / ".cache" / "perfbisect" / "datasets").iterdir())) == 1, "all share what was loaded once"
