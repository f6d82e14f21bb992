"""The view of a batch: a line for each hunt, and the screens of those that run."""

import io

from rich.console import Console

from example_hunt import SampleHunt
from perfbisect.ui.lines import PlainLines
from perfbisect.ui.live import LiveScreen
from perfbisect.ui.view_model import Row

EVENTS = [*SampleHunt().events()]
ROWS = [
    Row("sqlite scan 1..2", 12, "running on m1"),
    Row("sqlite scan 2..3", 13, "found abcdef0123 97 %", running=False),
    Row("sqlite scan 3..4\x1b[2J", None, "waiting", running=False),
]


def screen(width: int = 100, height: int = 40) -> LiveScreen:
    """A screen with one hunt that runs and one that has ended."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)
    view = LiveScreen(console, {}, now=lambda: EVENTS[40][0])
    for hunt in (12, 13):
        view.recall(hunt, [])
        view.show(hunt, EVENTS[:40])
    view.rows = ROWS
    return view


def test_each_hunt_has_a_line_and_only_those_that_run_a_screen() -> None:
    lines = [line.plain for line in screen().picture(40)]
    assert [line.split("  ")[0].strip() for line in lines[:2]] == ["sqlite scan 1..2", "sqlite scan 2..3"]
    assert "hunt 12" in lines[0] and "running on m1" in lines[0]
    assert "waiting" in lines[2] and "\x1b" not in lines[2]
    assert sum("update-index" in line for line in lines) == 1  # one header
    assert len(lines) > 10


def test_it_never_takes_more_than_the_terminal_has() -> None:
    for height in (1, 2, 3, 5, 8, 13, 24):
        lines = [*screen(60, height).picture(height)]
        assert len(lines) <= height
        assert all(line.cell_len <= 60 for line in lines)


def test_at_the_end_the_states_stay() -> None:
    view = screen()
    view.states(ROWS)
    view.close()
    assert isinstance(view.console.file, io.StringIO)
    left = view.console.file.getvalue().rpartition("\x1b[?1049l")[2]
    assert "found abcdef0123 97 %" in left and "update-index" not in left


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
