"""Instruction counts after a verdict of code placement: the counted builds, and the changed verdict."""

from collections.abc import Generator
from dataclasses import dataclass, replace

import pytest

from computed import (
    ComputedLab,
    CountingLab,
    commits,
    events_of,
    hunt,
    kept,
    log_of,
    measured_by,
    problem,
    speeds,
    started,
)
from computed import verdict as verdict_of
from perfbisect.core.domain.events import CandidateSkipped, Event, LabEvent, RunFinished, SessionEnded, Warned
from perfbisect.core.domain.facts import SkipFacts
from perfbisect.core.domain.orders import CodePlacement, Measure, Verdict
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.instruction_counts import RESOLVED
from perfbisect.errors import EnvironmentFailure
from perfbisect.hunt.further_runs import confirming_runs
from perfbisect.hunt.search_problem import SavedLog, SearchProblem, recompute_decisions
from perfbisect.store.history import History

NAMES = commits(12)
MOVED = 5  # builds from this commit on are slow in their usual layout
SPEEDS = speeds(NAMES, MOVED, slow=0.85)
BOTH = [NAMES[MOVED - 1], NAMES[MOVED]]


class LinkingLab(ComputedLab):
    """A lab that links builds again if an order asks for this. Builds with randomized layouts are equally fast."""

    def measure(self, order: Measure) -> Generator[LabEvent]:
        for event in ComputedLab.measure(self, order):
            if isinstance(event, RunFinished) and order.fresh:
                operations = round(event.facts.operations / self.speed[event.facts.commit])
                facts = replace(event.facts, operations=operations, layout=round(self.clock / 10))
                event = replace(event, facts=facts)
            yield event


def counting(extra: float = 0.0) -> CountingLab:
    """A lab that counts instructions. Builds from MOVED on execute more by the fraction ``extra``."""
    return CountingLab(NAMES, SPEEDS, more=speeds(NAMES, MOVED, 1 + extra), exactly=True)


def asked(most: int = 0) -> SearchProblem:
    return replace(problem(NAMES), policy=Policy(layouts=True, max_runs=most))


def hunted(log: SavedLog, counted: ComputedLab, most: int = 0) -> Generator[Event]:
    """The events of a hunt that must have the verdict code placement."""

    def afterwards(reached: Verdict) -> Generator[tuple[float, Event]]:
        assert isinstance(reached, CodePlacement)
        return confirming_runs(reached, asked(most), log, measured_by(counted, "instructions/o"))

    workers = measured_by(LinkingLab(NAMES, SPEEDS))
    for _, event in hunt(asked(most), started(NAMES), log, workers, afterwards=afterwards):
        yield event


def placement(log: SavedLog, counted: ComputedLab, most: int = 0) -> CodePlacement:
    """The verdict of a hunt: code placement at MOVED."""
    reached = verdict_of(list(hunted(log, counted, most)))
    assert isinstance(reached, CodePlacement)
    assert reached.step.candidate == MOVED
    return reached


def counted_in(log: SavedLog) -> list[str]:
    """The commits whose instructions were counted."""
    return sorted(event.facts.commit for event in events_of(log, RunFinished) if event.facts.counted)


@pytest.fixture
def log(history: History) -> SavedLog:
    return log_of(history, NAMES)


@pytest.mark.parametrize(("extra", "same"), [(0.0, True), (RESOLVED / 2, True), (2 * RESOLVED, False), (0.1, False)])
def test_commit_that_moves_code_and_its_parent_are_counted(log: SavedLog, extra: float, same: bool) -> None:
    """A replay has the same verdict, without ``same_counts`` if the log has no counts."""
    reached = placement(log, counting(extra))
    assert (reached.same_counts, counted_in(log)) == (same, BOTH)
    uncounted = [each for each in kept(log) if not (isinstance(each[1], RunFinished) and each[1].facts.counted)]
    for events, verdict in ((kept(log), reached), (uncounted, replace(reached, same_counts=None))):
        *_, (_, decision) = recompute_decisions(asked(), events, log.began)
        assert decision.order == verdict


@pytest.mark.parametrize("cut", [1, 2])
def test_hunt_interrupted_while_counting_resumes_with_missing_counts(log: SavedLog, cut: int) -> None:
    for _ in hunted(log, counting()):
        if len(counted_in(log)) == cut:
            break
    again = SavedLog(log.history, log.hunt)
    assert len(counted_in(again)) == cut
    assert placement(again, counting()).same_counts is True
    assert counted_in(again) == BOTH


def test_budget_of_runs_limits_the_counts_after_the_verdict(history: History, log: SavedLog) -> None:
    placement(log, counting())
    spent = len(events_of(log, RunFinished)) - 2
    for most, counted in ((spent + 1, []), (spent + 2, BOTH)):
        limited = log_of(history, NAMES)
        placement(limited, counting(), most)
        assert counted_in(limited) == counted


@dataclass
class Failing:
    """A lab that cannot count: its host ``lacks`` a program, or the first build does not run."""

    lacks: bool

    def measure(self, order: Measure) -> Generator[LabEvent]:
        if self.lacks:
            raise EnvironmentFailure("no.", "Do this.")
        node = order.plan[0].candidate
        yield CandidateSkipped(node, SkipFacts(NAMES[node], "run", "illegal instruction", "log", 1.0))


@pytest.mark.parametrize(
    ("lacks", "warning"),
    [
        (True, Warned("Instructions are not counted exactly: no.", "Do this.")),
        (False, Warned(f"commit {NAMES[MOVED][:10]} is not measured further: illegal instruction")),
    ],
)
def test_verdict_stays_if_counting_fails(log: SavedLog, lacks: bool, warning: Warned) -> None:
    assert placement(log, Failing(lacks)).same_counts is None
    events = [event for _, event in kept(log)]
    assert warning in events
    assert isinstance(events[-1], SessionEnded)
    assert not any(isinstance(event, CandidateSkipped) for event in events)
