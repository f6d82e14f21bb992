"""What the culprit changes is read once its profiles are known, and kept in the history."""

import pytest

from computed import commits, log_of
from counted import profile
from perfbisect.core.domain.events import ChangedFunctions, Event, Profiled, Unexplained
from perfbisect.core.domain.facts import ChangeFacts
from perfbisect.core.domain.orders import Found, Inconclusive, Interval, Reason, Step, Verdict
from perfbisect.errors import EnvironmentFailure
from perfbisect.hunt.changed_code import read_change
from perfbisect.hunt.search_problem import SavedLog
from perfbisect.store.history import History

NAMES = commits(6)
HALF = Interval(0.4, 0.5, 0.6)
FOUND = Found(Step(3, 0.99, HALF, (2,)))


class Clone:
    """A repository that notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[frozenset[str]] = []

    def __call__(self, parent: str, culprit: str, seen: frozenset[str]) -> ChangeFacts:
        assert (parent, culprit) == (NAMES[2], NAMES[3])
        self.asked.append(seen)
        return ChangeFacts(culprit, parent, ("search",), {"search": ("scan",)}, 1)


def events(log: SavedLog, clone: Clone, verdict: Verdict = FOUND) -> list[Event]:
    return [event for _, event in read_change(verdict, NAMES, log, clone)]


@pytest.fixture
def log(history: History) -> SavedLog:
    return log_of(history, NAMES)


def test_it_is_read_once_with_the_functions_of_the_profiles(log: SavedLog, history: History) -> None:
    log.append(Profiled(3, profile(NAMES[3], {("main", "scan.cold"): 5})))
    clone = Clone()
    [event] = events(log, clone)
    assert clone.asked == [frozenset({"main", "scan"})]
    assert isinstance(event, ChangedFunctions)
    assert event.candidate == 3
    assert [entry.event for entry in history.events(log.hunt)][-1] == event, "stored as it was"
    assert events(log, clone) == [], "a session that resumes finds it in the history"
    log.append(Profiled(2, profile(NAMES[2], {("main", "search"): 5})))
    assert len(events(log, clone)) == 1, "another profile may contain a function that was inlined before"
    assert clone.asked[-1] == frozenset({"main", "scan", "search"})


def test_a_repository_that_cannot_be_read_costs_a_sentence(log: SavedLog) -> None:
    class Gone(Clone):
        def __call__(self, *_: object) -> ChangeFacts:
            raise EnvironmentFailure("git failed.", "Install it.")

    [event] = events(log, Gone())
    assert isinstance(event, Unexplained)
    assert (event.part, event.reason) == ("functions", "git failed.")


def test_nothing_is_read_where_nothing_is_named(log: SavedLog) -> None:
    assert events(log, Clone(), Inconclusive((1,), (0.5,), HALF, Reason.TOO_NOISY)) == []
