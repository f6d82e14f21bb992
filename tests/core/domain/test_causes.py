"""The cause that the counters of two builds name."""

from dataclasses import replace

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


BLOATED = changed(140_000, instructions=1.42, cycles=1.43, task_clock=1.43)
MISSING = changed(140_000, instructions=1.01, cycles=1.43, task_clock=1.43, dTLB_load_misses=6.0)
FROM_STORAGE = {**FULL, "task-clock": 4_800.0, "instructions": 28e9, "cycles": 14e9, "context-switches": 6e4}
BOTH = changed(100_000, instructions=1.5, cycles=1.95, task_clock=2.0)


@pytest.mark.parametrize(
    ("parent", "culprit", "cause", "part"),
    [
        pytest.param([run()] * 3, [BLOATED] * 3, Cause.INSTRUCTIONS, "×1.42", id="more instructions"),
        pytest.param([run()] * 3, [MISSING] * 3, Cause.MEMORY, "dTLB-load-misses/o ×6.00", id="slower memory"),
        pytest.param([run()] * 3, [changed(110_000, context_switches=4.0)] * 3, Cause.WAITING, "contention", id="locks"),
        pytest.param(
            [run()] * 3, [run(100_000, FROM_STORAGE, {"r/s": 500.0})] * 3, Cause.WAITING, "storage", id="storage"
        ),
        pytest.param([run()], [BOTH], Cause.INSTRUCTIONS, "also: the number of instructions per cycle", id="both"),
        pytest.param([BLOATED], [run()], Cause.INSTRUCTIONS, "fewer instructions per operation", id="an improvement"),
        # a hunt on instructions/o names a commit that changed nothing else
        pytest.param([run()], [changed(200_000, instructions=1.06)], Cause.INSTRUCTIONS, "×1.06", id="at the same speed"),
        pytest.param([run()], [], Cause.UNKNOWN, "no runs of both builds", id="no runs of one side"),
        pytest.param([run()] * 2, [run()] * 2, Cause.UNKNOWN, "does not differ enough", id="the same build twice"),
    ],
)  # fmt: skip
def test_the_cause_and_its_evidence(parent: list[RunFacts], culprit: list[RunFacts], cause: Cause, part: str) -> None:
    explained = classify(parent, culprit)
    assert explained.cause is cause
    assert part in explained.sentence


def test_ratios_are_of_the_culprit_to_its_parent() -> None:
    assert classify([run()], [BLOATED]).ratios["instructions/o"] == pytest.approx(1.42)


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (1.14, "It executes more instructions per operation (code bloat): ×1.14."),
        (1.00213, "It executes more instructions per operation (code bloat): ×1.0021."),
        (0.5, "It executes fewer instructions per operation: ×0.50."),
    ],
)
def test_exact_counts_say_why_without_any_time(factor: float, said: str) -> None:
    parent, culprit = (
        replace(run(counters={"instructions": each}), counted="valgrind-3.19.0") for each in (1e9, factor * 1e9)
    )
    explained = classify([parent], [culprit])
    assert (explained.cause, explained.sentence) == (Cause.INSTRUCTIONS, said)
    assert "no runs" in classify([parent], [run(counters={})]).sentence, "one side was timed"


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
