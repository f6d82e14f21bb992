"""The cause that the counters of two builds name."""

import pytest

from counted import FULL, run
from perfbisect.core.domain.causes import Cause, classify
from perfbisect.core.domain.facts import RunFacts


def changed(operations: int, **factors: float) -> RunFacts:
    """A run whose counters per operation are those of ``run()`` times ``factors`` (dashes written as _)."""
    per_operation = {name: total / 200_000 for name, total in FULL.items()}
    counters = {
        name: each * operations * factors.get(name.replace("-", "_"), 1.0) for name, each in per_operation.items()
    }
    return run(operations, counters)


def test_more_instructions() -> None:
    bloated = changed(140_000, instructions=1.42, cycles=1.43, task_clock=1.43)
    explained = classify([run()] * 3, [bloated] * 3)
    assert explained.cause is Cause.INSTRUCTIONS
    assert "×1.42" in explained.sentence
    assert explained.ratios["instructions/o"] == pytest.approx(1.42)


def test_fewer_instructions_per_cycle() -> None:
    missing = changed(140_000, instructions=1.01, cycles=1.43, task_clock=1.43, dTLB_load_misses=6.0)
    explained = classify([run()] * 3, [missing] * 3)
    assert explained.cause is Cause.MEMORY
    assert "dTLB-load-misses/o ×6.00" in explained.sentence


def test_waiting_is_contention_when_context_switches_grow() -> None:
    explained = classify([run()] * 3, [changed(110_000, context_switches=4.0)] * 3)
    assert explained.cause is Cause.WAITING
    assert "contention" in explained.sentence


def test_waiting_for_storage() -> None:
    slow = run(100_000, {**FULL, "task-clock": 4_800.0, "instructions": 28e9, "cycles": 14e9, "context-switches": 6e4},
               {"r/s": 500.0})  # fmt: skip
    explained = classify([run()] * 3, [slow] * 3)
    assert explained.cause is Cause.WAITING
    assert "storage" in explained.sentence


def test_both_at_once_names_the_larger_first() -> None:
    explained = classify([run()], [changed(100_000, instructions=1.5, cycles=1.95, task_clock=2.0)])
    assert explained.cause is Cause.INSTRUCTIONS
    assert "also: the number of instructions per cycle" in explained.sentence


def test_without_instruction_counts_cpu_time_still_tells_computing_from_waiting() -> None:
    few = {"task-clock": 9_600.0, "context-switches": 1e5, "instructions": None, "cycles": None}
    busy = classify([run(counters=few)], [run(100_000, few)])
    assert busy.cause is Cause.UNKNOWN
    assert "×2.00" in busy.sentence
    assert "computing, not waiting" in busy.sentence
    idle = classify([run(counters=few)], [run(100_000, {**few, "task-clock": 4_800.0, "context-switches": 2e5})])
    assert idle.cause is Cause.WAITING


def test_nothing_counted_says_so() -> None:
    explained = classify([run(counters={}, system={})], [run(100_000, {}, {})])
    assert explained.cause is Cause.UNKNOWN
    assert explained.ratios["qps"] == 0.5


def test_no_runs_of_one_side() -> None:
    assert classify([run()], []).cause is Cause.UNKNOWN


def test_the_same_build_twice_is_not_explained() -> None:
    assert classify([run()] * 2, [run()] * 2).cause is Cause.UNKNOWN


def test_an_improvement_reads_the_other_way() -> None:
    explained = classify([changed(140_000, instructions=1.42, cycles=1.43, task_clock=1.43)], [run()])
    assert explained.cause is Cause.INSTRUCTIONS
    assert "fewer instructions per operation" in explained.sentence


def test_more_instructions_at_the_same_speed() -> None:
    """A hunt on instructions/o names a commit that changed nothing else."""
    explained = classify([run()], [changed(200_000, instructions=1.06)])
    assert explained.cause is Cause.INSTRUCTIONS
