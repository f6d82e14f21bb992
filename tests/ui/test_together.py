"""The views of hunts of several workloads that one process carries out."""

import io
import json

from rich.console import Console

from example_hunt import SampleHunt
from perfbisect.core.domain.events import BuildFinished, CandidateSkipped, Decided, HuntEnded, HuntStarted, Warned
from perfbisect.core.domain.facts import SkipFacts
from perfbisect.core.domain.orders import Measure
from perfbisect.ui.lines import JsonLines, PlainLines, decode
from perfbisect.ui.live import LiveScreen

EVENTS = [*SampleHunt().events()]
TITLES = {12: "update-index", 13: "sc\x1b[2Jan"}


def screen(width: int = 100, height: int = 40) -> LiveScreen:
    """A screen of two hunts, of which the first has ended."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)
    view = LiveScreen(console, TITLES, together=True, now=lambda: EVENTS[40][0])
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


def test_a_verdict_is_shown_before_the_reason_is_measured() -> None:
    view = screen()
    ended = next(number for number, (_, event) in enumerate(EVENTS) if is_verdict(event))
    view.show(13, EVENTS[40 : ended + 1])
    lines = [line.plain for line in view.picture(40)]
    view.close()
    assert "culprit" in lines[1]


def test_it_never_takes_more_than_the_terminal_has() -> None:
    for height in (1, 2, 3, 5, 8, 13, 24):
        view = screen(60, height)
        lines = [*view.picture(height)]
        view.close()
        assert len(lines) <= height
        assert all(line.cell_len <= 60 for line in lines)


def test_at_the_end_all_hunts_stay() -> None:
    view = screen()
    view.show(13, EVENTS[40:])
    view.close()
    assert isinstance(view.console.file, io.StringIO)
    left = view.console.file.getvalue().rpartition("\x1b[?1049l")[2]
    assert left.count("The culprit is") == 2
    assert left.count("  hunt 1") == 2


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
    assert sum("  hunt  " in line for line in lines) == 2
    assert sum("the host is busy" in line for line in lines) == 1
    assert sum("  built  " in line for line in lines) == 1
    assert "\x1b" not in out.getvalue()
    assert view.views[13].rows  # it knows the build all the same


def test_a_run_that_fails_is_written_for_each_workload_in_which_it_does() -> None:
    """It is of one hunt; a build that fails is of all."""
    out = io.StringIO()
    view = PlainLines(out, TITLES, together=True)
    start = next(each for each in EVENTS if isinstance(each[1], HuntStarted))
    for stage, lines in (("run", 2), ("compile", 1)):
        skipped = CandidateSkipped(3, SkipFacts(start[1].candidates[3], stage, f"it fails in {stage}", "", 1.0))
        for hunt in TITLES:
            view.show(hunt, [start])
            view.show(hunt, [(start[0], skipped)])
        assert out.getvalue().count(f"it fails in {stage}") == lines


def test_a_line_tells_a_verdict_as_soon_as_it_is_reached() -> None:
    out = io.StringIO()
    view = PlainLines(out, TITLES, together=True)
    view.show(12, [each for each in EVENTS if not isinstance(each[1], HuntEnded)])
    assert "  decided   culprit " in out.getvalue()
    assert "The culprit is" not in out.getvalue()


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
