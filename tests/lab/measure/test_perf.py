import subprocess
import sys
import time
from pathlib import Path, PurePosixPath

import pytest

from perfbisect.host.local import LocalHost
from perfbisect.lab.measure.perf import EVENTS, missed, parse, probe, refusal, wrap

OUTPUTS = Path(__file__).parents[2] / "outputs"


def read(name: str) -> dict[str, float | None]:
    return parse((OUTPUTS / name).read_text())


def test_counters_of_an_intel_machine_are_taken_as_perf_scaled_them() -> None:
    counters = read("perf-intel.csv")
    assert counters["instructions"] == 48213990716
    assert counters["task-clock"] == 10001.92
    assert counters["cpu-migrations"] == 0
    assert len(counters) == 18


def test_modifiers_of_an_unprivileged_perf_are_not_part_of_the_name() -> None:
    counters = read("perf-amd.csv")
    assert counters["cycles"] == 12950331870
    assert counters["page-faults"] == 12


def test_what_is_not_supported_or_not_counted_is_missing_and_not_zero() -> None:
    counters = read("perf-amd.csv")
    assert counters["LLC-load-misses"] is None
    assert counters["iTLB-load-misses"] is None
    assert counters["context-switches"] == 0
    virtual = read("perf-virtual.csv")
    assert virtual["instructions"] is None
    assert virtual["context-switches"] == 11


def test_two_kinds_of_cores_are_added() -> None:
    counters = read("perf-intel-hybrid.csv")
    assert counters["instructions"] == 9120445871
    assert counters["cycles"] == 210334 + 4011233090
    assert counters["L1-dcache-load-misses"] == 50231188


def test_perf_counts_the_command_or_a_server() -> None:
    embedded = wrap(["sysbench"], PurePosixPath("/v"))
    assert embedded[-2:] == ["--", "sysbench"]
    assert "-p" not in embedded
    assert "fifo:/v/control,/v/ack" in embedded
    server = wrap(["sysbench"], PurePosixPath("/v"), [12, 13])
    assert server[-4:] == ["-p", "12,13", "--", "sysbench"]


def test_each_event_is_counted_once() -> None:
    assert len(set(EVENTS)) == len(EVENTS)


def test_a_refusal_is_distinguished_from_other_failures() -> None:
    assert "not permitted" in refusal("h", "Consider adjusting /proc/sys/kernel/perf_event_paranoid setting")
    assert "does not work on host h: event syntax error" in refusal("h", "event syntax error: 'x'")


@pytest.mark.tools
def test_this_machine_counts_task_clock(tmp_path: Path) -> None:
    counters = probe(LocalHost("here", PurePosixPath(tmp_path)))
    assert set(counters) == set(EVENTS)
    clock = counters["task-clock"]
    assert clock is not None
    assert clock > 0


@pytest.mark.tools
def test_a_thread_that_ends_while_perf_attaches_is_reported_from_all_else() -> None:
    restless = "import threading\nwhile True:\n    some = [threading.Thread(target=int) for _ in range(9)]\n"
    restless += "    for each in some: each.start()\n    for each in some: each.join()\n"
    with subprocess.Popen([sys.executable, "-c", restless]) as server:
        try:
            time.sleep(0.2)
            argv = ["perf", "stat", "-x", ",", "-e", ",".join(EVENTS), "-p", str(server.pid), "--", "true"]
            for _ in range(400):
                ended = subprocess.run(
                    argv, check=False, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"}, capture_output=True, text=True
                )
                assert (ended.returncode != 0) == missed(ended.stderr.splitlines()), ended.stderr
                if "sys_perf_event_open" in ended.stderr:
                    break
            else:
                pytest.skip("no thread ended at the right moment")
        finally:
            server.kill()
