"""Invented hunts, as events: as many runs as wanted, in the orders of a search, with all that a run of a real hunt keeps."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from perfbisect.core.domain.events import (
    BuildFinished,
    BuildStarted,
    CandidateSkipped,
    Commit,
    Decided,
    Event,
    RunFinished,
    SessionEnded,
    SessionStarted,
)
from perfbisect.core.domain.facts import BuildFacts, HostFacts, RunFacts, SkipFacts
from perfbisect.core.domain.orders import (
    Belief,
    Decision,
    Found,
    Interval,
    Measure,
    NotReproduced,
    PlannedRuns,
    Purpose,
    Step,
)
from perfbisect.core.domain.settings import Settings

BEGAN = 1_700_000_000.0  # seconds since the epoch
EACH = 86_400.0  # seconds between the starts of two hunts
CANDIDATES = 200
RUNS_OF_AN_ORDER = 6
RANGES = 50  # hunts share them, as those of several workloads do
SYSTEMS = ("mariadb", "mysql", "postgres", "rocksdb", "sqlite")
WORKLOADS = ("point-select", "update-index", "scan", "insert", "order-by")
HOSTS = ("c8-1", "c8-2", "dell32", "spare")
COUNTERS = (
    "instructions", "cycles", "task-clock", "branches", "branch-misses", "cache-references", "cache-misses",
    "L1-dcache-load-misses", "LLC-load-misses", "dTLB-load-misses", "iTLB-load-misses", "page-faults",
    "context-switches", "cpu-migrations",
)  # fmt: skip
SYSTEM = ("us", "sy", "id", "wa", "cs", "r/s", "w/s", "rkB/s", "wkB/s")


@dataclass
class Invented:
    """Hunt ``number`` (from 0), of ``runs`` runs."""

    number: int
    runs: int
    at: float = 0.0
    built: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.began = self.at = BEGAN + EACH * self.number
        self.random = np.random.default_rng(self.number)
        span = self.number % RANGES
        self.builder = SYSTEMS[span % len(SYSTEMS)]
        self.workload = WORKLOADS[self.number // RANGES % len(WORKLOADS)]
        self.commits = tuple(
            Commit(digest(f"{span} {node}"), "2023-10-01", "A. Author", f"Change {node} of range {span}")
            for node in range(CANDIDATES)
        )
        self.host = HostFacts(
            HOSTS[self.number % len(HOSTS)], "A CPU", 8, 32_768, "6.1", "gcc 12.2", {"sysbench": "1.0.20"},
            {"governor": "performance"},
        )  # fmt: skip
        self.culprit = int(self.random.integers(1, CANDIDATES - 1))
        self.slow = 1.0 if self.number % 10 == 9 else 0.9  # of every tenth hunt the ends do not differ

    @property
    def candidates(self) -> tuple[str, ...]:
        """The range, oldest first."""
        return tuple(commit.sha for commit in self.commits)

    def settings(self) -> Settings:
        """What was asked for."""
        return Settings(
            good=f"{self.number % RANGES}.0", bad=f"{self.number % RANGES}.1", good_commit=self.candidates[0],
            bad_commit=self.candidates[-1], repository=f"/src/{self.builder}", builder=self.builder,
            variant="o2nofp", workload=self.workload, host=self.host.name, overrides={"time": 10}, run_hash="run",
            build_hash="build", explain=True,
        )  # fmt: skip

    def started(self) -> SessionStarted:
        """The first event."""
        settings = self.settings()
        return SessionStarted(
            0, self.host, False, settings.builder, settings.workload, settings.good, settings.bad, 2 * CANDIDATES,
            self.candidates, 3,
        )  # fmt: skip

    def events(self) -> Iterator[tuple[float, Event]]:
        """Everything, in order."""
        yield self.at, self.started()
        low, high, done = 0, CANDIDATES - 1, 0
        yield from self.measure(high, low, Purpose.ENDS, RUNS_OF_AN_ORDER)
        while done < self.runs - 2 * RUNS_OF_AN_ORDER:
            middle = (low + high) // 2
            middle, purpose = (self.culprit, Purpose.CONFIRM) if high - low < 2 else (middle, Purpose.SEARCH)
            if middle % 17 == 5 and middle not in self.built and middle != self.culprit:
                self.built.add(middle)
                yield self.at, BuildStarted(middle, self.commits[middle])
                yield self.later(30.0), CandidateSkipped(middle, SkipFacts(self.candidates[middle], "compile", "error: 'x' undeclared", "log", 30.0))  # fmt: skip
            else:
                yield from self.measure(middle, low, purpose, RUNS_OF_AN_ORDER)
                done += RUNS_OF_AN_ORDER
            if purpose is Purpose.SEARCH:
                low, high = (low, middle) if middle >= self.culprit else (middle, high)
        yield from self.measure(self.culprit, self.culprit - 1, Purpose.CONFIRM, self.runs - done - RUNS_OF_AN_ORDER)
        step = Step(self.culprit, 0.973, Interval(0.89, 0.90, 0.91), (self.culprit - 1,))
        verdict = Found(step) if self.slow < 1 else NotReproduced(Interval(0.995, 1.0, 1.005), 0.01)
        yield self.at, Decided(Decision(verdict, self.belief()))
        yield self.at, SessionEnded(verdict)

    def belief(self) -> Belief:
        """A posterior around the culprit."""
        culprit = np.exp(-np.abs(np.arange(CANDIDATES) - self.culprit) / 3.0)
        culprit[0] = 0.0
        culprit /= culprit.sum()
        return Belief(culprit, 0.97, 0.01, Interval(0.88, 0.90, 0.92), (), np.cumsum(culprit))

    def measure(self, one: int, other: int, purpose: Purpose, runs: int) -> Iterator[tuple[float, Event]]:
        """An order: what is not built is built, then the two run in turns."""
        half = runs // 2
        yield (
            self.at,
            Decided(
                Decision(Measure((PlannedRuns(one, runs - half), PlannedRuns(other, half)), purpose), self.belief())
            ),
        )
        for candidate in (one, other):
            if candidate not in self.built:
                self.built.add(candidate)
                yield self.at, BuildStarted(candidate, self.commits[candidate])
                sha = self.candidates[candidate]
                facts = BuildFacts(sha, digest(f"key {sha}"), digest(f"binary {sha}"), 90.0, 900, 100, False, "log")
                yield self.later(90.0), BuildFinished(candidate, facts, None)
        for turn in range(runs):
            candidate = (one, other)[turn % 2]
            facts = self.run(candidate)
            yield self.later(13.0), RunFinished(candidate, facts)

    def run(self, candidate: int) -> RunFacts:
        """Ten seconds."""
        slow = self.slow if candidate >= self.culprit else 1.0
        qps = 20_000 * slow * math.exp(0.01 * self.random.standard_normal())
        operations = round(10 * qps)
        noise = self.random.random(len(COUNTERS) + len(SYSTEM) + 10)
        sha = self.candidates[candidate]
        return RunFacts(
            commit=sha,
            build_key=digest(f"key {sha}"),
            visit=f"{self.number}-{self.at:.0f}",
            host=self.host.name,
            started=self.at + 2.0,
            seconds=10.0,
            operations=operations,
            latency={"min": 0.02, "avg": 1000 / qps, "p95": 2000 / qps, "p99": 3000 / qps, "max": 9.0},
            samples=tuple(qps * (0.99 + 0.02 * each) for each in noise[-10:].tolist()),
            counters={
                name: operations * 1e5 / slow * (1 + 0.01 * each) / 3**place
                for place, (name, each) in enumerate(zip(COUNTERS, noise.tolist(), strict=False))
            },
            system=dict(zip(SYSTEM, (100 * noise[len(COUNTERS) :]).tolist(), strict=False)),
            log=f"jobs/{self.at:.0f}",
            dataset=f"data-{self.builder}",
        )

    def later(self, seconds: float) -> float:
        """The clock, that much later."""
        self.at += seconds
        return self.at


def digest(text: str) -> str:
    """A hash that looks like that of a commit."""
    return hashlib.sha1(text.encode()).hexdigest()
