"""A stored log, completed: runs that begin are found again, though a history does not keep them."""

from collections.abc import Iterator
from dataclasses import replace

from perfbisect.core.domain.events import Counted, Decided, Event, HuntStarted, RunFinished, RunStarted
from perfbisect.core.domain.orders import Found, Purpose
from perfbisect.hunt.watching import Completed
from perfbisect.store.log import PASSING
from perfbisect.ui.view_model import Running, ViewModel, caught_up, update

Events = list[tuple[float, Event]]
PARENT = 36  # of the culprit


def stored(events: Events) -> Iterator[tuple[float, Event]]:
    """What a history keeps, completed."""
    completed = Completed()
    for at, event in events:
        if not isinstance(event, PASSING):
            yield from ((at, each) for each in completed.after(event))


def begun(events: Events) -> Events:
    """The runs that begin, without their planned length."""
    return [
        (at, replace(event, seconds=0.0))
        for at, event in events
        if isinstance(event, RunStarted) and event.purpose is not Purpose.EXPLAIN
    ]


def test_each_run_begins_as_it_did(events: Events) -> None:
    assert len(begun(events)) > 20
    assert begun(list(stored(events))) == begun(events)


def test_in_a_new_session_builds_come_first(events: Events) -> None:
    """A build of an earlier session is announced again before its runs."""
    completed = Completed()
    began = next(event for _, event in events if isinstance(event, HuntStarted))
    decided = [event for at, event in events if type(event).__name__ == "Decided"]
    for _, event in events:
        list(completed.after(event))
    list(completed.after(began))
    assert list(completed.after(decided[0])) == [decided[0]]


def test_views_that_catch_up_are_as_those_that_followed(events: Events) -> None:
    for end in (30, 200, len(events)):
        one = ViewModel()
        for at, event in events[:end]:
            one = update(one, event, at)
        other = caught_up(ViewModel(), events[:end])
        assert (other.rows, other.ratios, other.busy, other.began, other.ended, other.searching) == (
            (one.rows, one.ratios, one.busy, one.began, one.ended, one.searching)
        )


def test_what_is_done_now(events: Events) -> None:
    last = max(place for place, (_, event) in enumerate(events) if isinstance(event, RunStarted))
    view = caught_up(ViewModel(), stored(events[: last + 1]))
    assert isinstance(view.now, Running)
    assert (view.now.number, view.now.of, view.now.since, view.now.finished) == (6, 6, events[last][0], False)


def test_after_the_verdict_the_reason_is_measured(events: Events) -> None:
    """Not the last run of the search: of it only the end of each run is kept."""
    place, decided = next(
        (place, event)
        for place, (_, event) in enumerate(events)
        if isinstance(event, Decided) and isinstance(event.decision.order, Found)
    )
    assert isinstance(decided.decision.order, Found)
    until, at = events[: place + 1], events[place][0]
    counted = Counted(PARENT, next(event.facts for _, event in events if isinstance(event, RunFinished)), "core")
    for log, candidate in ((until, decided.decision.order.step.candidate), ([*until, (at + 1, counted)], PARENT)):
        now = caught_up(ViewModel(), stored(log)).now
        assert isinstance(now, Running)
        assert (now.candidate, now.purpose, now.finished) == (candidate, Purpose.EXPLAIN, False)
