"""What the instructions of both ends show beside their time."""

from dataclasses import replace

import pytest

from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.orders import SAME, UNKNOWN, Inconclusive, Interval, NotReproduced, Reason, Verdict
from perfbisect.core.domain.settings import COUNTED, Policy
from perfbisect.core.inference.metric_choice import indistinct, shown_by
from perfbisect.lab.measure import perf

USUAL = Policy(min_counted=COUNTED)
VARIES = (1.06, 0.95, 1.0)


def runs(*instructions: float, counted: str = "valgrind-3.19.0", operations: int = 1000) -> list[RunFacts]:
    """Runs that executed so many instructions for each operation."""
    return [
        RunFacts("c", "key", str(number), "host", 100.0 * number, 10.0, operations, {}, (), {"instructions": each * operations},
                 {}, counted=counted)
        for number, each in enumerate(instructions)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("added", "time", "metric", "hunted"),
    [
        pytest.param(0.010, (0.97, 1.00, 1.03), "latency", True, id="time shows nothing"),
        pytest.param(0.010, (0.60, 1.00, 1.60), "latency", True, id="time says nothing"),
        pytest.param(0.010, (0.60, 1.00, 1.60), "qps", True, id="a rate says nothing"),
        pytest.param(0.010, (1.005, 1.02, 1.035), "latency", True, id="as large as layouts of two builds allow"),
        pytest.param(0.010, (0.965, 0.98, 0.995), "qps", True, id="the same of a rate"),
        pytest.param(0.001, (0.97, 1.00, 1.03), "latency", False, id="no change of interest"),
        pytest.param(-0.010, (0.97, 1.00, 1.03), "latency", False, id="fewer"),
        pytest.param(0.003, (0.995, 1.00, 1.015), "latency", True, id="few, and time excludes a change of interest"),
        pytest.param(0.003, (0.995, 1.02, 1.05), "latency", False, id="few, and time may hide another change"),
        pytest.param(0.003, (1.03, 1.05, 1.07), "latency", False, id="time shows another change"),
        pytest.param(0.010, (0.93, 0.95, 0.97), "qps", False, id="a rate shows another change"),
        pytest.param(0.010, (0.93, 0.95, 0.97), "latency", False, id="time gets better"),
        pytest.param(0.010, (1.03, 1.05, 1.07), "qps", False, id="a rate gets better"),
    ],
)
def test_more_instructions_are_hunted_where_they_may_be_all_that_time_shows(
    added: float, time: tuple[float, float, float], metric: str, *, hunted: bool
) -> None:
    shown = shown_by(runs(1000.0, 1000.0), runs(*[1000.0 * (1 + added)] * 2))
    assert shown and shown.exact
    assert (shown.clear and shown.large(USUAL) and shown.explains(Interval(*time), metric, USUAL)) is hunted


def test_the_smallest_change_that_was_asked_for_holds_for_counts_too() -> None:
    shown = shown_by(runs(1000.0), runs(1012.0))
    assert shown and shown.clear and not shown.large(Policy(min_effect=0.02)) and shown.large(Policy(min_effect=0.01))


def test_a_program_that_does_not_repeat_what_it_does_is_not_counted() -> None:
    """As one that runs for a given time."""
    shown = shown_by(runs(1000.0, 1003.0), runs(1100.0, 1104.0))
    assert shown and not shown.clear


PERF = "{:.0f},,instructions:u,{:.0f},100.00,,\n812.31,msec,task-clock,812310000,100.00,0.801,CPUs utilized\n"


@pytest.mark.parametrize(("added", "varies", "clear"), [(0.04, 0.002, True), (0.04, 0.02, False), (0.0, 0.002, False)])
def test_instructions_of_timed_runs_are_judged_by_how_much_they_vary(
    added: float, varies: float, *, clear: bool
) -> None:
    """As perf prints them of a server, which cannot be counted exactly."""

    def timed(of: float) -> list[RunFacts]:
        printed = [PERF.format(1e6 * of * (1 + varies * each), 8e8) for each in (-1, 0.2, 0.8)]
        counters = [perf.parse(text) for text in printed]
        assert [each["instructions"] for each in counters] == [pytest.approx(1e6 * of, rel=0.05)] * 3
        return [replace(run, counters=each) for run, each in zip(runs(*VARIES, counted=""), counters, strict=True)]

    shown = shown_by(timed(1.0), timed(1 + added))
    assert shown and not shown.exact
    assert (shown.clear and shown.large(USUAL)) is clear


def test_too_few_or_none_show_nothing() -> None:
    timed = runs(1000.0, 1001.0, counted="")
    assert shown_by(timed, timed) is shown_by(runs(1000.0), []) is shown_by([], []) is None
    blank = [replace(run, counters={}) for run in runs(*VARIES, counted="")]
    assert shown_by(blank, blank) is None


WIDE = Interval(0.9, 1.0, 1.1)


@pytest.mark.parametrize(
    ("verdict", "ratio"),
    [
        (NotReproduced(WIDE, 0.05), WIDE),
        (NotReproduced(SAME, 0.0), None),  # one binary
        (Inconclusive((1, 2), (0.5, 0.4), WIDE, Reason.TOO_NOISY), WIDE),
        (Inconclusive((1, 2), (0.5, 0.4), WIDE, Reason.RUNS_SPENT), None),
        (Inconclusive((), (), UNKNOWN, Reason.BAD_UNMEASURABLE), None),
        (None, None),
    ],
)
def test_which_verdicts_are_asked_about(verdict: Verdict | None, ratio: Interval | None) -> None:
    assert indistinct(verdict) == ratio
