"""The JSON of fio, of several of its versions, and of the one that this machine has."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from perfbisect.lab.workload.command import outcome
from perfbisect.lab.workload.fio import CPU, read
from perfbisect.lab.workload.result import ProcessResult
from perfbisect.recipes.workload import Workload

PERCENTILES = {"50.000000": 100000, "95.000000": 200000, "99.000000": 300000}


def printed(**keys: Any) -> str:
    side = {"iops": 500.0, "runtime": 2000, "total_ios": 1000}
    side["clat_ns"] = {"mean": 150000.0, "max": 400000, "N": 1000, "percentile": PERCENTILES}
    job = {"error": 0, "job_runtime": 2000, "usr_cpu": 3.0, "sys_cpu": 7.0, "read": side, "write": {"iops": 0.0}}
    return json.dumps({"fio version": "fio-3.33", "jobs": [job | keys]}, indent=2)


def test_iops_latencies_and_cpu_time() -> None:
    found = read(printed())
    assert (found.iops, found.operations, found.cpu) == (500.0, 1000, 200.0)
    assert found.latency == {"avg": 0.15, "max": 0.4, "p95": 0.2, "p99": 0.3}


def test_a_warning_before_the_json_is_passed_over() -> None:
    assert read(f"fio: this platform does not support process shared mutexes {{}}\n{printed()}").iops == 500.0


def test_before_3_0_latencies_are_microseconds_and_what_is_missing_is_derived() -> None:
    side = {"iops": 500.0, "runtime": 2000, "clat": {"mean": 150.0, "percentile": {"95.000000": 200}}}
    found = read(json.dumps({"jobs": [{"usr_cpu": 3.0, "sys_cpu": 7.0, "read": side}]}))
    assert (found.operations, found.cpu) == (1000, 200.0)
    assert found.latency == {"avg": 0.15, "max": None, "p95": 0.2, "p99": None}


def test_latencies_are_those_of_fsync_where_a_job_calls_it() -> None:
    fsync = {"lat_ns": {"mean": 4e6, "max": 9e6, "N": 1000, "percentile": {"95.000000": 8e6, "99.000000": 8.5e6}}}
    assert read(printed(sync=fsync)).latency == {"avg": 4.0, "max": 9.0, "p95": 8.0, "p99": 8.5}


def test_reads_and_writes_are_added() -> None:
    assert read(printed(write={"iops": 100.0, "runtime": 2000, "total_ios": 200})).operations == 1200


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "not the JSON of fio"),
        ("fio: no such engine", "not the JSON of fio"),
        ('{"jobs": [{"read": {"iops": "many"}}]}', "not the JSON of fio"),
        ('{"jobs": []}', "has 0 jobs"),
        ('{"jobs": [{}, {}]}', "--group_reporting"),
        (printed(error=5), "error 5"),
        (printed(read={"iops": 0.0}), "less than one I/O"),
    ],
)
def test_what_is_no_result_is_said(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read(text)


@pytest.mark.tools
@pytest.mark.skipif(not shutil.which("fio"), reason="no fio: apt-get install fio")
def test_what_fio_prints_here(tmp_path: Path) -> None:
    """IOPS agree with the number of operations that fio was asked for; its CPU time is a counter."""
    argv = ["fio", "--name=a", f"--filename={tmp_path}/f", "--size=4M", "--rw=randwrite", "--bs=4k", "--fsync=64"]
    argv += ["--ioengine=psync", "--number_ios=1024", "--output-format=json", "--group_reporting"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    workload = Workload(name="w", summary="", group="", command=argv, format="fio")
    found = outcome(ProcessResult(done.stdout, done.stderr, 0, 90.0, "1000.5 0 1002.5\n"), workload)
    assert found.operations == 1024
    assert found.reported
    assert found.latency["p99"]
    assert CPU in found.counters
    assert workload.metric == "rate"
