"""`--slow-after` on the command line: what is refused, and the words for what it found."""

import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfbisect.cli.commands.run import run
from perfbisect.core.domain.orders import Interval
from perfbisect.core.domain.settings import Policy, Settings
from perfbisect.errors import UsageError
from perfbisect.hunt.resolve import resolve_settings
from perfbisect.wording.quantities import between, middle, ratio, slower_than
from perfbisect.wording.verdicts import effect

WORDS = ["v1", "v2", "--build", "make", "--run", "./bench"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--slow-after", "1"], "'1' is not above 1"),
        (["--slow-after", "nan"], "'nan' is not above 1"),
        (["--slow-after", "inf"], "'inf' is not above 1"),
        (["--slow-after", "5x"], "'5x' is not a number"),
        (["--slow-after", "5", "--all"], "--slow-after and --all exclude each other"),
    ],
)
def test_what_makes_no_sense_is_a_mistake_in_usage(options: list[str], says: str) -> None:
    done = CliRunner().invoke(run, [*WORDS, *options])
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())


def test_a_metric_without_a_bound_is_refused(tmp_path: Path) -> None:
    settings = Settings(
        "v1", "v2", str(tmp_path), "sqlite", "update-index", "local", metric="p95", policy=Policy(slow_after=5.0)
    )
    with pytest.raises(UsageError, match="--slow-after cannot be used with p95 of workload update-index"):
        resolve_settings(settings)


@pytest.mark.parametrize(
    ("interval", "metric", "short", "words"),
    [
        (Interval(0.0, 0.2, 0.204), "qps", "<0.204", "at least 4.90 times slower"),
        (Interval(4.92, 5.0, math.inf), "latency", ">4.920", "at least 4.92 times slower"),
        (Interval(4.92, 5.0, math.inf), "qps", ">4.920", "at least 4.92 times faster"),
        (Interval(0.0, 0.2, 0.204), "latency", "<0.204", "at least 4.90 times faster"),
    ],
)
def test_a_ratio_with_one_end(interval: Interval, metric: str, short: str, words: str) -> None:
    assert ratio(interval) == between(interval) == middle(interval) == short
    assert effect(interval, metric) == words


def test_a_ratio_with_two_ends_is_as_before() -> None:
    known = Interval(0.7, 0.71, 0.72)
    assert (ratio(known), middle(known), effect(known, "qps")) == ("0.710 (0.700–0.720)", "0.710", "a drop of 29 %")
    assert slower_than(5.0, 12.0) == "slower than 5 × good (stopped after 12 s)"
