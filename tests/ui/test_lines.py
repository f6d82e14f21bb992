"""Events as lines of text, with several metrics and with the explanation; and events as JSON."""

import io
import json
import re
import sys
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import sample_hunt as sample
from counted import profile
from json_events import decode
from perfbisect.core.domain.events import (
    BuildCancelled,
    BuildFinished,
    BuildProgress,
    BuildStarted,
    ChangedFunctions,
    Commit,
    Decided,
    Event,
    ExecutionStarted,
    MetricChosen,
    PairingChosen,
    Profiled,
    RunFinished,
    RunProgress,
    RunStarted,
    SessionEnded,
    SessionStarted,
)
from perfbisect.core.domain.facts import BuildFacts, ChangeFacts, RunFacts
from perfbisect.core.domain.orders import (
    Decision,
    Inconclusive,
    Interval,
    Measure,
    PlannedRuns,
    Purpose,
    Reason,
)
from perfbisect.store.history import History
from perfbisect.ui.candidates import candidate_table, row_texts
from perfbisect.ui.lines import JsonLines, PlainLines, event_json, event_lines
from perfbisect.ui.screen import screen_lines as screen
from perfbisect.ui.screen import verdict_lines
from perfbisect.ui.session_update import view_after
from perfbisect.ui.session_view import SessionView
from pinned import pinned
from sample_hunt import Events
from waiting import until


def test_lines_of_the_sample_hunt_equal_lines_txt(events: Events, views: list[SessionView]) -> None:
    """To accept other lines, delete lines.txt, and run the test twice."""
    written = []
    for (at, event), view in zip(events, views, strict=True):
        lines = [*event_lines(view, event, at)]
        silent = isinstance(event, BuildProgress | RunProgress | RunStarted)  # and the decision before a verdict
        silent |= isinstance(event, Decided) and not isinstance(event.decision.order, Measure)
        assert bool(lines) != silent
        written += lines
    assert all(re.match(r"\d\d:\d\d:\d\d  \w|          ", line) for line in written)
    pinned("ui/lines.txt", "".join(f"{line[10:]}\n" for line in written))


def test_long_build_or_run_has_a_line_each_minute(
    events: Events, views: list[SessionView], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line is written if hosts are idle, or shortly after another line."""
    begun = [place for place, (_, event) in enumerate(events) if isinstance(event, BuildStarted | RunStarted)]
    out, clock = io.StringIO(), [0.0]
    view = PlainLines(out, {12: ""}, now=lambda: clock[0])

    def reminded(*times: float) -> list[list[str]]:
        """The words of the lines that are written at these times."""
        written = len(out.getvalue())
        for clock[0] in times:
            view.write_activity_if_silent()
        return [line.split() for line in out.getvalue()[written:].splitlines()]

    for place, (at, event) in enumerate(events):
        clock[0] = at
        view.add_events(12, [(at, event)])
        if place in (begun[0], begun[-1]):
            word = "building" if isinstance(event, BuildStarted) else "running"
            lines = reminded(*(at + later for later in (59, 61, 119, 121.5)))
            assert [line[1:3] for line in lines] == [[word, views[place].commit(event.candidate).short_sha]] * 2
            assert out.getvalue().endswith("2 min 2 s so far\n")
    view.show_hunt_end(12, clock[0])
    assert reminded(clock[0] + 1000) == []
    monkeypatch.setattr("perfbisect.ui.lines.SILENCE", 0.01)
    with closing(PlainLines(out, {12: ""}).start_reminders()) as reminding:
        reminding.add_events(12, events[: begun[0] + 1])
        until(lambda: out.getvalue().count(" so far") > 4)


def test_reused_build_has_one_line() -> None:
    commit = Commit(SHAS[0], "2023-01-01", "a", "Split keys")
    built = BuildFinished(0, replace(sample.build(0), commit=commit.sha, reused=True), None)
    view, lines = view_after(SessionView(), STARTED, 0.0), []
    for event in (BuildStarted(0, commit, reused=True), built):
        view = view_after(view, event, 1.0)
        lines += [line[10:] for line in event_lines(view, event, 1.0)]
    assert lines == [f"built     {commit.short_sha}  2023-01-01 Split keys: an earlier build is used again"]


def test_line_of_a_run_has_the_name_of_its_ratio_or_a_count(events: Events, views: list[SessionView]) -> None:
    at, event, view = next(
        (at, event, view)
        for (at, event), view in zip(events, views, strict=True)
        if isinstance(event, RunFinished) and view.ratio(event.candidate)
    )
    assert view.hunt_start is not None
    (line,) = event_lines(
        replace(view, state=replace(view.state, started=replace(view.hunt_start, metric="cpu/o"))), event, at
    )
    assert re.search(r"QPS  rcpu/o 0\.7\d\d ", line)
    facts = replace(event.facts, counted="perf-user", operations=1000, counters={"instructions": 5_432_000.0})
    (line,) = event_lines(view, replace(event, facts=facts), at)
    assert "5,432 instructions/o" in line
    assert "QPS" not in line, "a counted run has no QPS and no ratio of QPS"


def test_rate_of_a_row_is_from_the_runs_of_its_ratio(views: list[SessionView]) -> None:
    """Runs in randomized layouts count only if the baseline has such runs, too."""
    view, bad = views[-1], len(views[-1].state.commits) - 1
    run = view.tested[bad].runs[0]
    fresh = tuple(replace(run, operations=run.operations * 9, layout=seed) for seed in range(1, 30))
    for linked_again in ({bad}, {0, bad}):
        more = {each: replace(view.tested[each], runs=(*view.tested[each].runs, *fresh)) for each in linked_again}
        changed = replace(view, tested={**view.tested, **more})
        assert (row_texts(changed, bad)["rate"] == row_texts(view, bad)["rate"]) is (linked_again == {bad})


def test_ratio_in_randomized_layouts_is_on_the_line_of_the_commit(events: Events, views: list[SessionView]) -> None:
    """And on the screen, instead of the ratio in the usual layout, which changes no more.

    The line names the other commit, which may not be the parent. The line of the other commit has no ratio.
    """
    (at, event), view = next(
        (entry, view) for entry, view in zip(events, views, strict=True) if isinstance(entry[1], RunFinished)
    )
    order = Measure((PlannedRuns(3, 5), PlannedRuns(2, 5)), Purpose.CONFIRM, fresh=True)
    assert view.state.belief
    view = view_after(view, Decided(Decision(order, view.state.belief)), at)
    written, shown = {}, set()
    for seed, (candidate, rate) in product((1, 2, 3), ((3, 900), (2, 1000))):
        facts = replace(event.facts, commit=view.sha(candidate), operations=rate + 9 * seed, layout=seed)
        of_layout = replace(event, candidate=candidate, facts=facts)
        view = view_after(view, of_layout, at)
        [written[candidate]] = event_lines(view, of_layout, at)
        shown |= {*re.findall(r"\S+ \(\S+\) of \w+ in \d layouts", drawn(view, at))}
    assert re.search(rf"QPS  0\.9\d\d \(\S+\) of {view.commit(2).short_sha} in 2 layouts ", written[3])
    assert "rQPS" not in written[3] and "QPS  baseline  " in written[2]
    assert len(shown) > 2 and {text.split()[-4] for text in shown} == {view.commit(2).short_sha}
    assert "checking that the difference is not caused by code placement: 6 of about 10 runs" in drawn(view, at)


def test_first_lines_explain_the_comparison_with_the_merge_base() -> None:
    begun = replace(STARTED, of_merge_base=True)
    view = view_after(SessionView(), begun, 1.0)
    [line, heading] = event_lines(view, begun, 1.0)
    said = "good v1 is not an ancestor of bad v2. First, good is compared with the merge base aaaaaaaaaa, which replaces good if both are equally fast"
    assert said in line and "1 candidate" not in line
    assert "to the runs of good (aaaaaaaaaa) so far" in heading
    assert "good is not an ancestor of bad · comparison with the merge base" in drawn(view, 1.0)


def test_title_of_a_ratio_of_cpu_time_says_by_cpu() -> None:
    for together, title in ((True, "rQPS by CPU"), (False, "rQPS")):
        view = view_after(view_of("qps")[0], PairingChosen(together, "why", by_cpu=True), 1.0)
        assert view.ratio_title == title
        assert any(f" {title} " in text.plain for text in candidate_table(view, 160, 9))


# Events as JSON lines, written and decoded.


def same(one: Event, other: Event) -> bool:
    """Whether two events are equal. Beliefs (arrays) are equal if they agree to the digits that are written."""
    if not (isinstance(one, Decided) and isinstance(other, Decided)):
        return one == other
    mine, theirs = one.decision.belief, other.decision.belief
    fields = ("change", "noise", "effect", "warnings")
    return (
        one.decision.order == other.decision.order
        and np.allclose(mine.culprit, theirs.culprit, rtol=1e-3)
        and all(getattr(mine, name) == getattr(theirs, name) for name in fields)
    )


def test_every_event_is_decoded_from_its_line(events: Events) -> None:
    hunted = [each for each in events if isinstance(each[1], SessionStarted)]
    cancelled = BuildCancelled(3, Commit("a" * 40), 2.5, "b1")
    names = set()
    for at, event in [*events, (1.0, cancelled), *((at, replace(each, build_hosts=("b1",))) for at, each in hunted)]:
        line = event_json(event, at)
        found, when = decode(line)
        assert "\n" not in line and when == at and same(found, event), line
        names.add(json.loads(line)["event"])
    assert names == {
        "Warned", "HuntStarted", "Decided", "BuildStarted", "BuildProgress", "BuildFinished", "CandidateSkipped",
        "RunStarted", "RunProgress", "RunFinished", "HuntEnded", "BuildCancelled",
    }  # fmt: skip


WRONG = [
    "[]", "7", "{}", '{"event":"Nothing","at":1}', '{"event":"Warned"}', '{"event":"Warned","at":1}', "{",
    '{"event":"Decided","at":1}', '{"event":"HuntEnded","at":1,"verdict":{"kind":"Guess"}}',
    '{"event":"HuntEnded","at":1,"verdict":{"kind":"Measure","plan":[],"purpose":"ends"}}',
]  # fmt: skip


def test_line_that_is_no_event_is_refused() -> None:
    for line in WRONG:
        with pytest.raises(ValueError):
            decode(line)


def test_each_event_is_written_at_once_on_one_line_in_any_encoding(events: Events) -> None:
    raw, plain = io.BytesIO(), io.BytesIO()
    view = JsonLines(io.TextIOWrapper(raw, encoding="ascii"), {12: ""})
    for number, entry in enumerate([*events[:20], (1.0, BuildStarted(1, Commit("ab" * 20, "", "Zoë", "Füße\x1b")))], 1):
        view.add_events(12, [entry])
        assert raw.getvalue().count(b"\n") == number
    assert raw.getvalue().isascii()
    found, at = decode(raw.getvalue().splitlines()[-1])
    assert at == 1.0 and isinstance(found, BuildStarted) and found.commit.author == "Zoë"
    with closing(PlainLines(io.TextIOWrapper(plain, encoding="ascii"), {12: ""})) as plain_view:
        plain_view.add_events(12, events[:40])
        assert b"update-index" in plain.getvalue()


def test_infinite_bound_is_decoded_as_infinite() -> None:
    verdict = Inconclusive((), (), Interval(0.0, 1.0, np.inf), Reason.UNBUILDABLE)
    line = event_json(SessionEnded(verdict), 1.0)
    assert json.loads(line)["verdict"]["ratio"]["high"] == sys.float_info.max
    assert decode(line) == (SessionEnded(verdict), 1.0)


# Hunts whose metric is not operations per second, but a number that a command prints, or its duration.


SHAS = ("a" * 40, "b" * 40)
STARTED = SessionStarted(1, sample.HOST, False, "kv-1", "bench-1", "v1", "v2", 1, SHAS, 0)
FACTS = RunFacts(SHAS[0], "k", "v", "local", 1000.0, 2.0, 4, {"avg": 500.0}, (), {}, {}, reported=12_345.0, unit="MB/s")
HUNTED = [("rate", "12,345 MB/s", "rrate"), ("cost", "12,345 MB/s", "rcost"), ("latency", "500 ms", "rlatency"),
          ("qps", "2.00 QPS", "rQPS"), ("cpu/o", "2.00 QPS", "rcpu/o")]  # fmt: skip


def view_of(metric: str) -> tuple[SessionView, list[Event]]:
    """The view after a run of good, and the events before."""
    events: list[Event] = [
        replace(STARTED, metric=metric),
        BuildStarted(0, Commit(SHAS[0], "2023-01-01", "A", "Subject")),
        BuildFinished(0, BuildFacts(SHAS[0], "k", "k", 1.0, 0, 0, False, ""), None),
        RunStarted(0, 1, 2, Purpose.ENDS, 0.0),
        RunFinished(0, FACTS),
    ]
    view = SessionView()
    for second, event in enumerate(events):
        view = view_after(view, event, 1000.0 + second)
    return view, events


@pytest.mark.parametrize(("metric", "shown", "relative"), HUNTED)
def test_line_and_screen_show_the_metric_of_the_hunt(metric: str, shown: str, relative: str) -> None:
    view, events = view_of(metric)
    [line] = event_lines(view, events[-1], 1010.0)
    assert f"  {shown}  baseline" in line
    assert f"{shown} · " in drawn(view, 1010.0) and relative in drawn(view, 1010.0).split()


def drawn(view: SessionView, at: float = 1017.0) -> str:
    return "\n".join(line.plain for line in screen(view, 120, None, at))


def test_timed_run_keeps_its_unit_after_a_change_to_instructions() -> None:
    view, events = view_of("rate")
    for event in (MetricChosen("instructions/o", "why", "rate"), *events[3:]):
        view = view_after(view, event, 1010.0)
    assert "12,345 MB/s" in "".join(event_lines(view, events[-1], 1010.0))
    assert "12,345 MB/s · " in drawn(view)


def test_screen_shows_no_expected_duration_of_an_unknown_command() -> None:
    view, events = view_of("latency")
    shown = drawn(view_after(view, events[3], 1010.0))
    assert "running · 7 s" in shown and " of 0" not in shown


def test_counted_run_shows_its_current_execution() -> None:
    """Under valgrind, an execution takes a minute. Only the first execution of a run has a line."""
    view, events = view_of("instructions/o")
    for execution, text in (
        (ExecutionStarted(0, 2, 0, 16), "counting, how long is long enough: 16"),
        (ExecutionStarted(0, 2, 2, 50_000), "counting 50,000 operations, 2 of 2"),
        (ExecutionStarted(0, 1, 1, 0), "counting"),
    ):
        view = view_after(view_after(view, events[3], 1010.0), execution, 1012.0)
        assert f"  {text} · 7 s" in drawn(view)
        printed = [line.split(maxsplit=1)[1] for line in event_lines(view, execution, 1012.0)]
        assert printed == ([f"running   {SHAS[0][:10]}  {text}"] if execution.number == 1 else [])


# The explanation below the verdict, while the hunt is still on the screen.


SENTENCE = "100 % (98 to 102 %) of the loss is in `search`, which this commit changes."


def test_views_show_the_explanation_if_it_was_studied(tmp_path: Path) -> None:
    culprit, parent, search = sample.CANDIDATES[sample.CULPRIT], sample.CANDIDATES[6], ("main", "search")
    studied = [
        Profiled(sample.CULPRIT, profile(culprit, {search: 20_000, ("main",): 5000})),
        Profiled(6, profile(parent, {search: 12_000, ("main",): 5000})),
        ChangedFunctions(sample.CULPRIT, ChangeFacts(culprit, parent, ("search",))),
    ]
    with closing(History.open(tmp_path / "history.db")) as opened:
        stored = [(entry.at, entry.event) for entry in opened.events(sample.write(opened))]
    [ends] = [number for number, (_, event) in enumerate(stored) if isinstance(event, SessionEnded)]

    def shown(*more: Event) -> tuple[str, str]:
        """The lines and the screen at the end, if the events ``more`` come before the verdict."""
        view, written = SessionView(), []
        for at, event in [*stored[:ends], *((stored[ends][0], event) for event in more), *stored[ends:]]:
            view = view_after(view, event, at)
            written += event_lines(view, event, at)
        return "\n".join(written), " ".join(text.plain for text in verdict_lines(view, 1000))

    written, on_screen = shown(*studied)
    assert "1 changed function\n" in written and f"Why {culprit[:10]}: " in written
    assert written.index("verdict  ") < written.index(SENTENCE) < written.index("Full report")
    assert SENTENCE in on_screen.replace("\N{NO-BREAK SPACE}", " ")
    assert "Why" not in "".join(shown())
