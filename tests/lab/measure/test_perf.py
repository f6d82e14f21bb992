"""What is counted during a run, and which runs are stopped."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.metrics import find_metric, value
from perfbisect.host.local import LocalHost
from perfbisect.lab.measure import perf
from perfbisect.lab.measure.perf import (
    EVENTS,
    beside,
    means,
    missed,
    parse,
    parse_iostat,
    parse_vmstat,
    probe,
    refusal,
    shares,
    wrap,
)
from perfbisect.lab.measure.visit import SLACK, SlowRuns

OUTPUTS = Path(__file__).parents[2] / "outputs"


def read(name: str) -> dict[str, float | None]:
    return parse((OUTPUTS / name).read_text())


def test_counters_are_taken_as_perf_scaled_them_and_what_is_not_counted_is_missing() -> None:
    intel, amd, virtual = (read(f"perf-{name}.csv") for name in ("intel", "amd", "virtual"))
    assert (intel["instructions"], intel["task-clock"], intel["cpu-migrations"]) == (48213990716, 10001.92, 0)
    assert len(intel) == 18
    assert (amd["cycles"], amd["page-faults"]) == (12950331870, 12), "modifiers are not part of the name"
    assert (amd["LLC-load-misses"], amd["iTLB-load-misses"], amd["context-switches"]) == (None, None, 0)
    assert (virtual["instructions"], virtual["context-switches"]) == (None, 11)


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


def test_a_refusal_is_distinguished_from_other_failures() -> None:
    assert "not permitted" in refusal("h", "Consider adjusting /proc/sys/kernel/perf_event_paranoid setting")
    assert "does not work on host h: event syntax error" in refusal("h", "event syntax error: 'x'")


@pytest.mark.tools
def test_this_machine_counts_task_clock(tmp_path: Path) -> None:
    counters = probe(LocalHost("here", PurePosixPath(tmp_path)))
    assert set(counters) == set(EVENTS)
    assert len(set(EVENTS)) == len(EVENTS)
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


def lines(name: str) -> list[str]:
    return (OUTPUTS / name).read_text().splitlines()


def test_rows_of_vmstat_and_of_every_iostat() -> None:
    """Repeated headers, the first row and a broken one are left out; columns are found by name."""
    rows = parse_vmstat(lines("vmstat.txt"))
    assert [row["cs"] for row in rows] == [794, 600, 892]
    assert rows[0]["us"] == 95
    (row,) = parse_vmstat(lines("vmstat-new.txt"))
    assert (row["cs"], row["us"], row["id"]) == (1502, 49, 49)
    for name in ("iostat-10.txt", "iostat-11.txt", "iostat-12.txt"):
        first = parse_iostat(lines(name))[0]
        assert first == {"r/s": 310.0, "w/s": 44.0, "rkB/s": 4960.0, "wkB/s": 1232.0, "%util": 7.2}, name
    assert [row["r/s"] for row in parse_iostat(lines("iostat-12.txt"))] == [310.0, 100.0]


FORGED = ("a b c\n", "\f\f1 2 3\f\n", "nan inf -1e400\n", "1 2 3\n1 2 3\n1 2 3\n", "9" * 400 + " 1 1\n", "\0\0\0", "")


def test_only_numbers_are_read_of_what_a_program_may_have_written() -> None:
    assert perf.read_stamps("nan 1 2\n1 2 3 4\n-1 2 3\n1.5 2 3\n") == (perf.Stamp(1.5, 2, 3),)
    assert parse("nan,,instructions,1,1\ninf,,cycles,1,1\n-5,,branches,1,1\n7,,task-clock,1,1\n") == {
        "instructions": None, "cycles": None, "branches": None, "task-clock": 7,
    }  # fmt: skip
    assert parse_vmstat([" r  b us", " 1 0 5", " nan 0 5", " inf 0 5", " 2 0 5"]) == [{"r": 2, "b": 0, "us": 5}]
    for text in FORGED:
        assert len(perf.read_stamps(text)) <= 2
        assert not parse(text)
        assert not parse_vmstat(text.splitlines()) + parse_iostat(text.splitlines())


def test_only_signals_that_may_come_from_outside_lose_a_run() -> None:
    """sysbench that crashes by itself is the commit's fault."""
    for line in ("sysbench: Killed", "sh: Terminated", "sysbench: Segmentation fault", "x sh: Killed"):
        assert perf.killed(["a line", line]) is (line in ("sysbench: Killed", "sh: Terminated"))


def test_only_the_window_counts() -> None:
    rows = [{"cs": float(second)} for second in range(10)]
    assert means(rows, 2.2, 6.2) == {"cs": pytest.approx(3.5)}, "seconds 2 to 5"
    assert means(rows, 0.0, 1.0) == {"cs": 0.0}
    assert means([], 0.0, 9.0) == {}


@pytest.mark.tools
def test_vmstat_runs_as_long_as_the_command_and_the_status_is_the_commands(tmp_path: Path) -> None:
    until = f"until [ $(cat {tmp_path}/vmstat | wc -l) -ge 4 ]; do sleep 0.1; done; exit 3"  # headers, since the boot, a second
    argv = beside(["sh", "-c", until], PurePosixPath(tmp_path), "")
    assert subprocess.run(argv, check=False, timeout=60).returncode == 3
    assert parse_vmstat((tmp_path / "vmstat").read_text().splitlines())
    began, ended = perf.read_stamps((tmp_path / "time").read_text())
    assert ended.at - began.at >= 0.9
    assert began.before <= began.after <= ended.before <= ended.after
    assert not (tmp_path / "iostat").exists()


def run(commit: str, seconds: float, operations: int = 1) -> RunFacts:
    return RunFacts(
        commit, "key", "visit", "local", 0.0, seconds, operations, {"avg": 1000 * seconds / operations}, (), {}, {}
    )


def test_nothing_is_stopped_without_the_option_or_a_run_of_good_and_never_good_itself() -> None:
    off, slow = SlowRuns(), SlowRuns(5.0, "good")
    off.take([run("", 1.0)])
    assert off.limit("bad", 0.0) is None
    slow.take([run("bad", 1.0)])
    assert slow.limit("bad", 0.0) is None
    slow.take([run("good", 1.0)])
    assert slow.limit("bad", 0.0) == 6
    assert slow.limit("good", 0.0) is None


@given(st.floats(1.01, 100), st.lists(st.floats(0.001, 1000), min_size=1, max_size=5), st.floats(0, 100))
def test_a_run_that_is_stopped_has_taken_at_least_that_long(times: float, seconds: list[float], warmup: float) -> None:
    slow = SlowRuns(times, "good")
    slow.take(run("good", each) for each in seconds)
    limit = slow.limit("bad", warmup)
    assert limit is not None
    assert limit == int(limit), "the host counts whole seconds"
    assert limit - SLACK >= times * warmup + slow.stopped(run("bad", 0.0)).seconds - 1e-9


def test_a_stopped_run_is_a_bound_of_qps_and_latency() -> None:
    slow = SlowRuns(5.0, "good")
    slow.take([run("good", 2.0, 100), run("good", 2.2, 100), run("good", 1.9, 100)])
    stopped = slow.stopped(run("bad", 0.0))
    assert stopped.slower_than == 5.0
    assert value(stopped, "qps") == pytest.approx(10.0)
    assert value(stopped, "latency") == pytest.approx(100.0)
    assert value(stopped, "p95") is value(stopped, "cpu/o") is None
    slow.take([replace(stopped, commit="good")])
    assert len(slow.finished) == 3


@pytest.mark.parametrize(
    ("metric", "command", "bounded"),
    [("qps", True, True), ("qps", False, True), ("latency", True, True), ("latency", False, False)]
    + [(name, True, False) for name in ("p95", "rate", "cost", "cpu/o", "instructions/o", "ipc")],
)
def test_which_metrics_are_bounded(metric: str, command: bool, bounded: bool) -> None:
    assert find_metric(metric).bounded(command=command) is bounded
