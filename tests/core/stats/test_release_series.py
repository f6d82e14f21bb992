"""Speed lines of a series of releases or of the tips of a watched branch: levels, steps, and suggested hunts."""

import math
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perfbisect.core.domain.trials import visiting_order
from perfbisect.core.stats.release_series import (
    FEWEST,
    RATE,
    SpeedLine,
    find_steps,
    line_of_readings,
    makes_worse,
    release_levels_and_error,
    scatter_of_levels,
    speed_line,
    speed_lines,
    suggested_hunts,
)
from perfbisect.core.stats.watched_branch import BLOCK, ROUNDS, BranchLevels, line_with_jumps, tips_to_measure_again
from sample_hunt import series


def test_round_visits_each_release_once_and_next_round_reverses_order() -> None:
    there, back, further = (list(visiting_order(range(20), turn, shuffled=True)) for turn in (0, 1, 2))
    assert sorted(there) == list(range(20))
    assert back == there[::-1]
    assert there not in (further, list(range(20)))


def test_levels_exclude_drift_and_a_step_may_span_a_gap() -> None:
    trial = series({"scan": ((9, -0.2),)}, gaps=(0, 8), lost=((0, 5), (3, 12)))
    scan, *others = speed_lines(trial)
    assert [number for number, ratio in enumerate(scan.ratios) if ratio is None] == [0, 8]
    assert scan.ratios[1] == 1
    assert all(ratio == pytest.approx(1 if number < 9 else math.exp(-0.2), rel=0.03) for number, ratio in enumerate(scan.ratios) if ratio)  # fmt: skip
    [step] = scan.steps
    assert (step.first, step.before, step.after, step.last) == (7, 7, 9, 9)
    assert step.size.low < math.exp(-0.2) < step.size.high
    assert not any(line.steps for line in others)
    assert scan.error == pytest.approx(0.005, rel=0.3)


def test_the_error_of_a_level_needs_two_rounds() -> None:
    assert release_levels_and_error({0: {0: 1.0}, 1: {0: 2.0}}) == ({0: 1.0, 1: 2.0}, None)
    assert release_levels_and_error({}) == ({}, None)
    exact = {release: {number: 0.1 * release + 5 * number for number in range(3)} for release in range(4)}
    level, error = release_levels_and_error(exact)
    assert error == pytest.approx(0, abs=1e-9)
    assert level[3] - level[1] == pytest.approx(0.2)


def test_steps_at_one_place_share_a_hunt_and_worse_changes_come_first() -> None:
    trial = series({"scan": ((5, -0.1), (12, 0.4)), "update-index": ((5, -0.2),), "point-query": ((16, -0.15),)})
    found = suggested_hunts(speed_lines(trial), "qps")
    assert [(hunt.good, hunt.bad, hunt.worse, hunt.works) for hunt in found] == [
        (4, 5, True, ("scan", "update-index")),
        (15, 16, True, ("point-query",)),
        (11, 12, False, ("scan",)),
    ]
    assert found[0].smallest_change == pytest.approx(0.1, abs=0.02)
    [step] = speed_lines(series({"scan": ((5, -0.1),)}))[0].steps
    assert makes_worse(step, "qps") and not makes_worse(step, "cpu/o"), "a rise is worse if the metric is a cost"


def test_series_without_any_level_has_no_steps() -> None:
    trial = series({}, gaps=tuple(range(20)))
    assert all(line.steps == () and line.scatter is None and not any(line.ratios) for line in speed_lines(trial))


@pytest.mark.calibrate
@pytest.mark.calibration
def test_slow_phases_of_the_machine_make_no_step() -> None:
    """One in five phases of five visits is 5 % slow. Without the random order of releases, phases would be steps."""
    false = dict.fromkeys((True, False), 0)
    chance = random.Random(11)
    for shuffled in false:
        for _ in range(150):
            visits: dict[int, dict[int, float]] = {release: {} for release in range(20)}
            for number in range(4):
                phases = [0.05 * (chance.random() < 0.2) for _ in range(4)]
                for place, release in enumerate(visiting_order(range(20), number, shuffled=shuffled)):
                    visits[release][number] = chance.gauss(0, 0.005) - phases[place // 5]
            false[shuffled] += bool(speed_line("scan", visits, 20, RATE).steps)
    assert false[True] / 1.5 <= 5
    assert false[False] / 1.5 > 5, "otherwise this test could not fail"


def line(chance: random.Random, count: int, *steps: tuple[int, float], sd: float = 0.01) -> list[float]:
    """``count`` noisy levels, with ``steps``: place and size of each step."""
    return [chance.gauss(0, sd) + sum(size for place, size in steps if place <= at) for at in range(count)]


SEEDED = st.integers(0, 10**6).map(random.Random)


@given(SEEDED, st.integers(FEWEST + 2, 40), st.floats(0.08, 3.0), st.sampled_from((0.0, 0.001, 0.005)))
def test_a_large_step_is_found_where_it_is(chance: random.Random, count: int, size: float, sd: float) -> None:
    place = chance.randrange(2, count - 1)
    found = find_steps(line(chance, count, (place, chance.choice((-1, 1)) * size), sd=sd))
    assert (place - 1, place) in [(step.before, step.after) for step in found]
    for step in found:
        assert 0 <= step.first <= step.before < step.after <= step.last < count
        assert step.size.low <= step.size.middle <= step.size.high


@given(st.lists(st.floats(-3, 3), min_size=0, max_size=30), st.floats(-5, 5))
def test_steps_do_not_depend_on_the_unit_nor_on_the_direction_of_the_metric(levels: list[float], shift: float) -> None:
    usual = find_steps(levels)
    assume(all(abs(a - b) > 1e-6 or a == b for a in levels for b in levels))  # ties fall on either side
    moved, turned = find_steps([x + shift for x in levels]), find_steps([-x for x in levels])
    places = [[(step.first, step.before, step.after, step.last) for step in each] for each in (usual, moved, turned)]
    assert places[0] == places[1] == places[2]
    for one, other in zip(usual, turned, strict=True):
        assert one.size.middle * other.size.middle == pytest.approx(1)


def test_several_steps_are_found_also_if_a_step_is_undone() -> None:
    found = find_steps(line(random.Random(1), 25, (5, -0.1), (10, 0.1), (15, -0.1), (20, -0.1)))
    shown = [(step.after, round(step.size.middle, 1), step.alone) for step in found]
    assert shown == [(5, 0.9, False), (10, 1.1, False), (15, 0.9, False), (20, 0.9, False)]


def test_step_to_the_newest_release_must_be_larger_and_is_marked_alone() -> None:
    levels = [0.0, 0.004, -0.006, 0.002, -0.003, 0.005, -0.004, 0.001, -0.002, 0.003]
    assert not find_steps([*levels, -0.02])
    assert [(step.before, step.after, step.alone) for step in find_steps([*levels, -0.2])] == [(9, 10, True)]


def test_step_at_an_uncertain_place_spans_several_releases() -> None:
    levels = [0.0, 0.01, -0.01, 0.005, -0.005, 0.0, -0.03, -0.06, -0.065, -0.055, -0.07, -0.06, -0.05, -0.06]
    [step] = find_steps(levels)
    assert (step.first, step.last) == (5, 7)


def test_too_few_or_equal_levels_have_no_steps() -> None:
    assert find_steps([]) == find_steps([0.0]) == find_steps([0.0, 5.0, 5.0]) == ()
    assert find_steps([1.0] * 30) == ()
    assert scatter_of_levels([1.0] * 30) > 0
    assert not find_steps([0.0] * 10 + [0.0005] * 10), "a step of 0.05 % in exact counts is too small to hunt"
    assert find_steps([0.0] * 10 + [0.01] * 10)


@pytest.mark.parametrize("count", [8, 12, 40])
def test_scatter_of_levels_estimates_their_standard_deviation(count: int) -> None:
    chance = random.Random(count)
    squares = [scatter_of_levels(line(chance, count)) ** 2 for _ in range(500)]
    assert math.sqrt(sum(squares) / len(squares)) == pytest.approx(0.01, rel=0.06)


@pytest.mark.calibrate
@pytest.mark.calibration
@pytest.mark.parametrize("count", [10, 20, 40])
@pytest.mark.parametrize("works", [1, 6])
def test_at_most_5_of_100_tables_without_a_change_have_a_step(count: int, works: int) -> None:
    """One in 50 builds has fourfold scatter. With the threshold of one comparison, most tables would have a step."""
    chance = random.Random(count + works)

    def odd() -> list[float]:
        return [chance.gauss(0, 0.04 if chance.random() < 0.02 else 0.01) for _ in range(count)]

    tables = [[odd() for _ in range(works)] for _ in range(300)]
    assert sum(any(find_steps(levels, 0.0, RATE / works) for levels in table) for table in tables) / 3 <= 5
    assert sum(any(find_steps(levels, 0.0, 20.0) for levels in table) for table in tables) / 3 > 50


@pytest.mark.calibrate
@pytest.mark.calibration
def test_intervals_of_found_steps_contain_the_true_size_and_place() -> None:
    """For steps that are found in most series. A smaller step is found only if noise enlarges it: benchmarks/series."""
    chance = random.Random(7)
    sizes = places = announced = 0
    for _ in range(600):
        place = chance.randrange(3, 18)
        for step in find_steps(line(chance, 20, (place, -0.06))):
            if step.size.middle <= 1 and abs(step.after - place) <= 4:
                announced += 1
                places += step.first < place <= step.last
                sizes += step.size.low <= math.exp(-0.06) <= step.size.high
    assert announced > 450 and places / announced > 0.94
    assert 0.92 < sizes / announced < 0.99


# The line of a watched branch: which tips are measured again, and which steps are hunted when.


Visits = dict[int, dict[int, float]]


def night(visits: Visits, levels: list[float], chance: random.Random, noise: float = 0.005) -> None:
    """Measure the next tip in five rounds."""
    tip = len(visits)
    visits[tip] = {}
    for number in range(5):
        machine = chance.gauss(0, 0.1)
        for each in (*tips_to_measure_again(range(tip)), tip):
            visits[each][tip * ROUNDS + number] = levels[each] + machine + chance.gauss(0, noise)


def line_after(levels: list[float], noise: float = 0.005, seed: int = 1) -> SpeedLine:
    """The line after a night for each of these levels."""
    visits, chance = Visits(), random.Random(seed)
    for _ in levels:
        night(visits, levels, chance, noise)
    return line_with_jumps("scan", visits, len(levels), RATE)


def drops(line: SpeedLine, *searched: tuple[int, int]) -> list[tuple[int, int]]:
    found = BranchLevels((), (line,)).drop_ranges("qps", 0.02, [(0, *ends) for ends in searched])
    return [(each.first, each.last) for each in found]


def test_tip_is_measured_with_latest_tips_and_first_tip_of_the_block() -> None:
    assert [tips_to_measure_again(range(count)) for count in (0, 1, 2, 3, 9)] == [
        [],
        [0],
        [1, 0],
        [2, 0, 1],
        [8, 0, 7],
    ]
    assert tips_to_measure_again(range(BLOCK)) == [BLOCK - 1, 0, BLOCK - 2], "blocks share a tip"
    assert tips_to_measure_again(range(BLOCK + 9)) == [BLOCK + 8, BLOCK, BLOCK + 7]


def test_levels_after_many_nights_are_near_the_true_levels() -> None:
    """In sixty nights the machine drifts by 10 %. The errors of the levels are far smaller, over the whole line."""
    levels = [0.01 * math.sin(tip) for tip in range(60)]
    visits, chance = Visits(), random.Random(3)
    for _ in levels:
        night(visits, levels, chance)
    found, error = release_levels_and_error(visits)
    assert error == pytest.approx(0.005 / math.sqrt(5), rel=0.2)
    rest = [found[tip] - found[0] - levels[tip] + levels[0] for tip in found]
    assert max(map(abs, rest)) < 0.015


def test_clear_drop_of_newest_tip_is_hunted_at_once_and_small_drop_later() -> None:
    fresh = [0.0] * 5 + [-0.1]
    assert drops(line_after(fresh)) == [(4, 5)], "although there are too few tips to estimate the scatter"
    assert drops(line_after([0.0] * 30 + [-0.1])) == [(29, 30)]
    chance = random.Random(16)
    scattered = [chance.gauss(0, 0.01) for _ in range(24)]
    small = [x - 0.04 * (tip >= 14) for tip, x in enumerate(scattered)]
    assert drops(line_after(small[:15])) == []
    assert [first < 14 <= last for first, last in drops(line_after(small))] == [True]


def test_many_changes_in_few_nights_are_not_taken_for_scatter() -> None:
    line = line_after([math.log(rate) for rate in (1, 0.8, 0.8, 1.0, 1.0, 0.85, 1.02, 0.76)])
    assert drops(line) == [(0, 1), (4, 5), (6, 7)]
    better = [(step.before, step.after) for step in line.steps if not makes_worse(step, "qps")]
    assert better == [(2, 3), (5, 6)]


def test_range_searched_without_result_is_not_hunted_again() -> None:
    line = line_after([0.0] * 12 + [-0.1] * 4)
    assert drops(line) == drops(line, (8, 11)) == [(11, 12)]
    assert drops(line, (10, 12)) == drops(line, (11, 13)) == []


@pytest.mark.calibrate
@pytest.mark.calibration
def test_few_hunts_begin_on_a_branch_without_changes() -> None:
    """benchmarks/series/results.md has 1,000 such nights, with 3 such hunts, if layouts scatter by 1 %."""
    begun, chance = 0, random.Random(7)
    for seed in range(8):
        levels = [chance.gauss(0, 0.01) for _ in range(60)]
        visits, noise, searched = Visits(), random.Random(seed), list[tuple[int, int]]()
        for _ in levels:
            night(visits, levels, noise, 0.01)
            searched += drops(line_with_jumps("scan", visits, len(visits), RATE), *searched)
        begun += len(searched)
    assert begun <= 8


def elsewhere(chance: random.Random, count: int, alike: float, odd: float) -> list[float]:
    """Readings with autoregressive noise of 2 % (coefficient ``alike``); a share ``odd`` is 5 to 30 % too slow."""
    found, noise = [], chance.gauss(0, 0.02)
    for _ in range(count):
        noise = alike * noise + chance.gauss(0, 0.02 * math.sqrt(1 - alike**2))
        found.append(noise + (0.05 + abs(chance.gauss(0, 0.1)) if chance.random() < odd else 0.0))
    return found


@pytest.mark.calibrate
@pytest.mark.calibration
@pytest.mark.parametrize("count", [20, 50, 200])
@pytest.mark.parametrize(("alike", "odd"), [(0, 0), (0.5, 0), (0, 0.05), (0.3, 0.05), (0.5, 0.1)])
def test_external_series_has_no_step_without_a_change(count: int, alike: float, odd: float) -> None:
    chance = random.Random(count)
    found = [line_of_readings("", elsewhere(chance, count, alike, odd), RATE).steps for _ in range(300)]
    for stated in (RATE, 0.01):
        assert sum(any(step.chance <= stated for step in steps) for steps in found) <= 300 * stated + 3


@pytest.mark.calibrate
@pytest.mark.calibration
@pytest.mark.parametrize(("alike", "odd"), [(0, 0), (0.3, 0), (0, 0.05), (0.3, 0.05)])
@pytest.mark.parametrize(
    ("count", "size", "noise"), [(50, 0.05, 0.5), (100, 0.03, 0.5), (100, 0.1, 1.5), (100, 0.05, 1)]
)
def test_step_in_an_external_series_is_found(count: int, size: float, noise: float, alike: float, odd: float) -> None:
    """Steps of 3 to 10 % under noise of 1 to 3 %: found, and their intervals and places are right."""
    chance, found, sized, placed = random.Random(count + 7), 0, 0, 0
    for _ in range(200):
        place, change = chance.randrange(count // 5, count - count // 5), chance.choice((-1, 1)) * size
        readings = [noise * x + change * (at >= place) for at, x in enumerate(elsewhere(chance, count, alike, odd))]
        near = [step for step in line_of_readings("", readings, RATE).steps if abs(step.after - place) <= 8]
        if near:
            step = min(near, key=lambda step: abs(step.after - place))
            found += 1
            sized += step.size.low <= math.exp(change) <= step.size.high
            placed += step.first < place <= step.last
    assert found >= 0.75 * 200
    assert sized >= 0.93 * found and placed >= 0.93 * found


def test_outliers_are_left_out_and_autocorrelated_noise_makes_no_step() -> None:
    chance = random.Random(3)
    readings = [*line(chance, 60, (30, 0.1))]
    readings[40] += 1
    found = line_of_readings("get", readings, RATE)
    assert found.ratios[40] is None and sum(ratio is None for ratio in found.ratios) < 4
    [step] = found.steps
    assert step.before < 30 == step.after and 0 < step.chance < 0.001
    slow = [0.05 * math.sin(place / 6) + chance.gauss(0, 0.01) for place in range(100)]
    assert find_steps(slow) and not line_of_readings("get", slow, RATE).steps
