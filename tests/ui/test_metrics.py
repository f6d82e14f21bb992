"""Hunts whose metric is not operations per second: what a command reports, or how long it takes."""

from dataclasses import replace

import pytest

from perfbisect.core.domain.events import (
    BuildFinished,
    BuildStarted,
    Commit,
    Event,
    ExecutionStarted,
    HuntStarted,
    RunFinished,
    RunStarted,
)
from perfbisect.core.domain.facts import BuildFacts, HostFacts, RunFacts
from perfbisect.core.domain.orders import Purpose
from perfbisect.ui.lines import lines
from perfbisect.ui.screen import lines as screen
from perfbisect.ui.view_model import ViewModel, update

SHAS = ("a" * 40, "b" * 40)
HOST = HostFacts("local", "CPU", 2, 1024, "6", "gcc")
STARTED = HuntStarted(1, "kv-1", "bench-1", HOST, "v1", "v2", 1, SHAS, 0, False)
FACTS = RunFacts(SHAS[0], "k", "v", "local", 1000.0, 2.0, 4, {"avg": 500.0}, (), {}, {}, reported=12_345.0)
HUNTED = [("rate", "12,345 rate", "rrate"), ("cost", "12,345 cost", "rcost"), ("latency", "500 ms", "rlat…"),
          ("qps", "2.00 QPS", "rQPS"), ("cpu/o", "2.00 QPS", "rcpu…")]  # fmt: skip


def view_of(metric: str) -> tuple[ViewModel, list[Event]]:
    """The view after a run of the good end, and what led to it."""
    events: list[Event] = [
        replace(STARTED, metric=metric),
        BuildStarted(0, Commit(SHAS[0], "2023-01-01", "A", "Subject")),
        BuildFinished(0, BuildFacts(SHAS[0], "k", "k", 1.0, 0, 0, False, ""), None),
        RunStarted(0, 1, 2, Purpose.ENDS, 0.0),
        RunFinished(0, FACTS),
    ]
    view = ViewModel()
    for second, event in enumerate(events):
        view = update(view, event, 1000.0 + second)
    return view, events


@pytest.mark.parametrize(("metric", "shown", "relative"), HUNTED)
def test_what_is_hunted_is_shown(metric: str, shown: str, relative: str) -> None:
    view, events = view_of(metric)
    [line] = lines(view, events[-1], 1010.0)
    assert f"  {shown}  baseline" in line
    drawn = "\n".join(line.plain for line in screen(view, 120, None, 1010.0))
    amount, unit = shown.split()
    assert f"{shown} · " in drawn
    assert [word for word in (unit, relative) if word in drawn.split()] == [unit, relative]
    assert amount in drawn.split()


def test_how_long_a_command_takes_is_not_known_before() -> None:
    view, events = view_of("latency")
    view = update(view, events[3], 1010.0)
    drawn = "\n".join(line.plain for line in screen(view, 120, None, 1017.0))
    assert "running · 7 s" in drawn
    assert " of 0" not in drawn


@pytest.mark.parametrize(
    ("execution", "said"),
    [
        (ExecutionStarted(0, 2, 0, 16), "counting, how long is long enough: 16"),
        (ExecutionStarted(0, 2, 2, 50_000), "counting 50,000 operations, 2 of 2"),
        (ExecutionStarted(0, 1, 1, 0), "counting"),
    ],
)
def test_a_counted_run_says_what_it_executes(execution: ExecutionStarted, said: str) -> None:
    """Under valgrind each execution takes a minute. Only the first of a run has a line of its own."""
    view, events = view_of("instructions/o")
    view = update(update(view, events[3], 1010.0), execution, 1012.0)
    drawn = "\n".join(line.plain for line in screen(view, 120, None, 1017.0))
    assert f"  {said} · 7 s" in drawn
    printed = [line.split(maxsplit=1)[1] for line in lines(view, execution, 1012.0)]
    assert printed == ([f"running   {SHAS[0][:10]}  {said}"] if execution.number == 1 else [])
