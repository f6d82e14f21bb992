"""Metrics of a run, per operation. What goes on beside measured queries, and when it is too little."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sample_hunt
from counted import FULL, run
from perfbisect.core.domain.facts import HostFacts, RunFacts, host_differences
from perfbisect.core.domain.metrics import METRICS, background, busiest, counters, find_metric, share_held, unit, value
from perfbisect.errors import UsageError


def test_values_per_operation_have_their_units() -> None:
    one = run()
    assert value(one, "qps") == 20_000
    assert value(one, "cpu/o") == 48.0  # microseconds
    assert value(one, "instructions/o") == 280_000
    assert value(one, "ipc") == 2.0
    assert value(one, "cs/o") == 0.6  # of the processes, not of the whole machine
    assert value(one, "r/o") == 0.005
    assert value(one, "wKB/o") == 0.25
    assert value(one, "latency") == 0.05
    assert value(one, "p95") == 0.09


def test_context_switches_of_the_machine_stand_in_for_those_perf_lacks() -> None:
    assert value(run(counters={"context-switches": None}), "cs/o") == 2.0


@pytest.mark.parametrize("metric", METRICS)
def test_missing_is_none_never_zero(metric: str) -> None:
    empty = run(counters=dict.fromkeys(FULL), system={})
    assert (value(empty, metric) is None) == (metric not in ("qps", "latency", "p95"))


@pytest.mark.parametrize("metric", METRICS)
def test_a_run_without_operations_divides_by_nothing(metric: str) -> None:
    assert value(run(operations=0), metric) in (None, 0.0, 0.05, 0.09, 2.0)


def test_unknown_metric_says_which_exist() -> None:
    with pytest.raises(UsageError, match="speed") as wrong:
        find_metric("speed")
    for name in METRICS:
        assert name in wrong.value.advice


def test_direction_of_metrics() -> None:
    assert {name for name, metric in METRICS.items() if metric.higher_is_better} == {"qps", "ipc", "rate", "background"}


def test_perf_events_of_metrics() -> None:
    assert METRICS["qps"].events == ()
    assert METRICS["cs/o"].events == (), "vmstat counts them where perf does not"
    assert METRICS["cpu/o"].events == ("task-clock",)
    assert METRICS["ipc"].events == ("instructions", "cycles")
    assert METRICS["branch-misses/o"].events == ("branch-misses",)


def test_unit_of_the_number_that_is_shown() -> None:
    assert [unit(name) for name in ("qps", "latency", "p95", "rate", "cpu/o")] == ["QPS", "ms", "QPS", "rate", "QPS"]


def ten_seconds(batch: float = 0.0, **roles: tuple[float, float]) -> RunFacts:
    """Ten seconds, with role → done and due, so many by one transaction of each client."""
    found: dict[str, float | None] = {}
    for role, (done, due) in roles.items():
        found |= counters(role, done, due, due / 10, batch, 1.0, 2.0)
    return replace(sample_hunt.run(0, 0.0), counters=found)


def test_the_role_that_is_furthest_behind_counts() -> None:
    found = background([ten_seconds(query=(5000, 0), insert=(1000, 1000), delete=(900, 1000))])
    assert found
    assert (found.role, found.wanted, found.held, found.sustained) == ("delete", 100.0, 90.0, False)


def test_without_a_rate_nothing_can_be_missed() -> None:
    paceless = ten_seconds(query=(5000, 0), insert=(0, 0))
    assert background([paceless]) is None
    assert share_held(paceless) is None
    assert value(paceless, "background") is None
    assert background([]) is None


@pytest.mark.parametrize(("done", "sustained"), [(989, False), (990, True), (1000, True)])
def test_one_percent_may_be_missing(done: float, sustained: bool) -> None:
    found = background([ten_seconds(insert=(done, 1000))])
    assert found
    assert found.sustained is sustained


@pytest.mark.parametrize(("runs", "sustained"), [
    ([490], True), ([480], True), ([470], False),  # of 500: one, two and three transactions of 10
    ([470, 500], True), ([470, 480], False), ([480, 480, 480], True),
])  # fmt: skip
def test_two_transactions_of_each_run_may_be_cut_off(runs: list[float], sustained: bool) -> None:
    found = background([ten_seconds(10, insert=(done, 500), delete=(500, 500)) for done in runs])
    assert found
    assert (found.role, found.sustained) == ("insert", sustained)


def test_of_many_transactions_one_percent_may_be_missing() -> None:
    levels = [background([ten_seconds(10, insert=(done, 10_000))]) for done in (9_900, 9_890)]
    assert [level and level.sustained for level in levels] == [True, False]


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 10_000)), min_size=1, max_size=6))
def test_runs_count_together(runs: list[tuple[float, int]]) -> None:
    """The share of all that was due, whichever runs it is missing from."""
    facts = [ten_seconds(insert=(share * due, due)) for share, due in runs]
    found = background(facts)
    assert found
    done, due = sum(share * due for share, due in runs), sum(due for _, due in runs)
    assert found.held / found.wanted == pytest.approx(done / due)
    shares = [share_held(one) or 0.0 for one in facts]
    assert min(shares) - 1e-9 <= found.held / found.wanted <= max(shares) + 1e-9


def test_the_busiest_client_counts() -> None:
    shares = [replace(ten_seconds(), counters={"client-busy": share}) for share in (0.2, None, 0.4)]
    assert busiest(shares) == 0.4
    assert busiest([ten_seconds()]) is None


BEFORE = HostFacts("here", "A CPU", 8, 16384, "6.1.0-18", "gcc 12", {"perf": "6.1"}, {"governor": "performance"})


def test_the_same_machine_has_no_differences() -> None:
    assert host_differences(BEFORE, replace(BEFORE)) == ()


def test_each_difference_is_said_with_both_values() -> None:
    after = replace(BEFORE, kernel="6.1.0-22", tools={"perf": "6.1", "git": "2.39"}, settings={"governor": "powersave"})
    assert host_differences(BEFORE, after) == (
        "its kernel was 6.1.0-18 and is 6.1.0-22",
        "its governor was performance and is powersave",
    )
    [memory] = host_differences(BEFORE, replace(BEFORE, memory_mib=8192))
    assert memory == "its memory was 16,384 MiB and is 8,192 MiB"


def test_what_is_not_known_of_one_of_them_is_no_difference() -> None:
    assert host_differences(BEFORE, replace(BEFORE, tools={}, settings={}, compiler="")) == ()


def test_long_values_are_cut() -> None:
    long, longer = (replace(BEFORE, settings={"mitigations": "x" * size}) for size in (500, 600))
    [mitigations] = host_differences(long, longer)
    assert len(mitigations) < 180
