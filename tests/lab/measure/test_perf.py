import subprocess
import sys
import time
from pathlib import Path, PurePosixPath

import pytest

from perfbisect.host.local import LocalHost
from perfbisect.lab.measure.perf import EVENTS, missed, parse, probe, refusal, shares, wrap

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


def test_two_kinds_of_cores_are_weighted_by_the_time_on_each() -> None:
    """perf extrapolates for each kind as if all had run there: added, this would be half as many instructions again."""
    counters = read("perf-intel-hybrid.csv")
    small, large = 11008170, 749710594
    assert counters["instructions"] == pytest.approx((2954171974 * small + 6648162165 * large) / (small + large))
    assert counters["instructions"] == pytest.approx(2954171974 * 0.0145 + 6648162165 * 0.9855, rel=1e-3)
    assert shares((OUTPUTS / "perf-intel-hybrid.csv").read_text())["cycles"] == 0.99, "as perf has rounded it"


def test_a_kind_of_cores_on_which_nothing_ran_counts_nothing() -> None:
    text = (OUTPUTS / "perf-intel-hybrid-atom.csv").read_text()
    counters = parse(text)
    assert (counters["instructions"], counters["cycles"], counters["page-faults"]) == (508381, 775564, 91)
    assert shares(text) == {"cycles": 0.42}


def test_the_share_of_the_time_is_kept_where_there_are_more_events_than_counters() -> None:
    text = (OUTPUTS / "perf-amd-multiplexed.csv").read_text()
    assert shares(text) == {"cycles": 0.92, "L1-dcache-loads": 0.07}
    assert parse(text)["L1-icache-load-misses"] is None


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
