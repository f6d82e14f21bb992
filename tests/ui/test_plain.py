"""Plain lines, one for each event that matters."""

import io
import re
from contextlib import closing
from dataclasses import replace

import pytest

from perfbisect.core.domain.events import BuildProgress, Decided, Event, RunFinished, RunProgress, RunStarted
from perfbisect.core.domain.orders import Decision, Interval, Layouts, Measure, Purpose, Share
from perfbisect.ui.lines import PlainLines, lines
from perfbisect.ui.screen import belief
from perfbisect.ui.view_model import ViewModel, update
from perfbisect.wording.glyphs import UNICODE

Events = list[tuple[float, Event]]


@pytest.fixture(scope="session")
def log(events: Events, views: list[ViewModel]) -> str:
    """Everything that is written of the hunt."""
    return "\n".join(
        line for (at, event), view in zip(events, views, strict=True) for line in lines(view, event, at)
    )  # fmt: skip


def test_every_line_has_a_time_and_a_word(log: str) -> None:
    words = set()
    for line in log.splitlines():
        parts = re.fullmatch(r"(\d\d:\d\d:\d\d|        )  (\w*) +\S.*", line)
        assert parts, line
        words.add(parts[2])
    assert words == {"warning", "hunt", "decided", "building", "built", "skipped", "ran", "verdict", ""}


@pytest.mark.parametrize(
    "pattern",
    [
        r"hunt      12: demo update-index on local, v1\.0\.\.v1\.1: 71 commits, 59 candidates, 6 merges",
        r"warning   The governor is powersave\. Run: cpupower",
        r"building  28dca7b380  2023-\d\d-\d\d Move keys",
        r"built     28dca7b380  9\.0 s, ccache 0 %",
        r"skipped   eee6ea72b1  compile: src/index\.c:212",
        r"ran       28dca7b380 +\d\d,\d{3} QPS  rQPS 0\.5\d\d \(0\.5\d\d–0\.\d{3}\)  run \d of 6, the ends",
        r"ran       686780cab0 +\d\d,\d{3} QPS  baseline +run \d of 6, the ends",
        r"decided   not yet known whether the ends differ; next, for the ends: 28dca7b380 x3, 686780cab0 x3",
        r"decided   1d8d92bf57 leads with 97 %; next, for confirmation: 1d8d92bf57 x3",
        r"verdict   The culprit is 1d8d92bf57 \(",
        r"          Full report: bisect show 12",
    ],
)
def test_the_lines(log: str, pattern: str) -> None:
    assert re.search(pattern, log)


def test_a_ratio_is_named_after_its_metric(events: Events, views: list[ViewModel]) -> None:
    at, event, view = next(
        (at, event, view)
        for (at, event), view in zip(events, views, strict=True)
        if isinstance(event, RunFinished) and view.ratio(event.candidate)
    )
    assert view.hunt is not None
    (line,) = lines(replace(view, state=replace(view.state, started=replace(view.hunt, metric="cpu/o"))), event, at)
    assert re.search(r"QPS  rcpu/o 0\.5\d\d ", line)


def test_progress_has_no_lines(events: Events, views: list[ViewModel]) -> None:
    for (at, event), view in zip(events, views, strict=True):
        silent = isinstance(event, BuildProgress | RunProgress | RunStarted)
        silent |= isinstance(event, Decided) and not isinstance(event.decision.order, Measure)
        assert bool(list(lines(view, event, at))) != silent


def test_any_encoding_will_do(events: Events) -> None:
    raw = io.BytesIO()
    with closing(PlainLines(io.TextIOWrapper(raw, encoding="ascii"), {12: ""})) as view:
        for at, event in events[:40]:
            view.show(12, [(at, event)])
        assert b"update-index" in raw.getvalue()


def test_a_counted_run_is_shown_by_its_count_while_others_are_timed(events: Events, views: list[ViewModel]) -> None:
    at, event, view = next(
        (at, event, view)
        for (at, event), view in zip(events, views, strict=True)
        if isinstance(event, RunFinished) and view.ratio(event.candidate)
    )
    facts = replace(event.facts, counted="perf-user", operations=1000, counters={"instructions": 5_432_000.0})
    (line,) = lines(view, replace(event, facts=facts), at)
    assert "5,432 instructions/o" in line
    assert "QPS" not in line, "neither as its unit, nor in the ratio of the timed runs"


def test_what_fresh_layouts_have_shown_is_on_the_line_of_each_run(events: Events, views: list[ViewModel]) -> None:
    """And on the screen; not the ratio with the usual layout, which does not change any more."""
    (at, event), view = next(
        (entry, view) for entry, view in zip(events, views, strict=True) if isinstance(entry[1], RunFinished)
    )
    order = Measure(
        (Share(3, 12), Share(2, 12)), Purpose.CONFIRM, fresh=True, layouts=Layouts(Interval(0.965, 0.981, 0.997), 12, 9)
    )
    assert view.state.belief
    view = update(view, Decided(Decision(order, view.state.belief)), at)
    event = replace(event, facts=replace(event.facts, layout=13))
    [line] = lines(view, event, at)
    assert "0.981 (0.965–0.997) of its parent in 12 layouts" in line and "rQPS" not in line
    assert any("0.981 (0.965–0.997) of its parent in 12 layouts" in text.plain for text in belief(view, 200, UNICODE))
