"""Counters per operation, and the cause they point to; figures like those recorded on real hosts."""

from collections.abc import Mapping

import pytest

from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.metrics import COMPARED, METRICS, Cause, check_metric, classify, higher_is_better, value
from perfbisect.errors import UsageError

FULL = {
    "instructions": 56e9,
    "cycles": 28e9,
    "task-clock": 9_600.0,
    "context-switches": 120_000.0,
    "dTLB-load-misses": 4e6,
    "L1-dcache-load-misses": 5e8,
}


def run(
    operations: int = 200_000,
    counters: Mapping[str, float | None] | None = None,
    system: Mapping[str, float | None] | None = None,
) -> RunFacts:
    """A run of ten seconds."""
    return RunFacts(
        commit="c" * 40,
        build_key="k",
        visit="v",
        host="local",
        started=0.0,
        seconds=10.0,
        operations=operations,
        latency={"avg": 0.05, "p95": 0.09, "p99": None},
        samples=(),
        counters=FULL if counters is None else counters,
        system={"cs": 40_000.0, "r/s": 100.0, "wkB/s": 5_000.0} if system is None else system,
    )


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
        check_metric("speed")
    for name in METRICS:
        assert name in wrong.value.advice


def test_compared_metrics_exist() -> None:
    assert set(COMPARED) <= set(METRICS)


def test_direction_of_metrics() -> None:
    assert {name for name in METRICS if higher_is_better(name)} == {"qps", "ipc", "rate"}


def changed(operations: int, **factors: float) -> RunFacts:
    """A run whose counters per operation are those of ``run()`` times ``factors`` (dashes written as _)."""
    per_operation = {name: total / 200_000 for name, total in FULL.items()}
    counters = {
        name: each * operations * factors.get(name.replace("-", "_"), 1.0) for name, each in per_operation.items()
    }
    return run(operations, counters)


def test_more_instructions() -> None:
    bloated = changed(140_000, instructions=1.42, cycles=1.43, task_clock=1.43)
    said = classify([run()] * 3, [bloated] * 3)
    assert said.cause is Cause.INSTRUCTIONS
    assert "×1.42" in said.sentence
    assert said.ratios["instructions/o"] == pytest.approx(1.42)


def test_fewer_instructions_per_cycle() -> None:
    missing = changed(140_000, instructions=1.01, cycles=1.43, task_clock=1.43, dTLB_load_misses=6.0)
    said = classify([run()] * 3, [missing] * 3)
    assert said.cause is Cause.MEMORY
    assert "dTLB-load-misses/o ×6.00" in said.sentence


def test_waiting_is_contention_when_context_switches_grow() -> None:
    said = classify([run()] * 3, [changed(110_000, context_switches=4.0)] * 3)
    assert said.cause is Cause.WAITING
    assert "contention" in said.sentence


def test_waiting_for_storage() -> None:
    slow = run(100_000, {**FULL, "task-clock": 4_800.0, "instructions": 28e9, "cycles": 14e9, "context-switches": 6e4},
               {"r/s": 500.0})  # fmt: skip
    said = classify([run()] * 3, [slow] * 3)
    assert said.cause is Cause.WAITING
    assert "storage" in said.sentence


def test_both_at_once_names_the_larger_first() -> None:
    said = classify([run()], [changed(100_000, instructions=1.5, cycles=1.95, task_clock=2.0)])
    assert said.cause is Cause.INSTRUCTIONS
    assert "also: the number of instructions per cycle" in said.sentence


def test_without_instruction_counts_cpu_time_still_tells_computing_from_waiting() -> None:
    few = {"task-clock": 9_600.0, "context-switches": 1e5, "instructions": None, "cycles": None}
    busy = classify([run(counters=few)], [run(100_000, few)])
    assert busy.cause is Cause.UNKNOWN
    assert "×2.00" in busy.sentence
    assert "computing, not waiting" in busy.sentence
    idle = classify([run(counters=few)], [run(100_000, {**few, "task-clock": 4_800.0, "context-switches": 2e5})])
    assert idle.cause is Cause.WAITING


def test_nothing_counted_says_so() -> None:
    said = classify([run(counters={}, system={})], [run(100_000, {}, {})])
    assert said.cause is Cause.UNKNOWN
    assert said.ratios["qps"] == 0.5


def test_no_runs_of_one_side() -> None:
    assert classify([run()], []).cause is Cause.UNKNOWN


def test_the_same_build_twice_is_not_explained() -> None:
    assert classify([run()] * 2, [run()] * 2).cause is Cause.UNKNOWN


def test_an_improvement_reads_the_other_way() -> None:
    said = classify([changed(140_000, instructions=1.42, cycles=1.43, task_clock=1.43)], [run()])
    assert said.cause is Cause.INSTRUCTIONS
    assert "fewer instructions per operation" in said.sentence


def test_more_instructions_at_the_same_speed() -> None:
    """A hunt on instructions/o names a commit that changed nothing else."""
    said = classify([run()], [changed(200_000, instructions=1.06)])
    assert said.cause is Cause.INSTRUCTIONS
