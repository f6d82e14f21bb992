"""Hunts that may compare two builds at the same time, in the simulated worlds of their benchmark."""

import math

import numpy as np
import pytest
from duet.worlds import WORLDS, Cell, noise_of_pairs, one

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Measure, Purpose, Share
from perfbisect.core.inference.observations import Observation, Reading
from perfbisect.simulate.host_model import Habits
from perfbisect.simulate.world import World

BOTH = (Share(20, 200), Share(0, 200))


@pytest.mark.calibrate
@pytest.mark.calibration
@pytest.mark.parametrize(
    "world",
    [
        "noise 10 %, own 0.3 %",
        "own noise five times the common",
        "twice the effect",
        "drift and jumps",
        "code moves, noise 30 %",
    ],
)
def test_what_is_named_is_right_and_no_empty_range_is_accused(world: str) -> None:
    for seed in (1, 2):
        changed, empty = one(Cell(world, True), seed), one(Cell(world, False), seed)
        assert (changed["named"], changed["judged"]) == (True, "right"), changed
        assert changed["together"] is not world.startswith("own"), changed
        assert not empty["named"], empty


def test_the_noise_of_ten_pairs() -> None:
    usual = noise_of_pairs(Habits(own_noise=0.01, layout=0.0, starved=(0.0, 0.0)))
    assert usual == pytest.approx(0.01 * math.sqrt(2 / 10), rel=0.02)
    assert noise_of_pairs(Habits(own_noise=0.01, layout=0.0, starved=(1.0, 0.1))) > 5 * usual
    assert all(noise_of_pairs(Cell(world, True).habits) < 0.03 for world in WORLDS)


def readings(seen: list[Observation]) -> list[Reading]:
    return [each for each in seen if isinstance(each, Reading)]


def test_cpu_time_does_not_show_what_the_cores_give_nor_what_a_build_waits() -> None:
    habits = Habits(noise=0.0, own_noise=0.001, layout=0.0, outliers=0.0, starved=(1.0, 0.05), waits=0.05, stalls=0.5)
    world = World(Graph.line(20), {7: -0.1}, habits, seed=5)
    rounds = readings(world.measure(Measure(BOTH, Purpose.ENDS, together=True)))
    values, cpu = (np.array([getattr(each, name) for each in rounds]) for name in ("value", "cpu"))
    assert values.std() == pytest.approx(0.05, rel=0.2)
    assert cpu.std() == pytest.approx(0.0014, rel=0.2)
    assert cpu.mean() == pytest.approx(-0.05, abs=0.001)
    turns = readings(world.measure(Measure(BOTH, Purpose.ENDS)))
    least = {end: min(each.waits for each in turns if each.candidate == end) for end in (0, 20)}
    assert least[20] - least[0] == pytest.approx(0.05, abs=0.003)
    assert [each.cpu for each in turns if each.candidate == 20] == pytest.approx([-0.05] * 200)
    plain = World(Graph.line(20), {7: -0.1}, Habits(), seed=5).measure(Measure(BOTH, Purpose.ENDS))
    assert {each.cpu for each in readings(plain)} == {None}
