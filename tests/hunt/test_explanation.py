"""What is measured for the reason: by which builds, in which order, for how long, and what happens when it cannot be done."""

from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace

import pytest

from computed import ComputedLab, commits, culprit, log_of, measured_by, problem, speeds, started
from perfbisect.clock import CLOCK
from perfbisect.core.domain.events import (
    CandidateSkipped,
    Counted,
    Event,
    HuntEnded,
    LabEvent,
    Planned,
    RunFinished,
    Unexplained,
    Warned,
)
from perfbisect.core.domain.facts import PlanFacts, RunFacts, SkipFacts
from perfbisect.core.domain.orders import Measure, Purpose, Verdict
from perfbisect.core.explain.counters import EXACT_GROUP
from perfbisect.errors import EnvironmentFailure
from perfbisect.hunt import explanation
from perfbisect.hunt.explanation import LEAST, Part, explain, start_up
from perfbisect.hunt.search_problem import SavedLog, TimedEvent, hunt
from perfbisect.hunt.workers import InlineWorkers
from perfbisect.lab.measure.study import StudyMaker
from perfbisect.recipes.workload import Workload
from perfbisect.store.history import History

NAMES = commits(12)
CULPRIT = 5
PARENT = CULPRIT - 1
WORKLOAD = Workload(name="w", summary="", group="point", script="w.lua")
GROUPS = ("core", "caches")


@dataclass(frozen=True)
class NoStudy:
    """Stands for a study, which no lab here makes; keeps how many seconds its turns may take, and the length of runs."""

    seconds: float
    length: int


PLANS = Part("plans", NoStudy, Planned, rounds=1, share=0.1, always=lambda _: True, of_all=True)  # type: ignore[arg-type]
COUNTERS = Part("counters", NoStudy, Counted, rounds=3, share=0.5)  # type: ignore[arg-type]


@dataclass
class StudyLab:
    """Studies builds as fast as it is told to, and notes which."""

    part: Part
    seconds: float = 0.0  # of this process's clock, for one turn
    fails: frozenset[int] = frozenset()
    broken: bool = False
    groups: tuple[str, ...] = GROUPS
    studied: list[int] = field(default_factory=list)

    def measure(self, order: Measure) -> Generator[LabEvent]:
        """One turn, as a real lab does it."""
        assert order.purpose is Purpose.EXPLAIN
        (share,) = order.plan
        node, commit = share.candidate, NAMES[share.candidate]
        self.studied.append(node)
        if self.broken:
            raise EnvironmentFailure("The host is away.", "Bring it back.")
        CLOCK.go_on_from(CLOCK.now() + self.seconds)
        if node in self.fails:
            yield CandidateSkipped(node, SkipFacts(commit, "run", "it ended", "log", 1.0))
        elif self.part.event is Planned:
            yield Planned(node, PlanFacts(commit, commit, "local", "select ?", "SCAN t"))
        else:
            for group in self.groups:
                facts = RunFacts(
                    commit, commit, f"{CLOCK.now()}", "local", CLOCK.now(), 1.0, 100, {}, (), {}, {}, events=77
                )
                yield Counted(node, facts, group)


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test does to the clock ends with it."""
    monkeypatch.setattr(CLOCK, "_begin", CLOCK._begin)


def explained(
    monkeypatch: pytest.MonkeyPatch, log: SavedLog, *labs: StudyLab, slow: float = 0.8
) -> Generator[Event, None, None]:
    """The events of a hunt for commit 5 whose reason these labs study, one for each part."""
    monkeypatch.setattr(explanation, "PARTS", tuple(lab.part for lab in labs))

    def afterwards(reached: Verdict) -> Iterator[TimedEvent]:
        left = iter(labs)

        def workers(_: StudyMaker) -> InlineWorkers:
            return InlineWorkers("local", next(left))

        return explain(reached, NAMES, log, workers, WORKLOAD)

    lab = ComputedLab(NAMES, speeds(NAMES, CULPRIT, slow))
    for _, event in hunt(problem(NAMES), started(NAMES), log, measured_by(lab), afterwards=afterwards):
        yield event


def test_culprit_and_parent_take_turns_and_plans_are_those_of_all_builds(
    monkeypatch: pytest.MonkeyPatch, history: History
) -> None:
    plans, counters = StudyLab(PLANS), StudyLab(COUNTERS)
    log = log_of(history, NAMES)
    events = list(explained(monkeypatch, log, plans, counters))
    assert culprit(events).candidate == CULPRIT
    measured = {event.candidate for event in events if isinstance(event, RunFinished)}
    assert len(measured) > 3
    assert plans.studied[:2] == [CULPRIT, PARENT]
    assert plans.studied[2:] == sorted(measured - {CULPRIT, PARENT})
    assert counters.studied == [CULPRIT, PARENT, PARENT, CULPRIT, CULPRIT, PARENT]
    assert isinstance(events[-1], HuntEnded)
    stored = Counter(type(entry.event) for entry in history.events(log.hunt))
    assert stored[Planned] == len(measured)
    assert stored[Counted] == 6 * len(GROUPS)


def test_where_nothing_is_named_nothing_is_studied(monkeypatch: pytest.MonkeyPatch, history: History) -> None:
    plans = StudyLab(PLANS)
    events = list(explained(monkeypatch, log_of(history, NAMES), plans, slow=1.0))
    assert isinstance(events[-1], HuntEnded)
    assert plans.studied == []


@pytest.mark.parametrize(("seconds", "turns"), [(0.1, 6), (LEAST / 6, 4), (LEAST / 3, 2), (LEAST, 2)])
def test_no_round_is_begun_that_does_not_end_in_time(
    monkeypatch: pytest.MonkeyPatch, history: History, seconds: float, turns: int
) -> None:
    """A hunt this short has the least time. What a turn takes is known after the first."""
    counters = StudyLab(COUNTERS, seconds=seconds)
    list(explained(monkeypatch, log_of(history, NAMES), counters))
    assert len(counters.studied) == turns


def test_a_hunt_of_long_visits_has_no_counters_and_still_plans(
    monkeypatch: pytest.MonkeyPatch, history: History
) -> None:
    plans, counters = StudyLab(PLANS, seconds=LEAST), StudyLab(COUNTERS)
    monkeypatch.setattr(explanation, "start_up", lambda _: LEAST)
    list(explained(monkeypatch, log_of(history, NAMES), plans, counters))
    assert plans.studied == [CULPRIT, PARENT], "the plans of other builds are left out"
    assert counters.studied == []


def test_the_time_of_other_builds_is_bounded_as_well(monkeypatch: pytest.MonkeyPatch, history: History) -> None:
    plans, counters = StudyLab(PLANS, seconds=LEAST / 30), StudyLab(COUNTERS)
    log = log_of(history, NAMES)
    events = list(explained(monkeypatch, log, plans, counters))
    measured = {event.candidate for event in events if isinstance(event, RunFinished)}
    assert 2 < len(plans.studied) < len(measured)
    assert len(counters.studied) == 6, "the other part has its time"


def test_a_turn_has_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch, history: History) -> None:
    """Of an hour that was worked, a tenth; the counters have all of it for six turns, less what a visit takes beside."""
    asked: list[float] = []
    monkeypatch.setattr(explanation, "worked", lambda _: 3600.0)
    monkeypatch.setattr(explanation, "start_up", lambda _: 5.0)
    lab = StudyLab(replace(COUNTERS, study=lambda seconds, _: asked.append(seconds) or NoStudy(seconds, 0)))  # type: ignore[func-returns-value,arg-type,return-value]
    list(explained(monkeypatch, log_of(history, NAMES), lab))
    assert asked == [360 / 6 - 5]


def test_what_visits_take_beside_their_runs() -> None:
    def run(at: float, seconds: float) -> tuple[float, Event]:
        return at, RunFinished(0, RunFacts("a", "a", f"{at}", "h", at, seconds, 1, {}, (), {}, {}))

    events = [(0.0, Warned("", "")), run(13, 10), run(26, 10), run(40, 10), run(50, 10)]
    assert start_up(events) == 4
    assert start_up([]) == 0


@pytest.mark.parametrize("cut", range(1, 7))
def test_a_session_that_is_cut_goes_on_with_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, history: History, cut: int
) -> None:
    log = log_of(history, NAMES)
    first = StudyLab(COUNTERS)
    seen = 0
    for event in explained(monkeypatch, log, first):
        seen += isinstance(event, Counted)
        if seen == cut:
            break
    second = StudyLab(COUNTERS)
    list(explained(monkeypatch, SavedLog(history, log.hunt), second))
    turns = Counter(second.studied)
    done = Counter(first.studied)
    assert all(turns[node] + done[node] == 3 for node in (CULPRIT, PARENT))


def test_exact_counts_and_groups_of_counters_are_two_parts(monkeypatch: pytest.MonkeyPatch, history: History) -> None:
    """Both have events of one type: what one part has done is not taken for what the other has."""
    exact = replace(COUNTERS, name="instructions", rounds=1, group=EXACT_GROUP)
    log = log_of(history, NAMES)
    for expected in (2, 6), (0, 0):
        labs = StudyLab(exact, groups=(EXACT_GROUP,)), StudyLab(COUNTERS)
        list(explained(monkeypatch, SavedLog(history, log.hunt), *labs))
        assert tuple(len(lab.studied) for lab in labs) == expected


@pytest.mark.parametrize(("group", "known"), [(EXACT_GROUP, 77), (GROUPS[0], 0)])
def test_a_cut_between_two_exact_counts_keeps_their_length(
    monkeypatch: pytest.MonkeyPatch, history: History, group: str, known: int
) -> None:
    """Only that of exact counts: other runs are of other lengths."""
    asked: list[int] = []
    part = replace(COUNTERS, rounds=1, group=group if group == EXACT_GROUP else "")
    part = replace(part, study=lambda seconds, length: asked.append(length) or NoStudy(seconds, length))  # type: ignore[func-returns-value,arg-type,return-value]
    log = log_of(history, NAMES)
    for event in explained(monkeypatch, log, StudyLab(part, groups=(group,))):
        if isinstance(event, Counted):
            break
    second = StudyLab(part, groups=(group,))
    list(explained(monkeypatch, SavedLog(history, log.hunt), second))
    assert second.studied == [PARENT]
    assert asked == [0, known]


@pytest.mark.parametrize("fails", [CULPRIT, PARENT])
def test_a_build_that_fails_ends_the_part_and_not_the_hunt(
    monkeypatch: pytest.MonkeyPatch, history: History, fails: int
) -> None:
    plans, counters = StudyLab(PLANS), StudyLab(COUNTERS, fails=frozenset({fails}))
    log = log_of(history, NAMES)
    events = list(explained(monkeypatch, log, plans, counters))
    assert Unexplained("counters", "run: it ended") in events
    assert isinstance(events[-1], HuntEnded)
    assert counters.studied in ([CULPRIT], [CULPRIT, PARENT])
    assert not any(isinstance(event, CandidateSkipped) for event in events)
    again = StudyLab(COUNTERS)
    list(explained(monkeypatch, SavedLog(history, log.hunt), StudyLab(PLANS), again))
    assert again.studied == [], "it is not tried again"


def test_another_build_whose_plans_cannot_be_had_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, history: History
) -> None:
    plans = StudyLab(PLANS, fails=frozenset({0}))
    log = log_of(history, NAMES)
    events = list(explained(monkeypatch, log, plans))
    assert plans.studied[:3] == [CULPRIT, PARENT, 0]
    assert len(plans.studied) > 3
    assert not any(isinstance(event, Unexplained) for event in events)
    assert not any(isinstance(entry.event, CandidateSkipped) for entry in history.events(log.hunt))


def test_a_host_that_is_away_leaves_the_verdict(monkeypatch: pytest.MonkeyPatch, history: History) -> None:
    plans, counters = StudyLab(PLANS, broken=True), StudyLab(COUNTERS)
    events = list(explained(monkeypatch, log_of(history, NAMES), plans, counters))
    assert culprit(events).candidate == CULPRIT
    assert [event.part for event in events if isinstance(event, Unexplained)] == ["plans"]
    assert len(counters.studied) == 6
