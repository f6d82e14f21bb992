"""Views of several hunts of a process or a batch, of a hunt on several hosts or with build hosts, and of trials."""

import io
import json
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from rich.console import Console

import sample_hunt as sample
from json_events import decode
from perfbisect.core.domain.events import (
    BuildCancelled,
    BuildFinished,
    BuildProgress,
    BuildStarted,
    CandidateSkipped,
    Commit,
    Event,
    LabEvent,
    PairingChosen,
    RunFinished,
    RunProgress,
    RunStarted,
    SessionEnded,
    SessionStarted,
    Warned,
)
from perfbisect.core.domain.facts import SkipFacts
from perfbisect.core.domain.orders import Purpose
from perfbisect.core.domain.settings import Pairing, TrialBuild, TrialRequest, TrialType, TrialWorkload
from perfbisect.core.inference.classification import Classification
from perfbisect.hunt.watching import RunStartAdder
from perfbisect.ui.lines import JsonLines, PlainLines, event_lines
from perfbisect.ui.live import LiveScreen
from perfbisect.ui.screen import screen_lines as drawn
from perfbisect.ui.session_update import view_after, view_after_earlier_attempts
from perfbisect.ui.session_view import LatestRun, SessionRow, SessionView
from sample_hunt import HOST, Events, Tale, followed

# The views of hunts of several workloads that one process carries out.


EVENTS = [*Tale(hunt=12, progress=True).events()]
STARTS = next(each for each in EVENTS if isinstance(each[1], SessionStarted))
TITLES = {12: "update-index", 13: "sc\x1b[2Jan"}


def empty(width: int, height: int, titles: dict[int, str], *, together: bool) -> LiveScreen:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)
    return LiveScreen(console, titles, together=together, now=lambda: EVENTS[40][0])


def screen(width: int = 100, height: int = 40) -> LiveScreen:
    """A screen of two hunts, of which the first has ended."""
    view = empty(width, height, TITLES, together=True)
    view.add_earlier_events(12, EVENTS)
    view.add_earlier_events(13, [])
    view.add_events(13, EVENTS[:40])
    return view


def shown(view: LiveScreen, height: int = 40) -> list[str]:
    lines = [line.plain for line in view.list_and_hunt_lines(height)]
    assert "\x1b" not in "".join(lines)
    return lines


def test_each_hunt_has_a_line_and_the_measured_hunt_has_a_screen() -> None:
    """A verdict is shown before the reason is measured, and at the end the lines of all hunts stay."""
    view = screen()
    first, second, *others = shown(view)
    assert first.startswith(" update-index  hunt 12") and "culprit" in first
    assert second.startswith(" sc") and "hunt 13" in second and "culprit" not in second
    assert sum("elapsed" in line for line in others) == 1 and view.drawn_hunts() == [13]
    ended = len(EVENTS) - 2  # the decision
    view.add_events(13, EVENTS[40 : ended + 1])
    assert "culprit" in shown(view)[1]
    view.add_events(13, EVENTS[ended + 1 :])
    stays = left(view)
    assert stays.count("The culprit is") == stays.count("  hunt 1") == 2


def test_event_that_several_hunts_share_is_written_once() -> None:
    """A failed build concerns all hunts. A run, or a failed run, concerns one hunt."""
    out = io.StringIO()
    view = PlainLines(out, TITLES, together=True)
    build = next(each for each in EVENTS if isinstance(each[1], BuildFinished))
    fails = (
        (STARTS[0], CandidateSkipped(3, SkipFacts(STARTS[1].candidates[3], stage, f"fails in {stage}", "", 1.0)))
        for stage in ("run", "compile")
    )
    for event in (STARTS, (STARTS[0], Warned("the host is busy")), build, *fails):
        for hunt in TITLES:
            view.add_events(hunt, [event])
    written = out.getvalue()
    assert {line[:14] for line in written.splitlines()} == {"update-index  ", "sc\\x1b[2Jan   "}
    times = {"  hunt  ": 2, "the host is busy": 1, "  built  ": 1, "fails in run": 2, "fails in compile": 1}
    assert {words: written.count(words) for words in times} == times
    assert view.views[13].tested, "the view of hunt 13 has the build, too"
    view.add_events(12, [each for each in EVENTS if not isinstance(each[1], SessionEnded)])
    assert "  decided   culprit " in out.getvalue(), "as soon as the verdict is reached"


def test_json_object_has_the_number_of_its_hunt() -> None:
    """Objects of a view of a single hunt have no number."""
    out, again = io.StringIO(), io.StringIO()
    view = JsonLines(out, TITLES)
    for hunt in TITLES:
        view.add_events(hunt, EVENTS[2:11])
    lines = out.getvalue().splitlines()
    assert [json.loads(line)["hunt"] for line in lines] == [12] * 9 + [13] * 9
    JsonLines(again, {12: ""}).add_events(12, [(at, event) for event, at in map(decode, lines[:9])])
    assert [json.loads(line) for line in again.getvalue().splitlines()] == [
        {name: value for name, value in json.loads(line).items() if name != "hunt"} for line in lines[:9]
    ]


# The view of a batch: a line for each hunt, and the screens of those that run.


ROWS = [
    SessionRow("sqlite scan 1..2", 12, "running on m1"),
    SessionRow("sqlite scan 2..3", 13, "found abcdef0123 97 %", is_running=False),
    SessionRow("sqlite scan 3..4\x1b[2J", None, "waiting", is_running=False),
]


def screen_batch(width: int = 100, height: int = 40) -> LiveScreen:
    """The screen of a batch with one hunt that runs, one that has ended, and one that waits."""
    view = empty(width, height, {}, together=False)
    for hunt in (12, 13):
        view.add_earlier_events(hunt, [])
        view.add_events(hunt, EVENTS[:40])
    view.rows = ROWS
    return view


def test_each_hunt_of_a_batch_has_a_line_and_running_hunts_a_screen() -> None:
    """At the end, the lines of all hunts stay."""
    view = screen_batch()
    lines = shown(view)
    assert [line.split("  ")[0].strip() for line in lines[:2]] == ["sqlite scan 1..2", "sqlite scan 2..3"]
    assert "hunt 12" in lines[0] and "running on m1" in lines[0] and "waiting" in lines[2]
    assert sum("update-index" in line for line in lines) == 1  # one header
    assert len(lines) > 10
    view.set_rows(ROWS)
    stays = left(view)
    assert "found abcdef0123 97 %" in stays and "update-index" not in stays


def test_screen_of_several_hunts_fits_the_terminal() -> None:
    for screen_of, height in product((screen, screen_batch), (1, 2, 3, 5, 8, 13, 24)):
        with closing(screen_of(60, height)) as view:
            lines = [*view.list_and_hunt_lines(height)]
        assert len(lines) <= height and all(line.cell_len <= 60 for line in lines)


def left(view: LiveScreen) -> str:
    """What stays on the terminal when a screen is closed."""
    view.close()
    assert isinstance(view.console.file, io.StringIO)
    return view.console.file.getvalue().rpartition("\x1b[?1049l")[2]


def test_plain_lines_report_each_change_of_a_batch_once() -> None:
    out = io.StringIO()
    view = PlainLines(out, {})
    view.set_rows(ROWS)
    view.add_earlier_events(12, [])
    view.add_events(12, EVENTS[:5])
    view.set_rows(ROWS)
    view.set_rows([SessionRow(ROWS[0].title, 12, "failed: it broke", is_running=False), *ROWS[1:]])
    lines = out.getvalue().splitlines()
    told = [line for line in lines if line.startswith("batch")]
    assert len(told) == 4 and told[-1].endswith("sqlite scan 1..2: failed: it broke")
    assert all(line.startswith(" 12  ") for line in lines if line not in told)
    assert "\x1b" not in out.getvalue()


# A hunt with two build hosts, as the views show it: builds beside runs.


AHEAD = BuildStarted | BuildProgress | BuildFinished


def on_hosts(events: Events, started: dict[str, Any], hosts_of: Callable[[LabEvent], tuple[str, ...]]) -> Events:
    """The sample hunt, whose start has the fields ``started``; ``hosts_of`` gives the hosts of an event."""
    found: Events = []
    for at, event in events[:400]:
        if isinstance(event, LabEvent) and not isinstance(event, Warned):
            found += [(at, replace(event, host=host)) for host in hosts_of(event)]
        else:
            found.append((at, replace(event, **started) if isinstance(event, SessionStarted) else event))
    return found


@pytest.fixture(scope="session")
def ahead(events: Events) -> Events:
    """The sample hunt with build hosts b1 and b2, which build in turns."""
    return on_hosts(
        events,
        {"build_hosts": ("b1", "b2")},
        lambda event: (f"b{1 + event.candidate % 2}" if isinstance(event, AHEAD) else HOST.name,),
    )


@pytest.fixture(scope="session")
def views(ahead: Events) -> list[SessionView]:
    return followed(ahead)


def of(host: str, view: SessionView, at: float) -> str:
    """The line of a host on the screen."""
    [line] = [line.plain for line in drawn(view, 110, 40, at) if line.plain.startswith(f" {host} ")]
    return line.removeprefix(f" {host} ").strip()


def test_screen_shows_a_run_and_two_builds_at_once(ahead: Events, views: list[SessionView]) -> None:
    place = next(place for place, (_, event) in enumerate(ahead) if isinstance(event, RunProgress))
    at, view = ahead[place][0], views[place]
    for candidate, host in ((4, "b1"), (5, "b2")):
        view = view_after(view, BuildStarted(candidate, Commit(view.sha(candidate)), host), at)
        view = view_after(view, BuildProgress(candidate, 30, 120, "compile", host), at)
    assert of(HOST.name, view, at).startswith("measur")
    assert f"building  {view.sha(4)[:10]}" in of("b1", view, at)
    for part in ("30 of 120", "compile", "1:05"):
        assert part in of("b2", view, at + 65)
    cancelled = BuildCancelled(5, Commit(view.sha(5)), 65.0, "b2")
    ended = view_after(view, cancelled, at + 65)
    assert of("b2", ended, at) == "free"
    assert isinstance(ended.latest_activity, LatestRun), "the activity of the measuring host stays"
    [told] = event_lines(ended, cancelled, at)
    assert f"{'ended':9} b2  {view.sha(5)[:10]}  the build is no longer needed; stopped after 1 min 5 s" in told


def test_screen_shows_that_a_host_waits_for_a_build(ahead: Events, views: list[SessionView]) -> None:
    builds = next(place for place, (_, event) in enumerate(ahead) if isinstance(event, BuildProgress))
    assert of(HOST.name, views[builds], ahead[builds][0]) == "waiting for a build"
    at, view = next(
        (at, view)
        for (at, event), view in zip(reversed(ahead), reversed(views), strict=True)
        if isinstance(event, RunFinished)
        and isinstance(view.latest_activity, LatestRun)
        and view.latest_activity.number == view.latest_activity.runs_of_order
    )
    assert of(HOST.name, view, at).startswith("measur")
    view = view_after(view, BuildStarted(4, Commit(view.sha(4)), "b1"), at)
    assert "waiting for a build, after  " in of(HOST.name, view, at)


def test_plain_lines_name_the_host(
    ahead: Events, views: list[SessionView], two: Events, views_of_two: list[SessionView]
) -> None:
    for log, seen, first, hosts in (
        (ahead, views, "on local, built on b1 and b2", {"building": "b1", "built": "b2", "ran": HOST.name}),
        (two, views_of_two, "on local and b", {"building": HOST.name, "built": HOST.name, "ran": "b"}),
    ):
        said = [text for (at, event), view in zip(log, seen, strict=True) for text in event_lines(view, event, at)]
        assert any(first in text for text in said)
        for word, host in {**hosts, "next": HOST.name}.items():
            assert any(f"{word:9} {host}  " in text for text in said), word


def test_starts_of_runs_are_inferred_from_a_stored_log(ahead: Events) -> None:
    completed, passing = RunStartAdder(), RunStarted | RunProgress | BuildProgress
    stored = [each for _, event in ahead if not isinstance(event, passing) for each in completed.with_run_starts(event)]
    begun, real = (
        [(event.candidate, event.number, event.host) for event in log if isinstance(event, RunStarted)]
        for log in (stored, [event for _, event in ahead])
    )
    assert begun[:7] == real[:7], "those before a build that needs no runs"


# A hunt on two hosts, as the views show it: the activity of each host.


@pytest.fixture(scope="session")
def two(events: Events) -> Events:
    """The sample hunt with a second host b, which repeats each event of the first host."""
    further = replace(HOST, name="b")
    return on_hosts(events, {"further": (further,), "host_classes": ("x", "x")}, lambda _: (HOST.name, "b"))


@pytest.fixture(scope="session")
def views_of_two(two: Events) -> list[SessionView]:
    return followed(two)


def test_screen_has_a_line_for_each_host(two: Events, views_of_two: list[SessionView]) -> None:
    passing = BuildProgress | RunProgress
    of_b = [place for place, (_, event) in enumerate(two) if isinstance(event, passing) and event.host == "b"]
    for place in of_b[:: len(of_b) // 9]:
        (at, event), view = two[place], views_of_two[place]
        shown = [line.plain for line in drawn(view, 100, 40, at)]
        assert len([line for line in shown if line.startswith((" local  ", " b      "))]) == 2
        assert isinstance(event, passing) and view.classification(event.candidate) is Classification.NOW
        assert drawn(view, 60, 20, at)


def test_event_of_one_host_keeps_the_activity_of_the_other(two: Events, views_of_two: list[SessionView]) -> None:
    first = next(place for place, (_, event) in enumerate(two) if isinstance(event, BuildStarted))
    after = view_after(views_of_two[first], replace(two[first][1], candidate=9, host="b"), 1.0)  # type: ignore[call-arg]
    assert after.activity_by_host["local"] == views_of_two[first].activity_by_host["local"]
    assert not view_after_earlier_attempts(after, []).activity_by_host


# A trial: its activity, its progress, and the ratios so far.


BUILDS = (TrialBuild("v1", "a" * 40), TrialBuild("v2\x1b[2J", "b" * 40, variant="lto"), TrialBuild("v3", "c" * 40))
WORKS = tuple(TrialWorkload(name, "all", 0.0, 1.0) for name in ("scan", "write"))
REQUEST = TrialRequest(TrialType.COMPARE, "kv", "", "local", "qps", {}, BUILDS, WORKS, 2, 1)
FAILED = SkipFacts("c" * 40, "compile", "no such field", "build.log", 1.0)


def comparing(metric: str = "qps") -> Events:
    """The events of a comparison in which two of three builds succeed, and are measured in one of two rounds."""
    happened: list[Event] = [SessionStarted(3, sample.HOST, False, request=replace(REQUEST, metric=metric))]
    happened.append(Warned("the host is busy", "Wait."))
    for number, build in enumerate(BUILDS[:2]):
        happened += [BuildStarted(number, Commit(build.commit, "2023-01-01", "A", f"Subject\x07 {number}"))]
        happened += [BuildFinished(number, replace(sample.build(number), commit=build.commit, seconds=5.0), None)]
    happened.append(CandidateSkipped(2, FAILED))
    for work, (number, qps) in product(range(2), enumerate((1000.0, 500.0))):
        run = replace(sample.run(0, 0.0, qps=qps), reported=7.2, latency={"p95": 1.5}, counters={})
        happened.append(RunFinished(number, run, "", work, 0))
    return [(1000.0 + place, event) for place, event in enumerate(happened)]


def told(log: Events, recall: Sequence[tuple[float, Event]] = (), **more: Any) -> list[str]:
    """The plain lines of a trial."""
    out = io.StringIO()
    view = PlainLines(out, {3: "comparison"}, **more)
    view.add_earlier_events(3, recall)
    view.add_events(3, log)
    assert not {"\x1b", "\x07"} & {*out.getvalue()}
    return out.getvalue().splitlines()


def test_each_step_and_each_run_of_a_trial_is_a_line() -> None:
    assert told(comparing())[:4] == [
        "warning: the host is busy. Wait.",
        r"building aaaaaaaaaa Subject\x07 0",
        r"building bbbbbbbbbb@lto Subject\x07 1",
        "warning: v3 is omitted: no such field. See build.log.",
    ]
    said = {"qps": "500 QPS", "p95": "1.50 ms", "rate": "7.20 rate", "instructions/o": "no instructions/o"}
    assert {metric: told(comparing(metric))[-1].removeprefix("  run 4 of 12  ") for metric in said} == said
    assert [line.partition(":")[0] for line in told(comparing(), quiet=True)] == ["warning"] * 2
    every = io.StringIO()
    JsonLines(every, {3: ""}).add_events(3, comparing())
    assert [decode(line) for line in every.getvalue().splitlines()] == [(event, at) for at, event in comparing()]


def test_long_run_has_a_line_each_minute() -> None:
    out, clock = io.StringIO(), [1000.0]
    view = PlainLines(out, {3: ""}, now=lambda: clock[0])
    view.add_events(3, [*comparing(), (1100.0, RunStarted(0, 1, 1, Purpose.ENDS, 0.0, round=1))])
    clock[0] = 1186.0
    view.write_activity_if_silent()
    assert out.getvalue().endswith("  running   round 2 of 2: workload scan, v1  run 1 of 1, 1 min 26 s so far\n")


def test_resumed_trial_continues_after_the_earlier_runs() -> None:
    begins = RunStarted(0, 1, 1, Purpose.ENDS, 1.0, workload=1, round=1)
    fails = CandidateSkipped(1, replace(FAILED, stage="run", reason="it crashes"), workload=1)
    resumed = SessionStarted(3, sample.HOST, True, request=REQUEST)
    assert told([(2000.0, event) for event in (resumed, begins, begins, fails)], recall=comparing()) == [
        "continuing c3, which has 4 runs so far",
        "round 2 of 2: workload write, v1",
        r"warning: v2\x1b[2J fails in workload write: it crashes. See build.log.",
    ]


def picture(log: Events, width: int = 70) -> tuple[LiveScreen, list[str]]:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=24, color_system=None)
    view = LiveScreen(console, {3: "comparison"}, now=lambda: 1020.0)
    view.add_events(3, log)
    return view, shown(view, 24)


def test_picture_of_a_trial_has_the_ratios_so_far() -> None:
    view, lines = picture(comparing())
    assert lines[0].startswith(" c3 · kv · scan · write · local") and "0:20 elapsed" in lines[0]
    assert "  4 of 12 runs" in lines[1]
    assert any(line.split()[:2] == ["scan", "0.500"] for line in lines)
    assert any("v3 is omitted" in line for line in lines)
    assert all(len([*view.list_and_hunt_lines(height)]) <= height for height in (2, 4, 8))
    view.add_events(3, [(1030.0, SessionEnded())])
    assert "4 of 12 runs" in left(view)
    narrow, lines = picture(comparing(), width=28)
    narrow.close()
    assert "and 1 further column" in [line.strip() for line in lines], "no number is cut"


def test_paired_runs_of_a_trial_are_drawn_as_pairs() -> None:
    pairs: Events = []
    for number, rate in ((1, 900.0), (0, 1000.0)):
        run = replace(sample.run(0, 0.0, qps=rate), commit=BUILDS[number].commit, round="r1")
        pairs.append((1100.0, RunFinished(number, run, "", 0, 0)))
    begun = [entry for entry in comparing() if not isinstance(entry[1], RunFinished)]
    view, lines = picture([*begun, *pairs], width=100)
    view.close()
    drawn = r"● v2\S* beside ○ v1, QPS: ×0\.900 in 1 pair\n ●━+○  ×0\.900 · 900 beside 1,000"
    assert re.search(drawn, "\n".join(lines)), lines
    request = replace(REQUEST, pairing=Pairing.AUTO, works=WORKS[:1], subjects=BUILDS[:2])
    chosen = PairingChosen(True, "In pairs.", alone=None, beside=None)
    lines = told([(1.0, SessionStarted(3, sample.HOST, False, request=request)), *pairs, (1200.0, chosen), *pairs[:1]])
    assert lines[0].startswith("round 1: workload scan, v2") and lines[1] == "  run 1  900 QPS, paired"
    assert lines[4:6] == ["In pairs. Runs still to be made: 2.", "round 1 of 2: workload scan, v2\\x1b[2J"]
    assert lines[6].startswith("  run 3 of 4")
