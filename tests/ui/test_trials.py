"""How a trial is followed where there is no terminal."""

from dataclasses import replace

import pytest

import sample_hunt as sample
from perfbisect.core.domain.events import (
    BuildStarted,
    CandidateSkipped,
    Commit,
    Event,
    RunFinished,
    RunStarted,
    TrialStarted,
    Warned,
)
from perfbisect.core.domain.facts import HostFacts, SkipFacts
from perfbisect.core.domain.orders import Purpose
from perfbisect.core.domain.settings import TrialBuild, TrialRequest, TrialType, TrialWorkload
from perfbisect.ui.trials import TrialLines

HOST = HostFacts("local", "cpu", 2, 1024, "6.1", "gcc 12")


def started(metric: str, *, resumed: bool = False) -> TrialStarted:
    builds = TrialBuild("v1", "a" * 40), TrialBuild("v2", "b" * 40, variant="lto")
    works = (TrialWorkload("scan", "all", 0.0, 1.0),)
    request = TrialRequest(TrialType.COMPARE, "demo", "", "local", metric, {}, builds, works, 2, 1)
    return TrialStarted(3, request, HOST, resumed)


def told(lines: TrialLines, events: list[Event], capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines.show(3, ((1000.0 + place, event) for place, event in enumerate(events)))
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("metric", "value"),
    [("qps", "20,000 QPS"), ("p95", "1.50 ms"), ("rate", "7.20 rate"), ("instructions/o", "no instructions/o")],
)
def test_each_step_is_said_and_each_run_is_reported_in_the_metric_asked_for(
    metric: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = replace(sample.run(0, 0.0, qps=20_000), reported=7.2, latency={"p95": 1.5}, counters={})
    events = [
        started(metric),
        BuildStarted(1, Commit("b" * 40, subject="Read ahead")),
        RunStarted(1, 1, 1, Purpose.ENDS, 1.0, round=0),
        RunFinished(1, run),
        CandidateSkipped(1, SkipFacts("b" * 40, "run", "it crashes", "log", 1.0)),
    ]
    assert told(TrialLines(), events, capsys) == [
        "building bbbbbbbbbb@lto Read ahead",
        "round 1 of 2: scan, v2",
        f"  run 1 of 4  {value}",
        "warning: v2 fails in scan: it crashes. See log.",
    ]


def test_a_sitting_counts_what_is_still_to_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    lines, runs = TrialLines(), [RunFinished(number, sample.run(0, 0.0)) for number in (0, 1)]
    lines.recall(3, ((1000.0 + place, event) for place, event in enumerate([started("qps"), *runs])))
    events = [started("qps", resumed=True), RunStarted(0, 1, 1, Purpose.ENDS, 1.0, round=1)]
    assert told(lines, events, capsys) == ["continuing c3, which has 2 runs", "round 1 of 1: scan, v1"]
    assert lines.runs == 2


def test_programs_are_told_of_warnings_alone(capsys: pytest.CaptureFixture[str]) -> None:
    events = [started("qps"), RunFinished(0, sample.run(0, 0.0)), Warned("the host is busy", "Wait.")]
    assert told(TrialLines(quiet=True), events, capsys) == ["warning: the host is busy. Wait."]
