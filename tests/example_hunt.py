"""An invented hunt, so that the views can be looked at and tested without building anything."""

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
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
from perfbisect.core.domain.facts import BuildFacts, HostFacts, RunFacts, SkipFacts
from perfbisect.core.domain.orders import Belief, Decision, Found, Interval, Measure, Purpose, Share, Step, interleave
from perfbisect.ui.session_update import update
from perfbisect.ui.session_view import SessionView

BEGAN = 1_700_000_000.0  # seconds since the epoch
VERBS = ("Keep", "Split", "Check", "Inline", "Remove", "Cache", "Count", "Move")
THINGS = (
    "free pages in a list of their own",
    "the latch of a page and the latch of its parent",
    "keys with the prefix of their neighbours",
    "rows that an update leaves where they are",
    "the cursor between two calls",
)
HOST = HostFacts("local", "a processor", 2, 8192, "6.1.0", "gcc 12.2")


@dataclass
class SampleHunt:
    """An invented range in which one commit halves the rate, and the clock of its hunt."""

    size: int = 60
    culprit: int = 37
    rate: float = 41_000.0
    drop: float = 0.42
    noise: float = 0.012
    broken: frozenset[int] = frozenset({29, 41})
    at: float = BEGAN

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.size)
        self.low, self.high = 0, self.size - 1
        self.built: set[int] = set()
        self.visits = 0

    def commit(self, candidate: int) -> Commit:
        """A commit of the range."""
        sha = hashlib.sha1(f"commit {candidate}".encode()).hexdigest()
        subject = f"{VERBS[candidate * 5 % len(VERBS)]} {THINGS[candidate * 3 % len(THINGS)]}"
        return Commit(sha, str(date(2023, 1, 2) + timedelta(candidate)), "A. Author", subject)

    def belief(self) -> Belief:
        """Nearly all of the probability evenly between the slowest fast and the fastest slow candidate."""
        inside = np.zeros(self.size)
        for candidate in range(self.low + 1, self.high + 1):
            inside[candidate] = 0.2 if candidate in self.broken else 1.0
        sure = 1 - 0.03 * (len(self.built) > 1)
        outside = np.ones(self.size)
        outside[0] = 0
        culprit = sure * inside / inside.sum() + (1 - sure) * outside / outside.sum()
        spread = 0.3 / math.sqrt(1 + 10 * len(self.built))
        effect = Interval(1 - self.drop - spread, 1 - self.drop, 1 - self.drop + spread)
        warnings = ("the host drifts; builds are compared only with neighbours in time",) if self.visits > 6 else ()
        return Belief(culprit, 0.995 if self.built else 0.5, self.noise, effect, warnings, np.cumsum(culprit))

    def events(self) -> Iterator[tuple[float, Event]]:
        """The whole hunt: the ends, the search, the confirmation, the verdict."""
        commits = tuple(self.commit(candidate).sha for candidate in range(self.size))
        yield self.at, Warned("The governor is powersave.", "Run: cpupower frequency-set -g performance")
        yield self.at, SessionStarted(12, HOST, False, "demo", "update-index", "v1.0", "v1.1", 71, commits, 6)
        yield from self.measure((Share(self.size - 1, 3), Share(0, 3)), Purpose.ENDS)
        while (middle := self.next()) is not None:
            yield from self.measure((Share(middle, 2), Share(0, 1)), Purpose.SEARCH)
            if middle >= self.culprit and middle not in self.broken:
                self.high = middle
            elif middle not in self.broken:
                self.low = middle
        yield from self.measure((Share(self.culprit, 3), Share(self.culprit - 1, 3)), Purpose.CONFIRM)
        left = 1 - self.drop
        step = Step(self.culprit, 0.974, Interval(left - 0.011, left, left + 0.012), (self.culprit - 1,))
        yield self.at, Decided(Decision(Found(step), self.belief()))
        yield self.at, SessionEnded(Found(step))

    def next(self) -> int | None:
        """The untested candidate nearest to the middle of what is left; None when all are tested."""
        untried = [c for c in range(self.low + 1, self.high) if c not in self.built]
        return min(untried, key=lambda c: abs(2 * c - self.low - self.high), default=None)

    def measure(self, plan: tuple[Share, ...], purpose: Purpose) -> Iterator[tuple[float, Event]]:
        """One order: what is not built is built, then the runs in turns."""
        yield self.at, Decided(Decision(Measure(plan, purpose), self.belief()))
        for share in plan:
            if share.candidate not in self.built:
                yield from self.build(share.candidate)
            if share.candidate in self.broken:
                return
        turns = interleave(plan)
        for number, candidate in enumerate(turns, 1):
            yield from self.run(candidate, number, len(turns), purpose)

    def build(self, candidate: int) -> Iterator[tuple[float, Event]]:
        """A build of 2 to 9 seconds, the first one of them the longest."""
        commit, steps = self.commit(candidate), 120
        seconds = 9.0 if not self.built else 2.0 + candidate % 3
        yield self.at, BuildStarted(candidate, commit)
        for done in range(0, steps + 1, 10):
            self.at += seconds / (steps / 10 + 1)
            yield self.at, BuildProgress(candidate, done, steps, "compile")
            if candidate in self.broken and done > steps / 2:
                reason = "src/index.c:212: error: 'struct node' has no member named 'sibling'"
                self.built.add(candidate)
                yield self.at, CandidateSkipped(candidate, SkipFacts(commit.sha, "compile", reason, "", seconds / 2))
                return
        hits = 0 if not self.built else 96 + candidate % 20
        self.built.add(candidate)
        facts = BuildFacts(commit.sha, f"key{candidate}", f"binary{candidate}", seconds, hits, steps - hits, False, "")
        yield self.at, BuildFinished(candidate, facts, None)

    def run(self, candidate: int, number: int, of: int, purpose: Purpose) -> Iterator[tuple[float, Event]]:
        """A run of 5 seconds after a second of warm-up."""
        self.visits += 1
        level = self.rate * (1 - self.drop * (candidate >= self.culprit)) * math.exp(self.random.normal(0, self.noise))
        yield self.at, RunStarted(candidate, number, of, purpose, 6.0)
        self.at += 1.0
        began = self.at
        samples: list[float] = []
        for second in range(1, 11):
            self.at += 0.5
            samples.append(level * (1 + 0.03 * float(self.random.normal())))
            yield self.at, RunProgress(candidate, second / 2, samples[-1])
        facts = RunFacts(
            self.commit(candidate).sha, f"key{candidate}", f"visit{self.visits}", HOST.name, began, 5.0,
            int(sum(samples) / 2), {"avg": 0.02}, tuple(samples), {}, {},
        )  # fmt: skip
        yield self.at, RunFinished(candidate, facts)


def followed(events: Iterable[tuple[float, Event]]) -> list[SessionView]:
    """What a view knows after each event."""
    return list(accumulate(events, lambda view, entry: update(view, entry[1], entry[0]), initial=SessionView()))[1:]
