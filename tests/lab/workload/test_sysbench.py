from pathlib import Path

import pytest

from perfbisect.errors import UsageError
from perfbisect.lab.workload.sysbench import command, complaint, parse, prepare_command, progress
from perfbisect.recipes.workload import Option, Workload

OUTPUTS = Path(__file__).parents[2] / "outputs"


def workload(
    time: float = 10.0, args: dict[str, Option] | None = None, prepare_args: dict[str, Option] | None = None
) -> Workload:
    return Workload(
        name="w", summary="", group="point", threads=2, time=time, args=args or {}, prepare_args=prepare_args or {}
    )


def test_every_run_draws_the_same_uniform_numbers() -> None:
    argv = command(workload(), Path("/s/point.lua"), {"db-driver": "pgsql"})
    assert argv[:2] == ["sysbench", "/s/point.lua"]
    assert argv[-1] == "run"
    assert {"--rand-type=uniform", "--rand-seed=1", "--events=0", "--threads=2", "--time=10"} <= set(argv)
    assert {"--report-interval=1", "--percentile=95", "--db-driver=pgsql"} <= set(argv)


def test_a_workload_has_the_last_word() -> None:
    argv = command(workload(args={"rand-type": "zipfian", "secondary": True}), Path("x.lua"))
    assert "--rand-type=zipfian" in argv
    assert "--rand-type=uniform" not in argv
    assert "--secondary=on" in argv


def test_prepare_has_its_own_arguments() -> None:
    argv = prepare_command(workload(args={"batch": 5}, prepare_args={"rows": 7}), Path("x.lua"))
    assert argv[-1] == "prepare"
    assert "--rows=7" in argv
    assert "--batch=5" not in argv


@pytest.mark.parametrize("time", [0.5, 1.5])
def test_sysbench_counts_whole_seconds(time: float) -> None:
    with pytest.raises(UsageError, match=rf"time = {time}.*whole seconds"):
        command(workload(time=time), Path("x.lua"))


def test_progress_of_both_forms() -> None:
    event = "[ 2s ] thds: 1 eps: 653474.15 lat (ms,95%): 0.00"
    sql = "[ 3s ] thds: 2 tps: 2037.62 qps: 8152.48 (r/w/o: 1/2/3) lat (ms,95%): 4.33 err/s: 0.00 reconn/s: 0.00"
    assert progress(event, "event") == (2.0, 653474.15)
    assert progress(sql, "event") == (3.0, 2037.62)
    assert progress(sql, "query") == (3.0, 8152.48)
    assert progress("Threads started!", "event") is None
    for odd in ("eps: 1.2.3", f"eps: {'9' * 5_000}", "tps: . qps: ."):
        assert progress(f"[ 1s ] thds: 1 {odd}", "event") is None
    assert progress("[ 1..2s ] thds: 1 eps: 5", "event") is None


def test_output_of_a_script_of_ours() -> None:
    outcome = parse((OUTPUTS / "sysbench-event.txt").read_text().splitlines(), "event")
    assert outcome.opened is not None
    assert outcome.seconds == pytest.approx(2.0, abs=0.001), "the window, not the total time of 2.0019 s"
    assert outcome.seconds != 2.0019
    assert outcome.operations == 1312814
    first, last = outcome.samples
    assert first == 665019.52
    assert last == pytest.approx(1312814 - 665019.52, rel=1e-4), "not reported by sysbench, and inferred"
    assert outcome.latency["avg"] == pytest.approx(1823.01 / 1312814), "not rounded to 0.00"
    assert outcome.latency["max"] == 4.90
    assert outcome.latency["p95"] and outcome.latency["p99"]


def test_output_of_a_server_counts_queries_or_events() -> None:
    lines = (OUTPUTS / "sysbench-sql.txt").read_text().splitlines()
    events, queries = parse(lines, "event"), parse(lines, "query")
    assert (events.operations, queries.operations) == (7486, 29944)
    assert (events.seconds, events.opened) == (3.0158, None)
    assert events.samples == (2688.27, 2756.04, 2037.62)
    assert queries.samples == (10757.07, 11023.17, 8152.48)
    assert events.latency["p95"] == pytest.approx(3.96, abs=0.005), "the histogram agrees with sysbench's percentile"
    p99 = events.latency["p99"]
    assert p99 is not None
    assert 3.96 < p99 < 14.36


@pytest.mark.parametrize(
    ("lines", "operation", "sentence"),
    [
        ((OUTPUTS / "sysbench-event.txt").read_text().splitlines(), "query", "no queries"),
        (["[ 1s ] thds: 1 eps: 10.00 lat (ms,95%): 0.00"], "event", "without its statistics"),
        (["    total time:          1.0s", "    total number of events:     0"], "event", "not one operation"),
    ],
)
def test_what_is_no_result(lines: list[str], operation: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse(lines, operation)


def test_odd_totals_are_no_result() -> None:
    for number in ("9" * 400, "9" * 5_000, "1.2.3", "-1", "nan", "0"):
        lines = ["General statistics:", "    total time:   10.0s", f"    total number of events:   {number}"]
        with pytest.raises(ValueError, match=r"sysbench ended without its statistics|not one operation"):
            parse([*lines, f"  1.0 |****  {number}"], "event")


@pytest.mark.parametrize(
    ("output", "status", "sentence"),
    [
        ((OUTPUTS / "sysbench-sql.txt").read_text(), 0, ""),
        ("x\nFATAL: `thread_init' function failed: w.lua:7: no library\nFATAL: more", 1, "`thread_init' function"),
        ("sysbench: Segmentation fault", 0, "sysbench crashed: Segmentation fault"),
        ("", 139, "signal 11"),
        ("", 255, "sysbench ended with status 255"),
        ("", 124, "did not end in 66 s"),
        ("(last message repeated)\nerror: no such option", 1, "no such option"),
        ("", 3, "status 3"),
    ],
)
def test_complaints(output: str, status: int, sentence: str) -> None:
    said = complaint(output.splitlines(), status, 66.0)
    assert sentence in said and bool(sentence) == bool(said)


ROLES = """\
perfbisect window: 1795447055.237551 3.001123
    total time: 3.0011s
    total number of events: 11148
    min: 0.023
    avg: 0.2680
    max: 32.093
0.025000 | 11000
4.700000 | 148
perfbisect role: query 11148 0 0 0 4.7000 32.0935
perfbisect role: insert 2900 3000 1000.000 100 25.0584 25.0584
perfbisect client: 196.541 0.0602
"""


def test_threads_of_several_roles() -> None:
    """What is measured is the first role; the others, and what the client costs, are counters."""
    found = parse(ROLES.splitlines(), "event")
    assert (found.operations, found.seconds) == (11148, 3.001123)
    assert found.latency == {"min": 0.023, "avg": 0.268, "p95": 0.025, "p99": 4.7, "max": 32.093}
    assert found.counters["query-done"] == 11148
    assert "query-due" not in found.counters, "nothing paces it"
    assert (found.counters["insert-done"], found.counters["insert-due"]) == (2900, 3000)
    assert (found.counters["insert-rate"], found.counters["insert-batch"]) == (1000, 100)
    assert (found.counters["insert-p99"], found.counters["client-cpu"], found.counters["client-busy"]) == (
        25.0584, 196.541, 0.0602,
    )  # fmt: skip
