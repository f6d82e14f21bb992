"""`bisect watch`: each event of the hunts of another process is shown once, until all hunts have ended."""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import pytest
from rich.console import Console

import sample_hunt as sample
from perfbisect.core.domain.events import (
    LIVE_ONLY,
    BuildFinished,
    Decided,
    Event,
    RunFinished,
    RunStarted,
    SessionEnded,
    SessionStarted,
    Warned,
)
from perfbisect.core.domain.orders import Decision, Measure, PlannedRuns, Purpose
from perfbisect.hunt.watching import RunStartAdder, running_sessions, watch
from perfbisect.store.history import History
from perfbisect.ui.lines import PlainLines
from perfbisect.ui.live import LiveScreen
from perfbisect.ui.session_view import SessionRow
from perfbisect.wording.quantities import clock

Timed = tuple[float, Event]


class Seen:
    """A view that records the events instead of printing."""

    def __init__(self) -> None:
        self.earlier: dict[int, list[Event]] = {}
        self.shown: dict[int, list[Event]] = {}
        self.ended: dict[int, float] = {}
        self.closed = False

    def add_earlier_events(self, hunt: int, events: Iterable[Timed]) -> None:
        self.earlier[hunt] = [event for _, event in events]

    def add_events(self, hunt: int, events: Iterable[Timed]) -> None:
        self.shown.setdefault(hunt, []).extend(event for _, event in events if not isinstance(event, LIVE_ONLY))

    def set_rows(self, rows: Sequence[SessionRow]) -> None:
        """Ignore the rows."""

    def show_hunt_end(self, hunt: int, at: float) -> None:
        self.ended[hunt] = at

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def reader(history: History) -> Iterator[History]:
    with closing(History.open(history.path, read_only=True)) as opened:
        yield opened


KEPT = [(at, event) for at, event in sample.events() if not isinstance(event, LIVE_ONLY)]


def events_come(
    history: History, session: int, events: Iterable[Timed], failed: bool = False
) -> Callable[[float], None]:
    """A pause function: each call appends the next event; after the last event the session fails if ``failed``."""
    rest = iter(events)

    def happens(_seconds: float) -> None:
        if entry := next(rest, None):
            history.append(session, entry[1], entry[0])
        elif failed:
            history.enter_failure(session, "no space", sample.BEGAN + 20)

    return happens


def test_two_hunts_are_watched_until_both_have_ended(history: History, reader: History) -> None:
    first, second = sample.begin(history), sample.begin(history)
    assert running_sessions(reader) == [first, second]
    goes_on, view, pauses = events_come(history, first, KEPT), Seen(), list[float]()

    def happens(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            history.enter_failure(second, "no space", sample.BEGAN + 1)
        goes_on(seconds)

    ended = [(hunt.id, hunt.state) for hunt in watch(reader, (first, second), view, happens)]
    assert ended == [(second, "failed"), (first, "found")]
    assert [type(event) for event in view.shown[first]] == [type(event) for _, event in KEPT]
    assert view.closed and view.earlier == {first: [], second: []}
    assert view.ended == {first: KEPT[-1][0], second: sample.BEGAN}
    assert running_sessions(reader) == []


def test_measurement_of_the_reason_after_the_verdict_is_watched(history: History, reader: History) -> None:
    hunt, view = sample.begin(history), Seen()
    *before, (at, verdict) = KEPT
    assert isinstance(verdict, SessionEnded)
    reason = [(at, replace(verdict, reason_follows=True)), (at + 1, Warned("of it", "")), (at + 2, verdict)]
    [ended] = watch(reader, (hunt,), view, events_come(history, hunt, [*before, *reason]))
    assert ended.state == "found"
    assert [type(event) for event in view.shown[hunt]][-3:] == [SessionEnded, Warned, SessionEnded]


def interrupted(history: History, events: int) -> int:
    """A hunt whose log has the first ``events`` events."""
    hunt = sample.begin(history)
    for at, event in KEPT[:events]:
        history.append(hunt, event, at)
    return hunt


def test_events_of_earlier_attempts_are_shown_as_earlier(history: History, reader: History) -> None:
    hunt, view = interrupted(history, 6), Seen()
    history.sessions_of_process.clear()  # as another process
    history.append(hunt, sample.started(hunt=hunt, resumed=True), sample.BEGAN + 5000)
    history.enter_failure(hunt, "no space", sample.BEGAN + 5001)
    list(watch(reader, (hunt,), view, lambda _: None))
    assert len(view.earlier[hunt]) == 6
    assert [event.resumed for event in view.shown[hunt] if isinstance(event, SessionStarted)] == [True]


@pytest.mark.parametrize(("together", "begun"), [(False, [3, 0, 0, 3]), (True, [3, None, 3, None])])
def test_starts_of_runs_are_inferred_in_the_order_of_the_lab(*, together: bool, begun: list[int | None]) -> None:
    """A pair of runs has one start, of the first build."""
    followed = RunStartAdder()
    order = Measure((PlannedRuns(3, 2), PlannedRuns(0, 2)), Purpose.SEARCH, together=together)
    decided = Decided(Decision(order, next(e.decision.belief for _, e in KEPT if isinstance(e, Decided))))
    for event in (sample.started(), BuildFinished(3, sample.build(3), None), BuildFinished(0, sample.build(0), None)):
        list(followed.with_run_starts(event))
    finished = [RunFinished(each, sample.run(each, 1.0)) for each in ((3, 0, 3, 0) if together else (3, 0, 0, 3))]
    completed = [followed.with_run_starts(event) for event in (decided, *finished)]
    seen = [[each for each in events if isinstance(each, RunStarted)] for events in completed]
    assert [each[0].candidate if each else None for each in seen] == [*begun, None]
    assert [each[0].number for each in seen if each] == [1, 2] if together else [1, 2, 3, 4]


def test_trial_is_watched_like_a_hunt(history: History, reader: History) -> None:
    request = sample.comparison(2, ["scan"], rounds=2).request
    trial, out = sample.begin_trial(history, request, sample.BEGAN), io.StringIO()
    assert running_sessions(reader) == [trial]
    runs = [(sample.BEGAN + 10, RunFinished(build, sample.run(build, 1.0), round=0)) for build in (0, 1)]
    goes_on = events_come(history, trial, runs, failed=True)
    [ended] = watch(reader, (trial,), PlainLines(out, {trial: ""}), goes_on)
    assert (ended.id, ended.state) == ("c1", "failed")
    lines = [line.split("  ")[0] for line in out.getvalue().splitlines()]
    assert lines == ["round 1 of 2: workload scan, v0", "", "round 1 of 2: workload scan, v1", ""]


def test_clock_of_an_interrupted_hunt_stops(history: History, reader: History) -> None:
    hunt = interrupted(history, 12)
    history.enter_failure(hunt, "no space", sample.BEGAN + 100)
    console = Console(file=io.StringIO(), width=80, height=30, color_system=None)
    wall = LiveScreen(console, {hunt: ""}, now=lambda: sample.BEGAN + 1e6)
    list(watch(reader, (hunt,), wall, lambda _: None))
    assert f"{clock(KEPT[11][0] - sample.BEGAN)} elapsed" in next(wall.list_and_hunt_lines(30)).plain
    assert not wall.views[hunt].activity_by_host
