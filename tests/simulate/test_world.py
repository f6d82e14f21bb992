"""The simulated lab: its noise has the stated size, and each search rule gets the same noise."""

import math
from typing import Any

import numpy as np
import pytest
from duet.worlds import WORLDS, Cell, noise_of_pairs, one

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Measure, PlannedRuns, Purpose
from perfbisect.core.inference.observations import Built, Observation, Reading, Skipped
from perfbisect.simulate.host_model import DAY, Drift, HostModel, HostSpeed, random_generator
from perfbisect.simulate.host_model import RandomDraw as Draw
from perfbisect.simulate.scenario import Scenario
from perfbisect.simulate.world import World, world_host_number

LINE = Graph.straight_history(20)
STILL = HostModel(noise=0.0, layout=0.0, outliers=0.0)


def order(*plan: tuple[int, int]) -> Measure:
    return Measure(tuple(PlannedRuns(*share) for share in plan), Purpose.SEARCH)


def readings(seen: list[Observation]) -> list[Reading]:
    return [each for each in seen if isinstance(each, Reading)]


def test_nth_run_of_a_build_does_not_depend_on_other_runs() -> None:
    habits = HostModel(second_speed=(0.3, -0.04), outliers=0.2)
    mine, other = (World(LINE, {7: -0.1}, habits, seed=5) for _ in range(2))
    first = [mine.run(9) for _ in range(6)]
    for v in (0, 20, 3, 3, 3):
        other.run(v)
    assert [other.run(9) for _ in range(6)] == first
    assert len(set(first)) == 6
    assert World(LINE, {7: -0.1}, habits, seed=6).run(9) not in first


def test_drift_depends_only_on_time() -> None:
    habits = HostModel(drift=0.05, jumps=(1 / 600, 0.1), phases=(0.4, -0.1, 300), daily=0.1, ramp=0.1)
    times = np.sort(np.random.default_rng(0).uniform(0, 50_000, 200)).tolist()
    ahead, back, other = HostSpeed(habits, 3, 0), HostSpeed(habits, 3, 0), HostSpeed(habits, 3, 1)
    assert [*map(ahead.value_at, times)] == [*map(back.value_at, times[::-1])][::-1]
    assert other.value_at(100) != back.value_at(100)


def test_drift_has_the_stated_deviation_and_autocorrelation() -> None:
    drift = Drift(random_generator(1, Draw.DRIFT), memory=100.0)
    path = np.array([drift.value_at(10.0 * i) for i in range(10_000)])
    assert path.std() == pytest.approx(1, abs=0.1)
    assert np.corrcoef(path[:-10], path[10:])[0, 1] == pytest.approx(math.exp(-1), abs=0.1)


def test_ramp_is_linear_and_daily_change_repeats_after_a_day() -> None:
    for habits, gap, change in ((HostModel(ramp=0.03), 7200.0, 0.06), (HostModel(daily=0.05), DAY, 0.0)):
        course = HostSpeed(habits, 2, 0)
        assert abs(course.value_at(1000 + gap) - course.value_at(1000)) == pytest.approx(change)
        assert course.value_at(1000 + gap / 3) != pytest.approx(course.value_at(1000), abs=1e-4)


def runs(count: int, candidate: int = 4, **habits: Any) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Runs of one build."""
    world = World(LINE, {7: -0.1}, HostModel(noise=0.01, layout=0.0, **habits), seed=1)
    return np.array([world.run(candidate) for _ in range(count)])


def test_outliers_and_second_speeds_have_the_stated_frequency() -> None:
    values = runs(2000, outliers=0.1, second_speed=(0.3, -1.0))
    assert (values < -0.9).mean() == pytest.approx(0.3, abs=0.03)
    assert (values[values > -0.5] < -0.035).mean() == pytest.approx(0.1 * 0.73, abs=0.03)
    values = runs(2000, outliers=0.4, lucky=0.5)
    assert [(values > 0.04).mean(), (values < -0.04).mean()] == pytest.approx([0.2 * 0.69] * 2, abs=0.05)


def test_slow_builds_can_be_noisier() -> None:
    fast, slow = (runs(300, candidate, slow_noise=4, outliers=0.0).std() for candidate in (3, 9))
    assert slow / fast == pytest.approx(4, rel=0.2)


def test_order_yields_a_build_and_readings_with_times() -> None:
    world = World(LINE, {7: -0.1}, STILL)
    seen = world.measure(order((9, 2)))
    assert seen[0] == Built(9, 600.0, None, 0)
    assert [(each.candidate, each.value, each.at) for each in readings(seen)] == [(9, -0.1, 10.5), (9, -0.1, 11.5)]
    assert [type(each) for each in world.measure(order((9, 1)))] == [Reading]
    assert (world.builds, world.runs, world.now) == (1, 3, 780.0)


def test_unbuildable_and_crashing_candidates_are_skipped() -> None:
    world = World(LINE, {7: -0.1}, unbuildable=frozenset({5}), crashing=frozenset({6}))
    assert world.measure(order((5, 2), (0, 2))) == [Skipped(5, "does not build", 600.0)]
    assert world.measure(order((6, 2))) == [Built(6, 600.0, None, 0), Skipped(6, "crashes", 60.0)]
    assert (world.run(5), world.runs) == (None, 1)


def test_flaky_build_may_succeed_when_repeated() -> None:
    tries = []
    for v in range(21):
        world = World(LINE, {}, HostModel(flaky=0.5), seed=3)
        tries.append([isinstance(world.build(v), Skipped) for _ in range(3)])
    assert not any(tries[0] + tries[20]) and any(first and not second for first, second, _ in tries)
    assert 4 < sum(first for first, *_ in tries[1:20]) < 16


def test_equal_binaries_are_known_once_both_are_built() -> None:
    world = World(LINE, {7: -0.1}, HostModel(noise=0.01), binaries={4: 3, 5: 3})
    assert [world.build(v) for v in (5, 4)] == [Built(5, 600.0, None, 0), Built(4, 600.0, 5, 0)]
    assert world.level(4) == world.level(5) == world.level(3) != world.level(6)


def test_build_near_another_build_is_cheap() -> None:
    world = World(LINE, {}, HostModel(cached_share=0.1, cache_reach=10.0))
    assert [made.seconds for v in (0, 20, 19, 15) if (made := world.build(v))] == pytest.approx([600, 600, 120, 300])
    assert world.build_seconds == pytest.approx({0: 600, 20: 600, 19: 120, 15: 300})


def test_each_host_builds_for_itself() -> None:
    world = World(LINE, {}, HostModel(cached_share=0.1, cache_reach=10.0), binaries={4: 3})
    assert world.build(3, host=0) == Built(3, 600.0, None, 0)
    for until in (100, 50):
        world.wait(2, until)
    assert [*map(world.clock, range(3))] == [600.0, 0.0, 100], "hosts have clocks of their own"
    assert world.build(4, host=1) == Built(4, 600.0, None, 1)  # with an empty cache, and no binary to compare with
    assert world.build(3, host=1) == Built(3, pytest.approx(120), 4, 1)
    assert (world.build(3, host=0), world.builds) == (None, 3)


def test_build_host_has_own_clock_and_cache_and_builds_for_all_hosts() -> None:
    world = World(LINE, {}, HostModel(cached_share=0.1, cache_reach=10.0), binaries={4: 3})
    assert world.build(3, world_host_number(0)) == Built(3, 600.0, build_host=0)
    assert world.build(4, world_host_number(1)) == Built(4, 600.0, build_host=1)  # the build of 3 is not shared yet
    assert world.clock() == 0.0 and world.clock(world_host_number(0)) == 600.0 and world.now == 0.0
    world.add_build_for_all_hosts(3)
    assert world.build(3) is world.build(3, host=1) is None and world.unused_builds == 1
    world.run(3)
    assert world.unused_builds == 0
    world.cancel(4, 1, unspent_seconds=200.0)
    assert (world.cancelled, world.clock(world_host_number(1)), world.build_seconds[4]) == (1, 400.0, 400.0)
    assert world.build(4, world_host_number(1)) == Built(4, 600.0, 3, build_host=1)


def test_runs_of_a_visit_share_the_effect_of_the_visit() -> None:
    world = World(LINE, {7: -0.1}, HostModel(noise=0.001, layout=0.0, outliers=0.0, visits=0.05), seed=1)
    visits: dict[int, list[float]] = {}
    for seen in (seen for _ in range(40) for seen in readings(world.measure(order((3, 2), (9, 2))))):
        visits.setdefault(seen.visit, []).append(seen.value + 0.1 * (seen.candidate == 9))
    assert [len(values) for values in visits.values()] == [1, 2, 1] * 40
    assert np.std([np.mean(values) for values in visits.values()]) == pytest.approx(0.05, rel=0.2)
    assert max(np.ptp(values) for values in visits.values()) < 0.01
    alone = [World(LINE, {}, world.habits, seed=s).run(3) for s in range(100)]
    assert np.std(alone) == pytest.approx(0.05, rel=0.3)


def test_right_culprits_are_the_largest_drops() -> None:
    ranges: list[dict[int, float]] = [{}, {3: 0.1}, {3: -0.1, 5: -0.07}, {3: -0.1, 4: 0.1, 5: -0.1}]
    assert [World(LINE, steps).right_culprits for steps in ranges] == [set(), set(), {3}, {3, 5}]


def test_each_run_with_a_fresh_layout_has_a_different_layout() -> None:
    habits = HostModel(noise=0.0, layout=0.02, outliers=0.0, run_seconds=60, link_seconds=6)
    mine, other = (World(LINE, {}, habits, mode_gap=0.2, slow_modes=frozenset({7}), seed=3) for _ in range(2))
    fresh = Measure((PlannedRuns(7, 20), PlannedRuns(8, 1)), Purpose.CONFIRM, fresh=True)
    seen = sorted(readings(mine.measure(fresh)), key=lambda each: each.candidate)
    assert [each.layout for each in seen] == [*range(1, 21), 1]
    values = [each.value for each in seen[:20]]
    assert len({*values}) == len({each.visit for each in seen[:20]}) == 20
    assert 3 <= sum(value < -0.1 for value in values) <= 17  # in the slow mode
    assert {each.seconds for each in seen} == {66}
    assert (mine.links, mine.clock()) == (21, 2 * habits.build_seconds + 21 * 66)
    usual = readings(other.measure(Measure((PlannedRuns(7, 3), PlannedRuns(8, 3)), Purpose.CONFIRM)))
    assert {(each.candidate, each.value) for each in usual} == {(v, other.level(v)) for v in (7, 8)}
    assert other.level(8) - other.level(7) > 0.1
    assert [other.level(7, n) for n in range(1, 21)] == pytest.approx(values)


def test_layout_modes_switch_along_the_history() -> None:
    worlds = [
        Scenario(Graph.straight_history(5000), habits=HostModel(modes=(0.1, 0.25))).world(seed) for seed in range(4)
    ]
    for world in worlds:
        switches = sum((v in world.slow_modes) != (v - 1 in world.slow_modes) for v in range(1, 5001))
        assert 0.1 <= world.mode_gap <= 0.25 and 15 <= 5000 / max(switches, 1) <= 300
    assert len({world.mode_gap for world in worlds}) == 4
    assert not Scenario(Graph.straight_history(50)).world(1).slow_modes


# Paired runs, in the simulated worlds of benchmarks/duet.


BOTH = (PlannedRuns(20, 200), PlannedRuns(0, 200))


@pytest.mark.calibrate
@pytest.mark.calibration
@pytest.mark.parametrize("world", [
    "noise 10 %, own 0.3 %", "own noise five times the common", "twice the effect", "drift and jumps", "code moves, noise 30 %",
])  # fmt: skip
def test_paired_hunts_are_right_and_name_nothing_in_unchanged_ranges(world: str) -> None:
    for seed in (1, 2):
        changed, empty = one(Cell(world, True), seed), one(Cell(world, False), seed)
        assert (changed["named"], changed["judged"]) == (True, "right"), changed
        assert changed["together"] is not world.startswith("own"), changed
        assert not empty["named"], empty


def test_noise_of_ten_pairs_has_the_expected_size() -> None:
    usual, starved = (noise_of_pairs(HostModel(own_noise=0.01, layout=0.0, starved=(x, x / 10))) for x in (0.0, 1.0))
    assert usual == pytest.approx(0.01 * math.sqrt(2 / 10), rel=0.02) and starved > 5 * usual
    assert all(noise_of_pairs(Cell(world, True).habits) < 0.03 for world in WORLDS)


def test_cpu_time_excludes_lack_of_cores_and_waiting_time() -> None:
    habits = HostModel(
        noise=0.0, own_noise=0.001, layout=0.0, outliers=0.0, starved=(1.0, 0.05), waits=0.05, stalls=0.5
    )
    world = World(Graph.straight_history(20), {7: -0.1}, habits, seed=5)
    rounds = readings(world.measure(Measure(BOTH, Purpose.ENDS, together=True)))
    values, cpu = (np.array([getattr(each, name) for each in rounds]) for name in ("value", "cpu_value"))
    assert (values.std(), cpu.std()) == pytest.approx((0.05, 0.0014), rel=0.2)
    assert cpu.mean() == pytest.approx(-0.05, abs=0.001)
    turns = readings(world.measure(Measure(BOTH, Purpose.ENDS)))
    least = {end: min(each.log_wait for each in turns if each.candidate == end) for end in (0, 20)}
    assert least[20] - least[0] == pytest.approx(0.05, abs=0.003)
    assert [each.cpu_value for each in turns if each.candidate == 20] == pytest.approx([-0.05] * 200)
    plain = World(Graph.straight_history(20), {7: -0.1}, HostModel(), seed=5).measure(Measure(BOTH, Purpose.ENDS))
    assert {each.cpu_value for each in readings(plain)} == {None}
