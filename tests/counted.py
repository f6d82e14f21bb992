"""Runs with counters like those recorded on real hosts."""

from collections.abc import Mapping

from perfbisect.core.domain.facts import RunFacts

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
