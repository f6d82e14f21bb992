"""When a run is stopped, and its facts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.metrics import find_metric, value
from perfbisect.lab.measure.visit import SLACK, SlowRuns


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
