"""Several hunts in one view: those of one process and those of a batch; a hunt on several hosts, with build hosts; trials."""

import io
import json
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

import sample_hunt as sample
from example_hunt import HOST, SampleHunt, followed
from perfbisect.core.domain.events import (
    BuildCancelled,
    BuildFinished,
    BuildProgress,
    BuildStarted,
    CandidateSkipped,
    Commit,
    Decided,
    Event,
    HuntEnded,
    HuntStarted,
    LabEvent,
    PairingChosen,
    RunFinished,
    RunProgress,
    RunStarted,
    TrialEnded,
    TrialStarted,
    Warned,
)
from perfbisect.core.domain.facts import SkipFacts
from perfbisect.core.domain.orders import Measure, Purpose
from perfbisect.core.domain.settings import Pairing, TrialBuild, TrialRequest, TrialType, TrialWorkload
from perfbisect.core.inference.hunt_state import Classification
from perfbisect.hunt.watching import Completed
from perfbisect.ui.lines import JsonLines, PlainLines, decode, encode, lines
from perfbisect.ui.live import LiveScreen
from perfbisect.ui.screen import lines as drawn
from perfbisect.ui.view_model import Row, Running, ViewModel, recalled, update

# The views of hunts of several workloads that one process carries out.


EVENTS = [*SampleHunt().events()]
TITLES = {12: "update-index", 13: "sc\x1b[2Jan"}


def empty(width: int, height: int, titles: dict[int, str], *, together: bool) -> LiveScreen:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)
    return LiveScreen(console, titles, together=together, now=lambda: EVENTS[40][0])


def screen(width: int = 100, height: int = 40) -> LiveScreen:
    """A screen of two hunts, of which the first has ended."""
    view = empty(width, height, TITLES, together=True)
    view.recall(12, EVENTS)
    view.recall(13, [])
    view.show(13, EVENTS[:40])
    return view


def test_each_hunt_has_a_line_and_the_one_that_is_measured_a_screen() -> None:
    view = screen()
    lines = [line.plain for line in view.picture(40)]
    view.close()
    assert lines[0].startswith(" update-index  hunt 12") and "culprit" in lines[0]
    assert lines[1].startswith(" sc") and "hunt 13" in lines[1] and "culprit" not in lines[1]
    assert not any("\x1b" in line for line in lines)
    assert sum("elapsed" in line for line in lines) == 1
    assert view.current() == [13]


def test_a_verdict_is_shown_before_the_reason_is_measured_and_at_the_end_all_hunts_stay() -> None:
    view = screen()
    ended = next(number for number, (_, event) in enumerate(EVENTS) if is_verdict(event))
    view.show(13, EVENTS[40 : ended + 1])
    assert "culprit" in [line.plain for line in view.picture(40)][1]
    view.show(13, EVENTS[ended + 1 :])
    stays = left(view)
    assert stays.count("The culprit is") == stays.count("  hunt 1") == 2


def test_what_hunts_have_in_common_is_written_once() -> None:
    out = io.StringIO()
    view = PlainLines(out, TITLES, together=True)
    start = next(each for each in EVENTS if isinstance(each[1], HuntStarted))
    build = next(each for each in EVENTS if isinstance(each[1], BuildFinished))
    warned = (start[0], Warned("the host is busy"))
    for event in (start, warned, build):
        view.show(12, [event])
        view.show(13, [event])
    lines = out.getvalue().splitlines()
    assert {line[:14] for line in lines} == {"update-index  ", "sc\\x1b[2Jan   "}
    assert sum("  hunt  " in line for line in lines) == 2
    assert sum("the host is busy" in line for line in lines) == 1
    assert sum("  built  " in line for line in lines) == 1
    assert "\x1b" not in out.getvalue()
    assert view.views[13].rows  # it knows the build all the same
    view.show(12, [each for each in EVENTS if not isinstance(each[1], HuntEnded)])
    assert "  decided   culprit " in out.getvalue(), "as soon as it is reached"


def test_a_run_that_fails_is_written_for_each_workload_in_which_it_does() -> None:
    """It is of one hunt; a build that fails is of all."""
    out = io.StringIO()
    view = PlainLines(out, TITLES, together=True)
    start = next(each for each in EVENTS if isinstance(each[1], HuntStarted))
    for stage, times in (("run", 2), ("compile", 1)):
        skipped = CandidateSkipped(3, SkipFacts(start[1].candidates[3], stage, f"it fails in {stage}", "", 1.0))
        for hunt in TITLES:
            view.show(hunt, [start])
            view.show(hunt, [(start[0], skipped)])
        assert out.getvalue().count(f"it fails in {stage}") == times


def test_each_object_has_the_number_of_its_hunt() -> None:
    out = io.StringIO()
    view = JsonLines(out, TITLES)
    for hunt in (12, 13):
        view.show(hunt, EVENTS[2:11])
    lines = out.getvalue().splitlines()
    assert [json.loads(line)["hunt"] for line in lines] == [12] * 9 + [13] * 9
    again = io.StringIO()
    JsonLines(again, TITLES).show(12, [(at, event) for event, at in map(decode, lines[:9])])
    assert again.getvalue().splitlines() == lines[:9]


def is_verdict(event: object) -> bool:
    """Whether the search has decided on a verdict."""
    return isinstance(event, HuntEnded) or (
        isinstance(event, Decided) and not isinstance(event.decision.order, Measure)
    )


# The view of a batch: a line for each hunt, and the screens of those that run.


ROWS = [
    Row("sqlite scan 1..2", 12, "running on m1"),
    Row("sqlite scan 2..3", 13, "found abcdef0123 97 %", running=False),
    Row("sqlite scan 3..4\x1b[2J", None, "waiting", running=False),
]


def screen_batch(width: int = 100, height: int = 40) -> LiveScreen:
    """A screen_batch with one hunt that runs and one that has ended."""
    view = empty(width, height, {}, together=False)
    for hunt in (12, 13):
        view.recall(hunt, [])
        view.show(hunt, EVENTS[:40])
    view.rows = ROWS
    return view


def test_each_hunt_has_a_line_and_only_those_that_run_a_screen() -> None:
    lines = [line.plain for line in screen_batch().picture(40)]
    assert [line.split("  ")[0].strip() for line in lines[:2]] == ["sqlite scan 1..2", "sqlite scan 2..3"]
    assert "hunt 12" in lines[0] and "running on m1" in lines[0]
    assert "waiting" in lines[2] and "\x1b" not in lines[2]
    assert sum("update-index" in line for line in lines) == 1  # one header
    assert len(lines) > 10


@pytest.mark.parametrize("screen_of", [screen, screen_batch])
def test_it_never_takes_more_than_the_terminal_has(screen_of: Callable[[int, int], LiveScreen]) -> None:
    for height in (1, 2, 3, 5, 8, 13, 24):
        with closing(screen_of(60, height)) as view:
            lines = [*view.picture(height)]
        assert len(lines) <= height
        assert all(line.cell_len <= 60 for line in lines)


def left(view: LiveScreen) -> str:
    """What stays on the terminal when a screen is closed."""
    view.close()
    assert isinstance(view.console.file, io.StringIO)
    return view.console.file.getvalue().rpartition("\x1b[?1049l")[2]


def test_at_the_end_the_states_stay() -> None:
    view = screen_batch()
    view.states(ROWS)
    stays = left(view)
    assert "found abcdef0123 97 %" in stays and "update-index" not in stays


def test_lines_tell_what_changes_once() -> None:
    out = io.StringIO()
    view = PlainLines(out, {})
    view.states(ROWS)
    view.recall(12, [])
    view.show(12, EVENTS[:5])
    view.states(ROWS)
    view.states([Row(ROWS[0].title, 12, "failed: it broke", running=False), *ROWS[1:]])
    lines = out.getvalue().splitlines()
    told = [line for line in lines if line.startswith("batch")]
    assert len(told) == 4
    assert told[-1].endswith("sqlite scan 1..2: failed: it broke")
    assert all(line.startswith(" 12  ") for line in lines if line not in told)
    assert "\x1b" not in out.getvalue()


# A hunt with two build hosts, as the views show it: builds beside runs.


Events = list[tuple[float, Event]]
AHEAD = BuildStarted | BuildProgress | BuildFinished


def on_hosts(events: Events, started: dict[str, Any], hosts_of: Callable[[LabEvent], tuple[str, ...]]) -> Events:
    """The hunt of the sample, which begins so, and in which other hosts do what one did."""
    found: Events = []
    for at, event in events[:400]:
        if isinstance(event, HuntStarted):
            found.append((at, replace(event, **started)))
        elif isinstance(event, LabEvent) and not isinstance(event, Warned):
            found += [(at, replace(event, host=host)) for host in hosts_of(event)]
        else:
            found.append((at, event))
    return found


@pytest.fixture(scope="session")
def ahead(events: Events) -> Events:
    """What it builds is built on b1 and b2 in turns."""

    def hosts_of(event: LabEvent) -> tuple[str, ...]:
        return (f"b{1 + event.candidate % 2}" if isinstance(event, AHEAD) else HOST.name,)

    return on_hosts(events, {"build_hosts": ("b1", "b2")}, hosts_of)


@pytest.fixture(scope="session")
def views(ahead: Events) -> list[ViewModel]:
    return followed(ahead)


def screen_builds_ahead(view: ViewModel, at: float) -> list[str]:
    return [line.plain for line in drawn(view, 110, 40, at)]


def of(shown: list[str], host: str) -> str:
    [line] = [line for line in shown if line.startswith(f" {host} ")]
    return line


def test_a_run_and_two_builds_at_once(ahead: Events, views: list[ViewModel]) -> None:
    place = next(place for place, (_, event) in enumerate(ahead) if isinstance(event, RunProgress))
    at, view = ahead[place][0], views[place]
    assert of(screen_builds_ahead(view, at), HOST.name).split()[1].startswith("measur")
    for candidate, host in ((4, "b1"), (5, "b2")):
        view = update(view, BuildStarted(candidate, Commit(view.sha(candidate)), host), at)
        view = update(view, BuildProgress(candidate, 30, 120, "compile", host), at)
    shown = screen_builds_ahead(view, at + 65)
    assert of(shown, HOST.name).split()[1].startswith("measur")
    assert f"building  {view.sha(4)[:10]}" in of(shown, "b1")
    assert "30 of 120" in of(shown, "b2")
    assert "compile" in of(shown, "b2")
    assert "1:05" in of(shown, "b2")
    ended = update(view, BuildCancelled(5, Commit(view.sha(5)), 65.0, "b2"), at + 65)
    assert of(screen_builds_ahead(ended, at), "b2").split() == ["b2", "free"]
    assert isinstance(ended.now, Running), "what is measured is not disturbed"
    [told] = lines(ended, BuildCancelled(5, Commit(view.sha(5)), 65.0, "b2"), at)
    assert f"{'ended':9} b2  {view.sha(5)[:10]}  its build is of no use any more, after 1 min 5 s" in told


def test_between_two_runs_the_host_waits_for_a_build(ahead: Events, views: list[ViewModel]) -> None:
    builds = next(place for place, (_, event) in enumerate(ahead) if isinstance(event, BuildProgress))
    only = of(screen_builds_ahead(views[builds], ahead[builds][0]), HOST.name)
    assert only.split(maxsplit=1)[1] == "waiting for a build"
    place = max(
        place for place, (_, event) in enumerate(ahead) if isinstance(event, RunFinished) and at_end(views[place])
    )
    at, view = ahead[place][0], views[place]
    assert of(screen_builds_ahead(view, at), HOST.name).split()[1].startswith("measur")
    view = update(view, BuildStarted(4, Commit(view.sha(4)), "b1"), at)
    assert "waiting for a build, after  " in of(screen_builds_ahead(view, at), HOST.name)


def at_end(view: ViewModel) -> bool:
    return isinstance(view.now, Running) and view.now.number == view.now.of


def test_lines_name_the_host(ahead: Events, views: list[ViewModel], two: Events, views_of_two: list[ViewModel]) -> None:
    for log, seen, first, hosts in (
        (ahead, views, "on local, built on b1 and b2", {"building": "b1", "built": "b2", "ran": HOST.name}),
        (two, views_of_two, "on local and b", {"building": HOST.name, "built": HOST.name, "ran": "b"}),
    ):
        said = [text for (at, event), view in zip(log, seen, strict=True) for text in lines(view, event, at)]
        assert any(first in text for text in said)
        for word, host in {**hosts, "decided": HOST.name}.items():
            assert any(f"{word:9} {host}  " in text for text in said), word


def test_runs_that_begin_are_found_in_a_stored_log(ahead: Events) -> None:
    completed = Completed()
    kept = (RunStarted, RunProgress, BuildProgress)
    begun = [
        (at, each)
        for at, event in ahead
        if not isinstance(event, kept)
        for each in completed.after(event)
        if isinstance(each, RunStarted)
    ]
    real = [(event.candidate, event.number, event.host) for _, event in ahead if isinstance(event, RunStarted)]
    assert [(event.candidate, event.number, event.host) for _, event in begun][: len(real)] == real
    assert real


def test_as_json(ahead: Events) -> None:
    for at, event in [*ahead, (1.0, BuildCancelled(3, Commit("a" * 40), 2.5, "b1"))]:
        if isinstance(event, AHEAD | BuildCancelled | HuntStarted):
            assert decode(encode(event, at)) == (event, at)


# A hunt on two hosts, as the views show it: who does what.


@pytest.fixture(scope="session")
def two(events: Events) -> Events:
    """The hunt is on a; meanwhile b does the same a little later."""
    further = replace(HOST, name="b")
    return on_hosts(events, {"further": (further,), "host_classes": ("x", "x")}, lambda _: (HOST.name, "b"))


@pytest.fixture(scope="session")
def views_of_two(two: Events) -> list[ViewModel]:
    return followed(two)


def test_each_host_has_two_lines(two: Events, views_of_two: list[ViewModel]) -> None:
    drawings = [
        (at, event, view)
        for (at, event), view in zip(two, views_of_two, strict=True)
        if isinstance(event, BuildProgress | RunProgress) and event.host == "b"
    ]
    for at, event, view in drawings[:: len(drawings) // 9]:
        shown = [line.plain for line in drawn(view, 100, 40, at)]
        assert len([line for line in shown if line.startswith((" local  ", " b      "))]) == 2
        assert view.classification(event.candidate) is Classification.NOW
        assert drawn(view, 60, 20, at)


def test_what_one_host_does_does_not_disturb_the_other(two: Events, views_of_two: list[ViewModel]) -> None:
    first = next(place for place, (_, event) in enumerate(two) if isinstance(event, BuildStarted))
    after = update(views_of_two[first], replace(two[first][1], candidate=9, host="b"), 1.0)  # type: ignore[call-arg]
    assert after.busy["local"] == views_of_two[first].busy["local"]
    assert not recalled(after, []).busy


# A trial: what is done, how far it is, and the ratios so far.


BUILDS = (TrialBuild("v1", "a" * 40), TrialBuild("v2\x1b[2J", "b" * 40, variant="lto"), TrialBuild("v3", "c" * 40))
WORKS = tuple(TrialWorkload(name, "all", 0.0, 1.0) for name in ("scan", "write"))
REQUEST = TrialRequest(TrialType.COMPARE, "kv", "", "local", "qps", {}, BUILDS, WORKS, 2, 1)
FAILED = SkipFacts("c" * 40, "compile", "no such field", "build.log", 1.0)


def comparing(metric: str = "qps") -> Events:
    """Two of three builds are made, and measured in a round of two."""
    happened: list[Event] = [TrialStarted(3, replace(REQUEST, metric=metric), sample.HOST, False)]
    happened.append(Warned("the host is busy", "Wait."))
    for number, build in enumerate(BUILDS[:2]):
        happened += [BuildStarted(number, Commit(build.commit, "2023-01-01", "A", f"Subject\x07 {number}"))]
        happened += [BuildFinished(number, replace(sample.build(number), commit=build.commit, seconds=5.0), None)]
    happened.append(CandidateSkipped(2, FAILED))
    for work in range(2):
        for number, qps in enumerate((1000.0, 500.0)):
            run = replace(sample.run(0, 0.0, qps=qps), reported=7.2, latency={"p95": 1.5}, counters={})
            happened.append(RunFinished(number, run, "", work, 0))
    return [(1000.0 + place, event) for place, event in enumerate(happened)]


def told(log: Events, recall: Sequence[tuple[float, Event]] = (), **more: Any) -> list[str]:
    """The lines about a trial."""
    out = io.StringIO()
    view = PlainLines(out, {3: "comparison"}, **more)
    view.recall(3, recall)
    view.show(3, log)
    assert not {"\x1b", "\x07"} & {*out.getvalue()}
    return out.getvalue().splitlines()


def test_each_step_and_each_run_is_a_line() -> None:
    lines = told(comparing())
    assert lines[0] == "warning: the host is busy. Wait."
    assert lines[1:3] == [r"building aaaaaaaaaa Subject\x07 0", r"building bbbbbbbbbb@lto Subject\x07 1"]
    assert lines[3] == "warning: v3 is left out: no such field. See build.log."
    said = {"qps": "500 QPS", "p95": "1.50 ms", "rate": "7.20 rate", "instructions/o": "no instructions/o"}
    assert {metric: told(comparing(metric))[-1] for metric in said} == {
        m: f"  run 4 of 12  {s}" for m, s in said.items()
    }
    assert [line.partition(":")[0] for line in told(comparing(), quiet=True)] == ["warning"] * 2
    every = io.StringIO()
    JsonLines(every, {3: ""}).show(3, comparing())
    assert [decode(line) for line in every.getvalue().splitlines()] == [(event, at) for at, event in comparing()]


def test_a_run_that_takes_long_is_a_line_each_minute() -> None:
    out, clock = io.StringIO(), [1000.0]
    view = PlainLines(out, {3: ""}, now=lambda: clock[0])
    view.show(3, [*comparing(), (1100.0, RunStarted(0, 1, 1, Purpose.ENDS, 0.0, round=1))])
    clock[0] = 1186.0
    view.remind()
    assert out.getvalue().endswith("\n  round 2 of 2: scan, v1 run 1 of 1, 1:26\n")


def test_a_resumed_trial_recalls_what_was_measured() -> None:
    begins = RunStarted(0, 1, 1, Purpose.ENDS, 1.0, workload=1, round=1)
    fails = CandidateSkipped(1, replace(FAILED, stage="run", reason="it crashes"), workload=1)
    resumed = TrialStarted(3, REQUEST, sample.HOST, True)
    assert told([(2000.0, event) for event in (resumed, begins, begins, fails)], recall=comparing()) == [
        "continuing c3, which has 4 runs",
        "round 2 of 2: write, v1",
        r"warning: v2\x1b[2J fails in write: it crashes. See build.log.",
    ]


def picture(log: Events, width: int = 70, height: int = 24) -> tuple[LiveScreen, list[str]]:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)
    view = LiveScreen(console, {3: "comparison"}, now=lambda: 1020.0)
    view.show(3, log)
    return view, [line.plain for line in view.picture(height)]


def test_the_picture_has_the_ratios_so_far() -> None:
    view, lines = picture(comparing())
    assert lines[0].startswith(" c3 · kv · scan · write · local") and "0:20 elapsed" in lines[0]
    assert "  4 of 12 runs" in lines[1]
    assert any(line.split()[:2] == ["scan", "0.500"] for line in lines)
    assert any("v3 is left out" in line for line in lines)
    assert not any("\x1b" in line for line in lines)
    assert all(len([*view.picture(height)]) <= height for height in (2, 4, 8))
    view.show(3, [(1030.0, TrialEnded())])
    assert "4 of 12 runs" in left(view)
    narrow, lines = picture(comparing(), width=28)
    narrow.close()
    assert "and 1 further column" in [line.strip() for line in lines], "no number is cut"


def test_pairs_of_a_trial_are_shown_as_pairs() -> None:
    runs = ((1, sample.run(0, 0.0, qps=900.0)), (0, sample.run(0, 0.0, qps=1000.0)))
    pairs: Events = [
        (1100.0, RunFinished(number, replace(run, commit=BUILDS[number].commit, round="r1"), "", 0, 0))
        for number, run in runs
    ]
    begun = [entry for entry in comparing() if not isinstance(entry[1], RunFinished)]
    view, shown = picture([*begun, *pairs], width=100)
    view.close()
    drawn = r"● v2\S* beside ○ v1, QPS: ×0\.900 in 1 pair\n ●━+○  ×0\.900 · 900 beside 1,000"
    assert re.search(drawn, "\n".join(shown)), shown
    request = replace(REQUEST, pairing=Pairing.AUTO, works=WORKS[:1], subjects=BUILDS[:2])
    chosen = PairingChosen(True, "In pairs.", alone=None, beside=None)
    lines = told([(1.0, TrialStarted(3, request, sample.HOST, False)), *pairs, (1200.0, chosen), *pairs[:1]])
    assert lines[0].startswith("round 1: scan, v2") and lines[1] == "  run 1  900 QPS, in a pair"
    assert lines[4:6] == ["In pairs. 2 runs to go.", "round 1 of 2: scan, v2\\x1b[2J"]
    assert lines[6].startswith("  run 3 of 4")
