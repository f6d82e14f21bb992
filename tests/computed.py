"""A lab that computes readings instead of running builds, and hunts with this lab."""

import math
import random
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perfbisect.core.domain.events import (
    BuildFinished,
    BuildStarted,
    CandidateSkipped,
    Commit,
    Decided,
    Event,
    LabEvent,
    RunFinished,
    RunStarted,
    SessionEnded,
    SessionStarted,
)
from perfbisect.core.domain.facts import BuildFacts, HostFacts, RunFacts, SkipFacts
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.metrics import INSTRUCTIONS
from perfbisect.core.domain.orders import Found, Measure, Step, Verdict, interleave
from perfbisect.core.domain.settings import Policy, Settings
from perfbisect.hunt.search_problem import (
    SavedLog,
    SearchProblem,
    TimedEvent,
    WorkersFor,
    log_opening,
    log_verdict,
    recompute_decisions,
    run_search,
)
from perfbisect.hunt.workers import MeasuringWorker, ThreadWorkers
from perfbisect.lab.host_watch import require_metric_values
from perfbisect.store.history import History

HOST = HostFacts("local", "cpu", 2, 1024, "6.1", "gcc 12")


@dataclass
class ComputedLab:
    """Builds commits named by hash. A run has the true QPS of ``speed``, times a random factor by ``noise``."""

    commits: tuple[str, ...]
    speed: dict[str, float]
    unbuildable: frozenset[str] = frozenset()
    counters: bool = True
    clock: float = 1000.0
    built: list[str] = field(default_factory=list)
    luck: random.Random = field(default_factory=lambda: random.Random(7))
    noise: float = 0.01  # s.d. of a run

    def measure(self, order: Measure) -> Generator[LabEvent]:
        """Yield the events of a real lab: builds first, then interleaved runs."""
        for share in order.plan:
            commit = self.commits[share.candidate]
            if commit in self.built:
                continue
            yield BuildStarted(share.candidate, Commit(commit, "2024-01-01", "Someone", f"change {commit[:4]}"))
            if commit in self.unbuildable:
                yield CandidateSkipped(share.candidate, SkipFacts(commit, "compile", "error: no", "log", 1.0))
                return
            self.built.append(commit)
            yield BuildFinished(share.candidate, BuildFacts(commit, commit, commit, 5.0, 1, 1, False, "log"), None)
        turns = interleave(order.plan)
        for number, candidate in enumerate(turns, 1):
            yield RunStarted(candidate, number, len(turns), order.purpose, 1.0)
            self.clock += 10
            commit = self.commits[candidate]
            operations = round(1000 * self.speed[commit] * math.exp(self.luck.gauss(0, self.noise)))
            yield RunFinished(
                candidate,
                RunFacts(commit, commit, f"{self.clock}", "local", self.clock, 10.0, operations, {}, (), {}, {}),
            )


@dataclass
class CountingLab(ComputedLab):
    """A lab whose builds execute 1,000 instructions per operation, times the factor ``more`` of the build.

    The lab counts them exactly if ``exactly`` is set or the order asks for counts, else with the noise of perf if
    ``counts`` (the method of exact counts) is empty, else not at all.
    """

    more: dict[str, float] = field(default_factory=dict)
    counts: str = "valgrind-3.19.0"
    exactly: bool = False

    def measure(self, order: Measure) -> Generator[LabEvent]:
        exactly = self.exactly or order.counted
        for event in ComputedLab.measure(self, order):
            if isinstance(event, RunFinished) and (exactly or not self.counts):
                facts, noise = event.facts, self.luck.gauss(0, 1e-7 if exactly else 2e-3)
                total = facts.operations * 1000 * self.more[facts.commit] * (1 + noise)
                facts = replace(facts, counters={"instructions": total}, counted=self.counts if exactly else "")
                event = replace(event, facts=facts)
            yield event


def commits(count: int) -> tuple[str, ...]:
    return tuple(f"{number:040x}" for number in range(count))


def problem(names: tuple[str, ...], metric: str = "qps") -> SearchProblem:
    return SearchProblem(Graph.straight_history(len(names) - 1), names, Policy(), metric)


def started(names: tuple[str, ...]) -> SessionStarted:
    return SessionStarted(1, HOST, False, "demo", "update-index", "v1", "v2", len(names) - 1, names, 0)


def log_of(history: History, names: tuple[str, ...], began: float = 1000.0) -> SavedLog:
    settings = Settings("v1", "v2", "/repo", "demo", "update-index", "local", good_commit="a", bad_commit="b")
    return SavedLog(history, history.begin_session(settings, started(names), began))


def speeds(names: tuple[str, ...], culprit: int, slow: float = 0.8) -> dict[str, float]:
    return {name: slow if index >= culprit else 1.0 for index, name in enumerate(names)}


def one_host(measure: Callable[[Measure], Generator[LabEvent]]) -> ThreadWorkers:
    """Workers of one host that has this lab."""
    return ThreadWorkers(MeasuringWorker("local", measure, threading.Event()))


def measured_by(lab: ComputedLab, metric: str = "qps") -> WorkersFor:
    """Workers of one host with this lab, for any commits."""

    def measure(order: Measure) -> Generator[LabEvent]:
        return require_metric_values(INSTRUCTIONS if order.counted else metric, lab.measure(order))

    return lambda _: one_host(measure)


def hunt(
    problem: SearchProblem,
    started: SessionStarted | None,
    log: SavedLog,
    workers_for: WorkersFor,
    failed: Sequence[SkipFacts] = (),
    left_out: Sequence[SkipFacts] = (),
    afterwards: Callable[[Verdict], Iterator[TimedEvent]] | None = None,
) -> Iterator[TimedEvent]:
    """Run a hunt from ``started`` to SessionEnded. ``afterwards`` measures more once the verdict is reached."""
    yield from log_opening(problem, started, log, failed, left_out)
    named = yield from run_search(problem, log, workers_for(problem.commits))
    if afterwards:
        yield from afterwards(named)
    yield log_verdict(problem, log, named)


def verdict(events: Sequence[Event]) -> Verdict:
    """The verdict of a hunt that has ended."""
    assert isinstance(events[-1], SessionEnded)
    return events[-1].verdict


def culprit(events: Sequence[Event]) -> Step:
    """The step of the culprit that a hunt named."""
    found = verdict(events)
    assert isinstance(found, Found)
    return found.step


def events_of(log: SavedLog, *types: type[Event]) -> list[Any]:
    """The events of these types in a log."""
    return [event for _, event in log.entries if isinstance(event, types)]


def kept(log: SavedLog) -> list[TimedEvent]:
    """All events of a log that the history contains, with their times."""
    return [(entry.at, entry.event) for entry in log.history.events(log.hunt)]


def check_replay(rules: SearchProblem, log: SavedLog, begins: int = 0) -> None:
    """Check that a replay decides as the log does, from event number ``begins`` on."""
    decided = [event.decision.order for _, event in kept(log)[begins:] if isinstance(event, Decided)]
    assert decided
    assert [decision.order for _, decision in recompute_decisions(rules, kept(log), log.began)] == decided
