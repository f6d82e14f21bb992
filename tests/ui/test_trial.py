"""A trial as views show it: what is done, how far it is, and the ratios so far."""

import io
import json
import re
from contextlib import closing
from dataclasses import replace

import pytest
from rich.console import Console

import sample_hunt as sample
from perfbisect.core.domain.events import (
    BuildFinished,
    BuildStarted,
    CandidateSkipped,
    Commit,
    Event,
    PairingChosen,
    RunFinished,
    RunStarted,
    TrialEnded,
    TrialStarted,
    Warned,
)
from perfbisect.core.domain.facts import SkipFacts
from perfbisect.core.domain.orders import Purpose
from perfbisect.core.domain.settings import Pairing, TrialBuild, TrialRequest, TrialType, TrialWorkload
from perfbisect.ui.lines import JsonLines, PlainLines, decode
from perfbisect.ui.live import LiveScreen

BUILDS = (TrialBuild("v1", "a" * 40), TrialBuild("v2\x1b[2J", "b" * 40, variant="lto"), TrialBuild("v3", "c" * 40))
WORKS = tuple(TrialWorkload(name, "all", 0.0, 1.0) for name in ("scan", "write"))
REQUEST = TrialRequest(TrialType.COMPARE, "kv", "", "local", "qps", {}, BUILDS, WORKS, 2, 1)
FAILED = SkipFacts("c" * 40, "compile", "no such field", "build.log", 1.0)


def events(metric: str = "qps") -> list[tuple[float, Event]]:
    """Two of three builds are made, and measured in a round of two."""
    happened: list[Event] = [
        TrialStarted(3, replace(REQUEST, metric=metric), sample.HOST, False),
        Warned("the host is busy", "Wait."),
    ]
    for number, build in enumerate(BUILDS[:2]):
        happened += [BuildStarted(number, Commit(build.commit, "2023-01-01", "A", f"Subject\x07 {number}"))]
        happened += [BuildFinished(number, replace(sample.build(number), commit=build.commit, seconds=5.0), None)]
    happened.append(CandidateSkipped(2, FAILED))
    for work in range(2):
        for number, qps in enumerate((1000.0, 500.0)):
            run = replace(sample.run(0, 0.0, qps=qps), reported=7.2, latency={"p95": 1.5}, counters={})
            happened.append(RunFinished(number, run, "", work, 0))
    return [(1000.0 + place, event) for place, event in enumerate(happened)]


def test_each_step_and_each_run_is_a_line() -> None:
    out = io.StringIO()
    with closing(PlainLines(out, {3: "comparison"})) as view:
        view.show(3, events())
    lines = out.getvalue().splitlines()
    assert lines[0] == "warning: the host is busy. Wait."
    assert lines[1:3] == [r"building aaaaaaaaaa Subject\x07 0", r"building bbbbbbbbbb@lto Subject\x07 1"]
    assert lines[3] == "warning: v3 is left out: no such field. See build.log."
    assert [line for line in lines if line.startswith("  run")][-1] == "  run 4 of 12  500 QPS"
    assert "\x1b" not in out.getvalue() and "\x07" not in out.getvalue()


def test_a_run_that_takes_long_is_a_line_each_minute() -> None:
    out, clock = io.StringIO(), [1000.0]
    view = PlainLines(out, {3: ""}, now=lambda: clock[0])
    view.show(3, [*events(), (1100.0, RunStarted(0, 1, 1, Purpose.ENDS, 0.0, round=1))])
    clock[0] = 1186.0
    view.remind()
    assert out.getvalue().endswith("\n  round 2 of 2: scan, v1 run 1 of 1, 1:26\n")


@pytest.mark.parametrize(
    ("metric", "told"),
    [("qps", "500 QPS"), ("p95", "1.50 ms"), ("rate", "7.20 rate"), ("instructions/o", "no instructions/o")],
)
def test_each_run_is_reported_in_the_metric_asked_for(metric: str, told: str) -> None:
    out = io.StringIO()
    PlainLines(out, {3: ""}).show(3, events(metric))
    assert out.getvalue().endswith(f"of 12  {told}\n")


def test_programs_are_told_of_warnings_alone_or_of_everything_in_json() -> None:
    out, every = io.StringIO(), io.StringIO()
    PlainLines(out, {3: ""}, quiet=True).show(3, events())
    assert [line.partition(":")[0] for line in out.getvalue().splitlines()] == ["warning"] * 2
    JsonLines(every, {3: ""}).show(3, events())
    assert [decode(line) for line in every.getvalue().splitlines()] == [(event, at) for at, event in events()]
    assert json.loads(every.getvalue().splitlines()[0])["event"] == "TrialStarted"


def test_the_picture_has_the_ratios_so_far() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=70, height=24, color_system=None)
    view = LiveScreen(console, {3: "comparison"}, now=lambda: 1020.0)
    view.show(3, events())
    lines = [line.plain for line in view.picture(24)]
    assert lines[0].startswith(" c3 · kv · scan · write · local") and "0:20 elapsed" in lines[0]
    assert "  4 of 12 runs" in lines[1]
    assert any(line.split()[:2] == ["scan", "0.500"] for line in lines)
    assert any("v3 is left out" in line for line in lines)
    assert not any("\x1b" in line for line in lines)
    narrow = LiveScreen(Console(file=io.StringIO(), width=28, height=24), {3: "comparison"}, now=lambda: 1020.0)
    narrow.views = view.views
    assert "and 1 further column" in [line.plain.strip() for line in narrow.picture(24)], "no number is cut"
    for height in (2, 4, 8):
        assert len([*view.picture(height)]) <= height
    view.show(3, [(1030.0, TrialEnded())])
    view.close()
    assert isinstance(console.file, io.StringIO)
    assert "4 of 12 runs" in console.file.getvalue().rpartition("\x1b[?1049l")[2]


def test_pairs_of_a_trial_are_shown_as_pairs() -> None:
    begun = [entry for entry in events() if not isinstance(entry[1], RunFinished)]
    pairs = [
        (
            1100.0,
            RunFinished(
                number, replace(sample.run(0, 0.0, qps=qps), commit=BUILDS[number].commit, round="r1"), "", 0, 0
            ),
        )
        for number, qps in ((1, 900.0), (0, 1000.0))
    ]
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=24, color_system=None)
    view = LiveScreen(console, {3: "comparison"}, now=lambda: 1101.0)
    view.show(3, [*begun, *pairs])
    shown = "\n".join(line.plain for line in view.picture(24))
    view.close()
    out = io.StringIO()
    PlainLines(out, {3: ""}).show(3, [
        (1.0, replace(TrialStarted(3, REQUEST, sample.HOST, False), request=replace(REQUEST, pairing=Pairing.AUTO, works=WORKS[:1], subjects=BUILDS[:2]))),
        *pairs, (1200.0, PairingChosen(True, "In pairs.", alone=None, beside=None)), *pairs[:1],
    ])  # fmt: skip
    told = out.getvalue().splitlines()
    assert told[0].startswith("round 1: scan, v2") and told[1] == "  run 1  900 QPS, in a pair"
    assert told[4:6] == ["In pairs. 2 runs to go.", "round 1 of 2: scan, v2\\x1b[2J"] and told[6].startswith(
        "  run 3 of 4"
    )
    assert re.search(r"● v2\S* beside ○ v1, QPS: ×0\.900 in 1 pair\n ●━+○  ×0\.900 · 900 beside 1,000", shown), shown


def test_a_resumed_trial_recalls_what_was_measured() -> None:
    out = io.StringIO()
    view = PlainLines(out, {3: ""})
    view.recall(3, events())
    assert out.getvalue() == ""
    begins = RunStarted(0, 1, 1, Purpose.ENDS, 1.0, workload=1, round=1)
    fails = CandidateSkipped(1, replace(FAILED, stage="run", reason="it crashes"), workload=1)
    resumed = TrialStarted(3, REQUEST, sample.HOST, True)
    view.show(3, [(2000.0 + place, event) for place, event in enumerate((resumed, begins, begins, fails))])
    assert out.getvalue().splitlines() == [
        "continuing c3, which has 4 runs",
        "round 2 of 2: write, v1",
        r"warning: v2\x1b[2J fails in write: it crashes. See build.log.",
    ]
