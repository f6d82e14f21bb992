"""The lines of a series: levels from rounds, gaps, and what is to be hunted."""

import math
import random

import pytest

from perfbisect.core.domain.policy import Direction
from perfbisect.core.domain.trials import order
from perfbisect.core.stats.change_points import RATE
from perfbisect.core.stats.release_series import fitted, hunts_of, is_worse, line_of, lines_of
from sample_series import series


def test_a_round_has_every_release_once_and_its_turn_back_reverses_it() -> None:
    there, back, further = (list(order(range(20), turn, shuffled=True)) for turn in (0, 1, 2))
    assert sorted(there) == list(range(20))
    assert back == there[::-1]
    assert there not in (further, list(range(20)))


def test_drift_of_the_machine_is_not_in_the_levels_and_a_gap_is_bridged() -> None:
    trial = series({"scan": ((9, -0.2),)}, gaps=(0, 8), lost=((0, 5), (3, 12)))
    scan, *others = lines_of(trial)
    assert [number for number, ratio in enumerate(scan.ratios) if ratio is None] == [0, 8]
    assert scan.ratios[1] == 1
    assert all(ratio == pytest.approx(1 if number < 9 else math.exp(-0.2), rel=0.03) for number, ratio in enumerate(scan.ratios) if ratio)  # fmt: skip
    [step] = scan.steps
    assert (step.first, step.before, step.after, step.last) == (7, 7, 9, 9)
    assert step.size.low < math.exp(-0.2) < step.size.high
    assert not any(line.steps for line in others)
    assert scan.error == pytest.approx(0.005, rel=0.3)


def test_the_error_of_a_level_needs_two_rounds() -> None:
    level, error = fitted({0: {0: 1.0}, 1: {0: 2.0}})
    assert level == {0: 1.0, 1: 2.0}
    assert error is None
    assert fitted({}) == ({}, None)
    exact = {release: {number: 0.1 * release + 5 * number for number in range(3)} for release in range(4)}
    level, error = fitted(exact)
    assert error == pytest.approx(0, abs=1e-9)
    assert level[3] - level[1] == pytest.approx(0.2)


def test_steps_at_one_place_are_one_hunt_and_changes_for_the_worse_come_first() -> None:
    trial = series({"scan": ((5, -0.1), (12, 0.4)), "update-index": ((5, -0.2),), "point-query": ((16, -0.15),)})
    found = hunts_of(lines_of(trial), "qps")
    assert [(hunt.good, hunt.bad, hunt.direction, hunt.works) for hunt in found] == [
        (4, 5, Direction.DROP, ("scan", "update-index")),
        (15, 16, Direction.DROP, ("point-query",)),
        (11, 12, Direction.RISE, ("scan",)),
    ]
    assert found[0].least == pytest.approx(0.1, abs=0.02)


def test_a_rise_is_worse_where_the_metric_is_a_cost() -> None:
    [step] = lines_of(series({"scan": ((5, -0.1),)}))[0].steps
    assert is_worse(step, "qps")
    assert not is_worse(step, "cpu/o")


def test_a_series_of_failures() -> None:
    trial = series({}, gaps=tuple(range(20)))
    assert all(line.steps == () and line.scatter is None and not any(line.ratios) for line in lines_of(trial))


@pytest.mark.slow
@pytest.mark.calibration
def test_a_machine_that_is_slow_for_some_minutes_makes_no_step() -> None:
    """Phases of the length of five visits, one in five of them, 5 % slow. In the order of versions they would be steps."""
    false = dict.fromkeys((True, False), 0)
    chance = random.Random(11)
    for shuffled in false:
        for _ in range(150):
            visits: dict[int, dict[int, float]] = {release: {} for release in range(20)}
            for number in range(4):
                phases = [0.05 * (chance.random() < 0.2) for _ in range(4)]
                for place, release in enumerate(order(range(20), number, shuffled=shuffled)):
                    visits[release][number] = chance.gauss(0, 0.005) - phases[place // 5]
            false[shuffled] += bool(line_of("scan", visits, 20, RATE).steps)
    assert false[True] / 1.5 <= 5
    assert false[False] / 1.5 > 5, "or this test could not fail"
