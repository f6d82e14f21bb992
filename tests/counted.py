"""Runs with counters like the counters recorded on real hosts, and profiles in the stored format."""

from collections.abc import Mapping
from dataclasses import replace

from perfbisect.core.domain.events import Counted
from perfbisect.core.domain.facts import ProfileFacts, RunFacts
from perfbisect.core.explain.profiles import frame

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


PERIOD = 2000.0  # microseconds between two samples


def stack(*functions: str, binary: str = "engine") -> str:
    """A stack of a program, outermost function first; "memcpy@libc.so.6" is a function of another binary."""
    parts = (name.split("@") for name in functions)
    return ";".join(["engine", *(frame(name, *(rest or [binary])) for name, *rest in parts)])


def profile(
    commit: str, stacks: Mapping[tuple[str, ...], int], operations: int = 1000, period: float = PERIOD
) -> ProfileFacts:
    """A profile with this number of samples for each stack."""
    costs = {stack(*functions): number * period for functions, number in stacks.items()}
    return ProfileFacts(
        commit=commit,
        build_key="k",
        host="local",
        operations=operations,
        seconds=10.0,
        unit="us",
        stacks=costs,
        samples=sum(stacks.values()),
        event="cpu-clock:u",
        chains="fp",
    )


def counted(parent: list[RunFacts], culprit: list[RunFacts], group: str = "core") -> list[Counted]:
    """Events: a group of counters was counted in runs of both builds."""
    sides = {"p": parent, "c": culprit}
    return [Counted(1, replace(each, commit=commit), group) for commit, runs in sides.items() for each in runs]


def changed(operations: int, **factors: float) -> RunFacts:
    """A run with the counters per operation of ``run()`` times ``factors`` (with _ for the dash of a name)."""
    per_operation = {name: total / 200_000 for name, total in FULL.items()}
    counters = {
        name: each * operations * factors.get(name.replace("-", "_"), 1.0) for name, each in per_operation.items()
    }
    return run(operations, counters)


BLOATED = changed(140_000, instructions=1.42, cycles=1.43, task_clock=1.43)
