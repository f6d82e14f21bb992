"""The line of a watched branch: which tips are measured again, and which steps are hunted when."""

import math
import random

import pytest

from perfbisect.core.stats.release_series import RATE, Line, fitted, is_worse
from perfbisect.core.stats.watched_branch import BLOCK, ROUNDS, Branch, branch_line, companions

Visits = dict[int, dict[int, float]]


def night(visits: Visits, levels: list[float], chance: random.Random, noise: float = 0.005) -> None:
    """Measure the next tip in five rounds."""
    tip = len(visits)
    visits[tip] = {}
    for number in range(5):
        machine = chance.gauss(0, 0.1)
        for each in (*companions(range(tip)), tip):
            visits[each][tip * ROUNDS + number] = levels[each] + machine + chance.gauss(0, noise)


def line_of(levels: list[float], noise: float = 0.005, seed: int = 1) -> Line:
    """The line after a night for each of these levels."""
    visits, chance = Visits(), random.Random(seed)
    for _ in levels:
        night(visits, levels, chance, noise)
    return branch_line("scan", visits, len(levels), RATE)


def drops(line: Line, *searched: tuple[int, int]) -> list[tuple[int, int]]:
    found = Branch((), (line,)).drops("qps", 0.02, [(0, *ends) for ends in searched])
    return [(each.first, each.last) for each in found]


def test_each_tip_is_measured_with_the_latest_and_with_the_first_of_its_block() -> None:
    assert [companions(range(count)) for count in (0, 1, 2, 3, 9)] == [[], [0], [1, 0], [2, 0, 1], [8, 0, 7]]
    assert companions(range(BLOCK)) == [BLOCK - 1, 0, BLOCK - 2], "blocks are joined"
    assert companions(range(BLOCK + 9)) == [BLOCK + 8, BLOCK, BLOCK + 7]


def test_levels_are_those_of_least_squares_however_nights_are_joined() -> None:
    """Sixty nights of a machine that drifts by 10 %: what is left is far below that, from one end of the line to the other."""
    levels = [0.01 * math.sin(tip) for tip in range(60)]
    visits, chance = Visits(), random.Random(3)
    for _ in levels:
        night(visits, levels, chance)
    found, error = fitted(visits)
    assert error == pytest.approx(0.005 / math.sqrt(5), rel=0.2)
    rest = [found[tip] - found[0] - levels[tip] + levels[0] for tip in found]
    assert max(map(abs, rest)) < 0.015


def test_a_clear_drop_of_the_newest_tip_is_hunted_at_once_and_a_small_one_later() -> None:
    fresh = [0.0] * 5 + [-0.1]
    assert drops(line_of(fresh)) == [(4, 5)], "although too few tips are known for the law of a series"
    assert drops(line_of([0.0] * 30 + [-0.1])) == [(29, 30)]
    chance = random.Random(16)
    scattered = [chance.gauss(0, 0.01) for _ in range(24)]
    small = [x - 0.04 * (tip >= 14) for tip, x in enumerate(scattered)]
    assert drops(line_of(small[:15])) == []
    [(first, last)] = drops(line_of(small))
    assert first < 14 <= last


def test_many_changes_in_few_nights_are_no_scatter() -> None:
    rates = [1, 0.8, 0.8, 1.0, 1.0, 0.85, 1.02, 0.76]
    line = line_of([math.log(rate) for rate in rates])
    assert drops(line) == [(0, 1), (4, 5), (6, 7)]
    better = [(step.before, step.after) for step in line.steps if not is_worse(step, "qps")]
    assert better == [(2, 3), (5, 6)]


def test_what_was_searched_for_nothing_is_not_hunted_again() -> None:
    line = line_of([0.0] * 12 + [-0.1] * 4)
    assert drops(line) == [(11, 12)]
    assert drops(line, (10, 12)) == []
    assert drops(line, (11, 13)) == []
    assert drops(line, (8, 11)) == [(11, 12)]


@pytest.mark.calibrate
@pytest.mark.calibration
def test_few_hunts_are_begun_for_nothing() -> None:
    """benchmarks/series/results.md has more of them: 3 of 1,000 nights where layouts scatter by 1 %."""
    begun, chance = 0, random.Random(7)
    for seed in range(8):
        levels = [chance.gauss(0, 0.01) for _ in range(60)]
        visits, noise, searched = Visits(), random.Random(seed), list[tuple[int, int]]()
        for _ in levels:
            night(visits, levels, noise, 0.01)
            searched += (found := drops(branch_line("scan", visits, len(visits), RATE), *searched))
            begun += len(found)
    assert begun <= 8
