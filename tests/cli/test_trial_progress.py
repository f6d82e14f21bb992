"""How a trial is followed where there is no terminal."""

from dataclasses import replace

import pytest
from perfbisect.cli.trial_progress import Lines

import sample_hunt as sample
from perfbisect.core.domain.events import Warned


@pytest.mark.parametrize(
    ("metric", "told"),
    [("qps", "20,000 QPS"), ("p95", "1.50 ms"), ("rate", "7.20 rate"), ("instructions/o", "no instructions/o")],
)
def test_each_run_is_reported_in_the_metric_asked_for(
    metric: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Lines(metric, quiet=False)
    lines.expect(4)
    run = replace(sample.run(0, 0.0, qps=20_000), reported=7.2, latency={"p95": 1.5}, counters={})
    lines.ran(run)
    assert capsys.readouterr().err == f"  run 1 of 4  {told}\n"


def test_programs_are_reported_of_warnings_alone(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines("qps", quiet=True)
    lines.say("building")
    lines.ran(sample.run(0, 0.0))
    lines.warn(Warned("the host is busy", "Wait."))
    assert capsys.readouterr().err == "warning: the host is busy. Wait.\n"
