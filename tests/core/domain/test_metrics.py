"""Metrics of a run, per operation."""

import pytest

from counted import FULL, run
from perfbisect.core.domain.metrics import METRICS, find_metric, unit, value
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
