"""Facts for histories of tests, and the sample hunt: a small plausible hunt with everything that a report shows.

The sample: eleven candidates of a straight history. The ends differ; c04 does not compile, c06 has the same binary as
c05, c07 crashes, and c08 is the culprit: 28 % fewer operations, by 1.35 times the instructions. The host drifts.
"""

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from perfbisect.core.domain.events import (
    BuildFinished,
    BuildProgress,
    BuildStarted,
    CandidateSkipped,
    Commit,
    Decided,
    Event,
    RunFinished,
    RunProgress,
    RunStarted,
    SessionEnded,
    SessionStarted,
    Warned,
)
from perfbisect.core.domain.facts import BuildFacts, HostFacts, RunFacts, SkipFacts, TrialRun
from perfbisect.core.domain.measured_log import MeasuredEvent
from perfbisect.core.domain.orders import (
    Belief,
    Decision,
    Found,
    Interval,
    Measure,
    PlannedRuns,
    Purpose,
    Step,
    interleave,
)
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import (
    Pairing,
    Policy,
    ReleaseSeries,
    Settings,
    TrialBuild,
    TrialRequest,
    TrialType,
    TrialWorkload,
)
from perfbisect.core.domain.trials import visiting_order
from perfbisect.store.history import History
from perfbisect.ui.session_update import view_after
from perfbisect.ui.session_view import SessionView

Events = list[tuple[float, Event]]
BEGAN = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC
SUBJECTS = (
    "Release 1.0",
    "Sort imports of the parser",
    "Keep free pages in a list of their own",
    "Read ahead one page in range scans",
    "Split the cursor out of the pager",
    "Let the cursor remember its leaf",
    "Spell out the units in comments",
    "Count the rows of each page",
    "Check the key order of a page after each update",
    "Name the months in the log",
    "Release 1.1",
)
COMMITS = tuple(
    Commit(hashlib.sha1(subject.encode()).hexdigest(), f"2023-10-{1 + day:02}", "A. Author", subject)
    for day, subject in enumerate(SUBJECTS)
)
CANDIDATES = tuple(commit.sha for commit in COMMITS)
DRIFTS = "the speed of the host drifts; only runs close in time are compared"  # a warning of the search
CULPRIT = 8
HOST = HostFacts("local", "A CPU", 2, 4096, "6.1", "gcc 12.2", {"sysbench": "1.0.20"}, {"governor": "performance"})
SETTINGS = Settings(
    good="1.0",
    bad="1.1",
    good_commit=CANDIDATES[0],
    bad_commit=CANDIDATES[-1],
    repository="/src/engine",
    builder="engine",
    variant="o2nofp",
    workload="update-index",
    host="local",
    overrides={"time": 10},
    explain=True,
    policy=Policy(pairing=Pairing.AUTO, incremental=True),
)


def started(candidates: tuple[str, ...] = CANDIDATES, *, hunt: int = 0, resumed: bool = False) -> SessionStarted:
    """The first event of a hunt on ``candidates``."""
    return SessionStarted(hunt, HOST, resumed, "engine", "update-index", "1.0", "1.1", 14, candidates, 2)


def begin(history: History, settings: Settings = SETTINGS, at: float = BEGAN) -> int:
    """Begin a hunt on the range of the sample hunt."""
    return history.begin_session(settings, started(), at)


def build(candidate: int, *, binary: str = "", seconds: float = 12.5, hits: int = 9, misses: int = 1) -> BuildFacts:
    """The facts of a build, with a unique binary unless ``binary`` is given."""
    commit = CANDIDATES[candidate]
    return BuildFacts(commit, f"key-{commit[:8]}", binary or commit, seconds, hits, misses, False, "jobs/build/log")


def skip(candidate: int, stage: str = "compile", reason: str = "src/pager.c:88: 'cursor' undeclared") -> SkipFacts:
    """The facts of a candidate that cannot be measured."""
    return SkipFacts(CANDIDATES[candidate], stage, reason, "jobs/skip/log", 3.0)


def run(candidate: int, at: float, *, qps: float = 20_000.0, bloat: float = 1.0) -> RunFacts:
    """A run of 10 s from ``at`` on, with ``bloat`` times the instructions and cycles per operation."""
    operations = round(10 * qps)
    return RunFacts(
        commit=CANDIDATES[candidate],
        build_key=f"key-{CANDIDATES[candidate][:8]}",
        visit=f"visit-{at:.0f}",
        host="local",
        started=at,
        seconds=10.0,
        operations=operations,
        latency={"min": 0.02, "avg": 1000 / qps, "p95": 2000 / qps, "p99": None, "max": 9.0},
        samples=tuple(qps + 10.0 * second for second in range(3)),
        counters={
            "instructions": 280_000.0 * operations * bloat,
            "cycles": 140_000.0 * operations * bloat,
            "task-clock": 0.048 * operations * bloat,
            "context-switches": 0.6 * operations,
            "dTLB-load-misses": None,
        },
        system={"us": 60.0, "sy": 20.0, "cs": 14_000.0},
        log="jobs/run",
        dataset="data-1",
    )


def begin_trial(
    history: History, request: TrialRequest, at: float = 1.0, settings: Settings = SETTINGS, host: HostFacts = HOST
) -> int:
    """Begin a trial; returns its number."""
    plan = SessionStarted(0, host, False, request=request)
    number = history.begin_session(settings, plan, at)
    history.append(number, replace(plan, session=number), at)
    return number


def write_trial(history: History, trial: SessionState, at: float = 1.0) -> int:
    """Write a trial that has ended; returns its number."""
    number = begin_trial(history, trial.request, at)
    for one in trial.runs:
        history.append(number, RunFinished(one.subject, one.facts, workload=one.work, round=one.round), at)
    history.append(number, SessionEnded(), at)
    return number


def write(history: History) -> int:
    """Write the sample hunt into ``history`` and return its id."""
    hunt = begin(history)
    for at, event in events():
        history.append(hunt, event, at)
    return hunt


def events() -> Iterator[tuple[float, Event]]:
    """The events of the sample hunt, with their times."""
    return Tale().events()


def write_ways(history: History) -> int:
    """Write a hunt with all kinds of runs: interleaved, paired, in randomized layouts, stopped, and counted."""
    hunt, at = begin(history), BEGAN
    usual = (
        (0, 100.0, ""), (1, 90.0, ""), (0, 50.0, "a"), (1, 40.0, "a"), (2, 30.0, "b"), (1, 50.0, "b"), (0, 102.0, ""),
    )  # fmt: skip
    runs = [replace(run(node, 0.0, qps=qps), round=pair) for node, qps, pair in usual]
    runs += [replace(run(node, 0.0, qps=5.0), counted="valgrind") for node in (0, 3)]
    runs += [replace(run(node, 0.0, qps=qps), layout=1) for node, qps in ((0, 200.0), (5, 180.0))]
    runs += [replace(run(6, 0.0, qps=10.0), slower_than=3.0), run(8, 0.0, qps=71.4)]
    for facts in runs:
        at += 20
        history.append(hunt, RunFinished(0, replace(facts, started=at, visit=f"visit-{at}")), at + 10)
    return hunt


@dataclass
class Tale:
    """Generates the events of the sample hunt with its clock, and progress events if ``progress``."""

    hunt: int = 1
    rate: float = 20_000.0
    progress: bool = False
    at: float = BEGAN

    def __post_init__(self) -> None:
        self.built: set[int] = set()

    def events(self) -> Iterator[tuple[float, Event]]:
        """All events, in order."""
        yield self.at, Warned("The governor is powersave.", "Run: cpupower frequency-set -g performance")
        yield self.at, started(hunt=self.hunt)
        last = len(COMMITS) - 1
        yield from self.measure(Purpose.ENDS, (last, 2), (0, 2))
        for candidate in (4, 5, 6, CULPRIT, 7):
            yield from self.measure(Purpose.SEARCH, (candidate, 2), (0, 1))
        yield from self.measure(Purpose.CONFIRM, (CULPRIT, 3), (6, 3))
        step = Step(CULPRIT, 0.9731, Interval(0.706, 0.718, 0.731), (6,))
        yield self.at, Decided(Decision(Found(step), self.belief()))
        yield self.at, SessionEnded(Found(step))

    def belief(self) -> Belief:
        """The belief after the builds made so far."""
        found = 7 in self.built
        culprit = np.full(len(COMMITS), 0.003 if found else 0.1)
        culprit[0], culprit[CULPRIT] = 0.0, 0.973 if found else 0.1
        warnings = (DRIFTS,) if len(self.built) > 3 else ()
        return Belief(culprit, 0.97, 0.004, Interval(0.70, 0.72, 0.74), warnings)

    def measure(self, purpose: Purpose, *plan: tuple[int, int]) -> Iterator[tuple[float, Event]]:
        """The events of an order: missing builds, then interleaved runs."""
        shares = tuple(PlannedRuns(candidate, runs) for candidate, runs in plan)
        yield self.at, Decided(Decision(Measure(shares, purpose), self.belief()))
        for candidate, _ in plan:
            if candidate not in self.built:
                self.built.add(candidate)
                yield from self.build(candidate)
            if candidate in (4, 6) and purpose is Purpose.SEARCH:
                return
        turns = interleave(shares)
        for number, candidate in enumerate(turns, 1):
            yield self.at, RunStarted(candidate, number, len(turns), purpose, 12.0)
            self.at += 2.0
            if candidate == 7:
                facts = skip(7, "run", "sysbench ended with status 1: the library crashed")
                yield self.at, CandidateSkipped(7, facts)
                return
            yield from self.run(candidate)

    def build(self, candidate: int) -> Iterator[tuple[float, Event]]:
        """The events of a build, which fails for c04."""
        yield self.at, BuildStarted(candidate, COMMITS[candidate])
        yield self.at + 1, BuildProgress(candidate, 1, 10, "compile")
        if candidate == 4:
            self.at += 3.0
            yield self.at, CandidateSkipped(4, skip(4))
            return
        first = len(self.built) == 1
        for second in range(2, 8 * self.progress):
            yield self.at + second, BuildProgress(candidate, second, 10, "compile")
        self.at += 31.0 if first else 7.5
        binary = CANDIDATES[5] if candidate == 6 else ""
        hits, misses = (0, 40) if first else (36, 4)
        facts = build(candidate, binary=binary, seconds=31.0 if first else 7.5, hits=hits, misses=misses)
        yield self.at, BuildFinished(candidate, facts, 5 if candidate == 6 else None)

    def run(self, candidate: int) -> Iterator[tuple[float, Event]]:
        """The events of a run of 10 s, on a host that slows down by 1 % in ten minutes."""
        slow = candidate >= CULPRIT
        wobble = 0.003 * math.sin(self.at)
        drift = -0.01 * (self.at - BEGAN) / 600
        qps = self.rate * (0.72 if slow else 1.0) * math.exp(wobble + drift)
        facts = run(candidate, self.at, qps=qps, bloat=1.35 if slow else 1.0)
        for second in range(1, 11 * self.progress):
            yield self.at + second, RunProgress(candidate, second, qps * (1 + 0.03 * math.sin(second)))
        self.at += 10.5
        yield self.at, RunFinished(candidate, facts)


def comparison(
    builds: int, works: Sequence[str], *, rounds: int = 3, runs: int = 1, metric: str = "qps"
) -> SessionState:
    """A comparison of this number of builds, without runs. The group of a workload is its name up to a dash."""
    named = tuple(TrialBuild(f"v{number}", f"{number:040}", key=f"key-{number}") for number in range(builds))
    loads = tuple(TrialWorkload(name, name.partition("-")[0], 1.0, 10.0) for name in works)
    request = TrialRequest(TrialType.COMPARE, "demo", "o2nofp", "local", metric, {}, named, loads, rounds, runs)
    return SessionState.of_trial(3, request, HOST, 0.0)


WORKS = ("scan", "update-index", "point-query")


def series(
    steps: dict[str, tuple[tuple[int, float], ...]],
    *,
    releases: int = 20,
    rounds: int = 4,
    gaps: tuple[int, ...] = (),
    metric: str = "qps",
    noise: float = 0.01,
    lost: tuple[tuple[int, int], ...] = (),
) -> SessionState:
    """A series of releases on a host that slows down each round. ``lost``: visits (round, release) that failed."""
    chance = random.Random(5)
    builds = tuple(TrialBuild(f"1.{number}", trouble="error" if number in gaps else "") for number in range(releases))
    works = tuple(TrialWorkload(name, "all", 1.0, 1.0) for name in WORKS)
    asked = ReleaseSeries(f"1.0..1.{releases - 1}", (("1.3.1", "a pre-release"),), ("--builder", "demo"))
    request = TrialRequest(TrialType.COMPARE, "demo", "", "local", metric, {}, builds, works, rounds, 1, series=asked)
    trial = SessionState.of_trial(1, request, HOST, 0.0, state="done")
    for number in range(rounds):
        for work, name in enumerate(WORKS):
            for release in visiting_order(range(releases), number, shuffled=True):
                if release in gaps or (number, release) in lost:
                    continue
                log = -0.3 * number + chance.gauss(0, noise)
                log += sum(size for place, size in steps.get(name, ()) if place <= release)
                facts = run(0, 0.0, qps=1e4 * math.exp(log))
                trial.runs.append(TrialRun(number, work, release, 0.0, 1.0, facts))
    return trial


def night(number: int, *, drop: int = 5, branch: str = "main") -> SessionState:
    """A nightly run of a branch: its tip and the two tips before. Tips from ``drop`` on are 20 % slower."""
    tips = [*range(max(0, number - 2), number + 1)]
    trial = comparison(0, ["scan"])
    builds = tuple(TrialBuild(f"tip {tip}", f"{tip:040}") for tip in tips)
    trial.request = replace(trial.request, branch=branch, subjects=builds)
    for round_ in range(3):
        for place, tip in enumerate(tips):
            facts = replace(run(0, 0.0, qps=1e4 * (0.8 if tip >= drop else 1.0) + round_), commit=f"{tip:040}")
            trial.runs.append(TrialRun(round_, 0, place, 0.0, 1.0, facts))
    return trial


def logged(history: History, hunt: int) -> list[tuple[float, MeasuredEvent]]:
    """The builds, skips and runs in the log of a hunt, with their times."""
    facts = (BuildFinished, CandidateSkipped, RunFinished)
    return [(entry.at, entry.event) for entry in history.events(hunt) if isinstance(entry.event, facts)]


def followed(events: Events) -> list[SessionView]:
    """The view after each event."""
    return list(accumulate(events, lambda view, entry: view_after(view, entry[1], entry[0]), initial=SessionView()))[1:]
