"""Counters of runs, runs that are stopped because they are slow, and exact counts of instructions."""

import subprocess
from dataclasses import replace
from operator import itemgetter
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from counted import run as counted_run
from labs import FAST, SLOW, Open, finished, lab_of, measure, runs, skipped, workload
from perfbisect.core.domain.events import ExecutionStarted
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.metrics import METRICS, find_metric, is_exact_count, metric_value, shown_unit, shown_value
from perfbisect.core.domain.orders import PlannedRuns
from perfbisect.core.domain.settings import QuickCommand
from perfbisect.core.explain.profiles import subtract_short_execution
from perfbisect.errors import UsageError
from perfbisect.host.local import LocalHost
from perfbisect.lab.host_lab import EarlierAttempts, HostLab
from perfbisect.lab.measure import counting, perf
from perfbisect.lab.measure.counting import ENOUGH, LONGEST, PERF, Counter
from perfbisect.lab.measure.perf import (
    counted_shares,
    has_target_ended,
    parse_counters,
    refusal_sentence,
    window_means,
    with_vmstat_and_iostat,
)
from perfbisect.lab.measure.visit import SLACK, SlowRuns
from perfbisect.recipes.builder import Builder, Server
from perfbisect.recipes.requested import quick_builder, quick_workload
from perfbisect.recipes.workload import Workload
from program import executable
from repos import Repo

FOLDER = PurePosixPath("/visit")
COMMAND = Workload(name="c", suite="s", driver="d", summary="", group="g", command=["bench", "--n={events}", "{time}"])


@pytest.fixture(params=["perf", pytest.param("valgrind", marks=pytest.mark.slow)])
def by(request: pytest.FixtureRequest, host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The counting method: perf, or valgrind without perf. The test is skipped if the machine lacks the method."""
    if request.param == "valgrind":
        counts_nothing = "#!/bin/sh\necho '<not supported>,,instructions:u,0,100.00,,' >&2\n"
        monkeypatch.setenv("PATH", str(executable(tmp_path / "programs" / "perf", counts_nothing).parent), prepend=":")
    found = counting.counting_method(host)
    return found if found.startswith(request.param) else pytest.skip(f"no counts by {request.param} on this machine")


@pytest.mark.tools
def test_exact_counts_repeat_and_are_proportional_to_the_work(open_lab: Open, by: str) -> None:
    lab = open_lab(
        {"rest": 0}, earlier=EarlierAttempts(events=0 if by == PERF else 200)
    )  # perf is quick, and finds the length itself
    lab.counted = by
    events = measure(lab, PlannedRuns(FAST, 2), PlannedRuns(SLOW, 1))
    first, again, slow = (run for _, run in sorted(finished(events), key=itemgetter(0)))
    one, other, twice = (metric_value(run, "instructions/o") or 0.0 for run in (first, again, slow))
    assert one and abs(one / other - 1) < 1e-4
    assert twice / one == pytest.approx(2, rel=0.05), "the driver's share is small"
    assert first.counted == by
    lengths = [event.operations for event in events if isinstance(event, ExecutionStarted)]
    assert lengths[-4:] == [first.events, 2 * first.events] * 2, "one length for all"
    assert by == PERF or lengths == [200, 400] * 3, "the length of earlier attempts is kept"
    assert first.events == first.operations == slow.operations
    assert is_exact_count(first, "instructions/o") and not is_exact_count(first, "cpu/o")
    assert {name for name in METRICS if metric_value(first, name) is not None} == {"instructions/o"}
    assert (shown_value(first, "instructions/o"), shown_unit("instructions/o")) == (one, "instructions/o")


LOOP = "i=0; while [ $i -lt {events} ]; do i=$((i + 1)); done"


@pytest.mark.tools
def test_command_without_a_useful_length_is_counted_whole_or_skipped(host: LocalHost, git: Repo) -> None:
    """A command without {events} is counted as a whole. A later commit that ignores {events} is skipped."""
    lab = command_lab(host, git, LOOP.replace("{events}", "5000"))
    lab.counted = counting.counting_method(host) or pytest.skip("this machine counts no instructions")
    [run] = runs(measure(lab, PlannedRuns(0, 1)))
    assert (run.operations, run.events, run.counted) == (1, 0, lab.counted)
    assert (metric_value(run, "instructions/o") or 0) > 5000
    later = command_lab(host, git, "echo did 5; : {events}", operations=r"did (\d+)")
    later.counted, later.earlier = lab.counted, EarlierAttempts(events=500)  # an earlier build uses it
    assert "cannot be counted exactly" in skipped(measure(later, PlannedRuns(0, 1))).reason


def command_lab(host: LocalHost, git: Repo, script: str, operations: str = "") -> HostLab:
    builder, sha = quick_builder(("true",), str(git.path)), git.commit()
    slow = r"took (\d+) ms"  # that is not printed, as by a program that is much slower while it is counted
    chosen = quick_workload(QuickCommand(run=f"sh -c '{script}'", operations=operations, cost=slow), builder)
    return lab_of(host, builder, chosen, git.path, (sha,), is_range=False)


def test_counted_run_ends_after_a_number_of_operations() -> None:
    sysbench = counting.with_operations(workload({"rand-seed": 0, "rows": 1}), 80)
    reports = {"time": 0, "report-interval": 0, "percentile": 0, "histogram": False}
    assert (sysbench.warmup, sysbench.args) == (0, {"rand-seed": 1, "rows": 1, "events": 80} | reports)
    assert counting.with_operations(COMMAND, 80).args == {"events": 80, "time": 0}
    assert counting.can_set_length(COMMAND) and counting.can_set_length(workload())
    assert not counting.can_set_length(changed(COMMAND, command=["bench", "{{events}}"]))
    embedded = Builder(name="demo", summary="", driver="demo")
    server = Server(initialise=["a"], start=["b"], ready=["c"], stop=["d"])
    assert counting.counting_obstacle(embedded, workload()) == ""
    assert "4 threads" in counting.counting_obstacle(embedded, changed(workload(), threads=4))
    assert "is a server" in counting.counting_obstacle(changed(embedded, server=server), workload())


@given(start=st.floats(0, 1e10), each=st.floats(1, 1e12))
def test_chosen_length_executes_about_enough_instructions(start: float, each: float) -> None:
    lengths: dict[int, float] = {}
    while events := counting.next_length(lengths):
        lengths[events] = start + events * each
    chosen = counting.chosen_length(lengths)
    assert chosen == 1 or chosen * each == pytest.approx(ENOUGH, rel=0.6)
    assert max(lengths) * each < 20 * ENOUGH or max(lengths) == counting.STEP


def test_command_that_ignores_its_length_is_reported() -> None:
    lengths: dict[int, float] = {}
    with pytest.raises(UsageError, match=r"as many instructions with \{events\} = 268,435,456 as with \{events\} = 1"):
        while events := counting.next_length(lengths):
            lengths[events] = 5e6
    assert max(lengths) == LONGEST


def test_counts_of_valgrind_and_perf_are_read() -> None:
    """valgrind counts in all processes, and perf counts in user space."""
    counter, functions = Counter("valgrind-3.19.0", ("setarch", "-R")), Counter("valgrind-3.19.0", by_function=True)
    for of, text, count in (
        (counter, "summary: 1200\nsummary: 34\n", 1234),
        (counter, "", None),
        (counter, "summary: many\n", None),
        (functions, "summary: 12\n", 12),
        (Counter(PERF), "812345,,instructions:u,1234,100.00,,\n", 812345),
        (Counter(PERF), "<not supported>,,instructions:u,0,100.00,,\n", None),
    ):
        assert of.read_counters(text) == {"instructions": count}
    assert counter.command_prefix(FOLDER)[:2] == ["setarch", "-R"]


CALLGRIND = Path(__file__).with_name("callgrind.txt").read_text()  # of a program at {binary}


@pytest.mark.tools
def test_output_of_callgrind_is_summed_by_function(host: LocalHost, tmp_path: Path) -> None:
    """The levels of a recursion are one function. Inclusive costs of calls and malformed lines are left out."""
    (tmp_path / "bench").write_text("no binary")
    (tmp_path / "counters.1").write_text(CALLGRIND.replace("{binary}", str(tmp_path / "bench")))
    (tmp_path / "counters.2").write_text("")
    text = counting.read_function_counts(host, PurePosixPath(tmp_path))
    stacks, calls = subtract_short_execution([], text.splitlines())
    walk, main = "walk(tree<int>*) (bench)", "main (bench)"
    assert stacks == {f"bench;{walk}": 75, f"bench;{main}": 1, "bench;[libc.so.6]": 77, "bench;[unknown]": 4}
    made = {pair: number for pair, number in calls.items() if number}
    assert made == {f"{walk};{walk}": 3, f"{walk};[libc.so.6]": 2, f"{main};{walk}": 1}


def test_difference_of_two_counts_excludes_the_start_up() -> None:
    short, long = (counted_run(operations=n, counters={"instructions": 1000.0 + 3 * n}) for n in (500, 1000))
    both = counting.count_difference(short, long)
    assert metric_value(both, "instructions/o") == 3
    assert both.seconds == short.seconds + long.seconds
    with pytest.raises(UsageError, match="cannot be counted exactly"):
        counting.count_difference(short, short)


OUTPUTS = Path(__file__).parents[2] / "outputs"


def test_counters_are_scaled_by_perf_and_missing_if_not_counted() -> None:
    """Modifiers such as `:u` are not part of the name of a counter."""
    nothing = {"LLC-load-misses": None, "iTLB-load-misses": None}
    counted = {
        "intel": {"instructions": 48213990716, "task-clock": 10001.92, "cpu-migrations": 0},
        "amd": {"cycles": 12950331870, "page-faults": 12, "context-switches": 0, **nothing},
        "virtual": {"instructions": None, "context-switches": 11},
        "intel-hybrid-atom": {"instructions": 508381, "cycles": 775564, "page-faults": 91},
        "amd-multiplexed": {"L1-icache-load-misses": None},
    }
    shares_of = {"intel-hybrid-atom": {"cycles": 0.42}, "amd-multiplexed": {"cycles": 0.92, "L1-dcache-loads": 0.07}}
    for name, expected in counted.items():
        text = (OUTPUTS / f"perf-{name}.csv").read_text()
        assert parse_counters(text).items() >= expected.items(), name
        assert len(parse_counters(text)) == 18 or name != "intel"
        assert name not in shares_of or counted_shares(text) == shares_of[name]


def test_counters_of_two_core_types_are_weighted_by_time() -> None:
    """perf extrapolates the count of each core type to the whole run, so the sum would be almost 50 % too large."""
    text = (OUTPUTS / "perf-intel-hybrid.csv").read_text()
    small, large = 11008170, 749710594
    weighted = (2954171974 * small + 6648162165 * large) / (small + large)
    assert parse_counters(text)["instructions"] == pytest.approx(weighted)
    assert weighted == pytest.approx(2954171974 * 0.0145 + 6648162165 * 0.9855, rel=1e-3)
    assert counted_shares(text)["cycles"] == 0.99, "as perf has rounded it"


def test_errors_of_perf_are_distinguished() -> None:
    """A refusal is distinguished from other failures, and so is the end of a process or thread before perf attaches."""
    assert "not permitted" in refusal_sentence("h", "Consider adjusting /proc/sys/kernel/perf_event_paranoid setting")
    assert "does not work on host h: event syntax error" in refusal_sentence("h", "event syntax error: 'x'")
    opened = "The sys_perf_event_open() syscall returned with {} for event (cycles)."
    for line, is_missed in (
        ("Problems finding threads of monitor", True),
        ("Couldn't create thread/CPU maps: No such process", True),
        (opened.format("3 (No such process)"), True),
        (opened.format("13 (Permission denied)"), False),
    ):
        assert has_target_ended(["Error:", line]) is is_missed


def rows(name: str) -> list[perf.Row]:
    return perf.vmstat_or_iostat_rows(name[:6], (OUTPUTS / name).read_text())


def test_rows_of_vmstat_and_iostat_are_read() -> None:
    """Repeated headers, the first row and a broken row are left out; columns are found by name."""
    assert [row["cs"] for row in rows("vmstat.txt")] == [794, 600, 892]
    (row,) = rows("vmstat-new.txt")
    assert (row["cs"], row["us"], row["id"]) == (1502, 49, 49)
    for name in ("iostat-10.txt", "iostat-11.txt", "iostat-12.txt"):
        first, *others = rows(name)
        assert first == {"r/s": 310.0, "w/s": 44.0, "rkB/s": 4960.0, "wkB/s": 1232.0, "%util": 7.2}, name
    assert [row["r/s"] for row in others] == [100.0]


FORGED = ("a b c\n", "\f\f1 2 3\f\n", "nan inf -1e400\n", "1 2 3\n1 2 3\n1 2 3\n", "9" * 400 + " 1 1\n", "\0\0\0", "")


def test_only_numbers_are_read_from_files_that_a_program_may_write() -> None:
    assert perf.read_stamps("nan 1 2\n1 2 3 4\n-1 2 3\n1.5 2 3\n") == (perf.ClockStamp(1.5, 2, 3),)
    counters = parse_counters("nan,,instructions,1,1\ninf,,cycles,1,1\n-5,,branches,1,1\n7,,task-clock,1,1\n")
    assert counters == {"instructions": None, "cycles": None, "branches": None, "task-clock": 7}
    report = " r  b us\n 1 0 5\n nan 0 5\n inf 0 5\n 2 0 5"
    assert perf.vmstat_or_iostat_rows("vmstat", report) == [{"r": 2, "b": 0, "us": 5}]
    for text in FORGED:
        assert len(perf.read_stamps(text)) <= 2
        assert not parse_counters(text)
        assert not perf.vmstat_or_iostat_rows("vmstat", text) + perf.vmstat_or_iostat_rows("iostat", text)


def test_run_is_lost_only_by_a_signal_that_may_come_from_outside() -> None:
    """A crash of sysbench itself is a failure of the commit."""
    for line in ("sysbench: Killed", "sh: Terminated", "sysbench: Segmentation fault", "x sh: Killed"):
        assert perf.is_killed(["a line", line]) is (line in ("sysbench: Killed", "sh: Terminated"))


def test_means_are_over_the_rows_within_the_window() -> None:
    rows = [{"cs": float(second)} for second in range(10)]
    assert window_means(rows, 2.2, 6.2) == {"cs": pytest.approx(3.5)}, "seconds 2 to 5"
    assert window_means(rows, 0.0, 1.0) == {"cs": 0.0}
    assert window_means([], 0.0, 9.0) == {}


@pytest.mark.tools
def test_vmstat_runs_as_long_as_the_command_and_keeps_its_status(tmp_path: Path) -> None:
    until = f"until [ $(cat {tmp_path}/vmstat | wc -l) -ge 4 ]; do sleep 0.1; done; exit 3"  # headers, since boot, 1 s
    argv = with_vmstat_and_iostat(["sh", "-c", until], PurePosixPath(tmp_path), "")
    assert subprocess.run(argv, check=False, timeout=60).returncode == 3
    assert perf.vmstat_or_iostat_rows("vmstat", (tmp_path / "vmstat").read_text())
    began, ended = perf.read_stamps((tmp_path / "time").read_text())
    assert began.uptime_before <= began.uptime_after <= ended.uptime_before <= ended.uptime_after
    assert ended.at - began.at >= 0.9


def run_of(commit: str, seconds: float, operations: int = 1) -> RunFacts:
    latency = {"avg": 1000 * seconds / operations}
    return RunFacts(commit, "key", "visit", "local", 0.0, seconds, operations, latency, (), {}, {})


def test_no_run_is_stopped_without_the_option_or_a_run_of_good() -> None:
    off, slow = SlowRuns(), SlowRuns(5.0, "good")
    off.add_runs_of_good([run_of("", 1.0)])
    slow.add_runs_of_good([run_of("bad", 1.0)])
    assert off.stop_seconds("bad", 0.0) is slow.stop_seconds("bad", 0.0) is None
    slow.add_runs_of_good([run_of("good", 1.0)])
    assert (slow.stop_seconds("bad", 0.0), slow.stop_seconds("good", 0.0)) == (6, None)


@given(st.floats(1.01, 100), st.lists(st.floats(0.001, 1000), min_size=1, max_size=5), st.floats(0, 100))
def test_stopped_run_has_taken_at_least_the_reported_time(times: float, seconds: list[float], warmup: float) -> None:
    slow = SlowRuns(times, "good")
    slow.add_runs_of_good(run_of("good", each) for each in seconds)
    limit = slow.stop_seconds("bad", warmup)
    assert limit is not None
    assert limit == int(limit), "the host counts whole seconds"
    assert limit - SLACK >= times * warmup + slow.stopped_run_facts(run_of("bad", 0.0)).seconds - 1e-9


def test_stopped_run_gives_bounds_of_qps_and_latency() -> None:
    slow = SlowRuns(5.0, "good")
    slow.add_runs_of_good(run_of("good", seconds, 100) for seconds in (2.0, 2.2, 1.9))
    stopped = slow.stopped_run_facts(run_of("bad", 0.0))
    assert stopped.slower_than == 5.0
    found = {name: metric_value(stopped, name) for name in ("qps", "latency", "p95", "cpu/o")}
    assert found == {"qps": pytest.approx(10.0), "latency": pytest.approx(100.0), "p95": None, "cpu/o": None}
    slow.add_runs_of_good([replace(stopped, commit="good")])
    assert len(slow.runs_of_good) == 3


def test_stopped_run_gives_bounds_of_some_metrics_only() -> None:
    bounded = {("qps", True), ("qps", False), ("latency", True)}
    for name in ("qps", "latency", "p95", "rate", "cost", "cpu/o", "instructions/o", "ipc"):
        for command in (True, False) if name in ("qps", "latency") else (True,):
            assert find_metric(name).is_bounded_by_stopped_run(command=command) is ((name, command) in bounded)
