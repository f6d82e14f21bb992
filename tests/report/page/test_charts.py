import re
from dataclasses import replace

import numpy as np
import pytest

import sample_hunt as sample
from perfbisect.core.domain.orders import UNKNOWN, Interval
from perfbisect.report.page import intervals, posterior, seconds
from perfbisect.report.page.posterior import Narrowing, Range


def test_a_scale_of_ratios_holds_one_and_all_ends() -> None:
    scale = intervals.scale_of([Interval(0.7, 0.72, 0.75), Interval(1.01, 1.05, 1.2)])
    assert (scale.low < 0.7, scale.high > 1.2) == (True, True)
    assert intervals.scale_of([]).low < 1 < intervals.scale_of([]).high
    assert intervals.scale_of([Interval(1e-300, 1e-200, 1e300)]).high < 100


def test_an_interval_is_a_line_with_a_dot() -> None:
    scale = intervals.scale_of([Interval(0.5, 0.6, 0.7)])
    drawing = intervals.row(Interval(0.5, 0.6, 0.7), scale, "bad")
    assert 'aria-label="0.600 (0.500–0.700)"' in drawing
    assert '<g class="bad">' in drawing
    [start] = re.findall(r'<line x1="([\d.]+)%" x2="[\d.]+%" y1="11" y2="11" class="interval">', drawing)
    [dot] = re.findall(r'<circle cx="([\d.]+)%"', drawing)
    assert 0 < float(start) < float(dot) < 100


@pytest.mark.parametrize("interval", [Interval(0.0, 0.2, 0.2), Interval(4.0, 5.0, float("inf")), None, UNKNOWN])
def test_a_bound_has_no_dot(interval: Interval | None) -> None:
    drawing = intervals.row(interval, intervals.scale_of([Interval(0.2, 1.0, 5.0)]))
    assert ("<circle" in drawing) is (interval is UNKNOWN)


def test_the_credible_span_is_that_of_the_mass() -> None:
    culprit = np.array([0.0, 0.01, 0.5, 0.2, 0.26, 0.02, 0.01])
    assert posterior.credible(culprit) == (2, 4)
    assert posterior.credible(np.array([0.0, 1.0])) == (1, 1)


def test_the_posterior_has_a_bar_for_what_is_probable() -> None:
    culprit = np.zeros(11)
    culprit[[4, 8]] = 0.03, 0.97
    tested = {8: (sample.COMMITS[8], "culprit"), 4: (sample.COMMITS[4], "skipped")}
    drawing = posterior.posterior(Range(11, tested), [Narrowing(np.full(11, 1 / 11), (0, 10)), Narrowing(culprit, ())])
    assert drawing.count("<rect") == 2
    assert drawing.count('class="span"') == 2
    assert "Check the key order of a page after each update: 97 %" in drawing
    assert "×" in drawing


def test_a_long_range_and_a_long_search_are_drawn_in_a_bounded_size() -> None:
    culprit = np.full(20_000, 1 / 20_000)
    drawing = posterior.posterior(Range(20_000, {}), [Narrowing(culprit, (5,))] * 500)
    assert drawing.count("<rect") == posterior.WIDEST
    assert drawing.count('class="span"') == posterior.STEPS
    assert len(drawing) < 100_000


def test_runs_of_both_sides_are_in_order_of_time() -> None:
    runs = [sample.run(number, 100.0 - number) for number in range(4)]
    timed = seconds.by_second([("parent", runs[:2]), ("culprit", runs[2:])], lambda run: run.qps)
    assert [run.side for run in timed] == ["culprit", "culprit", "parent", "parent"]
    assert timed[0].values == runs[3].samples


def test_runs_without_seconds_are_one_value_each() -> None:
    short = replace(sample.run(0, 1.0), samples=(3.0,))
    timed = seconds.by_second([("parent", [short]), ("culprit", [sample.run(1, 2.0)])], lambda run: run.qps)
    assert [run.values for run in timed] == [(short.qps,), (20_000.0,)]
    drawing = seconds.timeline(timed, "QPS")
    assert drawing.count("<circle") == 2
    assert "<polyline" not in drawing


def test_long_runs_are_averaged() -> None:
    values = tuple(float(number) for number in range(1000))
    found = seconds.averaged(values)
    assert len(found) == seconds.POINTS
    assert sum(found) / len(found) == pytest.approx(sum(values) / len(values))
    assert list(found) == sorted(found)


def test_lines_stay_inside_the_drawing() -> None:
    run = seconds.Timed("parent", (10.0, 20.0, 15.0))
    drawing = seconds.timeline([run, replace(run, side="culprit")], "QPS")
    points = [
        tuple(map(float, pair.split(","))) for one in re.findall(r'points="([^"]*)"', drawing) for pair in one.split()
    ]
    assert len(points) == 6
    assert all(0 <= x <= 100 and 0 <= y <= seconds.HEIGHT for x, y in points)
