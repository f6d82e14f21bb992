"""The demo's workloads, run by real sysbench on a small table."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from perfbisect.recipes.suites import read_suite

pytestmark = [pytest.mark.tools, pytest.mark.xdist_group("engine")]  # they share what is built

WORKLOADS = Path(__file__).parents[2] / "workloads"
SUITE = read_suite(WORKLOADS / "demo" / "suite.toml")
ROWS = 1000
EVENTS = 200


def sysbench(library: Path, data: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "LUA_PATH": f"{WORKLOADS}/?.lua;;",
        "PERFBISECT_LIBRARY": str(library),
        "PERFBISECT_DATA": str(data),
        "PERFBISECT_WARMUP": "0.01",
    }
    argv = ["sysbench", f"--events={EVENTS}", "--time=0", str(WORKLOADS / "demo" / script), *arguments]
    return subprocess.run(argv, check=False, env=environment, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def dataset(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    done = sysbench(library, folder, "prepare.lua", f"--table-size={ROWS}", "prepare")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_dataset_is_always_the_same(library: Path, dataset: Path, tmp_path: Path) -> None:
    assert sysbench(library, tmp_path, "prepare.lua", f"--table-size={ROWS}", "prepare").returncode == 0
    assert (tmp_path / "table.demo").read_bytes() == (dataset / "table.demo").read_bytes()


@pytest.mark.parametrize("name", SUITE.workloads)
def test_a_workload_runs(name: str, library: Path, dataset: Path, tmp_path: Path) -> None:
    workload = SUITE.workloads[name]
    copy = shutil.copytree(dataset, tmp_path / "data")
    arguments = {**workload.args, "table-size": ROWS}
    done = sysbench(library, copy, workload.script, *(f"--{key}={value}" for key, value in arguments.items()), "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.findall(r"total number of events:\s+(\d+)", done.stdout)[0]) == EVENTS
    assert (copy / "table.demo").read_bytes() == (dataset / "table.demo").read_bytes(), "a run saves nothing"


def test_a_missing_table_ends_the_run(library: Path, tmp_path: Path) -> None:
    done = sysbench(library, tmp_path, "point-query.lua", "run")
    assert done.returncode != 0
    assert "demo_open failed with status 4" in done.stdout + done.stderr


def test_a_row_that_is_not_there_ends_the_run(library: Path, dataset: Path) -> None:
    done = sysbench(library, dataset, "point-query.lua", f"--table-size={ROWS * 100}", "run")
    assert done.returncode != 0
    assert "demo_get failed with status 1" in done.stdout + done.stderr
