"""The state of a view after a sequence of events, which are live or from a stored log."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from perfbisect.core.domain.events import (
    LIVE_ONLY,
    BuildFinished,
    BuildProgress,
    BuildStarted,
    CandidateSkipped,
    Commit,
    Counted,
    Decided,
    Event,
    RunFinished,
    RunProgress,
    RunStarted,
    SessionEnded,
    SessionStarted,
    Warned,
)
from perfbisect.core.domain.facts import BuildFacts, RunFacts, SkipFacts
from perfbisect.core.domain.orders import (
    Belief,
    Decision,
    Found,
    Interval,
    Measure,
    NotReproduced,
    PlannedRuns,
    Purpose,
)
from perfbisect.core.inference.classification import Classification
from perfbisect.hunt.watching import RunStartAdder
from perfbisect.ui.candidates import candidate_table
from perfbisect.ui.session_update import view_after, view_after_earlier_attempts, view_after_events
from perfbisect.ui.session_view import (
    LatestBuild,
    LatestRun,
    SessionView,
    credible_set_size,
    entropy_in_bits,
    minutes_left,
)
from sample_hunt import HOST, Events

SHAS = tuple(f"{n:040x}" for n in range(4))
STARTED = SessionStarted(1, HOST, False, "demo", "update-index", "v1", "v2", 3, SHAS, 0)


def after(*events: Event, view: SessionView | None = None) -> SessionView:
    """The view after events one second apart."""
    view = view or SessionView()
    for second, event in enumerate(events):
        view = view_after(view, event, 1000.0 + second)
    return view


def building(candidate: int, subject: str = "Subject") -> BuildStarted:
    return BuildStarted(candidate, Commit(SHAS[candidate], "2023-01-01", "A", subject))


def built(candidate: int) -> BuildFinished:
    facts = BuildFacts(SHAS[candidate], "key", f"binary{candidate}", 5.0, 3, 1, False, "")
    return BuildFinished(candidate, facts, None)


def ran(candidate: int, qps: float, visit: str, started: float = 1000.0) -> RunFinished:
    facts = RunFacts(SHAS[candidate], "key", visit, "local", started, 10.0, int(10 * qps), {}, (qps,), {}, {})
    return RunFinished(candidate, facts)


def belief(*culprit: float) -> Belief:
    return Belief(np.array(culprit), 0.99, 0.01, Interval(0.6, 0.7, 0.8))


def decided(*culprit: float, purpose: Purpose = Purpose.SEARCH) -> Decided:
    return Decided(Decision(Measure((PlannedRuns(1, 1),), purpose), belief(*culprit)))


def measured(*rates: tuple[int, float]) -> SessionView:
    """A view in which these candidates were built and ran at these rates, each twice."""
    view = after(STARTED)
    for number, (candidate, qps) in enumerate(rates * 2):
        start = 1000.0 + 20 * number
        view = after(building(candidate), built(candidate), view=view)
        view = view_after(view, ran(candidate, qps * (1 + 0.002 * (number % 3)), f"visit{number}", start), start + 12)
    return view


def test_view_follows_a_build_from_start_to_end() -> None:
    view = after(STARTED, building(1), BuildProgress(1, 30, 120, "compile"))
    assert view.latest_activity == LatestBuild(1, 1001.0, 30, 120, "compile")
    assert view.classification(1) is Classification.NOW
    view = after(built(1), view=view)
    assert isinstance(view.latest_activity, LatestBuild) and view.latest_activity.is_finished
    assert view.classification(1) is Classification.BUILT


def test_view_follows_a_run_from_start_to_end() -> None:
    view = after(STARTED, building(0), built(0), RunStarted(0, 2, 4, Purpose.ENDS, 12.0))
    view = after(RunProgress(0, 1.0, 90.0), RunProgress(0, 2.0, 110.0), view=view)
    assert isinstance(view.latest_activity, LatestRun)
    assert (view.latest_activity.samples, view.highest_rate, view.state.run_count) == ((90.0, 110.0), 110.0, 0)
    view = after(ran(0, 100.0, "a"), view=view)
    assert isinstance(view.latest_activity, LatestRun) and view.latest_activity.is_finished
    assert ([run.qps for run in view.tested[0].runs], view.state.run_count) == ([100.0], 1)


def test_skip_is_shown_with_its_reason_without_control_characters() -> None:
    skip = CandidateSkipped(2, SkipFacts(SHAS[2], "compile", "no\x1b[31m such\nfield", "log", 4.0))
    view = after(STARTED, building(2, "clear\x1b[2J the\x07 screen\u202e"), skip)
    assert view.latest_activity is None
    assert view.classification(2) is Classification.SKIPPED
    assert view.commit(2).subject == r"clear\x1b[2J the\x07 screen\u202e"
    assert any(r"skipped, compile: no\x1b[31m such field" in line.plain for line in candidate_table(view, 200, 9))


def test_view_keeps_runs_in_the_range_of_the_merge_base_comparison() -> None:
    """Events before the range is known cause no error."""
    view = after(Warned("Early."), BuildProgress(0, 1, 2, ""), RunProgress(0, 1.0, 5.0))
    assert view.hunt_start is None and view.commit(3).short_sha == "candidate "
    warning = Warned("Something.", "Do something.")
    first = replace(STARTED, candidates=SHAS[:2], commits=1)
    view = after(warning, first, building(1), built(1), ran(1, 100.0, "a"), decided(0.0, 1.0), warning, STARTED)
    assert list(view.tested) == [1] and view.state.belief is None and view.latest_activity is None
    assert view.began == 1000.0 and view.state.warnings == {warning.text: warning.advice}
    assert len(view.state.node) == 4


ALIKE = NotReproduced(Interval(0.99, 1.0, 1.01), 0.02)


def test_leader_is_the_most_probable_candidate_of_a_search() -> None:
    assert after(STARTED, decided(0.0, 1 / 3, 1 / 3, 1 / 3)).leader is None
    searching = after(STARTED, decided(0.0, 0.1, 0.8, 0.1))
    assert searching.leader == (2, 0.8) and searching.search_start is not None
    ends = after(STARTED, decided(0.0, 0.1, 0.8, 0.1, purpose=Purpose.ENDS))
    assert ends.leader is None, "the only commit of a range is the culprit with certainty, but only if the ends differ"
    assert ends.search_start is None, "bits have a price only from the search on"
    assert view_after(searching, SessionEnded(ALIKE), 1100.0).leader is None


def test_remaining_time_decreases_as_information_is_gained() -> None:
    view = measured((0, 1000.0), (3, 700.0))
    assert minutes_left(view, 1100.0) is None
    early = view_after(view, decided(0.0, 0.34, 0.33, 0.33), 1100.0)
    late = view_after(early, decided(0.0, 0.02, 0.97, 0.01), 1110.0)
    first, second = minutes_left(early, 1100.0), minutes_left(late, 1110.0)
    assert first is not None and second is not None and 0 < second < first
    over = view_after(late, SessionEnded(ALIKE), 1120.0)
    assert (over.state.verdict, over.ended, over.latest_activity, minutes_left(over, 2000.0)) == (
        ALIKE,
        1120.0,
        None,
        None,
    )


def test_view_of_a_resumed_hunt_has_the_earlier_measurements(events: Events, views: list[SessionView]) -> None:
    half = 1 + [place for place, (_, event) in enumerate(events) if isinstance(event, RunFinished)][5]
    view = view_after_earlier_attempts(
        SessionView(), [each for each in events[:half] if not isinstance(each[1], LIVE_ONLY)]
    )
    before = views[half - 1]
    assert view.began is None and view.latest_activity is None
    assert (view.tested, view.state.log, view.ratios_to_good) == (
        before.tested,
        before.state.log,
        before.ratios_to_good,
    )
    assert before.hunt_start is not None
    resumed = view_after(view, replace(before.hunt_start, resumed=True), 2e9)
    assert resumed.tested == view.tested and resumed.began == 2e9 and resumed.state.verdict is None


# How uncertain a belief is.


def test_entropy_and_credible_set_measure_the_uncertainty() -> None:
    open_ = [entropy_in_bits(belief(0.0, *culprit)) for culprit in ([1.0, 0.0], [1 / 16] * 16, [3.0, 3.0])]
    assert open_ == pytest.approx([0.0, 4.0, 1.0])  # they need not be normalised
    assert [credible_set_size(belief(0.0, *culprit), 0.95) for culprit in ([0.96, 0.02, 0.02], [0.1] * 10)] == [1, 10]


# A stored log, completed with the starts of runs, which a history does not store.


PARENT = 6  # of the culprit


def stored(events: Events) -> Iterator[tuple[float, Event]]:
    """The events that a history stores, completed with the starts of runs."""
    completed = RunStartAdder()
    for at, event in events:
        if not isinstance(event, LIVE_ONLY):
            yield from ((at, each) for each in completed.with_run_starts(event))


def test_no_run_is_inferred_before_a_new_attempt_announces_its_build(events: Events) -> None:
    """A build of an earlier attempt is announced again before its runs."""
    completed = RunStartAdder()
    [began] = [event for _, event in events if isinstance(event, SessionStarted)]
    decided = next(event for _, event in events if isinstance(event, Decided))
    for event in (*(event for _, event in events), began):
        list(completed.with_run_starts(event))
    assert list(completed.with_run_starts(decided)) == [decided]


def test_view_of_a_log_equals_the_view_that_followed_the_events(events: Events, views: list[SessionView]) -> None:
    for end in (30, 200, len(events)):
        other = view_after_events(SessionView(), events[:end])
        for field in ("tested", "ratios_to_good", "activity_by_host", "began", "ended", "search_start"):
            assert getattr(other, field) == getattr(views[end - 1], field), field


def test_view_of_a_stored_log_shows_the_current_run(events: Events) -> None:
    last = max(place for place, (_, event) in enumerate(events) if isinstance(event, RunStarted))
    view = view_after_events(SessionView(), stored(events[: last + 1]))
    assert isinstance(view.latest_activity, LatestRun)
    assert (
        view.latest_activity.number,
        view.latest_activity.runs_of_order,
        view.latest_activity.since,
        view.latest_activity.is_finished,
    ) == (6, 6, events[last][0], False)


def test_view_of_a_stored_log_shows_the_study_after_the_verdict(events: Events) -> None:
    """A history stores no starts of runs, but the view does not show the last run of the search."""
    place, at, found = next(
        (place, at, event.decision.order)
        for place, (at, event) in enumerate(events)
        if isinstance(event, Decided) and isinstance(event.decision.order, Found)
    )
    until = events[: place + 1]
    counted = Counted(PARENT, next(event.facts for _, event in events if isinstance(event, RunFinished)), "core")
    for log, candidate in ((until, found.step.candidate), ([*until, (at + 1, counted)], PARENT)):
        now = view_after_events(SessionView(), stored(log)).latest_activity
        assert isinstance(now, LatestRun)
        assert (now.candidate, now.purpose, now.is_finished) == (candidate, Purpose.EXPLAIN, False)
