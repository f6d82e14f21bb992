"""The picture of a hunt, with a fixed clock, in terminals of many sizes."""

import io
import re
from contextlib import closing
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console, Group

from perfbisect.core.domain.events import (
    BuildStarted,
    Commit,
    Decided,
    PairingChosen,
    RunFinished,
    RunProgress,
    SessionEnded,
    Warned,
)
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.orders import (
    Belief,
    Decision,
    Inconclusive,
    Interval,
    Measure,
    NotReproduced,
    PlannedRuns,
    Purpose,
    Reason,
    Several,
    Step,
    Verdict,
)
from perfbisect.ui.live import EscapingConsole, LiveScreen
from perfbisect.ui.screen import screen_lines as drawn
from perfbisect.ui.session_update import view_after
from perfbisect.ui.session_view import SessionView, minutes_left
from perfbisect.wording.glyphs import ASCII, UNICODE, Glyphs
from pinned import pinned
from sample_hunt import CANDIDATES, CULPRIT, Events, Tale, followed, started

SHORT = CANDIDATES[CULPRIT][:10]


def picture(view: SessionView, width: int, height: int | None, now: float, glyphs: Glyphs = UNICODE) -> list[str]:
    """The picture as a terminal of that width shows it."""
    console = Console(file=io.StringIO(), width=width, height=height or 200, highlight=False, color_system=None)
    with console.capture() as printed:
        console.print(Group(*drawn(view, width, height, now, glyphs)))
    return printed.get().splitlines()


RUN = RunFacts("", "key", "visit", "local", 0.0, 1.0, 0, {}, (), {}, {})


def moment(events: Events, views: list[SessionView], purpose: Purpose, sample: int) -> tuple[SessionView, float]:
    """The view at a sample of the first run after ``purpose`` was ordered, and its time."""
    order, runs = None, []
    for (at, event), view in zip(events, views, strict=True):
        if isinstance(event, Decided):
            order = event.decision.order
        if isinstance(event, RunProgress) and isinstance(order, Measure) and order.purpose is purpose:
            runs.append((view, at))
    return runs[sample]


def with_state(view: SessionView, **changes: object) -> SessionView:
    """The view with other values in its state."""
    return replace(view, state=replace(view.state, **changes))  # type: ignore[arg-type]


def test_picture_of_the_proof_is_as_recorded(events: Events, views: list[SessionView]) -> None:
    """picture.txt shows every change of the picture in a diff."""
    view, now = moment(events, views, Purpose.CONFIRM, 4)
    pinned("ui/picture.txt", "".join(f"{line}\n" for line in picture(view, 90, 30, now)))


def test_narrow_picture_cuts_no_number_and_can_be_ascii(events: Events) -> None:
    """In two hunts, the second with long numbers: all numbers of a narrow picture are also in a very wide picture."""
    wide = [*Tale(hunt=12, rate=1.2e8, progress=True).events()]
    for recorded in (events, wide):
        for view, (at, _) in [*zip(followed(recorded), recorded, strict=True)][1::40]:
            whole = numbers(picture(view, 400, None, at))
            for width in (80, 120, 200):
                drawn = picture(view, width, None, at)
                assert "hunt 12 " in drawn[0] and numbers(drawn) <= whole
            plain = picture(view, 200, None, at, ASCII)
            assert "".join(plain).isascii() and len(plain) == len(drawn)


def numbers(lines: list[str]) -> set[str]:
    return set(re.findall(r"[\d.,:]*\d[\d.,:]*…?", "\n".join(lines)))


def test_picture_says_that_the_reason_is_being_measured(events: Events, views: list[SessionView]) -> None:
    at, ended = events[-1]
    assert isinstance(ended, SessionEnded)
    said = "\n".join(picture(view_after(views[-2], replace(ended, reason_follows=True), at), 100, 40, at))
    assert f"The culprit is {SHORT}" in said
    assert "measuring the reason, 0 parts so far; the verdict is final, and Ctrl-C stops only this measurement" in said
    assert "measuring the reason" not in "\n".join(picture(views[-1], 100, 40, at))


def test_picture_fits_the_terminal(events: Events, views: list[SessionView]) -> None:
    for width, height in product((20, 100), (3, 8, 24, None)):
        for view, (at, _) in list(zip(views, events, strict=True))[::45]:
            drawn = picture(view, width, height, at)
            assert max(map(len, drawn)) <= width
            assert height is None or len(drawn) <= height
    view, now = moment(events, views, Purpose.CONFIRM, 4)
    assert "with its parent: 0 of about 6 runs" in "\n".join(picture(view, 80, 2, now)), "the current run stays"


def test_strip_marks_the_tested_candidates(events: Events, views: list[SessionView]) -> None:
    """The elapsed and the remaining time also change between events."""
    view, now = moment(events, views, Purpose.CONFIRM, 4)
    blocks, axis, names = picture(view, 100, 40, now)[3:6]
    assert picture(view, 100, 30, now)[0] != picture(view, 100, 30, now + 1)[0]
    first, second = (minutes_left(view, now + passed) for passed in (0, 6))
    assert first and second and 0 < second < first
    assert blocks.index("█") + 1 == axis.index(UNICODE.now) == 2 + 3 * CULPRIT, "a short range is drawn wider"
    assert (axis[2], axis[2 + 3 * 4], axis[-2]) == (UNICODE.good, UNICODE.skipped, UNICODE.bad)
    assert len(axis) == 1 + 3 * len(CANDIDATES) and names[: len(axis)].split() == ["1.0", "1.1"]


def together(view: SessionView, *pairs: tuple[float, float]) -> SessionView:
    """The view after paired runs of bad and good with these rates."""
    bad = view.state.node[view.state.commits[-1]]
    for number, rates in enumerate(pairs):
        for candidate, rate in zip((bad, 0), rates, strict=True):
            facts = replace(RUN, commit=view.sha(candidate), operations=int(rate), round=f"r{number}")
            view = view_after(view, RunFinished(candidate, facts), 0.0)
    return view


def test_paired_runs_are_drawn_as_pairs(events: Events, views: list[SessionView]) -> None:
    before, now = moment(events, views, Purpose.CONFIRM, 7)
    view = together(before, *((900.0 * rate, 1000.0 * rate) for rate in (5, 1, 2, 3, 4)))
    shown = picture(view, 90, 50, now)
    bad, good = (view.commit(each).short_sha for each in (len(view.state.commits) - 1, 0))
    place = shown.index(f" ● {bad} beside ○ {good}, QPS: ×0.900 in 5 pairs")
    latest = shown[place + 1 : place + 5]
    assert [line.split(" · ")[1] for line in latest] == [f"{900 * n:,} beside {1000 * n:,}" for n in (4, 3, 2, 1)]
    assert all(re.search(r"─*●━*○─*  ×0\.900 · ", line) for line in latest) and not shown[place + 5]
    starts = [line.index("●") for line in latest]
    assert starts == sorted(starts, reverse=True), "a disturbance changes both runs of a pair"
    assert any("@==" in line for line in picture(view, 90, 50, now, ASCII))
    by_cpu = with_state(view, pairing=PairingChosen(True, "", by_cpu=True))
    for other in (by_cpu, before):  # no CPU time was counted; interleaved runs are no pairs
        assert not any(" beside " in line for line in picture(other, 90, 50, now))
    assert all(len(picture(view, 90, height, now)) <= height for height in range(1, 30))


def test_range_wider_than_the_terminal_is_binned() -> None:
    shas, culprit = tuple(f"{number:040x}" for number in range(200)), np.eye(200)[100]
    decided = Decided(
        Decision(Measure((PlannedRuns(100, 1),), Purpose.SEARCH), Belief(culprit, 1.0, 0.01, Interval(0.7, 0.8, 0.9)))
    )
    blocks, axis, _ = picture(followed([(0.0, started(shas)), (0.0, decided)])[-1], 82, 40, 0.0)[3:6]
    assert (len(axis), blocks.index("█")) == (81, 1 + 40)


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (Several((Step(3, 0.97, Interval(0.8, 0.9, 0.95), (2,)),)), "One change of QPS"),
        (NotReproduced(Interval(0.99, 1.0, 1.01), 0.02), "Not reproduced"),
        (Inconclusive((3, 4), (0.5, 0.4), Interval(0.8, 0.9, 0.95), Reason.BUILDS_SPENT), "one of these 2 commits"),
    ],
)
def test_picture_shows_the_verdict(views: list[SessionView], verdict: Verdict, words: str) -> None:
    view = with_state(views[-1], verdict=verdict)
    said = "\n".join(picture(view, 100, 40, 2e9))
    assert words in " ".join(said.split()) and "left" not in said and "bisect show 12\n" in f"{said}\n"
    lines = picture(replace(view, report_command="bisect show {} --history mine.db".format), 40, 40, 2e9)
    assert lines[lines.index(" Full report: bisect show 12 --history") + 1] == " mine.db"


def test_picture_before_the_range_is_known() -> None:
    assert picture(SessionView(), 80, 24, 0.0)[0] == " preparing the hunt"
    warned = view_after(SessionView(), Warned("Slow disk.", "Buy another."), 0.0)
    assert picture(warned, 80, 24, 0.0)[-1] == " ! Slow disk. Buy another."


def test_wide_characters_keep_columns_aligned(events: Events, views: list[SessionView]) -> None:
    at = events[-1][0]
    commit = Commit(CANDIDATES[CULPRIT], "2023-01-01", "A", "索引の更新を速くする" * 5)
    drawn = picture(view_after(with_state(views[-1], verdict=None), BuildStarted(CULPRIT, commit), at), 100, 40, at)
    rows = [line for line in drawn if " 0.7" in line and "bad is" not in line]
    assert len(rows) == 2 and "索引" in rows[0]
    assert len({cell_len(line[: line.index("0.7")]) for line in rows}) == 1


def test_table_and_line_below_show_the_same_interval(events: Events, views: list[SessionView]) -> None:
    """Checked after every event of the hunt, also during a measurement."""
    compared = 0
    for (at, _), view in zip(events, views, strict=True):
        drawn = "\n".join(picture(view, 120, 40, at))
        below = re.search(r"bad is (\S+) \((\S+)\) of good", drawn)
        row = re.search(rf"^ {CANDIDATES[-1][:10]}  .*–.*$", drawn, re.MULTILINE)
        if below and row:
            assert f"{below[1]}  {below[2]}" in row[0]
            compared += 1
    assert compared > 50


def screen_of(stream: io.TextIOBase, events: Events) -> None:
    """Play the end of a hunt on a LiveScreen in a terminal."""
    console = Console(file=stream, force_terminal=True, width=100, height=30, highlight=False)  # type: ignore[arg-type]
    with closing(LiveScreen(console, {12: ""}, now=lambda: events[-1][0])) as screen:
        for at, event in (events[1], *events[-20:]):
            screen.add_events(12, [(at, event)])


def test_last_picture_stays_and_the_terminal_is_restored(events: Events) -> None:
    stream = io.StringIO()
    screen_of(stream, events)
    during, _, after = stream.getvalue().rpartition("\x1b[?1049l")
    assert "\x1b[?1049h" in during and "\x1b[?25l" in during  # another screen, no cursor
    assert f"The culprit is {SHORT}" in after
    assert "\x1b[?25h" in stream.getvalue().rpartition("\x1b[?25l")[2]


def test_picture_on_a_terminal_without_unicode_and_colours(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    raw = io.BytesIO()
    screen_of(io.TextIOWrapper(raw, encoding="ascii", write_through=True), events)
    assert raw.getvalue().isascii() and f"The culprit is {SHORT}".encode() in raw.getvalue()
    assert b"\x1b[32m" not in raw.getvalue() and b"\x1b[36m" not in raw.getvalue()
    never = io.StringIO()
    LiveScreen(Console(file=never), {12: ""}).close()
    assert never.getvalue() == "", "it never opened"


def test_events_do_not_draw_the_picture(events: Events) -> None:
    """Events only change the view: a thousand events draw at most one picture."""
    pictures: list[None] = []
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=30)
    with closing(LiveScreen(console, {12: ""})) as screen:
        screen.add_events(12, events[:5])
        assert screen.live.is_started
        screen.live.refresh = lambda: pictures.append(None)  # type: ignore[method-assign]
        for at, event in events[5:]:
            if not isinstance(event, RunFinished):
                screen.add_events(12, [(at, event)])
        assert len(pictures) <= 1


def test_characters_that_the_encoding_lacks_are_replaced() -> None:
    written = io.BytesIO()
    terminal = EscapingConsole(io.TextIOWrapper(written, encoding="ascii", write_through=True))
    terminal.print("0.9–1.1 × \x1b]0;title", soft_wrap=True)
    assert written.getvalue() == b"0.9-1.1 x \\x1b]0;title\n"
