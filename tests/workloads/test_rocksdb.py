"""The suite of RocksDB: what its script asks of a db_bench, and what the one that this machine has makes of it."""

import subprocess
from pathlib import Path

import pytest

from perfbisect.recipes.output_pattern import find_number
from perfbisect.recipes.workload import load_workloads
from program import executable

SCRIPT = Path(__file__).parents[2] / "workloads" / "rocksdb" / "db_bench"
NEW = (
    "readrandom   :       2.437 micros/op 410340 ops/sec 10.000 seconds 4103999 operations;   45.3 MB/s (9 of 9 found)"
)
OLD = "readrandom   :       2.437 micros/op 410340 ops/sec;   45.3 MB/s (9 of 9 found)"
OLD_FILL = "fillseq      :       2.437 micros/op 410340 ops/sec;   45.3 MB/s"

pytestmark = pytest.mark.tools


def run(folder: Path, line: str, *words: str, status: int = 0) -> tuple[list[str], str]:
    """The arguments that the script gives a db_bench which prints ``line``, and what the script prints."""
    executable(
        folder / "bin" / "db_bench",
        f'#!/bin/sh\nprintf "%s\\n" "$@" >{folder}/given\necho "{line}"\nexit {status}\n',
    )
    done = subprocess.run([SCRIPT, folder, "2", *words], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return (folder / "given").read_text().splitlines(), done.stdout


def test_all_that_is_pinned_may_be_unknown_to_a_version_and_nothing_else(tmp_path: Path) -> None:
    (first, *given), _ = run(tmp_path, NEW, "--write_buffer_size=1 --sync=*", "--num=5", "--format_version=4")
    asked = ["--cache_size=2097152", "--num=5", "--format_version=4", "--write_buffer_size=1", "--sync=*"]
    assert given[-5:] == asked, "the last of several counts"
    pinned = [option.removeprefix("--").partition("=")[0] for option in given[:-5]]
    assert first == f"--undefok={','.join(pinned)}"
    assert {"write_buffer_size", "format_version", "stats_dump_period_sec"} <= {*pinned}


def test_operations_are_reported_by_every_version(tmp_path: Path) -> None:
    [workload] = [each for each in load_workloads() if each.name == "readrandom" and each.driver == "rocksdb"]
    for line, operations in ((NEW, 4103999), (OLD, 4103400), (OLD_FILL, 77)):
        said = run(tmp_path, f"Read rate: 0 ops/second\n{line}", "", "--duration=10", "--num=11", "--threads=7")[1]
        assert find_number(workload.rate, said) == 410340
        assert find_number(workload.operations, said) == operations


def test_a_failure_stays_one(tmp_path: Path) -> None:
    run(tmp_path, "Unknown benchmark", "", status=3)
